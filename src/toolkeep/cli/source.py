"""The servers that a command uses: the options that name them, and how they are opened.

They come from one `--url` or `--command`, or from the configuration that `toolkeep.load` finds. A
program from a file that toolkeep found by itself needs approval: a person at the terminal is asked,
and otherwise a note says how to approve it.
"""

from __future__ import annotations

import asyncio
import logging
import warnings
from collections.abc import AsyncGenerator, Callable, Collection, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from toolkeep.cli.errors import UsageError, debugging, evidence_of, suggest
from toolkeep.cli.output import Output
from toolkeep.cli.prompt import can_prompt, choose, input_prompt
from toolkeep.context import CallContext

if TYPE_CHECKING:
    from toolkeep import Runtime
    from toolkeep.config import Configuration, PendingApproval, ServerSpec

NO_SERVERS = (
    "no server is configured. Give --url http://… or --command 'program …'; or write an mcp.json, "
    '{"mcpServers": {"name": {"url": "http://…"}}}; or copy the servers of other programs with '
    "`toolkeep config import`. `toolkeep config path` lists where a configuration is looked for"
)
APPROVE_ALL = "`toolkeep config approve --all`"
STATUS_DELAY = 0.7
"""Seconds before a line shows that servers are being opened."""
STATUS_NAMES = 60
"""Characters of server names in that line; longer lists are counted."""

# -- options -------------------------------------------------------------------------------------

ConfigOption = Annotated[
    str | None,
    typer.Option(
        "--config",
        "-c",
        metavar="FILE",
        help="The configuration file. Default: the first that exists of TOOLKEEP_CONFIG, "
        "toolkeep.toml, mcp.json, .mcp.json, .vscode/mcp.json and the environment.",
        show_default=False,
    ),
]
UrlOption = Annotated[
    str | None,
    typer.Option(
        "--url",
        metavar="URL",
        help="Use the server at this URL; ignore configuration files.",
        show_default=False,
    ),
]
CommandOption = Annotated[
    str | None,
    typer.Option(
        "--command",
        metavar="'PROGRAM …'",
        help="Start a server with this command; ignore configuration files.",
        show_default=False,
    ),
]
HeaderOption = Annotated[
    list[str] | None,
    typer.Option(
        "--header",
        "-H",
        metavar="'NAME: VALUE'",
        help="Send this header with every request; for one server only. May be repeated.",
        show_default=False,
    ),
]
PrincipalOption = Annotated[
    str | None,
    typer.Option(
        "--as",
        metavar="PRINCIPAL",
        help="Act for this principal, in a session of its own.",
        show_default=False,
    ),
]
TimeoutOption = Annotated[
    float | None,
    typer.Option(
        "--timeout", metavar="SECONDS", min=0.001, help="The time limit.", show_default=False
    ),
]
SOURCE_OPTIONS = {
    "config": ConfigOption,
    "url": UrlOption,
    "command": CommandOption,
    "headers": HeaderOption,
}
"""The options from which a `ServerSource` is made, by its fields."""


@dataclass(frozen=True)
class ServerSource:
    """The values of a command's options that name its servers."""

    config: str | None = None
    url: str | None = None
    command: str | None = None
    headers: Sequence[str] | None = field(default=None, repr=False)

    @property
    def is_one_server(self) -> bool:
        return self.url is not None or self.command is not None

    def to_load(self) -> Any:
        """What `toolkeep.load` is given."""
        given = [one for one in (self.config, self.url, self.command) if one is not None]
        if len(given) > 1:
            raise UsageError("--config, --url and --command exclude each other: give one")
        if self.url is not None and "://" not in self.url:
            from toolkeep.config.redact import redact_url

            shown = redact_url(self.url)
            raise UsageError(f"--url {shown!r} is not a URL: give http://… or https://…")
        if self.command is not None:
            from toolkeep.config.spec import parse_command

            return parse_command(self.command)
        return self.config if self.url is None else self.url

    def load(self, output: Output | None = None) -> Configuration:
        """The configuration, with its warnings as notes on `output`. Programs may still need
        approval."""
        found = load_configuration(self.to_load(), inputs=input_prompt())
        if output is not None:
            # That nothing is configured becomes an error, and needs no warning.
            note_warnings(found if server_names(found) else replace(found, warnings=()), output)
        return found

    @asynccontextmanager
    async def open(
        self,
        output: Output,
        *,
        only: Collection[str] | None = None,
        tool: str | None = None,
        **options: Any,
    ) -> AsyncGenerator[Runtime]:
        """Open a runtime with all servers, with `only` these, or with the one that the full name
        of a `tool` begins with. The options are those of `Runtime`."""
        from toolkeep import Runtime

        silence_logging()
        found = self.load(output)
        found = select_servers(found, _server_of(tool, found) if only is None else only)
        found = await request_approvals(found, output)
        if not found.servers:
            raise UsageError(_why_no_server(found))
        found = replace(found, servers=add_headers(found.servers, self.headers))
        options = {"listen": False, "backoff": None, **options}
        with opening_status([one.name for one in found.servers], output) as opened:
            async with Runtime.open(found, **options) as runtime:
                opened()
                yield runtime


# -- the configuration ---------------------------------------------------------------------------


def load_configuration(source: Any = None, **options: Any) -> Configuration:
    """`toolkeep.load` without Python warnings: commands show `Configuration.warnings`."""
    from toolkeep import load
    from toolkeep.config.spec import ConfigWarning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConfigWarning)
        return load(source, **options)


def note_warnings(found: Configuration, output: Output) -> None:
    for text in found.warnings:
        output.note(f"warning: {text}")
    if len(found.invalid) > 1:
        names = ", ".join(error.server or "?" for error in found.invalid)
        output.note(
            f"warning: {len(found.invalid)} servers are left out, because their entries are wrong "
            f"({names}); see `toolkeep config validate`"
        )
        return
    for error in found.invalid:
        output.note(f"warning: {error} (this server is left out)")


def server_names(found: Configuration) -> list[str]:
    """All servers that are configured: usable, waiting for approval, or disabled."""
    pending = (one.name for one in found.needs_approval)
    return [*(one.name for one in found.servers), *pending, *found.disabled]


def select_servers(found: Configuration, names: Collection[str] | None) -> Configuration:
    """The configuration of these servers alone. Raises `UsageError` for an unknown name."""
    if names is None:
        return found
    known = server_names(found)
    for name in names:
        if name not in known:
            raise UsageError(f"there is no server {name[:80]!r}: {suggest(name, known)}")
    return replace(
        found,
        servers=tuple(one for one in found.servers if one.name in names),
        disabled={name: why for name, why in found.disabled.items() if name in names},
        needs_approval=tuple(one for one in found.needs_approval if one.name in names),
    )


def _server_of(tool: str | None, found: Configuration) -> Collection[str] | None:
    server, dot, _ = (tool or "").partition(".")
    return (server,) if dot and server in server_names(found) else None


async def request_approvals(found: Configuration, output: Output) -> Configuration:
    """Ask the person at the terminal to approve the programs that need it."""
    if not found.needs_approval:
        return found
    if can_prompt():
        return await ask_approvals(found, found.needs_approval, output)
    names = [one.name for one in found.needs_approval]
    command = f"`toolkeep config approve {names[0]}`" if len(names) == 1 else APPROVE_ALL
    output.note(f"not started:\n{list_programs(found.needs_approval)}")
    output.note(
        "toolkeep found the file by itself, so its programs need your approval. "
        f"Run {command}, or name the file with --config"
    )
    return found


async def ask_approvals(
    found: Configuration, pending: Sequence[PendingApproval], output: Output
) -> Configuration:
    """Show all programs, then ask about each. Every yes is saved at once."""
    from toolkeep.config import approve

    places = file_of(pending)
    wants = "wants to start" if len(pending) == 1 else f"wants to start {len(pending)} programs"
    output.note(f"{places} {wants}:\n{list_programs(pending)}")
    more = "/all/none" if len(pending) > 1 else ""
    answer = ""
    for one in pending:
        if answer not in ("all", "none"):
            question = f"Start {one.name}, now and from now on? [y/N{more}] "
            answer = await choose(question, ("yes", "all", "none"))
        if answer in ("yes", "all"):
            found = approve(found, one.name)
    return found


def file_of(pending: Sequence[PendingApproval]) -> str:
    """The file that wants to start them; with the line, if it is one program."""
    places = [one.origin.location if len(pending) == 1 else one.origin.file for one in pending]
    return ", ".join(dict.fromkeys(place or "the environment" for place in places))


def list_programs(pending: Sequence[PendingApproval]) -> str:
    return "\n".join(f"  {one.name}: {one.command_line}" for one in pending)


def _why_no_server(found: Configuration) -> str:
    if found.needs_approval:
        return "no server can be started: all of them need approval"
    if found.disabled:
        disabled = ", ".join(f"{name} ({why})" for name, why in found.disabled.items())
        return f"no server can be used: {disabled}"
    return NO_SERVERS


def add_headers(
    specs: Sequence[ServerSpec], headers: Sequence[str] | None
) -> tuple[ServerSpec, ...]:
    """The servers with the values of `--header`. A header may be a credential, so it is accepted
    for one HTTP server only."""
    from toolkeep.config.fields import FrozenDict

    given = parse_headers(headers or ())
    if not given:
        return tuple(specs)
    if len(specs) != 1 or not specs[0].url:
        raise UsageError("--header is for one HTTP server: say which, with its name or --url")
    merged = FrozenDict({**specs[0].headers, **given})
    return (specs[0].model_copy(update={"headers": merged}),)


def parse_headers(headers: Sequence[str]) -> dict[str, str]:
    """`Name: value`, with the checks of a configuration. An error never repeats a value."""
    from toolkeep._rules.headers import HeaderRefused, check_headers

    pairs: dict[str, str] = {}
    for number, text in enumerate(headers, 1):
        name, colon, value = text.partition(":")
        if not colon or not name.strip():
            raise UsageError(f"--header number {number} must be written as 'Name: value'")
        pairs[name.strip()] = value.strip()
    try:
        return dict(check_headers(pairs, origin="--header"))
    except HeaderRefused as refused:
        raise UsageError(str(refused)) from None


# -- the open runtime ----------------------------------------------------------------------------


def silence_logging() -> None:
    """Keep the library's log lines off the terminal: the commands report what matters."""
    if debugging():
        logging.basicConfig(level=logging.INFO)
    else:
        logging.getLogger("toolkeep").addHandler(logging.NullHandler())
        logging.getLogger("toolkeep").propagate = False


@contextmanager
def opening_status(names: Sequence[str], output: Output) -> Generator[Callable[[], None]]:
    """Show on a terminal that servers are being opened, until the function given is called."""
    if not output.can_redraw:
        yield lambda: None
        return
    listed = ", ".join(names)
    text = listed if len(listed) <= STATUS_NAMES else f"{len(names)} servers"
    status = output.error_console.status(f"opening {text} …")
    timer = asyncio.get_running_loop().call_later(STATUS_DELAY, status.start)

    def opened() -> None:
        timer.cancel()
        status.stop()

    try:
        yield opened
    finally:
        opened()


@dataclass(frozen=True)
class Unavailable:
    """The servers of a runtime that could not be opened."""

    errors: Sequence[BaseException]
    are_all: bool


def note_unavailable(runtime: Runtime, output: Output) -> Unavailable:
    """Note the servers that are not there: one with its reason, several in one line."""
    down = [one for one in runtime.servers if one.error is not None]
    errors = [one.error for one in down if one.error is not None]
    if len(down) == 1:
        one = down[0]
        output.note(f"warning: {one.name} is {one.health.value}: {evidence_of(one.error)}")
    elif down:
        names = ", ".join(one.name for one in down)
        output.note(
            f"warning: {len(down)} of {len(runtime.servers)} servers are down ({names}); "
            "see `toolkeep check`"
        )
    return Unavailable(errors, len(errors) == len(runtime.servers))


def context_for(principal: str | None) -> CallContext | None:
    return None if principal is None else CallContext(principal=principal)
