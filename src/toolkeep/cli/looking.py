"""`toolkeep watch`: the servers as they are, and what happens to them, until Ctrl-C or q.

On a terminal a view that is redrawn in its place; elsewhere a line for each event.
"""

from __future__ import annotations

from typing import Annotated

import typer

from toolkeep.cli.ending import run
from toolkeep.cli.options import CommandOption, ConfigOption, HeaderOption, UrlOption


def register(app: typer.Typer) -> None:
    app.command()(watch)


def watch(
    events: Annotated[
        str | None,
        typer.Option(
            "--events",
            metavar="FILE",
            help="Another process's servers and calls, from the events that it writes there: "
            "event.to_json(), one a line. No server is opened.",
            show_default=False,
        ),
    ] = None,
    config: ConfigOption = None,
    url: UrlOption = None,
    command: CommandOption = None,
    header: HeaderOption = None,
    interval: Annotated[
        float,
        typer.Option(
            metavar="SECONDS", min=0.1, help="Between two looks at whether a server is alive."
        ),
    ] = 5.0,
    once: Annotated[bool, typer.Option("--once", help="Show how it is now, and end.")] = False,
    json: Annotated[
        bool, typer.Option("--json", help="A JSON object for each event, one a line.")
    ] = False,
) -> None:
    """Watch the servers: their health, and whatever they say and do.

    Lists that change, log messages, connections that end and come back; with --events also the
    calls of the process that writes them down. Ctrl-C or q ends it, with exit code 0.
    """
    from toolkeep.cli.place import Place

    if events is not None:
        from toolkeep.cli.looking_file import following

        given = [one for one in (config, url, command, header) if one]
        run(lambda: following(events, alone=not given, once=once, json=json), json=json)
    from toolkeep.cli.looking_loop import looking

    place = Place(config=config, url=url, command=command, headers=header or ())
    run(lambda: looking(place, interval, once=once, json=json), json=json)
