"""Arguments that a UiPath definition sets: hidden from the model, and sent with every call."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from langchain.agents import create_agent

from tests.adapters._langchain import HELLO, calling, every_era, model_of, thread, told
from tests.adapters._uipath import Platform, dynamic, platform, resource, settle
from toolkeep import ConfigError
from toolkeep.adapters._uipath_arguments import SetArgument, hide_arguments
from toolkeep.adapters.uipath import McpClient, create_mcp_tools, create_mcp_tools_and_clients
from toolkeep.testing import ScriptedServer

pytestmark = pytest.mark.requirement("A1")

TEXT, NUMBER = {"type": "string"}, {"type": "number"}
USER = {
    "type": "object",
    "properties": {"id": TEXT, "name": TEXT},
    "required": ["id", "name"],
}
SCHEMA = {
    "type": "object",
    "properties": {
        "query": TEXT,
        "token": TEXT,
        "limit": NUMBER,
        "user": {"$ref": "#/$defs/user"},
        "tags": {"type": "array", "items": TEXT},
    },
    "required": ["query", "token", "user"],
    "$defs": {"user": USER},
}
SECRET = "s3cret-token"


def static(value: Any, *, sensitive: bool = False) -> dict[str, Any]:
    return {"variant": "static", "value": value, "isSensitive": sensitive}


def search(**properties: Any) -> dict[str, Any]:
    return {
        "name": "search",
        "description": "Search.",
        "inputSchema": SCHEMA,
        "argumentProperties": properties,
    }


def properties(**given: Any) -> dict[str, Any]:
    return {f"$['{name}']": one for name, one in given.items()}


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch) -> Iterator[Platform]:
    with platform() as played:
        settle(played, monkeypatch)
        yield played


async def sent(
    home: Platform, given: dict[str, Any], arguments: dict[str, Any], **options: Any
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The schema that the model sees, and the arguments that a real server gets."""
    async with ScriptedServer.local(tools=[{**search(), "argumentProperties": None}]) as kit:
        home.servers["kit"] = kit.url
        config = resource("kit", search(**given))
        [tool], [client] = await create_mcp_tools_and_clients([config], **options)
        async with client:
            answer = await tool.ainvoke(arguments)
    schema: Any = tool.args_schema
    return schema, json.loads(answer)


@every_era
@pytest.mark.parametrize("discovered", [False, True])
async def test_an_agent_never_sees_a_static_value_and_the_server_gets_it(
    home: Platform, era: Any, discovered: bool
) -> None:
    given = search(**properties(token=static(SECRET, sensitive=True), limit=static(5)))
    more = dynamic(allow_all=True) if discovered else {}
    listed = [{key: given[key] for key in ("name", "description", "inputSchema")}]
    async with ScriptedServer.local(era=era, tools=listed) as kit:
        home.servers["kit"] = kit.url
        config = resource("kit", given, **more)
        async with McpClient(config) as client:
            made = await create_mcp_tools(config, client)
            [tool] = [one for one in made if (one.metadata or {})["display_name"] == "search"]
            arguments = {"query": "x", "user": {"id": "1", "name": "n"}, "token": "the model's"}
            model = model_of(calling((tool.name, arguments)))
            agent: Any = create_agent(model, [tool])
            [answer] = told(await agent.ainvoke(HELLO, thread()))
    assert json.loads(str(answer.content)) == {**arguments, "token": SECRET, "limit": 5}
    shown: Any = tool.args_schema
    assert set(shown["properties"]) == {"query", "user", "tags"}
    assert shown["required"] == ["query", "user"]
    assert SECRET not in f"{tool!r} {tool.metadata}"


async def test_values_are_set_inside_of_objects_and_arrays(home: Platform) -> None:
    given: dict[str, Any] = {
        "$['token']": static("t"),
        "$['user']['id']": static("7"),
        "$.tags[*]": static("only"),
    }
    schema, got = await sent(home, given, {"query": "x", "user": {"name": "n"}, "tags": ["a", "b"]})
    assert got["user"] == {"id": "7", "name": "n"}
    assert got["tags"] == ["only", "only"]
    assert list(schema["properties"]) == ["query", "limit", "user"]
    assert list(schema["properties"]["user"]["properties"]) == ["name"]


async def test_an_object_of_which_all_is_set_is_hidden_whole(home: Platform) -> None:
    given = {
        "$['token']": static("t"),
        "$['user']": {"variant": "objectBuilder"},
        "$['user']['id']": static("7"),
        "$['user']['name']": static("n"),
        "$['tags']": {"variant": "arrayBuilder"},
        "$['tags'][1]": static("second"),
        "$['tags'][0]": static("first"),
    }
    schema, got = await sent(home, given, {"query": "x"})
    assert (list(schema["properties"]), schema["required"]) == (["query", "limit"], ["query"])
    assert got["user"] == {"id": "7", "name": "n"}
    assert got["tags"] == ["first", "second"]


async def test_values_come_from_the_agent_s_input(home: Platform) -> None:
    words = [("simpleText", "for "), ("variable", "input.who")]
    given = {
        "$['token']": {
            "variant": "textBuilder",
            "isSensitive": False,
            "tokens": [{"type": kind, "rawString": text} for kind, text in words],
        },
        "$['limit']": {"variant": "argument", "isSensitive": False, "argumentPath": "$['most']"},
        "$['tags']": {"variant": "argument", "isSensitive": False, "argumentPath": "$['none']"},
    }
    arguments = {"query": "x", "user": {"id": "1", "name": "n"}, "tags": ["mine"]}
    source = {"who": "Ada", "most": 3}
    schema, got = await sent(home, given, arguments, agent_input=source)
    assert got == {**arguments, "token": "for Ada", "limit": 3}
    assert list(schema["properties"]) == ["query", "user", "tags"]  # no input has `tags`


@pytest.mark.parametrize(
    "given",
    [
        {"$['limit']": {"variant": "argument", "isSensitive": False, "argumentPath": "$['most']"}},
        {"limit": static(1)},
        {"$": static(1)},
        {"$['limit']x": static(1)},
    ],
)
async def test_what_cannot_be_set_is_an_error_before_any_request(
    home: Platform, given: dict[str, Any]
) -> None:
    with pytest.raises(ConfigError):
        await create_mcp_tools_and_clients([resource("kit", search(**given))])
    assert home.asked == []


async def test_a_value_that_does_not_fit_is_the_definition_s_error_and_is_not_told(
    home: Platform,
) -> None:
    with pytest.raises(ConfigError, match="limit") as caught:
        await sent(
            home,
            properties(token=static("t"), limit=static(SECRET, sensitive=True)),
            {"query": "x", "user": {"id": "1", "name": "n"}},
        )
    assert SECRET not in f"{caught.value} {caught.value.__cause__} {caught.value.__context__}"


async def test_what_the_model_is_told_of_its_own_mistake_has_no_value_of_the_definition(
    home: Platform,
) -> None:
    strict = {**SCHEMA, "anyOf": [{"required": ["nothing"]}]}
    listed = {"name": "search", "description": "", "inputSchema": strict}
    async with ScriptedServer.local(tools=[listed]) as kit:
        home.servers["kit"] = kit.url
        given = {
            **search(**properties(token=static(SECRET, sensitive=True))),
            "inputSchema": strict,
        }
        [tool], [client] = await create_mcp_tools_and_clients([resource("kit", given)])
        seen: list[str] = []
        async with client:
            runtime = await client.connect()
            runtime.observe(lambda event: seen.append(repr(event)))
            call = {"name": tool.name, "args": {"query": 1}, "id": "x", "type": "tool_call"}
            answer = await tool.ainvoke(call)
        assert await kit.requests("tools/call") == []
    assert answer.status == "error"
    assert "query" in answer.content
    assert SECRET not in f"{answer} {seen}"


def test_a_schema_that_refers_to_itself_is_searched_to_an_end() -> None:
    loop: dict[str, Any] = {"anyOf": [{"$ref": "#/$defs/loop"}, {"$ref": "#/$defs/self"}]}
    more = {"loop": loop, "self": {"$ref": "#/$defs/self"}, "odd": True}
    schema = {"properties": {"a": {"$ref": "#/$defs/loop"}, "b": True}, "$defs": more}
    given = tuple(SetArgument(path, 1, False) for path in (("a", "x"), ("b", "x"), ("c", None)))
    assert set(hide_arguments(schema, given)["properties"]) == {"a", "b"}
