"""`toolkeep demo` and `toolkeep new-server`: how to begin."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from toolkeep.cli.ending import do, run


def register(app: typer.Typer) -> None:
    app.command()(demo)
    app.command("new-server")(new_server)


def demo() -> None:
    """See a client survive its servers, in a few seconds.

    Three servers are started on this machine and made to fail. Exit code 1 if something that is
    claimed does not hold.
    """
    from toolkeep.demo import show

    run(show)


def new_server(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="Where it is written; made if missing.")
    ] = Path("my-server"),
    name: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="What it is called. Otherwise as the folder is.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Write a starter server, with a tool that reports its progress.

    Beside it a test, an mcp.json that starts it, and a README. Nothing that is there is
    overwritten.
    """
    from toolkeep.cli.starting_files import write

    do(lambda: write(folder, name))
