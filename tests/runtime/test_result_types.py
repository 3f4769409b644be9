"""`result_type`: the value of a result as a validated type, through clients and runtimes."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict

from toolkeep import CallResult, Client, InputNotGiven, InvalidResult, Runtime, ToolError, blocking
from toolkeep.errors import Delivery


class Weather(BaseModel):
    model_config = ConfigDict(strict=True)

    city: str
    degrees: float


class Options(BaseModel):
    """Every field has a default, so that it would also take a wrapped value for one."""

    city: str = "Bern"


class Storm(BaseModel):
    wind: float


def weather(city: str) -> Weather:
    return Weather(city=city, degrees=21.5)


def forecast() -> list[Weather]:
    return [Weather(city="Bern", degrees=20), Weather(city="Chur", degrees=22)]


def count(to: int) -> int:
    if to < 0:
        raise ValueError("it must not be negative")
    return to


runs = []


def remember() -> str:
    runs.append(1)
    return "done"


TOOLS = [weather, forecast, count, remember]

Calling = Callable[..., Awaitable[Any]]


@pytest.fixture(params=["client", "runtime", "resolved", "blocking"])
async def call(request: pytest.FixtureRequest):
    if request.param == "client":
        async with Client(TOOLS) as client:
            yield client.call_tool
        return
    if request.param == "blocking":
        import asyncio

        def open_and_call(*args: Any, **options: Any) -> Any:
            with blocking.Runtime.open({"kit": {"server": TOOLS}}) as runtime:
                return runtime.call(*args, **options)

        async def in_thread(*args: Any, **options: Any) -> Any:
            return await asyncio.to_thread(open_and_call, *args, **options)

        yield in_thread
        return
    async with Runtime.open({"kit": {"server": TOOLS}}) as runtime:
        if request.param == "runtime":
            yield runtime.call
            return

        async def resolved(name: str, *args: Any, **options: Any) -> Any:
            (tool,) = await runtime.resolve([name])
            return await tool.call(*args, **options)

        yield resolved


async def test_a_call_with_a_result_type_returns_a_validated_value(call: Calling):
    assert await call("weather", {"city": "Bern"}, result_type=Weather) == weather("Bern")
    assert await call("forecast", result_type=list[Weather]) == forecast()
    assert await call("count", {"to": 3}, result_type=int) == 3
    assert await call("remember", result_type=str) == "done"


async def test_a_call_without_a_result_type_returns_the_result(call: Calling):
    assert isinstance(await call("count", {"to": -1}), CallResult)


async def test_an_error_of_the_tool_is_raised(call: Calling):
    with pytest.raises(ToolError, match="count reported an error: ") as raised:
        await call("count", {"to": -1}, result_type=int)
    assert raised.value.delivery is Delivery.ANSWERED
    assert raised.value.result.is_error


async def test_a_value_that_does_not_validate_raises_invalid_result(call: Calling):
    with pytest.raises(InvalidResult, match="weather ran, but its result is not Storm: wind: "):
        await call("weather", {"city": "Bern"}, result_type=Storm)


async def test_a_type_that_cannot_be_validated_is_refused_before_the_tool_runs(call: Calling):
    before = len(runs)
    for unusable in ("str", 5, type("Plain", (), {})):
        with pytest.raises(TypeError, match="result_type must be a type that pydantic validates"):
            await call("remember", result_type=unusable)
    assert len(runs) == before


# --- forms of results, as servers write them -------------------------------------------------


def result(**raw: object) -> CallResult:
    return CallResult(raw, "research", "search")


def text(*texts: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": one} for one in texts]


def test_a_result_with_text_alone_is_read_as_json():
    assert result(content=text('{"city": "Bern", "degrees": 1.5}')).parse(Weather).degrees == 1.5
    assert result(content=text("[1, 2]")).parse(list[int]) == [1, 2]
    with pytest.raises(InvalidResult, match="Invalid JSON"):
        result(content=text("it is sunny")).parse(Weather)
    assert result(content=text("5")).parse(str) == "5"


def test_structured_content_counts_before_text():
    both = result(content=text('{"city": "no"}'), structuredContent={"city": "yes"})
    assert both.parse(Options).city == "yes"


def test_a_wrapped_value_is_unwrapped_where_the_type_has_no_such_field():
    class Verdict(BaseModel):
        result: str

    wrapped = result(structuredContent={"result": {"city": "Chur"}})
    assert wrapped.parse(Options).city == "Chur"
    assert wrapped.parse(dict[str, Any]) == {"result": {"city": "Chur"}}
    assert result(structuredContent={"result": "guilty"}).parse(Verdict).result == "guilty"
    assert result(structuredContent={"result": None}).parse(type(None)) is None
    with pytest.raises(InvalidResult):
        result(structuredContent={"result": "text"}).parse(Options)


def test_a_result_without_a_value_says_so():
    with pytest.raises(InvalidResult, match="neither structured content nor text"):
        result(content=[]).parse(Weather)
    with pytest.raises(InputNotGiven) as raised:
        result(resultType="input_required", inputRequests={"q": {}}).parse(Weather)
    assert raised.value.requests == {"q": {}}


def test_what_does_not_validate_is_not_repeated_in_the_error():
    with pytest.raises(InvalidResult) as raised:
        result(structuredContent={"city": {"secret": "s3cret"}, "degrees": "s3cret"}).parse(Weather)
    assert "s3cret" not in str(raised.value)
    assert "city: Input should be a valid string; degrees: " in str(raised.value)
    assert raised.value.result.data["degrees"] == "s3cret"


def test_raise_for_error_returns_a_result_without_error():
    fine = result(content=text("all well"))
    assert fine.raise_for_error() is fine
    with pytest.raises(ToolError, match="research: search reported an error: no such page"):
        result(content=text("no such page"), isError=True).raise_for_error()
    with pytest.raises(ToolError, match="without a text"):
        result(content=[], isError=True).raise_for_error()
    with pytest.raises(ToolError) as raised:
        result(content=text("x" * 100_000), isError=True).raise_for_error()
    assert len(str(raised.value)) < 2000


def test_a_result_shows_its_kind_and_none_of_its_contents():
    shown = repr(result(content=text("s3cret"), structuredContent={"key": "s3cret"}))
    assert shown == "<CallResult research.search, ok, 1 block, structured>"
    assert "error" in repr(result(isError=True))
