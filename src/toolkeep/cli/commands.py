"""The commands that look and call: what can be said to each. What they do is imported when they
run.
"""

from __future__ import annotations

from typing import Annotated

import typer

from toolkeep.cli import completing
from toolkeep.cli.ending import run
from toolkeep.cli.options import (
    AsOption,
    CommandOption,
    ConfigOption,
    HeaderOption,
    JsonOption,
    TimeoutOption,
    UrlOption,
)
from toolkeep.cli.place import Place
from toolkeep.cli.screen import Screen


def register(app: typer.Typer) -> None:
    for command in (servers, tools, prompts, resources, read, call, run_program):
        app.command("run" if command is run_program else None)(command)


def servers(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="SERVER",
            help="Only these; exit code 1 if one of them is not healthy.",
            autocompletion=completing.servers,
            show_default=False,
        ),
    ] = None,
    config: ConfigOption = None,
    url: UrlOption = None,
    command: CommandOption = None,
    header: HeaderOption = None,
    json: JsonOption = False,
) -> None:
    """The servers: what they speak, how they are, what they offer."""
    from toolkeep.cli import lists

    place = Place(config=config, url=url, command=command, headers=header or ())
    run(lambda: lists.servers(place, Screen(json), names or ()), json=json)


def tools(
    pattern: Annotated[
        str | None,
        typer.Argument(
            metavar="PATTERN",
            help="A name, or a pattern such as 'git.*' or '*_status'.",
            autocompletion=completing.tools,
            show_default=False,
        ),
    ] = None,
    search: Annotated[
        str | None,
        typer.Option("--search", "-s", metavar="WORDS", help="Those that say the most about it."),
    ] = None,
    limit: Annotated[
        int, typer.Option("--limit", metavar="N", min=1, help="How many to find.")
    ] = 10,
    schema: Annotated[
        bool, typer.Option("--schema", help="With what each takes and gives back.")
    ] = False,
    group: Annotated[
        str | None,
        typer.Option(
            "--group",
            metavar="SERVER|TAG",
            help="Only those of this server, or with this tag.",
            autocompletion=completing.servers,
        ),
    ] = None,
    config: ConfigOption = None,
    url: UrlOption = None,
    command: CommandOption = None,
    header: HeaderOption = None,
    as_: AsOption = None,
    json: JsonOption = False,
) -> None:
    """The tools of all servers, or those that match."""
    from toolkeep.cli import lists

    place = Place(config=config, url=url, command=command, headers=header or ())
    sought = lists.Sought(pattern=pattern, words=search, limit=limit, group=group)
    run(lambda: lists.tools(place, Screen(json), sought, as_, schema=schema), json=json)


def prompts(
    config: ConfigOption = None,
    url: UrlOption = None,
    command: CommandOption = None,
    header: HeaderOption = None,
    as_: AsOption = None,
    json: JsonOption = False,
) -> None:
    """The prompts of all servers. An argument in brackets may be left out."""
    from toolkeep.cli import lists

    place = Place(config=config, url=url, command=command, headers=header or ())
    run(lambda: lists.prompts(place, Screen(json), as_), json=json)


def resources(
    config: ConfigOption = None,
    url: UrlOption = None,
    command: CommandOption = None,
    header: HeaderOption = None,
    as_: AsOption = None,
    json: JsonOption = False,
) -> None:
    """The resources of all servers, and the templates of more."""
    from toolkeep.cli import lists

    place = Place(config=config, url=url, command=command, headers=header or ())
    run(lambda: lists.resources(place, Screen(json), as_), json=json)


def read(
    uri: Annotated[
        str,
        typer.Argument(
            metavar="URI", help="The resource's address.", autocompletion=completing.uris
        ),
    ],
    server: Annotated[
        str | None,
        typer.Option(
            "--server", metavar="NAME", help="Whose it is.", autocompletion=completing.servers
        ),
    ] = None,
    output: Annotated[
        str | None, typer.Option("--output", "-o", metavar="FILE", help="Where to write it.")
    ] = None,
    config: ConfigOption = None,
    url: UrlOption = None,
    command: CommandOption = None,
    header: HeaderOption = None,
    as_: AsOption = None,
    json: JsonOption = False,
) -> None:
    """A resource, as it is. Bytes go to --output or into a pipe, never to a terminal."""
    from toolkeep.cli import reading

    place = Place(config=config, url=url, command=command, headers=header or ())
    screen = Screen(json)
    run(
        lambda: reading.read(place, screen, uri, server=server, principal=as_, output=output),
        json=json,
    )


def call(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="The tool: server.tool, or the tool alone if only one server has it.",
            autocompletion=completing.tools,
        ),
    ],
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="JSON|KEY=VALUE...|@FILE|-",
            help="Its arguments: JSON; key=value, each as the schema wants it, repeated for a "
            "list, a.b=1 for what is inside; @file or - (standard input) for JSON from there.",
            autocompletion=completing.arguments,
            show_default=False,
        ),
    ] = None,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Show its progress and what it logs.")
    ] = False,
    output: Annotated[
        str | None,
        typer.Option(
            "--output", "-o", metavar="DIR", help="Save its images, sounds and resources there."
        ),
    ] = None,
    timeout: TimeoutOption = None,
    config: ConfigOption = None,
    url: UrlOption = None,
    command: CommandOption = None,
    header: HeaderOption = None,
    as_: AsOption = None,
    json: JsonOption = False,
) -> None:
    """Call a tool. Its arguments are checked against its schema before anything is sent.

    \b
    toolkeep call shop.pay order=7 --watch
    toolkeep call shop.pay '{"order": 7, "to": {"city": "Ghent"}}'
    toolkeep call shop.pay order=7 to.city=Ghent tags=new tags=gift
    toolkeep call shop.pay @order.json
    jq .order basket.json | toolkeep call shop.pay - --json

    Exit code 1: it failed, or the tool says so. 3: it may have run, look before you repeat it.
    130: interrupted with Ctrl-C, and the server was told.

    When the server asks for something in between: a simple form is asked for at the terminal, and
    anything else is declined. Requests for a model (sampling) are not answered.
    """
    from toolkeep.cli import calling

    place = Place(config=config, url=url, command=command, headers=header or ())
    wish = calling.Wish(
        name=name,
        words=tuple(arguments or ()),
        principal=as_,
        timeout=timeout,
        watch=watch,
        output=output,
    )
    run(lambda: calling.call(place, Screen(json), wish), json=json)


def run_program(
    file: Annotated[
        str, typer.Argument(metavar="FILE.py|-", help="The program; - reads standard input.")
    ],
    inputs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NAME=VALUE...",
            help="Variables of the program: JSON, or text.",
            show_default=False,
        ),
    ] = None,
    allow: Annotated[
        list[str] | None,
        typer.Option(
            "--allow",
            metavar="PATTERN",
            help="Tools that it may call although they are not marked read-only. May be repeated.",
            autocompletion=completing.tools,
            show_default=False,
        ),
    ] = None,
    timeout: TimeoutOption = None,
    config: ConfigOption = None,
    url: UrlOption = None,
    command: CommandOption = None,
    header: HeaderOption = None,
    as_: AsOption = None,
    json: JsonOption = False,
) -> None:
    """Run a Python program that calls tools, in a sandbox. It is type-checked before it runs.

    \b
    hits = await shop__find(query=query)
    await asyncio.gather(*[shop__price(id=hit["id"]) for hit in hits["items"]])

    \b
    toolkeep run prices.py query=lamp
    toolkeep run order.py --allow shop.pay --timeout 120

    Each tool is an async function, server__tool. What it prints, and the value of its last line,
    are on standard output; of a failure, what became of each call is on standard error.

    Exit code 1: it failed. 2: it was not started. 3: a call may have run, look before you repeat
    it. 130: interrupted with Ctrl-C, and its calls were cancelled.
    """
    from toolkeep.cli import running

    place = Place(config=config, url=url, command=command, headers=header or ())
    wish = running.Wish(
        file=file,
        inputs=tuple(inputs or ()),
        allow=tuple(allow or ()),
        principal=as_,
        timeout=timeout,
    )
    run(lambda: running.run(place, Screen(json), wish), json=json)
