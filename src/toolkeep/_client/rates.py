"""`RateLimits`: how many calls one server may get, from all processes that share a store; and
`RetryBudget`: how many retries.

One round trip for each rate that applies. Without a store, or while it is down, each process counts
by itself, unless the server is configured as `closed`: then nothing is sent, or sent again.
"""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import TYPE_CHECKING

from toolkeep._client.options import ClientOptions
from toolkeep._rules.access import compile_glob
from toolkeep._rules.limits import TokenBucket
from toolkeep.config import ServerSpec
from toolkeep.config.fields import Rate
from toolkeep.errors import (
    CallNotDelivered,
    CallNotSentInTime,
    Delivery,
    Failure,
    FailureKind,
    StoreUnavailable,
)
from toolkeep.state.shared import SharedState, name_of

if TYPE_CHECKING:
    from toolkeep._client.deadline import RequestDeadline


_MAX_TOOLS = 1000


class RateLimits:
    """The rates of the calls of one client. Lives as long as the client."""

    def __init__(self, spec: ServerSpec, options: ClientOptions) -> None:
        self._server, self._state = spec.name, options.state
        self._closed = spec.on_store_loss == "closed" and bool(options.state)
        where = [spec.name, spec.url, spec.urls, spec.command, spec.args]
        who = [options.principal, options.identity_key]
        # The narrowest first: what is taken of a wide rate is then not lost to a narrow one.
        self._fixed = [
            (rate, name_of("rate", *where, *about))
            for scope, about in (("principal", who), ("server", ()))
            if (rate := _rate(spec, scope)) is not None
        ]
        self._tools = [
            (compile_glob(scope.removeprefix("tool:")), Rate.parse(rate), scope)
            for scope, rate in spec.rate.items()
            if scope.startswith("tool:")
        ]
        self._where = where
        self._by_tool: dict[str, list[tuple[Rate, str]]] = {}

    async def wait(self, tool: str, deadline: RequestDeadline) -> None:
        """Wait for the turn of a call. Raises `CallNotSentInTime` if its deadline is earlier."""
        until = asyncio.get_running_loop().time() + deadline.remaining
        for rate, key in self._rates_of(tool):
            try:
                async with asyncio.timeout_at(until):
                    await self._take(tool, rate, key, until)
            except TimeoutError as error:
                if isinstance(error, CallNotSentInTime):
                    raise
                raise self._too_late(tool, rate, None) from None

    def _rates_of(self, tool: str) -> list[tuple[Rate, str]]:
        if not self._tools:
            return self._fixed
        found = self._by_tool.get(tool)
        if found is None:
            if len(self._by_tool) > _MAX_TOOLS:  # names of tools are the caller's
                self._by_tool.clear()
            own = [
                (rate, name_of("rate", *self._where, scope, tool))
                for glob, rate, scope in self._tools
                if glob.match(tool)
            ]
            found = self._by_tool[tool] = [*own, *self._fixed]
        return found

    async def _take(self, tool: str, rate: Rate, key: str, until: float) -> None:
        # One task of this process asks at a time, the others wait behind it.
        turn = self._state.turns.get(key)
        if turn is None:
            turn = self._state.turns[key] = asyncio.Lock()
        async with turn:
            while wait := await self._wait_of(tool, rate, key):
                if asyncio.get_running_loop().time() + wait > until:
                    raise self._too_late(tool, rate, wait)
                await asyncio.sleep(wait)

    async def _wait_of(self, tool: str, rate: Rate, key: str) -> float:
        """Take one call of the rate; 0.0, or the seconds until there is one."""
        options = {"rate": rate.per_second, "burst": rate.burst}
        try:
            return await self._state.ask(lambda store: store.take(key, **options))
        except StoreUnavailable as error:
            if self._closed:
                raise CallNotDelivered(
                    f"{self._server}: {tool} was not sent: the store is down ({error.problem}),"
                    " so the rate of all processes is unknown, and on_store_loss is closed."
                    " It did not run",
                    server=self._server,
                    tool=tool,
                    delivery=Delivery.NOT_SENT,
                ) from None
        return await self._state.buckets.take(key, **options)

    def _too_late(self, tool: str, rate: Rate, wait: float | None) -> CallNotSentInTime:
        turn = "its turn did not come" if wait is None else f"its turn is in {wait:.3g} s"
        problem = f"the rate {rate} is used up; {turn}"
        text = f"{self._server}: {tool} was not sent: {problem}, after its deadline. It did not run"
        kind, sent = FailureKind.THROTTLED, Delivery.NOT_SENT
        return CallNotSentInTime(
            text,
            server=self._server,
            tool=tool,
            delivery=sent,
            failure=Failure(kind, sent, problem, retry_after=wait),
        )


class RetryBudget:
    """The retries of one endpoint. Lives as long as the endpoint."""

    def __init__(self, spec: ServerSpec, state: SharedState) -> None:
        self._state, self._closed = state, spec.on_store_loss == "closed"
        self._own = TokenBucket(spec.retry_burst, spec.retry_rate)
        # A store's bucket holds at least one token and is refilled.
        self._is_shared = bool(spec.url) and spec.retry_burst >= 1 and spec.retry_rate > 0
        self._key = name_of("retries", spec.name, spec.url)

    async def take(self) -> bool:
        """Take one retry; False if there is none."""
        if not (self._is_shared and self._state):
            return self._own.take(monotonic())
        rate, burst = self._own.per_second, self._own.capacity
        try:
            wait = await self._state.ask(
                lambda store: store.take(self._key, rate=rate, burst=burst)
            )
        except StoreUnavailable:
            return not self._closed and self._own.take(monotonic())
        return wait == 0


def _rate(spec: ServerSpec, scope: str) -> Rate | None:
    return Rate.parse(spec.rate[scope]) if scope in spec.rate else None
