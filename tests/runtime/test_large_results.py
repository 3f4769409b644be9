"""Results that are larger than whoever called wants to read at once."""

import asyncio
import json
from typing import Any

import pytest

from tests.runtime._identity import BOUND, house, named, nameless
from tests.runtime._life import Ear
from toolkeep import CallContext, NotOffered, ResultTooLarge, Runtime
from toolkeep import blocking as toolkeep_blocking
from toolkeep._runtime.large_results import ResultSpool, result_size, truncate
from toolkeep.adapters._common import error_message
from toolkeep.errors import Delivery
from toolkeep.events import Completed, Failed
from toolkeep.runtime import ResultPart
from toolkeep.testing import Behaviour, Rule

LIMIT = 1_000
READ = {"name": "read", "inputSchema": {"type": "object"}, "annotations": {"readOnlyHint": True}}
BIG = {"bytes": 5_000}


def policy(oversized: str, **more: Any) -> dict[str, Any]:
    return {"max_result_chars": LIMIT, "oversized": oversized, **more}


def handle_of(result: Any) -> str:
    return result.meta["toolkeep/oversized"]["handle"]


@pytest.mark.parametrize("oversized", ["error", "truncate", "spool"])
async def test_what_fits_is_handed_on_untouched(oversized: str) -> None:
    async with house("modern", policy(oversized)) as (_, runtime):
        result = await runtime.call("kit.big", {"bytes": LIMIT})
        assert len(result.text) == LIMIT
        assert "toolkeep/oversized" not in result.meta


@pytest.mark.requirement("P11")
async def test_by_default_a_result_beyond_the_limit_is_an_error_that_holds_it() -> None:
    async with house("modern", {"max_result_chars": LIMIT}) as (server, runtime):
        ear = Ear(runtime)
        with pytest.raises(ResultTooLarge) as caught:
            await runtime.call("kit.big", BIG)
        assert len(caught.value.result.text) == 5_000
        assert caught.value.delivery is Delivery.ANSWERED
        assert await server.executions("big") == 1
        assert [type(event) for event in ear.events][-1] is Failed
        assert runtime.stats.tool("kit", "big").errors == {"ResultTooLarge/answered": 1}
        told = error_message(caught.value, "kit__big")
        assert "ran" in told
        assert "5" not in told.replace("kit__big", "")


async def test_a_cut_result_says_so_and_how_much_is_missing() -> None:
    async with house("modern", policy("truncate")) as (_, runtime):
        ear = Ear(runtime)
        result = await runtime.call("kit.big", BIG)
        assert result.success
        first, note = result.content
        assert len(first.text) == LIMIT  # pyright: ignore[reportAttributeAccessIssue]
        assert "5,000" in note.text  # pyright: ignore[reportAttributeAccessIssue]
        assert result.meta["toolkeep/oversized"] == {"characters": 5_000, "kept": LIMIT}
        (completed,) = ear.of(Completed)
        assert completed.result is result


async def test_what_was_set_aside_is_read_in_parts() -> None:
    async with house("modern", policy("spool")) as (server, runtime):
        result = await runtime.call("kit.big", BIG)
        assert result.success
        assert len(result.text) < LIMIT
        handle = handle_of(result)
        assert handle in result.text
        parts: list[ResultPart] = []
        while not parts or not parts[-1].is_last:
            start = parts[-1].end if parts else 0
            parts.append(await runtime.read_result(handle, start, 1_500))
        assert [part.start for part in parts] == [0, 1_500, 3_000, 4_500]
        assert {part.total for part in parts} == {5_000}
        assert len("".join(part.text for part in parts)) == 5_000
        assert await server.executions("big") == 1


async def test_a_part_beyond_the_end_is_empty_and_the_last() -> None:
    async with house("modern", policy("spool")) as (_, runtime):
        handle = handle_of(await runtime.call("kit.big", BIG))
        part = await runtime.read_result(handle, 99_999)
        assert (part.text, part.start, part.is_last) == ("", 5_000, True)


async def test_what_is_not_plain_text_is_set_aside_as_json_with_all_there_is() -> None:
    content = [
        {"type": "text", "text": "a" * 900},
        {"type": "image", "data": "aGk=" * 100, "mimeType": "image/png"},
    ]
    raw = {"resultType": "complete", "content": content, "structuredContent": {"n": [1] * 200}}
    async with house("modern", policy("spool")) as (server, runtime):
        await server.script(Rule(tool="echo", do=Behaviour(result=raw)))
        result = await runtime.call("kit.echo", {"text": "hi"})
        assert result.data is None
        part = await runtime.read_result(handle_of(result))
        found = json.loads(part.text)
        assert found["content"] == content
        assert found["structuredContent"] == {"n": [1] * 200}


@pytest.mark.parametrize(
    ("text", "data", "read"),
    [
        ("x" * 2_000, {"result": "x" * 2_000}, "x" * 2_000),
        (json.dumps({"n": "x" * 2_000}), {"n": "x" * 2_000}, json.dumps({"n": "x" * 2_000})),
        ("[" + "1, " * 999 + "1]", {"result": [1] * 1_000}, "[" + "1, " * 999 + "1]"),
        ("x" * 2_000, {"n": 1}, None),
    ],
    ids=["a text", "an object", "a list", "something else"],
)
async def test_what_is_said_twice_is_read_once(text: str, data: Any, read: str | None) -> None:
    content = [{"type": "text", "text": text}]
    raw = {"resultType": "complete", "content": content, "structuredContent": data}
    async with house("modern", policy("spool")) as (server, runtime):
        await server.script(Rule(tool="echo", do=Behaviour(result=raw)))
        result = await runtime.call("kit.echo", {"text": "hi"})
        part = await runtime.read_result(handle_of(result), 0, 100_000)
        assert part.text == read or (read is None and json.loads(part.text) == raw)


async def test_a_tools_own_error_stays_one() -> None:
    for oversized in ("truncate", "spool"):
        async with house("modern", policy(oversized)) as (_, runtime):
            result = await runtime.call("kit.fail", {"message": "x" * 5_000})
            assert result.is_error
            assert len(result.text) < LIMIT + 200


async def test_a_watched_call_ends_with_what_is_handed_on() -> None:
    async with house("modern", policy("spool")) as (_, runtime):
        async with runtime.stream("kit.big", BIG) as call:
            events = [event async for event in call]
            result = await call.result()
        assert isinstance(events[-1], Completed)
        assert events[-1].result is result
        assert handle_of(result)
    async with house("modern", policy("error")) as (_, runtime):
        async with runtime.stream("kit.big", BIG) as call:
            events = [event async for event in call]
            with pytest.raises(ResultTooLarge):
                await call.result()
        assert isinstance(events[-1], Failed)
        assert sum(event.is_final for event in events) == 1


# -- whose it is -------------------------------------------------------------------------------


@pytest.mark.parametrize("owner", [named("ada"), nameless("Bearer a"), None])
async def test_nobody_else_is_shown_what_was_set_aside(owner: CallContext | None) -> None:
    others = [named("bob"), nameless("Bearer b"), None, named("ada"), nameless("Bearer a")]
    async with house("modern", policy("spool")) as (_, runtime):
        handle = handle_of(await runtime.call("kit.big", BIG, context=owner))
        assert (await runtime.read_result(handle, context=owner)).total == 5_000
        for other in others:
            if other == owner:
                continue
            with pytest.raises(NotOffered) as caught:
                await runtime.read_result(handle, context=other)
            with pytest.raises(NotOffered) as unknown:
                await runtime.read_result("result-0", context=other)
            assert type(caught.value) is type(unknown.value)
            said = str(caught.value).replace(handle, "")
            assert said == str(unknown.value).replace("result-0", ""), "no telling the two apart"


async def test_headers_of_a_call_are_given_again_to_read_what_it_brought() -> None:
    async with house("modern", policy("spool")) as (_, runtime):
        headers = {"x-user": "ada"}
        handle = handle_of(await runtime.call("kit.big", BIG, headers=headers))
        assert (await runtime.read_result(handle, headers=headers)).total == 5_000
        with pytest.raises(NotOffered):
            await runtime.read_result(handle)


async def test_who_may_no_longer_call_the_tool_may_no_longer_read() -> None:
    allowed = True

    def permissions(action: Any, what: Any, context: Any) -> bool:
        return allowed

    spec = policy("spool")
    async with house("modern", spec, permissions=permissions) as (_, runtime):
        handle = handle_of(await runtime.call("kit.big", BIG, context=named("ada")))
        await runtime.read_result(handle, context=named("ada"))
        allowed = False
        with pytest.raises(NotOffered):
            await runtime.read_result(handle, context=named("ada"))


async def test_what_was_set_aside_goes_with_its_principal_its_server_and_its_runtime() -> None:
    async with house("modern", policy("spool")) as (server, runtime):
        ada = named("ada")
        handle = handle_of(await runtime.call("kit.big", BIG, context=ada))
        await runtime.forget("ada")
        with pytest.raises(NotOffered):
            await runtime.read_result(handle, context=ada)

        handle = handle_of(await runtime.call("kit.big", BIG))
        await runtime.remove("kit")
        with pytest.raises(NotOffered):
            await runtime.read_result(handle)
        await runtime.add({"name": "kit", **server.spec, **policy("spool")})
        handle = handle_of(await runtime.call("kit.big", BIG))
        await runtime.aclose()
        await runtime.connect()
        with pytest.raises(NotOffered):
            await runtime.read_result(handle)


async def test_what_a_call_brings_after_its_principal_was_forgotten_is_not_set_aside() -> None:
    async with house("modern", policy("spool")) as (server, runtime):
        await server.script(Rule(tool="big", do=Behaviour(delay=0.5), times=2))
        calls = [
            asyncio.create_task(runtime.call("kit.big", BIG, context=named(name)))
            for name in ("ada", "bob")
        ]
        await server.requests(tool="big", at_least=2)
        async with asyncio.timeout(BOUND):
            await runtime.forget("ada")
            adas, bobs = await asyncio.gather(*calls, return_exceptions=True)
        assert isinstance(adas, ResultTooLarge)
        assert len(adas.result.text) == 5_000
        assert (await runtime.read_result(handle_of(bobs), context=named("bob"))).total == 5_000
        again = await runtime.call("kit.big", BIG, context=named("ada"))
        assert (await runtime.read_result(handle_of(again), context=named("ada"))).total == 5_000


# -- with results that are used again ----------------------------------------------------------


async def test_an_equal_call_of_the_same_caller_is_given_the_same_handle() -> None:
    spec = policy("spool", cache_results=60)
    async with house("modern", spec, server={"tools": [READ]}) as (server, runtime):
        results = [await runtime.call("kit.read", {"x": "y" * 3_000}) for _ in range(2)]
        assert [result.cached for result in results] == [False, True]
        assert await server.executions("read") == 1
        first, second = [await runtime.read_result(handle_of(result)) for result in results]
        assert handle_of(results[0]) == handle_of(results[1])
        assert first == second
        others = await runtime.call("kit.read", {"x": "y" * 3_000}, context=named("bob"))
        assert handle_of(others) != handle_of(results[0])


async def test_what_is_too_large_is_an_error_each_time() -> None:
    spec = policy("error", cache_results=60)
    async with house("modern", spec, server={"tools": [READ]}) as (server, runtime):
        for _ in range(2):
            with pytest.raises(ResultTooLarge):
                await runtime.call("kit.read", {"x": "y" * 3_000})
        assert await server.executions("read") == 2
        assert runtime.stats.tool("kit", "read").errors == {"ResultTooLarge/answered": 2}


# -- bounds ------------------------------------------------------------------------------------


async def _aside(runtime: Runtime) -> Any:
    return (await runtime.resolve(["kit.big"]))[0]


async def test_what_is_kept_is_bounded_and_the_oldest_makes_room() -> None:
    async with house("modern") as (_, runtime):
        tool = await _aside(runtime)
        spill = ResultSpool(max_bytes=10_000)
        handles = [spill.put(tool, None, f"{n}" * 2_000) for n in range(10)]
        assert len(spill) == 4
        assert spill.get(str(handles[-1])).text == "9" * 2_000
        with pytest.raises(NotOffered):
            spill.get(str(handles[0]))


async def test_whoever_holds_most_makes_room_and_nobody_else() -> None:
    async with house("modern") as (_, runtime):
        tool, spill = await _aside(runtime), ResultSpool(max_bytes=10_000)
        adas = str(spill.put(tool, "ada", "x" * 2_000))
        bobs = [str(spill.put(tool, "bob", f"{n}" * 2_000)) for n in range(10)]
        assert spill.get(adas).text == "x" * 2_000
        assert spill.get(bobs[-1]).text == "9" * 2_000
        large = str(spill.put(tool, "ada", "y" * 7_000))
        assert spill.get(large).text == "y" * 7_000, "what was just set aside is there"


async def test_what_is_set_aside_again_is_kept_once() -> None:
    async with house("modern") as (_, runtime):
        tool, spill = await _aside(runtime), ResultSpool(max_bytes=10_000)
        other = str(spill.put(tool, "ada", "y" * 2_000))
        handles = {spill.put(tool, "ada", "x" * 2_000) for _ in range(10)}
        assert (len(handles), len(spill)) == (1, 2)
        assert spill.get(other).text == "y" * 2_000
        spill.remove_owner("ada")
        assert len(spill) == 0
        assert spill.put(tool, "ada", "x" * 2_000) not in handles


async def test_memory_is_counted_in_bytes_not_in_characters() -> None:
    async with house("modern") as (_, runtime):
        tool, spill = await _aside(runtime), ResultSpool(max_bytes=10_000)
        assert spill.put(tool, None, "🙂" * 2_400) is not None
        assert spill.put(tool, None, "🙂" * 2_600) is None


async def test_what_would_never_fit_is_an_error_not_a_broken_promise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spec = policy("spool", max_result_bytes=200 * 1024 * 1024)
    async with house("modern", spec) as (server, runtime):
        await server.script(Rule(tool="big", do=Behaviour(body_bytes=70 * 1024 * 1024)))
        with pytest.raises(ResultTooLarge):
            await runtime.call("kit.big", BIG, timeout=60)


def test_every_kind_of_content_has_a_size() -> None:
    links = [
        {"type": "resource_link", "uri": f"file:///{n}", "name": "x" * 100} for n in range(100)
    ]
    assert result_size({"content": links}) > 10_000
    embedded = {"type": "resource", "resource": {"uri": "a:b", "text": "x" * 5_000}}
    assert result_size({"content": [embedded]}) > 5_000
    assert result_size({"content": [], "structuredContent": {"a": "b"}}) == len('{"a": "b"}')
    assert result_size({}) == 0


def test_what_is_cut_keeps_whole_blocks_and_never_half_of_the_structured_content() -> None:
    image = {"type": "image", "data": "x" * 400, "mimeType": "image/png"}
    raw = {
        "content": [
            {"type": "text", "text": "a" * 300},
            image,
            {"type": "text", "text": "b" * 900},
        ],
        "structuredContent": {"n": "x" * 500},
        "_meta": {"own": 1},
    }
    cut = truncate(raw, 1_000, result_size(raw))
    assert [block["type"] for block in cut["content"]] == ["text", "image", "text", "text"]
    assert cut["content"][1] == image
    assert "structuredContent" not in cut
    assert cut["_meta"]["own"] == 1
    assert result_size({"content": cut["content"][:-1]}) <= 1_000


def test_the_blocking_runtime_reads_in_parts_too(tmp_path: Any) -> None:
    def long(count: int) -> str:
        """A long text."""
        return "x" * count

    spec = {"name": "kit", "server": [long], **policy("spool")}
    with toolkeep_blocking.Runtime.open([spec]) as runtime:
        result = runtime.call("kit.long", {"count": 3_000})
        part = runtime.read_result(handle_of(result), 0, 100_000)
        assert "x" * 3_000 in part.text
