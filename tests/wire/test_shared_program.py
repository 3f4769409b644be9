"""Requests that are forwarded to the owner of a program, over channels that lose, double and delay
messages."""

import asyncio
import json
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from tests.wire.helpers_stdio import ECHO, STUCK, TOOLS, spec_of
from toolkeep._rules.classify import FaultKind
from toolkeep._transport import shared_program
from toolkeep._transport.base import NO_HEADERS, Attempt, ErrorReply, Transport, WireFault
from toolkeep._transport.factory import create_transport_factory
from toolkeep._transport.forwarding import SharedProgramFactory
from toolkeep._transport.jsonrpc import RpcExchange
from toolkeep._transport.shared_program import ProgramIdentity, SharedProgram
from toolkeep.config import ServerSpec, Timeouts
from toolkeep.errors import (
    CallOutcomeUnknown,
    Delivery,
    Failure,
    FailureKind,
    ServerUnavailable,
    StoreUnavailable,
)
from toolkeep.state import Lease, MemoryStore, shared
from toolkeep.state.shared import SharedState, name_of

pytestmark = [pytest.mark.requirement("W8"), pytest.mark.timeout(30)]

SPEC = ServerSpec(name="kit", command="program", replicas="owner")
ADA = ProgramIdentity("principal:ada", "ada")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was lost is asked for sooner, and the end of a process takes less time."""
    monkeypatch.setattr(shared_program, "POLL", 0.1)
    monkeypatch.setattr(shared_program, "LATE", 0.05)


class LossyStore(MemoryStore):
    """Loses the messages that are to be lost, and doubles those to be doubled, each once."""

    def __init__(self) -> None:
        super().__init__()
        self.to_lose: list[str] = []
        self.to_double: list[str] = []
        self.sent: list[dict[str, Any]] = []
        self.delay = 0.0
        """Seconds that a message takes."""
        self.fails_after_sending = False
        """The next request is sent, or lost, and the store says that it failed."""
        self.cut_off = ""
        """No message of this process arrives."""
        self.is_down = self.has_dropped_leases = False
        self.is_putting, self.may_put = asyncio.Event(), asyncio.Event()
        self.may_put.set()

    def _check(self) -> None:
        if self.is_down:
            raise StoreUnavailable("it is down", store="lossy")

    async def publish(self, channel: str, message: bytes) -> None:
        self._check()
        await asyncio.sleep(self.delay)
        found = json.loads(message)
        self.sent.append({"channel": channel, **found})
        await self._deliver(channel, message, found["op"], found["by"])
        if self.fails_after_sending and found["op"] == "ask":
            self.fails_after_sending = False
            raise StoreUnavailable("it broke", store="lossy")

    async def _deliver(self, channel: str, message: bytes, op: str, sender: str) -> None:
        if sender == self.cut_off:
            return
        if op in self.to_lose:
            self.to_lose.remove(op)
            return
        await super().publish(channel, message)
        if op in self.to_double:
            self.to_double.remove(op)
            await super().publish(channel, message)

    @asynccontextmanager
    async def subscribe(self, channel: str) -> AsyncGenerator[AsyncIterator[bytes]]:
        self._check()
        async with super().subscribe(channel) as messages:
            yield messages

    async def put(self, key: str, value: bytes, **options: Any) -> int | None:
        self.is_putting.set()
        await self.may_put.wait()
        return await super().put(key, value, **options)

    async def renew(self, lease: Lease, ttl: float) -> bool:
        return not self.has_dropped_leases and await super().renew(lease, ttl)

    def count(self, op: str) -> int:
        """How often such a message was sent."""
        return sum(one["op"] == op for one in self.sent)


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

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.notified: list[tuple[str, Any]] = []
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def on_request(
        self, method: str, params: Mapping[str, Any] | None, attempt: Attempt
    ) -> Mapping[str, Any]:
        self.asked.append(method)
        await self.may_answer.wait()
        if method == "roots/list":
            raise ErrorReply(-32601, "no roots")
        if method == "sampling/createMessage":
            raise RuntimeError("a bug")
        return {"action": "accept", "asked": method}

    async def on_notification(self, method: str, params: Mapping[str, Any] | None) -> None:
        self.notified.append((method, params))


class Replicas:
    """Two processes with one store: the first one owns the program, the second one forwards."""

    def __init__(self, run: Callable[..., Any]) -> None:
        self.store = LossyStore()
        state = SharedState(self.store)
        self.ran: list[str] = []
        self._run = run
        self.owner = SharedProgram(SPEC, state, self.record)
        self.other = SharedProgram(SPEC, SharedState(self.store), self.record)
        self.members = Member(), Member()
        self.client = Client()
        self.name = name_of("program", SPEC.name, SPEC.command, SPEC.args)

    async def record(
        self, identity: ProgramIdentity, method: str, params: Any, attempt: Attempt
    ) -> dict[str, Any]:
        self.ran.append(method)
        assert identity == ADA
        return await self._run(params, attempt)

    async def forward(self, params: Any = None, attempt: Attempt | None = None) -> dict[str, Any]:
        attempt = attempt or Attempt()
        exchange = RpcExchange(uuid.uuid4().hex, "tools/call", attempt, NO_HEADERS)
        return await self.other.forward(ADA, exchange, params or {}, self.client)

    async def fault(self, params: Any = None) -> WireFault:
        with pytest.raises(WireFault) as caught:
            await self.forward(params)
        return caught.value

    async def publish(self, to: SharedProgram, **message: Any) -> None:
        """Have a message arrive, whoever sent it."""
        body = json.dumps({"by": "gone", **message}).encode()
        await MemoryStore.publish(self.store, f"{self.name}:{to.id}", body)

    async def ask(self, request_id: str) -> None:
        """Have a request arrive at the owner."""
        asked = {"op": "ask", "id": request_id, "method": request_id, "params": {}}
        asked |= {"key": ADA.key, "principal": ADA.principal, "progress": False}
        await self.publish(self.owner, **asked)


async def until(true: Callable[[], Any]) -> None:
    async with asyncio.timeout(10):
        while not true():
            await asyncio.sleep(0.01)


async def hang(params: Any, attempt: Attempt) -> dict[str, Any]:
    await asyncio.Event().wait()
    return {}


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


@asynccontextmanager
async def standing_alone(store: LossyStore) -> AsyncIterator[SharedProgram]:
    """A program of one process, which no one asks for anything."""

    async def run(identity: ProgramIdentity, method: str, params: Any, attempt: Attempt) -> Any:
        raise AssertionError("no one asks")

    program = SharedProgram(SPEC, SharedState(store), run)
    try:
        async with asyncio.timeout(20):
            yield program
    finally:
        await program.aclose()


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


async def test_a_request_that_arrives_after_its_cancellation_never_runs():
    async with replicas() as made:
        await made.publish(made.owner, op="cancel", id="late")
        await made.ask("late")
        await made.forward()
        assert made.ran == ["tools/call"]


async def test_only_the_last_requests_that_did_not_arrive_are_remembered(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(shared_program, "MAX_REVOKED", 1)
    async with replicas() as made:
        for request_id in ("first", "last"):
            await made.publish(made.owner, op="poll", id=request_id)
        for request_id in ("first", "last"):
            await made.ask(request_id)
        await made.forward()
        assert made.ran == ["first", "tools/call"]


@pytest.mark.parametrize("lost", ["result", "done"])
async def test_a_result_is_sent_again_until_it_has_arrived(lost: str):
    async with replicas() as made:
        made.store.to_lose = [lost]
        assert await made.forward({"text": "x"}) == {"given": {"text": "x"}}
        assert made.ran == ["tools/call"]


@pytest.mark.parametrize("op", ["ask", "question", "reply", "result", "done"])
async def test_a_message_that_arrives_twice_counts_once(op: str):
    async def run(params: Any, attempt: Attempt) -> dict[str, Any]:
        assert attempt.on_server_request is not None
        await attempt.on_server_request("elicitation/create", {})
        return {}

    async with replicas(run) as made:
        made.store.to_double = [op]
        assert await made.forward() == {}
        await until(lambda: not made.store.to_double)
        assert await made.forward() == {}
        assert made.ran == ["tools/call"] * 2
        assert made.client.asked == ["elicitation/create"] * 2


async def test_a_question_that_is_being_answered_is_not_put_twice():
    async def run(params: Any, attempt: Attempt) -> dict[str, Any]:
        assert attempt.on_server_request is not None
        await attempt.on_server_request("elicitation/create", {})
        asked, polls = made.store.count("question"), made.store.count("poll")
        await until(lambda: made.store.count("poll") > polls + 1)
        assert made.store.count("question") == asked
        return {}

    async with replicas(run) as made:
        made.client.may_answer.clear()
        call = asyncio.create_task(made.forward())
        await until(lambda: made.store.count("question") > 1)
        made.client.may_answer.set()
        assert await call == {}
        assert made.client.asked == ["elicitation/create"]


async def test_a_question_whose_handler_fails_is_answered_with_an_error():
    async def run(params: Any, attempt: Attempt) -> dict[str, Any]:
        assert attempt.on_server_request is not None
        answer = await attempt.on_server_request("sampling/createMessage", {})
        return {"code": answer.code, "message": answer.message}

    async with replicas(run) as made:
        told = {"code": -32603, "message": "the client's handler failed"}
        assert await made.forward() == told


async def test_the_answer_to_a_question_ends_with_its_request():
    async def run(params: Any, attempt: Attempt) -> dict[str, Any]:
        assert attempt.on_server_request is not None
        await attempt.on_server_request("elicitation/create", {})
        return {}

    async with replicas(run) as made:
        made.client.may_answer.clear()
        call = asyncio.create_task(made.forward())
        await until(lambda: made.client.asked)
        call.cancel()
        await asyncio.wait((call,))
        made.client.may_answer.set()
        await until(lambda: made.store.count("cancel"))
        assert made.store.count("reply") == 0


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


async def test_reports_to_a_caller_that_wants_none_are_dropped():
    async def run(params: Any, attempt: Attempt) -> dict[str, Any]:
        assert attempt.on_notification is not None
        await attempt.on_notification("notifications/message", {})
        return {}

    async with replicas(run) as made:
        assert await made.forward() == {}
        assert made.store.count("note") == 1


async def test_what_is_no_message_is_ignored():
    async with replicas() as made:
        channel = f"{made.name}:{made.owner.id}"
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


async def test_a_result_that_the_owner_could_not_read_is_told_as_such():
    async def run(params: Any, attempt: Attempt) -> dict[str, Any]:
        failure = Failure(FailureKind.UNREADABLE, Delivery.UNKNOWN, "broken", exit_code=3)
        error = CallOutcomeUnknown("it is broken", server="kit", delivery=Delivery.UNKNOWN)
        error.failure = failure
        raise error

    async with replicas(run) as made:
        evidence = (await made.fault()).evidence
        assert (evidence.kind, evidence.sent) == (FaultKind.UNREADABLE, True)
        assert evidence.exit_code == 3
        assert "broken" in evidence.detail


async def test_a_process_that_runs_the_program_no_longer_refuses():
    async with replicas() as made:
        made.owner.stop_accepting()  # the other one has not heard of it yet
        fault = await made.fault()
        assert (fault.evidence.kind, fault.evidence.sent) == (FaultKind.CONNECT, False)
        assert "given the program up" in fault.evidence.detail
        assert made.ran == []


async def test_messages_beyond_the_bound_are_dropped_and_asked_for(
    monkeypatch: pytest.MonkeyPatch,
):
    async with replicas() as made:
        monkeypatch.setattr(shared_program, "MAX_TASKS", 0)
        made.owner.broadcast(ADA.key, "notifications/tools/list_changed", None)
        assert await made.forward({"text": "x"}) == {"given": {"text": "x"}}
        assert made.store.count("notify") == made.store.count("done") == 0
        assert made.members[1].heard == []


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
        await made.ask("1")
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


async def test_each_process_may_run_the_program_in_its_turn():
    async with replicas() as made, AsyncExitStack() as stack:
        owner = made.owner
        for number in range(3):
            following = SharedProgram(SPEC, SharedState(made.store), made.record)
            stack.push_async_callback(following.aclose)
            await owner.hand_over(1.0)
            assert await following.enter(Member()) == ""
            assert await made.other.enter(Member()) == following.id
            assert await made.forward(number) == {"given": number or {}}
            owner = following


async def test_an_owner_is_found_once_it_has_said_who_it_is():
    store = LossyStore()
    async with standing_alone(store) as program:
        lease = await store.lease(name_of("program", SPEC.name, SPEC.command, SPEC.args), 10)
        assert lease is not None
        entering = asyncio.create_task(program.enter(Member()))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(entering), 0.1)
        await store.release(lease)
        assert await entering == ""


async def test_the_lease_is_given_back_when_the_open_that_takes_it_is_given_up():
    store = LossyStore()
    async with standing_alone(store) as program:
        store.may_put.clear()
        entering = asyncio.create_task(program.enter(Member()))
        await store.is_putting.wait()
        entering.cancel()
        await asyncio.wait((entering,))
        assert entering.cancelled()
        store.may_put.set()
        async with asyncio.timeout(shared.LEASE_TTL / 2):
            assert await program.enter(Member()) == ""


async def test_a_program_that_is_closed_while_it_is_opened_does_not_run():
    store = LossyStore()
    async with standing_alone(store) as program:
        store.may_put.clear()
        member = Member()
        entering = asyncio.create_task(program.enter(member))
        await store.is_putting.wait()
        closing = asyncio.create_task(program.aclose())
        await asyncio.sleep(0)
        store.may_put.set()
        await closing
        await asyncio.wait((entering,))
        assert member.stopped or isinstance(entering.exception(), WireFault)


async def test_without_the_store_a_program_is_not_run(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(shared, "COOLDOWN", 0.1)
    monkeypatch.setattr(shared, "LEASE_TTL", 0.5)
    store = LossyStore()
    async with standing_alone(store) as program:
        store.is_down = True
        with pytest.raises(WireFault, match="messages cannot be received") as caught:
            await program.enter(Member())
        assert not caught.value.evidence.sent
        store.is_down = False
        store.may_put.clear()  # it does not answer
        with pytest.raises(WireFault, match="no response within"):
            await program.enter(Member())
        store.may_put.set()
        await asyncio.sleep(0.1)
        assert await program.enter(Member()) == ""


async def test_a_program_that_was_never_opened_closes_at_once():
    store = LossyStore()
    async with standing_alone(store) as program:
        await program.aclose()
        await program.aclose()
    assert store.sent == []


async def test_the_end_of_the_owner_is_told_over_a_slow_store():
    async with replicas() as made:
        made.store.delay = 0.1
        await made.owner.aclose()
        assert made.store.count("gone") == 1
        await until(lambda: made.members[1].lost)


async def test_an_owner_that_is_silent_is_given_up(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(shared_program, "SILENCE", 0.3)
    monkeypatch.setattr(shared_program, "KNOCK_TIMEOUT", 0.3)
    monkeypatch.setattr(shared_program, "FRESH", 0.2)
    async with replicas(hang) as made:
        call = asyncio.create_task(made.fault())
        await until(lambda: made.ran)
        made.store.cut_off = made.owner.id
        evidence = (await call).evidence
        assert (evidence.kind, evidence.sent) == (FaultKind.BROKEN, True)
        assert made.members[1].lost == ["the process that ran the program does not answer"]
        # The next one does not reach it at all.
        evidence = (await made.fault()).evidence
        assert (evidence.kind, evidence.sent) == (FaultKind.CONNECT, False)
        assert made.ran == ["tools/call"]


async def test_a_request_at_an_owner_that_went_silently_does_not_disturb_the_next_owner(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(shared_program, "SILENCE", 0.5)
    async with replicas(hang) as made:
        call = asyncio.create_task(made.fault())
        await until(lambda: made.ran)
        made.store.to_lose = ["fault"] * 10
        await made.owner.aclose()
        member = Member()
        assert await made.other.enter(member) == ""
        evidence = (await call).evidence
        assert (evidence.kind, evidence.sent) == (FaultKind.BROKEN, True)
        assert member.lost == []


async def test_only_the_last_owners_are_remembered(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(shared_program, "MAX_OWNERS", 1)
    monkeypatch.setattr(shared_program, "SILENCE", 60.0)
    async with replicas(hang) as made, standing_alone(made.store) as following:
        call = asyncio.create_task(made.fault())
        await until(lambda: made.ran)
        made.store.to_lose = ["fault"] * 10
        await made.owner.aclose()
        assert await following.enter(Member()) == ""
        member = Member()
        assert await made.other.enter(member) == following.id
        assert (await call).evidence.kind is FaultKind.BROKEN
        assert member.lost == []


async def test_while_the_store_is_down_nothing_is_sent(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(shared_program, "FRESH", 0.0)  # so that the owner is asked first
    async with replicas() as made:
        made.store.is_down = True
        fault = await made.fault()
        assert not fault.evidence.sent
        assert "it is down" in fault.evidence.detail
        made.store.is_down = False
        assert made.ran == []


@pytest.mark.parametrize("arrives", [True, False])
async def test_when_the_store_fails_with_a_request_the_owner_says_whether_it_arrived(
    arrives: bool, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(shared, "COOLDOWN", 0.1)
    async with replicas() as made:
        made.store.fails_after_sending = True
        if arrives:
            assert await made.forward({"text": "x"}) == {"given": {"text": "x"}}
        else:
            made.store.to_lose = ["ask"]
            evidence = (await made.fault()).evidence
            assert (evidence.kind, evidence.sent) == (FaultKind.CONNECT, False)
        assert made.ran == (["tools/call"] if arrives else [])


async def test_messages_are_received_again_after_the_store_has_ended_them(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(shared_program, "COOLDOWN", 0.1)
    monkeypatch.setattr(shared_program, "KNOCK_TIMEOUT", 0.5)
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


# -- transports to a real program ---------------------------------------------------------------


class Process:
    """A process that takes part in a program: its transport, and how the others' requests run."""

    def __init__(self, spec: ServerSpec, store: LossyStore) -> None:
        self.program = SharedProgram(spec, SharedState(store), self._run)
        own = create_transport_factory(spec, {}, None, client=None)
        self.factory = SharedProgramFactory(self.program, own, ADA)
        self.lost: list[str] = []
        self.transport: Transport = self.factory.create(self.lost.append)
        self.client = Client()

    async def _run(
        self, identity: ProgramIdentity, method: str, params: Any, attempt: Attempt
    ) -> dict[str, Any]:
        return await self.transport.request(method, params, attempt)

    async def call(self, tool: str) -> dict[str, Any]:
        return await self.transport.request("tools/call", {"name": tool}, Attempt())

    async def fault(self, method: str = "tools/call", tool: str = "pid") -> WireFault:
        with pytest.raises(WireFault) as caught:
            await self.transport.request(method, {"name": tool}, Attempt())
        return caught.value

    async def aclose(self) -> None:
        await self.transport.close()
        await self.program.aclose()


@asynccontextmanager
async def processes(
    script: str, store: LossyStore | None = None
) -> AsyncIterator[tuple[Process, Process]]:
    """Two processes with one store and one program, which the first one runs."""
    spec, store = spec_of(script, timeouts=Timeouts(close=0.2)), store or LossyStore()
    owner, other = Process(spec, store), Process(spec, store)
    try:
        async with asyncio.timeout(20):
            for one in (owner, other):
                await one.transport.open(one.client)
            yield owner, other
    finally:
        await other.aclose()
        await owner.aclose()


async def test_a_transport_forwards_to_the_program_of_another_process():
    async with processes(TOOLS) as (owner, other):
        assert await other.call("pid") == await owner.call("pid")
        assert owner.transport.stray_output == other.transport.stray_output == ""
        # The program goes on telling the other processes.
        assert await other.transport.request("resources/unsubscribe", {}, Attempt()) == {}
        fault = await owner.fault(tool="die")
        assert fault.evidence.exit_code == 7
        assert await other.factory.probe() is None


async def test_a_transport_that_is_not_open_sends_nothing():
    process = Process(spec_of(TOOLS), LossyStore())
    fault = await process.fault()
    assert (fault.evidence.kind, fault.evidence.sent) == (FaultKind.CONNECT, False)
    await process.aclose()


async def test_what_the_program_prints_besides_messages_is_kept():
    async with processes(f"print('noise', flush=True)\n{ECHO}") as (owner, other):
        await until(lambda: "noise" in owner.transport.stray_output)
        assert other.transport.stray_output == ""


async def test_a_subscription_is_held_until_the_transport_closes():
    async with processes(TOOLS) as (_, other):
        listening = asyncio.create_task(
            other.transport.request("subscriptions/listen", {}, Attempt(), request_id="l1")
        )
        await until(lambda: other.client.notified)
        [(method, params)] = other.client.notified
        assert method == "notifications/subscriptions/acknowledged"
        assert params["_meta"] == {"io.modelcontextprotocol/subscriptionId": "l1"}
        await other.transport.close()
        assert await listening == {}


async def test_a_notification_reaches_the_session_that_it_is_for():
    async with processes(TOOLS) as (owner, other):
        for number, key in enumerate(("principal:bob", ADA.key)):
            owner.program.broadcast(key, "notifications/message", {"number": number})
        await until(lambda: other.client.notified)
        assert other.client.notified == [("notifications/message", {"number": 1})]


async def test_a_lost_lease_ends_the_program_and_the_calls_that_run_in_it(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(shared, "LEASE_TTL", 1.0)
    async with processes(STUCK, store := LossyStore()) as (owner, other):
        calls = [asyncio.create_task(one.fault()) for one in (owner, other)]
        await until(lambda: store.count("ask"))
        store.has_dropped_leases = True
        for call in calls:
            evidence = (await call).evidence
            assert (evidence.kind, evidence.sent) == (FaultKind.BROKEN, True)
        assert "the lease was lost" in calls[0].result().evidence.detail
        assert len(owner.lost) == 1
        fault = await owner.fault()
        assert (fault.evidence.kind, fault.evidence.sent) == (FaultKind.CONNECT, False)


async def test_a_program_that_is_let_go_without_its_loop_is_ended():
    async with processes(STUCK) as (owner, _):
        attempt = Attempt()
        call = asyncio.create_task(owner.transport.request("ping", {}, attempt))
        await until(lambda: attempt.sent)
        owner.factory.detach(forked=False)
        with pytest.raises(WireFault) as caught:
            await call
        assert caught.value.evidence.kind is FaultKind.BROKEN
