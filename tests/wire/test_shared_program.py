"""Requests that are forwarded to the owner of a program, over channels that lose messages."""

import asyncio
import json
import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest

from toolkeep._rules.classify import FaultKind
from toolkeep._transport import shared_program
from toolkeep._transport.base import NO_HEADERS, Attempt, ErrorReply, WireFault
from toolkeep._transport.jsonrpc import RpcExchange
from toolkeep._transport.shared_program import ProgramIdentity, SharedProgram
from toolkeep.config import ServerSpec
from toolkeep.errors import ServerUnavailable, StoreUnavailable
from toolkeep.state import MemoryStore
from toolkeep.state.shared import SharedState

pytestmark = [pytest.mark.requirement("W8"), pytest.mark.timeout(30)]

SPEC = ServerSpec(name="kit", command="program", replicas="owner")
ADA = ProgramIdentity("principal:ada", "ada")


class LossyStore(MemoryStore):
    """Loses the messages that are to be lost, each once."""

    def __init__(self) -> None:
        super().__init__()
        self.to_lose: list[str] = []
        self.sent: list[dict[str, Any]] = []
        self.is_down = False

    async def publish(self, channel: str, message: bytes) -> None:
        if self.is_down:
            raise StoreUnavailable("it is down", store="lossy")
        found = json.loads(message)
        self.sent.append({"channel": channel, **found})
        if found["op"] in self.to_lose:
            self.to_lose.remove(found["op"])
        else:
            await super().publish(channel, message)


class Member:
    """A transport, as its program sees it."""

    def __init__(self) -> None:
        self.lost: list[str] = []
        self.heard: list[tuple[str | None, str]] = []
        self.stopped = False

    def hear(self, key: str | None, method: str, params: Mapping[str, Any] | None) -> None:
        self.heard.append((key, method))

    def lose(self, reason: str) -> None:
        self.lost.append(reason)

    async def stop_program(self, reason: str) -> None:
        self.stopped = True


class Client:
    """Answers what the program asks."""

    async def on_request(
        self, method: str, params: Mapping[str, Any] | None, attempt: Attempt
    ) -> Mapping[str, Any]:
        if method == "roots/list":
            raise ErrorReply(-32601, "no roots")
        return {"action": "accept", "asked": method}

    async def on_notification(self, method: str, params: Mapping[str, Any] | None) -> None:
        pass


class Replicas:
    """Two processes with one store: the first one owns the program, the second one forwards."""

    def __init__(self, run: Callable[..., Any]) -> None:
        self.store = LossyStore()
        state = SharedState(self.store)
        self.ran: list[str] = []
        self._run = run
        self.owner = SharedProgram(SPEC, state, self._record)
        self.other = SharedProgram(SPEC, SharedState(self.store), self._record)
        self.members = Member(), Member()

    async def _record(
        self, identity: ProgramIdentity, method: str, params: Any, attempt: Attempt
    ) -> dict[str, Any]:
        self.ran.append(method)
        assert identity == ADA
        return await self._run(params, attempt)

    async def forward(self, params: Any = None, attempt: Attempt | None = None) -> dict[str, Any]:
        attempt = attempt or Attempt()
        exchange = RpcExchange(uuid.uuid4().hex, "tools/call", attempt, NO_HEADERS)
        return await self.other.forward(ADA, exchange, params or {}, Client())

    async def fault(self, params: Any = None) -> WireFault:
        with pytest.raises(WireFault) as caught:
            await self.forward(params)
        return caught.value


async def echo(params: Any, attempt: Attempt) -> dict[str, Any]:
    return {"given": params}


@asynccontextmanager
async def replicas(run: Callable[..., Any] = echo) -> AsyncIterator[Replicas]:
    made = Replicas(run)
    try:
        async with asyncio.timeout(20):
            assert await made.owner.enter(made.members[0]) == ""
            assert await made.other.enter(made.members[1]) == made.owner.id
            yield made
    finally:
        await made.other.aclose()
        await made.owner.aclose()


async def test_a_request_that_was_lost_is_told_not_to_have_been_sent_and_never_runs():
    async with replicas() as made:
        made.store.to_lose = ["ask"]
        fault = await made.fault()
        assert (fault.evidence.kind, fault.evidence.sent) == (FaultKind.CONNECT, False)
        # It arrives after all: its sender was told that it did not run, so it must not.
        (asked,) = [one for one in made.store.sent if one["op"] == "ask"]
        channel = asked.pop("channel")
        await made.store.publish(channel, json.dumps(asked).encode())
        assert await made.forward({"text": "next"}) == {"given": {"text": "next"}}
        assert made.ran == ["tools/call"]


@pytest.mark.parametrize("lost", ["result", "done"])
async def test_a_result_is_sent_again_until_it_has_arrived(lost: str):
    async with replicas() as made:
        made.store.to_lose = [lost]
        assert await made.forward({"text": "x"}) == {"given": {"text": "x"}}
        assert made.ran == ["tools/call"]


@pytest.mark.parametrize("lost", ["question", "reply"])
async def test_a_question_is_asked_again_until_it_is_answered_and_answered_once(lost: str):
    async def run(params: Any, attempt: Attempt) -> dict[str, Any]:
        assert attempt.on_server_request is not None
        answer = await attempt.on_server_request("elicitation/create", {"message": "?"})
        refused = await attempt.on_server_request("roots/list", {})
        return {"answer": answer.model_dump(), "refused": refused.code}

    async with replicas(run) as made:
        made.store.to_lose = [lost]
        result = await made.forward()
        assert result["answer"] == {"action": "accept", "asked": "elicitation/create"}
        assert result["refused"] == -32601


async def test_reports_arrive_in_their_order_and_before_the_result():
    seen: list[Any] = []

    async def run(params: Any, attempt: Attempt) -> dict[str, Any]:
        assert attempt.wants_progress
        assert attempt.on_notification is not None
        for number in range(5):
            await attempt.on_notification("notifications/progress", {"progress": number})
        return {}

    async def on_notification(method: str, params: Mapping[str, Any]) -> None:
        seen.append(params["progress"])

    async with replicas(run) as made:
        attempt = Attempt(on_notification=on_notification, wants_progress=True)
        await made.forward(attempt=attempt)
    assert seen == [0, 1, 2, 3, 4]


async def test_what_is_no_message_is_ignored():
    async with replicas() as made:
        channel = made.store.sent[0]["channel"]
        for body in (b"junk", b"[]", b"{}", b'{"by":"x","op":"poll"}', b'{"by":"x","op":"new"}'):
            await MemoryStore.publish(made.store, channel, body)
        assert await made.forward({"text": "x"}) == {"given": {"text": "x"}}


async def test_a_request_that_is_too_large_is_not_sent():
    async with replicas() as made:
        fault = await made.fault({"text": "x" * 17_000_000})
        assert "larger than" in fault.evidence.detail
        assert not fault.evidence.sent
        assert made.ran == []


async def test_a_failure_of_the_owner_itself_leaves_the_outcome_open():
    async def run(params: Any, attempt: Attempt) -> dict[str, Any]:
        raise RuntimeError("a bug")

    async with replicas(run) as made:
        fault = await made.fault()
        assert (fault.evidence.kind, fault.evidence.sent) == (FaultKind.BROKEN, True)


async def test_a_server_that_could_not_be_reached_did_not_run():
    async def run(params: Any, attempt: Attempt) -> dict[str, Any]:
        raise ServerUnavailable("it does not start", server="kit")

    async with replicas(run) as made:
        fault = await made.fault()
        assert (fault.evidence.sent, fault.evidence.detail) == (False, "it does not start")


async def test_an_owner_that_runs_too_much_refuses(monkeypatch: pytest.MonkeyPatch):
    async with replicas() as made:
        monkeypatch.setattr(shared_program, "MAX_FORWARDED", 0)
        fault = await made.fault()
        assert "already" in fault.evidence.detail
        assert not fault.evidence.sent


async def test_a_request_whose_sender_is_gone_is_cancelled(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(shared_program, "ABANDONED", 0.3)
    cancelled = asyncio.Event()

    async def run(params: Any, attempt: Attempt) -> dict[str, Any]:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        return {}

    async with replicas(run) as made:
        asked = {"by": "gone", "op": "ask", "id": "1", "method": "tools/call", "params": {}}
        asked |= {"key": ADA.key, "principal": ADA.principal, "progress": False}
        channel = next(one["channel"] for one in made.store.sent if one["op"] == "knock")
        await MemoryStore.publish(made.store, channel, json.dumps(asked).encode())
        await asyncio.wait_for(cancelled.wait(), 5)


async def test_a_request_that_is_given_up_is_cancelled_at_the_owner():
    began, cancelled = asyncio.Event(), asyncio.Event()

    async def run(params: Any, attempt: Attempt) -> dict[str, Any]:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        return {}

    async with replicas(run) as made:
        call = asyncio.create_task(made.forward())
        await began.wait()
        call.cancel()
        await asyncio.wait((call,))
        await asyncio.wait_for(cancelled.wait(), 5)


async def test_members_hear_of_notifications_and_of_the_end_of_the_owner():
    async with replicas() as made:
        made.owner.broadcast(ADA.key, "notifications/tools/list_changed", None)
        while not made.members[1].heard:
            await asyncio.sleep(0.01)
        assert made.members[1].heard == [(ADA.key, "notifications/tools/list_changed")]
        await made.owner.hand_over(1.0)
        assert made.members[0].stopped
        assert len(made.members[1].lost) == 1
        fault = await made.fault()
        assert not fault.evidence.sent
        member = Member()
        assert await made.other.enter(member) == ""


async def test_while_the_store_is_down_nothing_is_sent():
    async with replicas() as made:
        await asyncio.sleep(shared_program.FRESH)  # so that the owner is asked first
        made.store.is_down = True
        fault = await made.fault()
        assert not fault.evidence.sent
        assert "it is down" in fault.evidence.detail
        made.store.is_down = False
        assert made.ran == []


async def test_messages_are_received_again_after_the_store_has_ended_them():
    async with replicas() as made:
        await made.store.aclose()
        while True:
            try:
                assert await made.forward({"text": "x"}) == {"given": {"text": "x"}}
                break
            except WireFault:
                await asyncio.sleep(0.1)
                await made.other.enter(Member())
        assert made.ran == ["tools/call"]


async def test_a_program_that_was_given_up_is_not_entered_again():
    async with replicas() as made:
        made.other.stop_accepting()
        with pytest.raises(WireFault, match="given the program up"):
            await made.other.enter(Member())
        assert "forwarding" in repr(made.other)
        assert "owner" in repr(made.owner)
