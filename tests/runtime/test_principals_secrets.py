"""Secrets of users, wherever there is room for one: no repr, event, error or log line shows them.

Beside what is public, this looks at what stands behind it: a repr in a log line or a debugger shows
that, too.
"""

import contextlib
import dataclasses
import gc
import logging
import traceback
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from tests.runtime._identity import Era, busy, every_era, failure_of, house, named, nameless, seen
from toolkeep import AuthNeeded, CallContext, Runtime
from toolkeep.auth import AuthRequest, Challenge
from toolkeep.events import Event
from toolkeep.testing import Behaviour, Rule

MARK = "sekret-of-a-user"
SPEC = {
    "api_key": f"{MARK}-key",
    "headers": {"x-server": f"{MARK}-server"},
    "tool_headers": {"record": {"x-tool": f"{MARK}-tool"}},
    "max_sessions": 2,
    "max_retries": 0,
    "breaker_threshold": 0,
}
CALL = {"x-call": f"{MARK}-call"}


class Signing:
    """An authorizer that fails when it is told to, and quotes what it should not."""

    failing = False

    async def headers(self, request: AuthRequest) -> Mapping[str, str]:
        if self.failing:
            raise RuntimeError(f"no signature with {MARK}-signature")
        return {"x-signature": f"{MARK}-signature"}

    async def challenged(self, request: AuthRequest, challenge: Challenge) -> bool:
        return False


def provider(context: CallContext, server: str) -> Mapping[str, str]:
    if context.metadata.get("fails"):
        raise RuntimeError(f"the text of an error with {MARK}")
    return {"x-provided": f"{MARK}-provided"}


def chain(error: BaseException | None) -> Iterator[BaseException]:
    """An error with all its causes and contexts, also those that a traceback would not print."""
    if error is not None:
        yield error
        yield from chain(error.__cause__)
        yield from chain(error.__context__)


def said_by(
    errors: list[Any], events: list[Event], logs: pytest.LogCaptureFixture
) -> Iterator[str]:
    for error in errors:
        yield from traceback.format_exception(error)
        for each in chain(error):
            yield f"{each} {each!r} {getattr(each, 'failure', None)!r}"
    for event in events:
        yield f"{event!r} {event} {event.to_json()}"
    for record in logs.records:
        yield logging.Formatter().format(record)
        yield repr(record.args)


def alive() -> Iterator[tuple[str, str]]:
    """The repr of every object of ours that there is now."""
    gc.collect()
    for one in gc.get_objects():
        module = str(type(one).__module__)
        ours = module.startswith("toolkeep.") and not module.startswith("toolkeep.testing")
        if ours and not isinstance(one, Mapping):  # what an object holds is its own to show
            with contextlib.suppress(AttributeError):  # another test's, whose making was refused
                yield type(one).__qualname__, f"{one!r} {one}"


async def record(runtime: Runtime, context: CallContext, **more: str) -> None:
    await runtime.call("kit.record", context=context, headers={**CALL, **more})


async def lives_of(runtime: Runtime, server: Any, auth: Signing, errors: list[Any]) -> list[str]:
    """Users come, are refused, fail, are evicted; what was reachable on the way."""
    found: list[str] = []
    contexts = [named("ann", f"{MARK}-ann"), nameless(f"{MARK}-x"), named("ben", f"{MARK}-ben")]
    for context in contexts:
        await record(runtime, context)
        async with busy(server, runtime, context):
            found += [f"{kind}: {said}" for kind, said in alive()]
    for how in (
        Behaviour(status=401, body=f"not with {MARK}-ben"),
        Behaviour(status=500, body=f"failed for {MARK}-call"),
        Behaviour(drop="after_body"),
        Behaviour(error={"code": -32000, "message": "no"}),
    ):
        await server.script(Rule(tool="record", do=how, times=1))
        errors.append(await failure_of(record(runtime, contexts[2])))
    errors.append(await failure_of(record(runtime, contexts[0], host=f"{MARK}-host")))
    fails = dataclasses.replace(contexts[0], metadata={"fails": True, "x": f"{MARK}-metadata"})
    errors.append(await failure_of(record(runtime, fails)))
    auth.failing = True
    errors.append(await failure_of(record(runtime, contexts[0])))
    auth.failing = False
    async with runtime.stream("kit.record", context=contexts[0], headers=CALL) as call:
        found += [repr(call), *[f"{event!r} {event}" async for event in call]]
    tools = await runtime.resolve(["kit.record"], contexts[0])
    found += [repr(tools), repr(contexts), repr(runtime.servers), repr(runtime.configuration)]
    found += [repr(runtime.catalogue), repr(runtime.stats), runtime.summary()]
    return found


@pytest.mark.requirement("H6")
@every_era
async def test_no_secret_of_anybody_is_shown_anywhere(era: Era, caplog: pytest.LogCaptureFixture):
    for name in ("toolkeep", "aiohttp", "asyncio", "mcp"):
        caplog.set_level(logging.DEBUG, logger=name)
    auth, events, errors = Signing(), list[Event](), list[Any]()
    async with house(era, SPEC, auth=auth, header_provider=provider) as (server, runtime):
        runtime.observe(events.append)
        shown = await lives_of(runtime, server, auth, errors)
    sent = {value for record in await server.requests() for value in record.headers.values()}
    for secret in ("ann", "x", "ben", "call", "tool", "server", "provided", "signature"):
        assert f"{MARK}-{secret}" in sent, "it was never there to be shown"
    assert any(isinstance(error, AuthNeeded) for error in errors)
    assert len(events) > 10
    reached = {said.split(": ")[0] for said in shown}
    owners = {"Runtime", "ToolResolver", "SessionPool", "AcquiredClient", "CallerHeaders"}
    assert {*owners, "CallRequest", "Attempt"} <= reached
    everything = [*shown, *said_by(errors, events, caplog)]
    assert {said.split("(")[0] for said in everything if MARK in said} == set()


@pytest.mark.requirement("H6")
async def test_no_session_id_is_shown_in_a_log_line_or_an_error(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.DEBUG, logger="toolkeep")
    errors: list[Any] = []
    async with house("legacy", {"max_sessions": 1, "max_retries": 0}) as (server, runtime):
        for who in ("ann", "ben", "ann"):
            await seen(runtime, named(who))
        await server.script(Rule(tool="headers", do=Behaviour(status=500), times=1))
        errors.append(await failure_of(seen(runtime, named("ann"))))
    sessions = {r.session_id for r in await server.requests() if r.session_id}
    said = "\n".join(said_by(errors, [], caplog))
    assert len(sessions) > 2
    assert not [session for session in sessions if session in said]
