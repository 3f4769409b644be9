"""Which servers a command is about, and how they are opened.

One server given on the command line, or the configuration as `toolkeep.load` finds it. Nothing is
started that nobody has approved: a person at the terminal is asked, everyone else is told how.
"""

from __future__ import annotations

import logging
import shlex
import warnings
from collections.abc import AsyncGenerator, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from toolkeep.cli.ending import Misused, debugging
from toolkeep.cli.screen import Screen
from toolkeep.cli.waiting import waiting_for

if TYPE_CHECKING:
    from toolkeep import Configuration, Runtime, ServerSpec

NOTHING = (
    "no server is configured. Give --url http://… or --command 'program …'; or write an mcp.json, "
    '{"mcpServers": {"name": {"url": "http://…"}}}; or take over what other programs have, with '
    "`toolkeep config import`. `toolkeep config path` says where it is looked for"
)


@dataclass(frozen=True, kw_only=True)
class Place:
    """As much of a command's options as says where its servers are."""

    config: str | None = None
    url: str | None = None
    command: str | None = None
    headers: Sequence[str] = field(default=(), repr=False)

    @property
    def is_one_off(self) -> bool:
        return self.url is not None or self.command is not None


def loaded(source: Any = None, **how: Any) -> Configuration:
    """As `toolkeep.load`. Its warnings are told by who asked, not by Python with a line of ours."""
    from toolkeep import load
    from toolkeep.config.doubts import ConfigWarning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConfigWarning)
        return load(source, **how)


def configuration(place: Place, screen: Screen) -> Configuration:
    """What is configured. Its warnings are noted; programs may still wait for approval."""
    from toolkeep.cli.asking import at_terminal

    found = loaded(source_of(place), inputs=at_terminal())
    for text in found.warnings if names_of(found) else ():  # that there is none is told as such
        screen.note(f"warning: {text}")
    for error in found.set_aside:
        screen.note(f"warning: {error} (it is set aside)")
    return found


def source_of(place: Place) -> Any:
    """What `toolkeep.load` is given."""
    given = [one for one in (place.config, place.url, place.command) if one is not None]
    if len(given) > 1:
        raise Misused("--config, --url and --command exclude each other: give one")
    if place.url is not None:
        if "://" not in place.url:
            from toolkeep.config.redact import redact_url

            shown = redact_url(place.url)
            raise Misused(f"--url {shown!r} is no address: give http://… or https://…")
        return place.url
    if place.command is not None:
        return _program(place.command)
    return place.config


def _program(text: str) -> dict[str, Any]:
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise Misused(f"--command cannot be split into words: {error}") from None
    if not words:
        raise Misused("--command is empty: give a program and its arguments")
    return {"command": words[0], "args": words[1:]}


async def approved(found: Configuration, screen: Screen) -> Configuration:
    """With what a person at this terminal approves of the programs that wait for it."""
    from toolkeep.cli.asking import can_ask, yes
    from toolkeep.config import approve

    for pending in found.needs_approval:
        if not can_ask():
            how = f"Approve it with `toolkeep config approve {pending.name}`, or name the file"
            screen.note(
                f"not started: {pending.name} ({pending.shown}) of {pending.origin.place}, "
                f"a file that was found, not named. {how} (--config)"
            )
            continue
        screen.note(f"{pending.origin.place} wants to start {pending.name}:\n  {pending.shown}")
        if await yes("Start it, now and from now on?"):
            found = approve(found, pending.name)
    return found


@asynccontextmanager
async def opened(
    place: Place,
    screen: Screen,
    *,
    only: Collection[str] | None = None,
    about: str | None = None,
    **options: Any,
) -> AsyncGenerator[Runtime]:
    """A runtime with all servers, `only` these, or the one that a tool's full name (`about`) says;
    closed at the end, also of Ctrl-C. The options are those of `Runtime`."""
    from toolkeep import Runtime

    quiet()
    found = configuration(place, screen)
    found = _narrowed(found, _owner(found, about) if only is None else only)
    found = await approved(found, screen)
    if not found.servers:
        raise Misused(_why_none(found))
    found = replace(found, servers=_with_headers(found.servers, place.headers))
    given: dict[str, Any] = {"live": False, "backoff": None, **options}
    with waiting_for([one.name for one in found.servers], screen) as over:
        async with Runtime.open(found, **given) as runtime:
            over()
            yield runtime


def quiet() -> None:
    """What the library logs is for programs; people are told what matters by the commands."""
    if debugging():
        logging.basicConfig(level=logging.INFO)
    else:
        logging.getLogger("toolkeep").addHandler(logging.NullHandler())
        logging.getLogger("toolkeep").propagate = False


def _owner(found: Configuration, about: str | None) -> Collection[str] | None:
    owner = (about or "").partition(".")[0]
    return (owner,) if owner in names_of(found) and owner != about else None


def _narrowed(found: Configuration, only: Collection[str] | None) -> Configuration:
    if only is None:
        return found
    known = names_of(found)
    for name in only:
        if name not in known:
            raise unknown_server(name, known)
    return replace(
        found,
        servers=tuple(one for one in found.servers if one.name in only),
        disabled={name: why for name, why in found.disabled.items() if name in only},
        needs_approval=tuple(one for one in found.needs_approval if one.name in only),
    )


def names_of(found: Configuration) -> list[str]:
    """Of all that is configured, whatever became of it."""
    waiting = (one.name for one in found.needs_approval)
    return [*(one.name for one in found.servers), *waiting, *found.disabled]


def unknown_server(name: str, known: Sequence[str]) -> Misused:
    near = get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]}?" if near else f"there are: {', '.join(known) or 'none'}"
    return Misused(f"there is no server {name[:80]!r}: {hint}")


def _why_none(found: Configuration) -> str:
    if found.needs_approval:
        return "no server may be started: all of them wait for approval"
    if found.disabled:
        off = ", ".join(f"{name} ({why})" for name, why in found.disabled.items())
        return f"no server is left: {off}"
    return NOTHING


def _with_headers(specs: tuple[ServerSpec, ...], headers: Sequence[str]) -> tuple[ServerSpec, ...]:
    """A header may be a credential: it goes to one server, or nowhere."""
    from toolkeep.config.frozen import FrozenDict

    given = headers_of(headers)
    if not given:
        return specs
    one, *others = specs
    if others or not one.url:
        raise Misused("--header is for one server over HTTP: say which, with its name or --url")
    merged = FrozenDict({**one.headers, **given})
    return (one.model_copy(update={"headers": merged}),)


def headers_of(given: Sequence[str]) -> dict[str, str]:
    """`Name: value`, checked as headers of a configuration are. No value is ever repeated."""
    from toolkeep._rules.headers import HeaderRefused, check

    pairs: dict[str, str] = {}
    for place, text in enumerate(given, 1):
        name, colon, value = text.partition(":")
        if not colon or not name.strip():
            raise Misused(f"--header number {place} is not written as 'Name: value'")
        pairs[name.strip()] = value.strip()
    try:
        return dict(check(pairs, origin="--header"))
    except HeaderRefused as refused:
        raise Misused(str(refused)) from None
