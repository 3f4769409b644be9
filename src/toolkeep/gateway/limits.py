"""`CallRates`: how many calls each principal may make through all gateways that share a store.

The rates of servers (`rate` in their configuration) make a call wait for its turn. These refuse it
at once, so that one principal's calls do not fill the queues of all. Both take from the token
buckets of the store; while it is down, each process counts by itself.
"""

from __future__ import annotations

from collections.abc import Mapping

from toolkeep._rules.access import compile_glob
from toolkeep.config.fields import Rate
from toolkeep.errors import StoreUnavailable
from toolkeep.state.shared import SharedState, name_of

__all__ = ["CallRates"]


class CallRates:
    """The rates of one gateway, by scope: `principal`, or `tool:` and a glob over full names."""

    def __init__(self, state: SharedState, rates: Mapping[str, str]) -> None:
        self._state = state
        self._tools = [
            (compile_glob(scope.removeprefix("tool:")), Rate.parse(rate), scope)
            for scope, rate in rates.items()
            if scope != "principal"
        ]
        self._whole = Rate.parse(rates["principal"]) if "principal" in rates else None

    def __bool__(self) -> bool:
        """Whether there is any rate."""
        return bool(self._tools or self._whole)

    async def take(self, principal: str | None, server: str, tool: str) -> float:
        """Take one call. 0.0, or the seconds until there is one: the value of `Retry-After`."""
        # The narrowest first: what is taken of a wide rate is then not lost to a narrow one.
        for glob, rate, scope in self._tools:
            applies = glob.match(f"{server}.{tool}") is not None
            if applies and (wait := await self._take(rate, principal, scope)):
                return wait
        return await self._take(self._whole, principal, "principal") if self._whole else 0.0

    async def _take(self, rate: Rate, principal: str | None, scope: str) -> float:
        key = name_of("gateway-rate", principal, scope)
        given = {"rate": rate.per_second, "burst": rate.burst}
        try:
            return await self._state.ask(lambda store: store.take(key, **given))
        except StoreUnavailable:
            return await self._state.buckets.take(key, **given)
