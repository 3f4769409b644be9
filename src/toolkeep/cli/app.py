"""The commands and their names. Each lives in a module that is cheap to import."""

from __future__ import annotations

from typing import Annotated

import typer

from toolkeep._version import __version__
from toolkeep.cli import checking, commands, configuring, looking, starting

app = typer.Typer(
    name="toolkeep",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    # Plain text in a log and in a terminal, and half the time: rich is not imported for it.
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"toolkeep {__version__}")
        raise typer.Exit


@app.callback()
def everything(
    version: Annotated[
        bool,
        typer.Option(
            "--version", "-V", callback=_version, is_eager=True, help="Which version this is."
        ),
    ] = False,
) -> None:
    """MCP servers from the command line: look at them, call their tools, find what is wrong.

    Exit codes: 0 done, 1 it failed, 2 it was not understood, 3 it may have run, 130 interrupted.
    """


for module in (commands, checking, configuring, looking, starting):
    module.register(app)
