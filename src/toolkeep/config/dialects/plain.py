"""Servers without a frame: a list of them, one of them, or a mapping from names to them.

A server is a URL, a mapping, a `ServerSpec`, or a server in this process. Other dialects use
`entry` for what stands under their own frame.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from toolkeep.config.draft import Draft, Entry, Setting, Steps
from toolkeep.config.model import kind_of
from toolkeep.config.spec import ServerSpec
from toolkeep.config.transports import is_local_server, name_of_local
from toolkeep.config.words import OF_OTHERS, OURS, Vocabulary, settings_of

WORDS = Vocabulary({**OURS, **OF_OTHERS, "server": "server"}, strict=True)

_WAYS = ("url", "endpoint", "command", "server")


def read(draft: Draft) -> None:
    value = draft.document.value
    if is_local_server(value) or isinstance(value, ServerSpec | str) or _is_one(value):
        entry(draft, value, WORDS, ())
    elif isinstance(value, Mapping | list | tuple):
        entries(draft, cast("Mapping[str, Any] | list[Any]", value), WORDS, ())
    else:
        draft.mistakes.add(
            f"servers are a mapping or a list, not {kind_of(value)}",
            remedy='Write {"mcpServers": {"name": {"url": "http://…"}}}',
            origin=draft.document.origin(()),
        )


def _is_one(value: object) -> bool:
    if not isinstance(value, Mapping):
        return False
    given = cast("Mapping[str, Any]", value)
    return any(way in given and not isinstance(given[way], Mapping) for way in _WAYS)


def entries(draft: Draft, given: object, words: Vocabulary, steps: Steps) -> None:
    """What stands where several servers are expected."""
    match given:
        case Mapping():
            for name, value in cast("Mapping[Any, Any]", given).items():
                if _is_text(draft, name, steps):
                    entry(draft, value, words, (*steps, name), name)
        case list() | tuple():
            for place, value in enumerate(cast("list[Any]", given)):
                entry(draft, value, words, (*steps, place))
        case _:
            draft.mistakes.add(
                f"servers are a mapping or a list, not {kind_of(given)}",
                remedy='Write {"name": {"url": "http://…"}}',
                origin=draft.document.origin(steps),
                key=".".join(map(str, steps)) or None,
            )


def entry(
    draft: Draft, value: object, words: Vocabulary, steps: Steps, name: str | None = None
) -> None:
    """One server, whatever it was given as."""
    origin = draft.document.origin(steps)

    def whole(key: str, name: str | None = name) -> Entry:
        return Entry(name, (Setting(key, value, key, origin, steps),), origin)

    if isinstance(value, ServerSpec):
        draft.entries.append(whole("spec", value.name))
    elif isinstance(value, str):
        draft.entries.append(whole("url"))
    elif is_local_server(value):
        draft.entries.append(whole("server", name or name_of_local(value)))
    elif isinstance(value, Mapping):
        given = cast("Mapping[Any, Any]", value)
        if all(_is_text(draft, key, steps, name) for key in given):
            draft.entries.append(_from_mapping(draft, given, words, steps, name))
    else:
        draft.mistakes.add(
            f"a server is a URL or a mapping, not {kind_of(value)}",
            remedy='Write it as {"url": "http://…"} or {"command": "…", "args": […]}',
            origin=origin,
            server=name,
            key=str(steps[-1]) if steps else None,
            of_one_server=bool(steps),
        )


def _from_mapping(
    draft: Draft, given: Mapping[str, Any], words: Vocabulary, steps: Steps, name: str | None
) -> Entry:
    origin, own = draft.document.origin(steps), given.get("name")
    known = name if name is not None else own if isinstance(own, str) else None
    if name is not None and own is not None and own != name:
        draft.warn("its 'name' is passed over: the key above it is its name", origin, name)
    rest = {key: value for key, value in given.items() if key != "name" or name is None}
    before = len(draft.mistakes.found)
    settings = tuple(settings_of(rest, words, draft, steps, known))
    return Entry(known, settings, origin, fine=len(draft.mistakes.found) == before)


def _is_text(draft: Draft, key: object, steps: Steps, server: str | None = None) -> bool:
    if not isinstance(key, str):
        problem = f"a key is a text, not {kind_of(key)}"
        origin = draft.document.origin(steps)
        draft.mistakes.add(
            problem, remedy="Correct the key", origin=origin, server=server, of_one_server=True
        )
    return isinstance(key, str)
