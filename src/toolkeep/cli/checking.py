"""`toolkeep check`: what can be said to the doctor. What it does is imported when it runs."""

from __future__ import annotations

from typing import Annotated

import typer

from toolkeep.cli import completing
from toolkeep.cli.ending import run
from toolkeep.cli.options import (
    CommandOption,
    ConfigOption,
    HeaderOption,
    JsonOption,
    TraceOption,
    UrlOption,
)
from toolkeep.cli.place import Place
from toolkeep.cli.screen import Screen


def register(app: typer.Typer) -> None:
    app.command()(check)


def check(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="SERVER",
            help="Only these; otherwise all that are configured.",
            autocompletion=completing.servers,
            show_default=False,
        ),
    ] = None,
    config: ConfigOption = None,
    url: UrlOption = None,
    command: CommandOption = None,
    header: HeaderOption = None,
    timeout: Annotated[
        float | None,
        typer.Option(
            "--timeout",
            metavar="SECONDS",
            min=0.001,
            help="How long each step may take: 10, and 60 for what a program does.",
            show_default=False,
        ),
    ] = None,
    trace: TraceOption = False,
    json: JsonOption = False,
) -> None:
    """Find what is wrong with a server, and what to do about it.

    Step by step, from the configuration to a ping. What fails is told with its cause and its
    remedy.
    """
    from toolkeep.cli.checkup import Checkup

    place = Place(config=config, url=url, command=command, headers=header or ())
    checkup = Checkup(place, Screen(json), names or (), timeout, trace)
    run(checkup.carry_out, json=json)
