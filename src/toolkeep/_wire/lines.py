"""The ways to a server: one `Line` for each transport, chosen by the configuration.

A line makes wires, one for each generation of the connection, and keeps what outlives them. The
modules that not everybody needs (processes, in-process servers) are imported when a line is made.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from toolkeep._rules.recovery import Channel
from toolkeep._wire.attempt import Attempt
from toolkeep._wire.duct import Duct
from toolkeep._wire.heading import Credentials, Heading
from toolkeep._wire.http import HttpDispatcher
from toolkeep._wire.link import Link
from toolkeep._wire.pipe import PipeDispatcher
from toolkeep._wire.sse import SseDuct
from toolkeep._wire.wire import Line, OnLost, Wire
from toolkeep.config import ServerSpec

if TYPE_CHECKING:
    from toolkeep._wire.tap import Tap


def line_for(
    spec: ServerSpec,
    headers: Mapping[str, str],
    credentials: Credentials | None,
    *,
    older: bool = False,
    link: Link | None = None,
    tap: Tap | None = None,
) -> Line:
    """The way to this server. `older`: as HTTP was in 2024-11-05. `link`: an HTTP client that
    others use, too. `tap`: is told what passes, but for others' link. Raises `ConfigError`."""
    if spec.command:
        from toolkeep._wire.stdio import StdioDuct

        return PipeLine(spec, _tapped(lambda: StdioDuct(spec), spec, tap))
    if spec.server is not None:
        from toolkeep._wire.local import LocalDuct

        return PipeLine(spec, _tapped(lambda: LocalDuct(spec), spec, tap))
    older = older or spec.transport == "sse"
    return HttpLine(spec, headers, credentials, older=older, link=link, tap=tap)


def _tapped(make: Callable[[], Duct], spec: ServerSpec, tap: Tap | None) -> Callable[[], Duct]:
    if tap is None:
        return make
    from toolkeep._wire.tap import TappedDuct

    return lambda: TappedDuct(make(), spec.secrets, tap)


def _link(spec: ServerSpec, tap: Tap | None) -> Link:
    if tap is None:
        return Link(spec)
    from toolkeep._wire.tap import TappedLink

    return TappedLink(spec, tap)


class HttpLine:
    """A server at a URL: one HTTP client for all generations.

    `older`: as HTTP was in 2024-11-05, with a stream for each generation.
    """

    exclusive = False

    def __init__(
        self,
        spec: ServerSpec,
        headers: Mapping[str, str],
        credentials: Credentials | None,
        *,
        older: bool,
        link: Link | None,
        tap: Tap | None,
    ) -> None:
        self._link, self._owns_link = link or _link(spec, tap), link is None
        self._spec, self._headers, self._credentials = spec, headers, credentials
        self.channel = Channel.PIPE if older else Channel.REQUESTS
        self.resumable = self.speaks_modern = not older

    def wire(self, on_lost: OnLost) -> Wire:
        spec, limit = self._spec, self._spec.max_result_bytes
        common: dict[str, Any] = {"headers": self._headers, "credentials": self._credentials}
        if self.channel is Channel.REQUESTS:
            return HttpDispatcher(self._link, max_result_bytes=limit, on_lost=on_lost, **common)
        duct = SseDuct(self._link, limit=limit, **common)
        private, silence = self._link.secrets, spec.timeouts.silence
        ids = self._link.ids
        return PipeDispatcher(duct, private=private, silence=silence, on_lost=on_lost, ids=ids)

    async def knock(self) -> int | None:
        headers = await Heading(self._headers, self._credentials, self._link.secrets).write(
            "GET", {"accept": "*/*"}
        )
        del headers["content-type"]
        reply = await self._link.send("GET", headers, None, Attempt())
        reply.discard()
        return reply.status

    async def aclose(self) -> None:
        if self._owns_link:
            await self._link.aclose()

    def forget(self, *, forked: bool) -> None:
        if self._owns_link:
            self._link.forget()


class PipeLine:
    """A process, or a server in this one: each generation is a new one."""

    channel = Channel.PIPE
    resumable = False
    exclusive = True
    speaks_modern = True

    def __init__(self, spec: ServerSpec, make: Callable[[], Duct]) -> None:
        self._spec, self._make = spec, make
        self._ducts: weakref.WeakSet[Duct] = weakref.WeakSet()

    def wire(self, on_lost: OnLost) -> Wire:
        duct = self._make()
        self._ducts.add(duct)
        return PipeDispatcher(
            duct,
            private=self._spec.secrets,
            silence=self._spec.timeouts.silence,
            on_lost=on_lost,
        )

    async def knock(self) -> None:
        """There is no door."""

    async def aclose(self) -> None:
        """Each generation has closed its own."""

    def forget(self, *, forked: bool) -> None:
        for duct in tuple(self._ducts):
            duct.abandon(forked=forked)
