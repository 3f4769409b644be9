"""Facts about `mcp.client.subscriptions` (mcp 2.3) that `_engine/listening.py` stands on."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.abc
import mcp_types as types
import pytest
from mcp.client.subscriptions import (
    ListenNotSupportedError,
    ResourceUpdated,
    SubscriptionLost,
    ToolsListChanged,
    listen,
)
from mcp.shared.dispatcher import run_notify_intercept
from mcp.shared.exceptions import MCPError

from tests.tripwires.helpers_sdk import DISCOVERED, INITIALIZED, MODERN, Canned, session_on

BOUND = 5.0
ACKNOWLEDGED = "notifications/subscriptions/acknowledged"
TOOLS_CHANGED = "notifications/tools/list_changed"
UPDATED = "notifications/resources/updated"
STAMP = "io.modelcontextprotocol/subscriptionId"


class Listened(Canned):
    """A server that has been asked to tell, and tells what it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = asyncio.Event()
        self.ending: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()

    async def run(
        self,
        on_request: Any,
        on_notify: Any,
        on_notify_intercept: Any = None,
        *,
        task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
    ) -> None:
        self._on_notify, self._intercept = on_notify, on_notify_intercept
        await super().run(on_request, on_notify, task_status=task_status)

    async def send_raw_request(self, method: str, params: Any, opts: Any = None) -> dict[str, Any]:
        self.sent.append((method, params, opts or {}))
        self.asked.set()
        return await self.ending

    async def tell(self, method: str, **params: Any) -> None:
        request_id = self.sent[-1][2].get("request_id")
        stamped = {**params, "_meta": {STAMP: request_id}}
        if not run_notify_intercept(self._intercept, method, stamped):
            await self._on_notify(None, method, stamped)


@asynccontextmanager
async def subscribed(wire: Listened, *uris: str, **callbacks: Any) -> AsyncIterator[Any]:
    """A subscription that stands, to tools and these resources."""

    async def acknowledge() -> None:
        await wire.asked.wait()
        honoured = {"toolsListChanged": True, "resourceSubscriptions": list(uris)}
        await wire.tell(ACKNOWLEDGED, notifications=honoured)

    async with asyncio.timeout(BOUND), session_on(wire, DISCOVERED, **callbacks) as session:
        acknowledging = asyncio.ensure_future(acknowledge())
        async with listen(
            session, tools_list_changed=True, resource_subscriptions=["kit://a", *uris]
        ) as subscription:
            yield subscription
        await acknowledging


async def test_listening_begins_with_the_ack_which_says_what_is_covered() -> None:
    """`Listening._subscribe` takes the gap for closed, and a resource for covered, from here on."""
    wire = Listened()
    async with asyncio.timeout(BOUND), session_on(wire, DISCOVERED) as session:
        entering = asyncio.ensure_future(
            listen(session, resource_subscriptions=["kit://a", "kit://b"]).__aenter__()
        )
        await wire.asked.wait()
        assert not (await asyncio.wait([entering], timeout=0.05))[0]
        await wire.tell(ACKNOWLEDGED, notifications={"resourceSubscriptions": ["kit://b"]})
        subscription = await entering
        assert subscription.honored.resource_subscriptions == ["kit://b"]
    asked = wire.sent[0][1]["notifications"]
    assert asked == {"resourceSubscriptions": ["kit://a", "kit://b"]}


async def test_events_reach_the_message_handler_too_and_the_ack_does_not() -> None:
    """Why `Listening._subscribe` only drains the subscription: `Keeper._on_message` tells them."""
    heard: list[Any] = []

    async def on_message(message: Any) -> None:
        heard.append(message)

    wire = Listened()
    async with subscribed(wire, "kit://b", message_handler=on_message) as subscription:
        await wire.tell(TOOLS_CHANGED)
        await wire.tell(UPDATED, uri="kit://b")
        assert [await anext(subscription) for _ in range(2)] == [
            *(ToolsListChanged(), ResourceUpdated(uri="kit://b")),
        ]
    kinds = (types.ToolListChangedNotification, types.ResourceUpdatedNotification)
    assert [type(message) for message in heard] == list(kinds)


async def test_a_result_ends_a_subscription_without_an_error() -> None:
    """`Listening._modern` then asks again."""
    wire = Listened()
    async with subscribed(wire) as subscription:
        wire.ending.set_result({"resultType": "complete"})
        assert [event async for event in subscription] == []


async def test_a_fault_loses_a_subscription_that_stood() -> None:
    """`Listening._subscribe` catches this type besides `MCPError`; the fault is its cause."""
    wire, fault = Listened(), MCPError(code=-1, message="broken")
    async with subscribed(wire) as subscription:
        wire.ending.set_exception(fault)
        with pytest.raises(SubscriptionLost) as caught:
            await anext(subscription)
    assert caught.value.__cause__ is fault


async def test_a_fault_before_the_ack_is_raised_as_it_is() -> None:
    """`Listening._subscribe` reads the evidence of a `WireFault` off it: is it a refusal?"""
    fault = MCPError(code=-32601, message="no such method")
    async with session_on(Canned(**{"subscriptions/listen": fault}), DISCOVERED) as session:
        with pytest.raises(MCPError) as caught:
            async with listen(session, tools_list_changed=True):
                pass
    assert caught.value is fault


async def test_leaving_a_subscription_cancels_its_request() -> None:
    """How `Listening.stop` ends a stream at the server."""
    wire = Listened()
    async with subscribed(wire):
        assert not wire.ending.done()
    assert wire.ending.cancelled()


async def test_a_legacy_session_cannot_listen_so() -> None:
    """`Listening._run` asks for the era first."""
    wire = Canned()
    async with session_on(wire, INITIALIZED) as session:
        with pytest.raises(ListenNotSupportedError):
            async with listen(session, tools_list_changed=True):
                pass
    assert wire.methods == []


async def test_the_listen_driver_contains_an_mcp_error_and_nothing_else() -> None:
    """Why `WireFault` is an `MCPError`: any other exception would kill the session's task group,
    and with it every call."""
    fault = MCPError(code=-1, message="broken")
    async with session_on(Canned(**{"subscriptions/listen": fault}), DISCOVERED) as session:
        with pytest.raises((MCPError, SubscriptionLost)):
            async with listen(session, tools_list_changed=True):
                pass
        assert await session.send_discover(MODERN)
    other = Canned(**{"subscriptions/listen": LookupError("other")})
    with pytest.raises(ExceptionGroup):
        async with (
            session_on(other, DISCOVERED) as session,
            listen(session, tools_list_changed=True),
        ):
            pass


async def test_waiting_for_the_ack_of_listen_has_no_end_of_its_own() -> None:
    """Whoever listens must bound the wait."""

    class Silent(Canned):
        async def send_raw_request(self, *args: Any, **options: Any) -> dict[str, Any]:
            await anyio.sleep_forever()
            raise AssertionError

    async with session_on(Silent(), DISCOVERED) as session:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2), listen(session, tools_list_changed=True):
                pass
