"""`toolkeep config …`: what is configured, where it came from, and what is wrong with it.

Nothing here opens a server or starts a program. No secret is shown, or copied without being named.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from toolkeep.cli import completing
from toolkeep.cli.ending import do, run
from toolkeep.cli.options import ConfigOption, JsonOption

config = typer.Typer(
    help="What is configured, where it came from, what is wrong with it.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


def register(app: typer.Typer) -> None:
    app.add_typer(config, name="config")


@config.command()
def show(
    server: Annotated[
        str | None,
        typer.Argument(
            metavar="SERVER",
            help="Only this one.",
            autocompletion=completing.servers,
            show_default=False,
        ),
    ] = None,
    config: ConfigOption = None,
    every: Annotated[
        bool, typer.Option("--all", help="Also what nobody has set: the defaults.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Every server with every value, and where each came from.

    That is a line of a file, or a variable.
    """
    from toolkeep.cli.configuring_show import shown

    do(lambda: shown(config, server, every=every, json=json), json=json)


@config.command()
def path(json: JsonOption = False) -> None:
    """Where a configuration is looked for, and which one counts."""
    from toolkeep.cli.configuring_show import places

    do(lambda: places(json=json), json=json)


@config.command()
def validate(
    file: Annotated[
        str | None,
        typer.Argument(
            metavar="FILE", help="Otherwise the configuration that counts here.", show_default=False
        ),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Say all that is wrong with a configuration.

    Each with its place and its remedy. Exit code 1 if there is anything. Warnings are no reason.
    """
    from toolkeep.cli.configuring_check import validated

    do(lambda: validated(file, json=json), json=json)


@config.command()
def schema() -> None:
    """The JSON Schema of toolkeep.toml, for editors."""
    from toolkeep.cli.configuring_check import print_schema

    do(print_schema)


@config.command()
def approve(
    server: Annotated[
        str | None,
        typer.Argument(
            metavar="SERVER", help="Otherwise you are asked about each.", show_default=False
        ),
    ] = None,
    listed: Annotated[bool, typer.Option("--list", help="What is approved so far.")] = False,
    revoke: Annotated[
        str | None,
        typer.Option(
            metavar="SERVER",
            help="Approve it no longer: a server's name here, or a key of --list.",
            show_default=False,
        ),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Let a program be started that a configuration file wants.

    That is for files that were found and not named. An approval is for the command with its
    arguments, its environment and its directory.
    """
    from toolkeep.cli import configuring_approval as approving

    if listed:
        do(lambda: approving.listed(json=json), json=json)
    if revoke is not None:
        do(lambda: approving.revoke(revoke, json=json), json=json)
    run(lambda: approving.approve(server, json=json), json=json)


@config.command("import")
def import_(
    source: Annotated[
        str | None,
        typer.Argument(
            metavar="SOURCE",
            help="claude-desktop, claude-code, cursor, vscode, or a file. Otherwise all that are "
            "found.",
            show_default=False,
        ),
    ] = None,
    to: Annotated[
        Path, typer.Option("--to", metavar="FILE", help="Where they are added; made if missing.")
    ] = Path("mcp.json"),
    force: Annotated[
        bool, typer.Option("--force", help="Replace servers of the same name.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what would be taken.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Take over servers from Claude, Cursor or VS Code.

    Other entries of the file stay as they are. References such as ${TOKEN} are copied as they are
    written; secrets that are written out are named.
    """
    from toolkeep.cli.configuring_import import imported

    do(lambda: imported(source, to, force=force, dry_run=dry_run, json=json), json=json)
