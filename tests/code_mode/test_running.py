"""Programs that call tools: values, types, rights, and one account of every call."""

import asyncio
from typing import Any

import pytest

from tests.code_mode._programs import LONG, PATIENCE, SOON, WAYS, account, opened
from toolkeep import CallContext, ConfigError, Runtime, blocking
from toolkeep.code_mode import (
    CodeFailed,
    CodeFinished,
    CodeLimits,
    CodeRefused,
    CodeResult,
    Outcome,
    Printed,
    run_code,
    stream_code,
)
from toolkeep.errors import Delivery
from toolkeep.events import Completed, Progress, Started
from toolkeep.testing import Behaviour, Rule, ScriptedServer

ALL = ["one.*"]
ways = pytest.mark.parametrize("way", WAYS)


# -- values ---------------------------------------------------------------------------------------


@pytest.mark.requirement("X1", "F2")
@ways
async def test_a_program_calls_tools_and_its_last_line_is_its_value(way: str) -> None:
    program = """
first = await one__add(a=1, b=2)
second = await one__add(a=first["sum"], b=10)
print("the sum is", second["sum"])
{"sum": second["sum"], "said": await one__echo(text="hello")}
"""
    async with opened(way) as (runtime, server):
        result = await run_code(runtime, program, allow=ALL, timeout=PATIENCE)
        assert result.ok, result.text()
        assert result.value == {"sum": 13, "said": "hello"}
        assert result.printed == "the sum is 13\n"
        assert "the sum is 13" in result.text()
        result.raise_for_failure()
        assert [(c.tool, dict(c.arguments), c.line, c.outcome) for c in result.calls] == [
            ("one.add", {"a": 1, "b": 2}, 2, Outcome.RAN),
            ("one.add", {"a": 3, "b": 10}, 3, Outcome.RAN),
            ("one.echo", {"text": "hello"}, 5, Outcome.RAN),
        ]
        assert await server.ledger() == {"add": 2, "echo": 1}


@pytest.mark.requirement("X1")
async def test_gathered_calls_run_at_the_same_time() -> None:
    both = asyncio.Barrier(2)

    async def meet(name: str) -> str:
        await both.wait()
        return name

    program = "import asyncio\nawait asyncio.gather(*[builtin__meet(name=n) for n in ('a', 'b')])"
    async with Runtime({}, functions=[meet]) as runtime:
        result = await run_code(runtime, program, allow=["meet"], timeout=PATIENCE)
    assert result.value == [{"result": "a"}, {"result": "b"}]


async def test_no_more_calls_run_at_once_than_the_limit_allows() -> None:
    now = most = 0

    async def count(n: int) -> int:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await asyncio.sleep(0.01)
        now -= 1
        return n

    program = "import asyncio\nawait asyncio.gather(*[builtin__count(n=n) for n in range(12)])"
    limits = CodeLimits(concurrent_calls=3)
    async with Runtime({}, functions=[count]) as runtime:
        result = await run_code(runtime, program, allow=["count"], timeout=PATIENCE, limits=limits)
    assert [one["result"] for one in result.value] == list(range(12))
    assert most == 3


async def test_a_tool_without_an_output_schema_gives_text_data_or_blocks() -> None:
    answers = {"text": "plain", "list": "[1, 2]", "object": '{"a": 1}', "broken": "{not json"}
    async with opened() as (runtime, server):
        for key, text in answers.items():
            content = [{"type": "text", "text": text}]
            await server.script(
                Rule(tool="echo", do=Behaviour(result={"content": content}), times=1)
            )
            result = await run_code(runtime, "await one__echo(text='x')", allow=ALL)
            expected = {"list": [1, 2], "object": {"a": 1}}.get(key, text)
            assert result.value == expected
        result = await run_code(runtime, "await one__content()", allow=ALL)
        assert {block["type"] for block in result.value} >= {"text", "image"}


@pytest.mark.parametrize("oversized", ["error", "truncate", "spool"])
async def test_a_part_of_a_result_is_not_taken_for_the_whole(oversized: str) -> None:
    spec = {"max_result_chars": 1_000, "oversized": oversized}
    async with opened(spec=spec) as (runtime, _):
        result = await run_code(runtime, "await one__big(bytes=5_000)", allow=ALL)
    assert "max_result_chars" in result.error
    assert account(result) == [("one.big", "ran")]


async def test_inputs_are_variables_of_their_own_types() -> None:
    program = "[days + 1, name.upper(), ratio / 2, not flag, rows[0], about['a'], nothing]"
    inputs = {"days": 30, "name": "ada", "ratio": 1.0, "flag": True, "rows": [5], "about": {"a": 1}}
    async with Runtime({}) as runtime:
        result = await run_code(runtime, program, inputs={**inputs, "nothing": None})
        assert result.value == [31, "ADA", 0.5, False, 5, 1, None]
        with pytest.raises(CodeRefused, match="line 1"):
            await run_code(runtime, "days + 'x'", inputs=inputs)


@pytest.mark.parametrize("name", ["class", "a-b", "builtin__echo", ""])
async def test_an_input_needs_a_name_that_is_free(name: str) -> None:
    async with Runtime({}, functions=[]) as runtime:
        with pytest.raises(CodeRefused, match="another name"):
            await run_code(runtime, "1", inputs={name: 1})


async def test_an_input_is_plain_data() -> None:
    async with Runtime({}) as runtime:
        with pytest.raises(CodeRefused, match="plain data"):
            await run_code(runtime, "1", inputs={"x": object()})


async def test_a_value_that_json_has_no_word_for_is_told_as_text() -> None:
    program = """
import datetime
class Point:
    pass
[(1, 2), {3}, float('inf'), datetime.date(2026, 1, 2), 10 ** 5000, {1: 2}, print]
"""
    async with Runtime({}) as runtime:
        value = (await run_code(runtime, program)).value
    assert value[:4] == [[1, 2], [3], "inf", "2026-01-02"]
    assert value[4] == "a very large integer"
    assert value[5] == {"1": 2}
    assert isinstance(value[6], str)


async def test_pauses_take_their_time_and_overlap() -> None:
    program = """
import asyncio, time
began = time.monotonic()
await asyncio.gather(asyncio.sleep(0.3), asyncio.sleep(0.3))
time.sleep(0.1)
time.monotonic() - began
"""
    async with Runtime({}) as runtime:
        assert (await run_code(runtime, program, timeout=PATIENCE)).value > 0.35


# -- refused before anything runs -----------------------------------------------------------------


@pytest.mark.requirement("X1")
@pytest.mark.parametrize(
    ("program", "told"),
    [
        ("await one__add(a=1)", "line 1: No argument provided for required parameter `b`"),
        ("x = 1\nawait one__add(a='1', b=2)", "line 2: .*Expected `float`"),
        ("await one__add(a=1, b=2, c=3)", "`c` does not match any known parameter"),
        ("(await one__add(a=1, b=2))['total']", 'Unknown key "total"'),
        ("one__add(a=1, b=2)", "is not awaited"),
        ("await one__ad(a=1, b=2)", "no tool one__ad. Did you mean one__add"),
        ("await nothing(a=1)", "Name `nothing` used when not defined"),
        ("def f(:", "line 1"),
        ("return 5", "`return` statement outside of a function"),
        ("import socket", "Cannot resolve imported module `socket`"),
        ("open('/etc/passwd')", "`open` used when not defined"),
        ("await one__add(a='x', b=2)  # type: ignore", "types are always checked"),
        ("x = 1\nawait one__add(a='x', b=2)  #ty:ignore[all]", "line 2: types are always"),
        ("x" * 200_000, "longer than 100000"),
        ("(" * 3_000 + ")" * 3_000, "nested"),
    ],
)
async def test_a_program_that_does_not_fit_costs_no_call(program: str, told: str) -> None:
    async with opened() as (runtime, server):
        with pytest.raises(CodeRefused, match=told) as refused:
            await run_code(runtime, f"{program}\n", allow=ALL)
        assert refused.value.delivery is Delivery.NOT_SENT
        assert refused.value.problems
        assert await server.ledger() == {}


async def test_a_run_needs_a_time_limit_and_limits_above_zero() -> None:
    async with Runtime({}) as runtime:
        for timeout in (0, -1, float("inf"), float("nan")):
            with pytest.raises(ConfigError, match="time limit"):
                await run_code(runtime, "1", timeout=timeout)
    with pytest.raises(ConfigError, match="calls"):
        CodeLimits(calls=0)


# -- whose calls they are -------------------------------------------------------------------------


@pytest.mark.requirement("X2")
async def test_only_read_only_tools_may_be_called_unless_others_are_allowed() -> None:
    async with opened() as (runtime, server):
        result = await run_code(runtime, "await one__record_read_only()")
        assert result.value == "recorded"
        for program in ("await one__record()", "await one__record_idempotent()"):
            with pytest.raises(CodeRefused, match=r"not marked read-only.*allow=\[\"one\.record"):
                await run_code(runtime, program)
        assert await server.ledger() == {"record_read_only": 1}
        for allow in (["one.record"], ["record"], ["one.*"], ["*"]):
            assert (await run_code(runtime, "await one__record()", allow=allow)).ok
        with pytest.raises(CodeRefused):
            await run_code(runtime, "await one__record()", allow=["*", "!one.record"])


@pytest.mark.requirement("X2")
async def test_a_tool_that_is_not_allowed_cannot_be_reached_by_another_name() -> None:
    tricks = [
        "await eval('one__record()')",
        "name = 'one__' + 'record'\nawait eval(name)()",
        "exec('x = one__record()')",
        "f = eval('one__record')",
    ]
    async with opened() as (runtime, server):
        for trick in tricks:
            result = await run_code(runtime, trick)
            assert "NameError" in result.error
            assert result.calls == ()
        assert await server.ledger() == {}


async def test_a_tool_can_be_called_by_a_variable_or_in_eval() -> None:
    programs = [
        ("call = one__echo\nawait call(text='x')", 2),
        ("await eval('one__echo(text=\"x\")')", None),
    ]
    async with opened() as (runtime, _):
        for program, line in programs:
            result = await run_code(runtime, program, allow=ALL)
            assert result.value == "x", result.text()
            assert [call.line for call in result.calls] == [line]


async def test_tools_can_be_narrowed() -> None:
    async with opened() as (runtime, _):
        with pytest.raises(CodeRefused, match="not defined"):
            await run_code(runtime, "await one__record_read_only()", tools=["echo"])
        program = "await one__record_read_only()"
        assert (await run_code(runtime, program, tools=["*", "!echo"])).ok
        with pytest.raises(ConfigError, match="tools"):
            await run_code(runtime, program, tools="echo")


@pytest.mark.requirement("X2")
async def test_calls_have_the_identity_and_the_permissions_of_the_context() -> None:
    ada = CallContext(principal="ada", headers={"x-user": "ada"})
    bob = CallContext(principal="bob", headers={"x-user": "bob"})
    permissions = {"ada": {"see": ["*"], "call": ["*"]}, "bob": {"see": ["*"], "call": ["echo"]}}
    async with opened(permissions=permissions) as (runtime, server):
        program = "(await one__headers())['x-user']"
        result = await run_code(runtime, program, context=ada, allow=ALL)
        assert result.value == "ada", result.text()
        refused = await run_code(runtime, program, context=bob, allow=ALL)
        assert account(refused) == [("one.headers", "did not run")]
        assert await server.executions("headers") == 1


async def test_positional_and_strange_arguments_are_the_programs_own_mistakes() -> None:
    programs = [
        "await eval('one__echo(\"x\")')",
        "await eval('one__echo(text={1})')",
        "await eval('one__echo(text=float(\"nan\"))')",
    ]
    async with opened() as (runtime, server):
        for program in programs:
            result = await run_code(runtime, program, allow=ALL)
            assert result.error.startswith("TypeError"), result.text()
        result = await run_code(runtime, "await eval('one__echo(txt=\"x\")')", allow=ALL)
        assert account(result) == [("one.echo", "did not run")]
        assert await server.ledger() == {}


# -- how it ends ----------------------------------------------------------------------------------


@pytest.mark.requirement("X3", "F2")
@ways
async def test_an_outcome_that_is_not_known_ends_the_program(way: str) -> None:
    program = """
await one__echo(text="before")
for attempt in range(3):
    try:
        await one__record(key="paid")
    except BaseException:
        pass
await one__echo(text="after")
"""
    async with opened(way) as (runtime, server):
        await server.script(Rule(tool="record", do=Behaviour(drop="after_run")))
        result = await run_code(runtime, program, allow=ALL, timeout=PATIENCE)
        assert account(result) == [("one.echo", "ran"), ("one.record", "unknown")]
        assert result.line == 5
        assert "Find out whether it ran before you repeat it: one.record." in result.text()
        assert "Already ran, do not repeat: one.echo." in result.text()
        assert await server.executions("paid") == 1
        with pytest.raises(CodeFailed) as failed:
            result.raise_for_failure()
        assert failed.value.delivery is Delivery.UNKNOWN
        assert failed.value.result is result


@pytest.mark.requirement("X3")
async def test_an_unknown_outcome_of_what_may_be_repeated_is_an_exception() -> None:
    program = """
try:
    await one__record_idempotent(key="set")
except RuntimeError:
    print("again")
await one__echo(text="after")
"""
    async with opened(spec={"retry": "never"}) as (runtime, server):
        await server.script(Rule(tool="record_idempotent", do=Behaviour(drop="after_run"), times=1))
        result = await run_code(runtime, program, allow=ALL)
        assert result.ok
        assert result.value == "after"
        assert account(result) == [("one.record_idempotent", "unknown"), ("one.echo", "ran")]


@pytest.mark.requirement("X3")
async def test_a_tools_own_error_is_an_exception_that_a_program_can_catch() -> None:
    caught = """
try:
    await one__fail(message='no')
except RuntimeError as error:
    x = str(error)
x
"""
    async with opened() as (runtime, _):
        result = await run_code(runtime, caught, allow=ALL)
        assert result.value == "no"
        result = await run_code(runtime, "x = 1\nawait one__fail(message='no')", allow=ALL)
        assert (result.line, result.error) == (2, "RuntimeError: no")
        assert '1. one.fail(message="no"), line 2: ran (no), ' in result.text()
        assert result.text().startswith("The program failed at line 2: RuntimeError: no\n")
        with pytest.raises(CodeFailed) as failed:
            result.raise_for_failure()
        assert failed.value.delivery is Delivery.ANSWERED
        assert '"no"' not in str(failed.value), "arguments stay out of logs"


@pytest.mark.requirement("X3")
async def test_a_program_that_fails_without_a_call_may_be_run_again() -> None:
    async with Runtime({}) as runtime:
        result = await run_code(runtime, "x = []\nx[3]")
    assert result.line == 2
    assert "No tool was called." in result.text()
    assert "may be run again" in result.text()
    assert CodeFailed(result).delivery is Delivery.NOT_SENT


@pytest.mark.requirement("X3")
@ways
async def test_one_deadline_covers_all_calls(way: str) -> None:
    program = f"""
import asyncio
await one__record(key="first")
try:
    await asyncio.gather(one__slow(seconds={LONG}, key="a"), one__slow(seconds={LONG}, key="b"))
except BaseException:
    pass
await one__record(key="last")
"""
    async with opened(way) as (runtime, server):
        async with asyncio.timeout(PATIENCE):
            result = await run_code(runtime, program, allow=ALL, timeout=SOON)
        assert account(result) == [
            ("one.record", "ran"),
            ("one.slow", "unknown"),
            ("one.slow", "unknown"),
        ]
        assert result.line == 5
        assert "stopped after 1.5 s" in result.error
        assert await server.executions("last") == 0


@pytest.mark.requirement("X3")
async def test_a_call_that_was_never_sent_did_not_run() -> None:
    program = f"""
import asyncio
await asyncio.gather(*[one__slow(seconds={LONG}, key=str(n)) for n in range(3)])
"""
    async with opened() as (runtime, server):
        limits = CodeLimits(concurrent_calls=1)
        result = await run_code(runtime, program, allow=ALL, timeout=SOON, limits=limits)
        assert account(result) == [
            ("one.slow", "unknown"),
            ("one.slow", "did not run"),
            ("one.slow", "did not run"),
        ]
        assert set(await server.ledger()) <= {"0"}


@pytest.mark.requirement("X3")
async def test_calls_under_way_end_before_the_run_does() -> None:
    program = """
import asyncio
await asyncio.gather(one__slow(seconds=0.3, key="slow"), one__fail(message="no"), asyncio.sleep(50))
"""
    async with opened() as (runtime, server):
        result = await run_code(runtime, program, allow=ALL, timeout=PATIENCE)
        assert result.error == "RuntimeError: no"
        assert account(result) == [("one.slow", "ran"), ("one.fail", "ran")]
        assert result.seconds < PATIENCE
        assert await server.executions("slow") == 1


@pytest.mark.requirement("X3")
async def test_a_call_that_is_not_awaited_counts_as_any_other() -> None:
    program = "calls = [one__record(key='a')]\n'done'"
    async with opened() as (runtime, server):
        result = await run_code(runtime, program, allow=ALL)
        assert result.value == "done"
        assert account(result) == [("one.record", "ran")]
        await server.script(Rule(tool="record", do=Behaviour(drop="after_run")))
        result = await run_code(runtime, program, allow=ALL)
        assert (result.ok, result.value) == (False, None)
        assert "whether one.record ran is not known" in result.error


@pytest.mark.requirement("X3")
@ways
async def test_cancelling_the_caller_cancels_the_calls_under_way(way: str) -> None:
    program = f"await one__record(key='a')\nawait one__slow(seconds={LONG}, key='b')"
    async with opened(way) as (runtime, server):
        run = stream_code(runtime, program, allow=ALL, timeout=PATIENCE)
        async with run:
            async for event in run:
                if isinstance(event, Started) and event.tool == "slow":
                    break
            await server.requests(tool="slow", at_least=1)
        assert account(await run.result()) == [("one.record", "ran"), ("one.slow", "unknown")]
        assert "cancelled" in (await run.result()).error
        await server.cancelled(at_least=1)
        task = asyncio.create_task(run_code(runtime, program, allow=ALL, timeout=PATIENCE))
        await server.requests(tool="slow", at_least=2)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await server.cancelled(at_least=2)


async def test_the_server_being_away_is_told_as_not_run() -> None:
    async with opened() as (runtime, server):
        await server.script(Rule(tool="echo", do=Behaviour(status=503)))
        result = await run_code(runtime, "await one__echo(text='x')", allow=ALL, timeout=2)
    assert result.calls[0].outcome in (Outcome.DID_NOT_RUN, Outcome.UNKNOWN)


# -- events ---------------------------------------------------------------------------------------


@pytest.mark.requirement("L1", "F2", "X3")
@pytest.mark.parametrize("way", ["http sse", "http+sse", "stdio"])
async def test_a_watched_run_tells_of_its_calls_and_ends_with_its_result(way: str) -> None:
    program = "print('begins')\nawait one__steps(count=2)\nprint('ends')"
    async with (
        opened(way) as (runtime, _),
        stream_code(runtime, program, allow=ALL, timeout=PATIENCE) as run,
    ):
        events = [event async for event in run]
        result = await run.result()
    kinds = [type(event) for event in events]
    assert kinds == [Printed, Started, Progress, Progress, Completed, Printed, CodeFinished]
    last = events[-1]
    assert isinstance(last, CodeFinished)
    assert last.result == result
    assert last.as_dict()["result"]["calls"][0]["outcome"] == "ran"


async def test_a_watched_run_that_is_refused_says_so() -> None:
    async with opened() as (runtime, server):
        async with stream_code(runtime, "await one__record()") as run:
            with pytest.raises(CodeRefused):
                await anext(run)
            with pytest.raises(CodeRefused):
                await run.result()
            with pytest.raises(RuntimeError, match="once"):
                await run.__aenter__()
        with pytest.raises(RuntimeError, match="enter the run first"):
            await stream_code(runtime, "1").result()
        assert await server.ledger() == {}


async def test_a_run_that_is_left_at_once_has_a_result_too() -> None:
    async with Runtime({}) as runtime:
        async with stream_code(runtime, "1") as run:
            pass
        assert "cancelled" in (await run.result()).error


@pytest.mark.requirement("A6", "F2")
def test_a_program_runs_without_an_event_loop() -> None:
    def double(n: int) -> int:
        return 2 * n

    with blocking.Runtime({}, functions=[double]) as runtime:
        result: CodeResult = runtime.run(
            lambda behind: run_code(behind, "await builtin__double(n=4)", allow=["double"])
        )
    assert result.value == {"result": 8}


# -- the example of the page that this replaces ---------------------------------------------------


@pytest.mark.requirement("F2", "X3")
async def test_the_example_of_the_plan_language_is_a_program_with_the_same_account() -> None:
    def overdue(days: int) -> list[dict[str, str]]:
        return [{"name": "Ada", "email": "ada@example.org"}, {"name": "Bob", "email": ""}]

    def remind(email: str) -> str:
        return f"sent to {email}"

    program = """
late = await builtin__overdue(days=days)
sent = [
    await builtin__remind(email=customer["email"])
    for customer in late["result"] if customer["email"]
]
await books__record(key="reminders")
await books__echo(text=sent[0]["result"])
"""
    async with ScriptedServer.local() as books:
        await books.script(Rule(tool="record", do=Behaviour(drop="after_run")))
        async with Runtime({"books": books.spec}, functions=[overdue, remind]) as runtime:
            result = await run_code(runtime, program, inputs={"days": 30}, allow=["*"], timeout=30)
        assert account(result) == [
            ("builtin.overdue", "ran"),
            ("builtin.remind", "ran"),
            ("books.record", "unknown"),
        ]
        assert await books.ledger() == {"reminders": 1}


def test_a_result_is_plain_json() -> None:
    import json

    result: Any = CodeResult(error="no", line=3)
    assert json.loads(json.dumps(result.to_json()))["line"] == 3
