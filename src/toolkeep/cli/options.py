"""Options that several commands share, each written once."""

from __future__ import annotations

from typing import Annotated

import typer

ConfigOption = Annotated[
    str | None,
    typer.Option(
        "--config",
        "-c",
        metavar="FILE",
        help="The configuration. Otherwise TOOLKEEP_CONFIG, toolkeep.toml, mcp.json, .mcp.json, "
        ".vscode/mcp.json, the environment: the first that is there.",
        show_default=False,
    ),
]
UrlOption = Annotated[
    str | None,
    typer.Option(
        "--url",
        metavar="URL",
        help="A server at this address, and no configuration.",
        show_default=False,
    ),
]
CommandOption = Annotated[
    str | None,
    typer.Option(
        "--command",
        metavar="'PROGRAM …'",
        help="A server to start so, and no configuration.",
        show_default=False,
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON document on standard output.")]
HeaderOption = Annotated[
    list[str] | None,
    typer.Option(
        "--header",
        "-H",
        metavar="'NAME: VALUE'",
        help="Sent with every request to the one server that is asked. May be repeated.",
        show_default=False,
    ),
]
AsOption = Annotated[
    str | None,
    typer.Option(
        "--as",
        metavar="PRINCIPAL",
        help="On whose behalf: in a session of its own.",
        show_default=False,
    ),
]
TimeoutOption = Annotated[
    float | None,
    typer.Option(
        "--timeout", metavar="SECONDS", min=0.001, help="How long it may take.", show_default=False
    ),
]
TraceOption = Annotated[
    bool, typer.Option("--trace", help="Show every request and answer, without secrets.")
]
