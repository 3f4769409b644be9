"""`SharedLists`: what a server lists, fetched by one process for all that share a store.

A record says when a list was last fetched, and the digest of its content. The content is stored
once for all principals whose lists are equal, and read only by processes that do not have it yet.
Without the store each process fetches by itself.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, replace
from time import monotonic, time
from typing import TYPE_CHECKING, Any

from toolkeep.config import ServerSpec
from toolkeep.errors import StoreUnavailable
from toolkeep.state.cache import MARK_TTL
from toolkeep.state.shared import SharedState, forgotten_mark, name_of

if TYPE_CHECKING:
    from toolkeep.state import Entry

TTL = 600.0
"""Seconds for which another process may use a list without having heard of a change."""
_WANTED_TTL = 60.0
_POLL = 0.02


@dataclass(frozen=True, slots=True)
class FullList:
    """All pages of a list."""

    items: list[Any]
    expires_at: float | None = None
    """Seconds since the epoch; None: until the server announces a change."""
    ttl: float = 0.0
    """A modern server's `ttlMs` in seconds; 0: not given."""
    public: bool = False
    """Whether the server says that the list is the same for all principals."""
    etag: str = ""
    """The digest of its content; empty: it was not shared."""
    parsed: Any = None
    """What this process made of the same content before; then `items` is empty."""


@dataclass(frozen=True, slots=True)
class _Turn:
    """The right to fetch one list, while no other process does."""

    began: int
    """A time of the store."""
    mark: int
    version: int
    etag: str
    """Version and digest of the last record; 0 and empty: there is none."""


Fetch = Callable[[], Awaitable[FullList]]
Reuse = Callable[[str], Any]
"""From a digest to what this process made of that content; None: nothing yet."""


class SharedLists:
    """The lists of one client. Lives as long as the client."""

    def __init__(self, state: SharedState, spec: ServerSpec, principal: str | None) -> None:
        self._state, self._patience = state, spec.timeouts.connect
        self._changed = name_of("changed", spec.name, spec.url, spec.urls)
        """Put when the list has changed: a record is valid for one version of this."""
        self._forgotten = forgotten_mark(principal)
        self._announced: set[str] = set()
        """The lists that the server has announced as changed, since they were fetched."""
        self._told: dict[str, int] = {}
        """Since when another process has fetched what it told of."""

    def mark_changed(self, name: str) -> None:
        """The server has announced a change to this process."""
        self._announced.add(name)
        self._told.pop(name, None)

    def hear(self, name: str, began: int) -> None:
        """Another process has fetched a list that had changed."""
        if name not in self._announced:
            self._told[name] = began

    async def get(
        self,
        name: str,
        fetch: Fetch,
        *,
        since: int | None,
        reuse: Reuse | None = None,
    ) -> tuple[FullList, int | None]:
        """The list, and when it was fetched if this process has just found that it changed.

        `since`: a time of the store from which on it may have been fetched; None: now.
        """
        since, announced = self._told.pop(name, since), name in self._announced
        self._announced.discard(name)
        async with AsyncExitStack() as turn:
            try:
                if announced:
                    since = await self._put(self._changed, MARK_TTL)
                found = await self._wait(name, since, turn, reuse)
            except StoreUnavailable:
                found = None
            if isinstance(found, FullList):
                return found, None
            listed = await fetch()
            return (listed, None) if found is None else await self._save(name, listed, found)

    async def _wait(
        self, name: str, since: int | None, turn: AsyncExitStack, reuse: Reuse | None
    ) -> FullList | _Turn | None:
        """The list that another process has fetched, or the turn to fetch it. None: others have it
        for too long."""
        give_up_at = monotonic() + self._patience
        while monotonic() < give_up_at:
            if since is not None and (found := await self._load(name, since, reuse)):
                return found
            held = await turn.enter_async_context(self._state.holding(name))
            if held is not None:
                # The last holder may have finished just before.
                found = None if since is None else await self._load(name, since, reuse)
                return found or await self._begin(name, held.token)
            if since is None:
                since = await self._put(f"{name}:wanted", _WANTED_TTL)
            await asyncio.sleep(_POLL)
        return None

    async def _begin(self, name: str, began: int) -> _Turn:
        entry, mark, _ = await self._read(name)
        _, _, before = _decoded(entry)
        return _Turn(began, mark, entry.version if entry else 0, before.etag if before else "")

    async def _put(self, name: str, ttl: float) -> int:
        """Put a mark, and return the time of the store."""
        version = await self._state.ask(lambda store: store.put(name, b"", ttl=ttl))
        assert version is not None
        return version

    async def _load(self, name: str, since: int, reuse: Reuse | None) -> FullList | None:
        entry, mark, forgotten = await self._read(name)
        began, made_under, listed = _decoded(entry)
        if listed is None or made_under != mark or began < max(since, forgotten):
            return None
        if not since and listed.expires_at is not None and listed.expires_at <= time():
            return None
        if reuse is not None and (parsed := reuse(listed.etag)) is not None:
            return replace(listed, parsed=parsed)
        content = await self._state.ask(lambda store: store.get(_content_name(listed.etag)))
        return None if content is None else replace(listed, items=json.loads(content.value))

    async def _read(self, name: str) -> tuple[Entry | None, int, int]:
        """The record, and the versions of both marks."""
        names = [each for each in (name, self._changed, self._forgotten) if each]
        entry, *marks = await self._state.ask(
            lambda store: asyncio.gather(*(store.get(each) for each in names))
        )
        versions = [mark.version if mark else 0 for mark in marks]
        return entry, versions[0], versions[1] if len(versions) > 1 else 0

    async def _save(self, name: str, listed: FullList, turn: _Turn) -> tuple[FullList, int | None]:
        content = json.dumps(listed.items, separators=(",", ":")).encode()
        listed = replace(listed, etag=hashlib.sha256(content).hexdigest()[:40])
        is_change = turn.etag not in ("", listed.etag)
        ttl, mark = max(TTL, listed.ttl), turn.mark
        try:
            content_name = _content_name(listed.etag)
            await self._state.ask(lambda store: store.put(content_name, content, ttl=2 * ttl))
            if is_change:
                moved = await self._state.ask(
                    lambda store: store.put(self._changed, b"", ttl=MARK_TTL, if_version=turn.mark)
                )
                mark = moved or turn.mark
            facts = {**asdict(replace(listed, items=[])), "began": turn.began, "mark": mark}
            record = json.dumps(facts).encode()
            # If this process was suspended, another has had the turn meanwhile, and knows better.
            saved = await self._state.ask(
                lambda store: store.put(name, record, ttl=ttl, if_version=turn.version)
            )
        except StoreUnavailable:
            return listed, None
        return listed, turn.began if is_change and saved else None


def _content_name(etag: str) -> str:
    return f"toolkeep:content:{etag}"


def _decoded(entry: Entry | None) -> tuple[int, int, FullList | None]:
    """When the recorded list was fetched, under which mark, and the list without its items."""
    try:
        found: Any = json.loads(entry.value) if entry else None
    except (ValueError, RecursionError):
        found = None
    match found:
        case {
            "began": int(began),
            "mark": int(mark),
            "etag": str(etag),
            "expires_at": float() | None as expires_at,
            "ttl": float(ttl),
            "public": bool(public),
        }:
            return began, mark, FullList([], expires_at, ttl, public, etag)
        case _:
            return 0, 0, None
