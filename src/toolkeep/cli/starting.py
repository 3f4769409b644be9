"""`toolkeep new-server`: write a starter server."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from toolkeep.cli.ending import do


def register(app: typer.Typer) -> None:
    app.command("new-server")(new_server)


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
