"""What a configuration says about sessions, tools and prompts, checked and in every dialect."""

import copy
import json
import pickle
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from toolkeep.config import ServerSpec, load, schema
from toolkeep.config.approval import MemoryApprovals
from toolkeep.config.dialects.environment import parse_prompt_association
from toolkeep.config.fields import CONTEXT_HEADER_NAMES
from toolkeep.errors import ConfigError

URL = "http://localhost:8000/mcp"
SECRET = "hunter2"


def spec(**given: Any) -> ServerSpec:
    return ServerSpec(**{"name": "research", "url": URL, **given})


FULL: dict[str, Any] = {
    "session": "principal",
    "max_sessions": 3,
    "tool_headers": {"search": {"x-tier": SECRET}},
    "derived_headers": {"user": "X-Who"},
    "include_tools": ["search_*", "read"],
    "exclude_tools": ["search_all"],
    "tags": ["web", "team/a"],
    "tool_tags": {"read*": ["safe"]},
    "prompts_file": "prompts",
    "guides": {"search*": "how-to-search", "read": "Read it\nbefore you answer."},
}


# --- values ----------------------------------------------------------------------------------


def test_all_of_it_can_be_a_key_be_copied_and_be_sent_to_another_process():
    known = spec(**FULL)
    for twin in (copy.deepcopy(known), pickle.loads(pickle.dumps(known)), known.replace()):
        assert twin == known
        assert hash(twin) == hash(known)
    assert spec(**{**FULL, "tool_tags": {"read*": ["other"]}}) != known


@pytest.mark.requirement("S1")
def test_no_part_of_it_can_be_changed():
    known: Any = spec(**FULL)
    for part in (known.tool_headers, known.tool_headers["search"], known.derived_headers):
        with pytest.raises(TypeError):
            part["x"] = "y"
    for part in (known.tool_tags, known.guides):
        with pytest.raises(TypeError):
            part.clear()


@pytest.mark.requirement("H6")
def test_the_headers_of_a_tool_are_shown_without_their_values():
    known = spec(**FULL)
    assert SECRET not in f"{known!r} {known} {known.model_dump_json()}"
    assert json.loads(known.model_dump_json())["tool_headers"] == {"search": {"x-tier": "***"}}
    assert known.tool_headers["search"]["x-tier"] == SECRET


@pytest.mark.parametrize(
    ("given", "bound"),
    [
        ({"url": URL}, 128),
        ({"command": "npx"}, 8),
        ({"server": spec}, 128),
        ({"command": "npx", "max_sessions": 40}, 40),
        ({"url": URL, "max_sessions": 1}, 1),
    ],
)
def test_the_bound_on_sessions_is_lower_for_programs(given: dict[str, Any], bound: int):
    assert ServerSpec(name="a", **given).session_limit == bound


@pytest.mark.parametrize(
    ("given", "settled"),
    [
        (True, dict(CONTEXT_HEADER_NAMES)),
        (False, {}),
        (["user", "trace"], {"user": "x-user-id", "trace": "x-trace-id"}),
        (("principal",), {"principal": "x-principal"}),
        ([], {}),
        ({"user": "X-Who", "session": "x-chat"}, {"user": "x-who", "session": "x-chat"}),
    ],
)
def test_derived_headers_have_usual_names(given: Any, settled: dict[str, str]):
    assert spec(derived_headers=given).derived_headers == settled


MISTAKES: list[tuple[dict[str, Any], str]] = [
    ({"session": "mine"}, "session"),
    ({"max_sessions": 0}, "max_sessions"),
    ({"max_sessions": -1}, "max_sessions"),
    ({"derived_headers": "user"}, "derived_headers"),
    ({"derived_headers": 1}, "derived_headers"),
    ({"derived_headers": ["nobody"]}, "derived_headers"),
    ({"derived_headers": [[]]}, "derived_headers"),
    ({"derived_headers": {"nobody": "x-a"}}, "derived_headers"),
    ({"derived_headers": {"user": ""}}, "derived_headers"),
    ({"derived_headers": {"user": "x a"}}, "derived_headers"),
    ({"derived_headers": {"user": "x-a\r\n"}}, "derived_headers"),
    ({"derived_headers": {"user": "Mcp-Session-Id"}}, "derived_headers"),
    ({"derived_headers": {"user": "x-a", "trace": "X-A"}}, "derived_headers"),
    ({"derived_headers": {"user": 5}}, "derived_headers.user"),
    ({"tool_headers": {"search": "x-a"}}, "tool_headers.search"),
    ({"tool_headers": {"search": {"x-a": [SECRET]}}}, "tool_headers.search.x-a"),
    ({"include_tools": []}, "include_tools"),
    ({"include_tools": "search"}, "include_tools"),
    ({"include_tools": [""]}, "include_tools.0"),
    ({"exclude_tools": [5]}, "exclude_tools.0"),
    ({"tags": [""]}, "tags.0"),
    ({"tags": ["two words"]}, "tags.0"),
    ({"tags": ["#web"]}, "tags.0"),
    ({"tags": "web"}, "tags"),
    ({"tool_tags": {"read": "safe"}}, "tool_tags.read"),
    ({"tool_tags": {"read": ["a*"]}}, "tool_tags.read.0"),
    ({"prompts_file": "a\0b"}, "prompts_file"),
    ({"prompts_file": 5}, "prompts_file"),
    ({"guides": {"read": " "}}, "guides.read"),
    ({"guides": ["read"]}, "guides"),
]


@pytest.mark.requirement("C3")
@pytest.mark.parametrize(("mistake", "key"), MISTAKES)
def test_a_mistake_names_its_key_and_its_remedy_and_no_secret(mistake: dict[str, Any], key: str):
    with pytest.raises(ConfigError) as caught:
        spec(**mistake)
    error = caught.value
    assert (error.server, error.key) == ("research", key)
    assert error.remedy
    assert SECRET not in f"{error!r} {error}"


@pytest.mark.parametrize("way", [{"command": "npx"}, {"server": spec}], ids=["program", "local"])
@pytest.mark.parametrize(
    "header", [{"tool_headers": {"a": {"x": "y"}}}, {"derived_headers": True}], ids=str
)
def test_headers_mean_nothing_without_http(way: dict[str, Any], header: dict[str, Any]):
    with pytest.raises(ConfigError) as caught:
        ServerSpec(name="a", **way, **header)
    assert caught.value.key in header


# --- dialects --------------------------------------------------------------------------------


def frames() -> dict[str, Any]:
    entry = {"url": URL, **FULL}
    return {
        "products": {"mcpServers": {"research": entry}},
        "vscode": {"servers": {"research": entry}, "inputs": []},
        "own": {"servers": {"research": entry}, "defaults": {}},
        "service": {"tool_service": {"mcp_servers": [{"name": "research", **entry}]}},
        "plain": [{"name": "research", **entry}],
    }


@pytest.mark.requirement("C1")
@pytest.mark.parametrize("dialect", frames())
def test_every_dialect_knows_all_of_it(dialect: str, tmp_path: Path):
    found = load(frames()[dialect], env={}, cwd=tmp_path)
    assert found["research"] == spec(**{**FULL, "prompts_file": str(tmp_path / "prompts")})
    assert found.warnings == ()


@pytest.mark.requirement("C1")
@pytest.mark.parametrize(
    ("word", "ours"),
    [
        ("includeTools", "include_tools"),
        ("excludeTools", "exclude_tools"),
        ("allowedTools", "include_tools"),
        ("disabledTools", "exclude_tools"),
        ("enabled_tools", "include_tools"),
        ("disabled_tools", "exclude_tools"),
        ("allowed_tool_names", "include_tools"),
        ("blocked_tool_names", "exclude_tools"),
    ],
)
@pytest.mark.parametrize("frame", ["mcpServers", "mcp_servers"])
def test_the_words_of_other_products_for_their_tools_are_known(frame: str, word: str, ours: str):
    found = load({frame: {"a": {"url": URL, word: ["search"]}}}, env={})
    assert getattr(found["a"], ours) == ("search",)
    with pytest.raises(ConfigError) as caught:
        load({frame: {"a": {"url": URL, word: ["search"], ours: ["read"]}}}, env={})
    assert caught.value.key in (word, ours)


def test_a_file_of_prompts_is_looked_for_beside_the_configuration(tmp_path: Path):
    path = tmp_path / "toolkeep.toml"
    path.write_text(f"[servers.a]\nurl = '{URL}'\nprompts_file = 'p/a.md'\n")
    assert load(path, env={}, cwd="/")["a"].prompts_file == str(tmp_path / "p" / "a.md")


def test_tags_and_guides_of_all_servers_are_joined_with_a_servers_own():
    given = {
        "defaults": {"guides": {"a": "for all", "b": "for all"}},
        "servers": {"x": {"url": URL, "guides": {"a": "its own"}}},
    }
    assert load(given, env={})["x"].guides == {"a": "its own", "b": "for all"}


@pytest.mark.requirement("C1")
@pytest.mark.parametrize(
    ("association", "guides"),
    [
        ("query_database", {"query_database": "*"}),
        ("", {}),
        ('["one", "two"]', {"one": "*", "two": "*"}),
        (
            '{"sql": "query", "style": ["write", "edit"]}',
            {"query": "sql", "write": "style", "edit": "style"},
        ),
    ],
)
def test_cortex_flow_says_what_its_prompts_are_about(association: str, guides: dict[str, str]):
    env = {
        "MCP_SERVER_X_URL": URL,
        "MCP_SERVER_X_PROMPTS_FILE": "",
        "MCP_SERVER_X_PROMPT_TOOL_ASSOCIATION": association,
    }
    found = load(env=env, approvals=MemoryApprovals(), cwd="/")["x"]
    assert (found.guides, found.prompts_file) == (guides, None)


@pytest.mark.parametrize(
    "association",
    ["{", "[5]", '{"sql": 5}', '{"two words": "query"}', '{"a": "query", "b": "query"}'],
)
def test_an_association_that_makes_no_sense_is_a_mistake(association: str):
    with pytest.raises(ConfigError):
        parse_prompt_association(association)
    env = {"MCP_SERVER_X_URL": URL, "MCP_SERVER_X_PROMPT_TOOL_ASSOCIATION": association}
    with pytest.raises(ConfigError) as caught:
        load(env=env, cwd="/")
    assert caught.value.key == "MCP_SERVER_X_PROMPT_TOOL_ASSOCIATION"


# --- the schema for editors ------------------------------------------------------------------

VALIDATOR = jsonschema_rs.validator_for(schema())


def is_valid(**given: Any) -> bool:
    return VALIDATOR.is_valid({"servers": {"a": {"url": URL, **given}}})


@pytest.mark.parametrize("derived", [True, ["user"], {"user": "x-a"}], ids=str)
def test_the_schema_takes_what_can_be_read(derived: Any):
    assert is_valid(**{**FULL, "derived_headers": derived})


@pytest.mark.parametrize(
    "given",
    [
        {"session": "mine"},
        {"max_sessions": 0},
        {"derived_headers": ["nobody"]},
        {"derived_headers": {"nobody": "x"}},
        {"include_tools": []},
        {"exclude_tools": [""]},
        {"tool_headers": {"a": {"x": 1}}},
        {"tool_tags": {"a": "b"}},
        {"guides": {"a": 1}},
    ],
    ids=str,
)
def test_the_schema_refuses_what_cannot(given: dict[str, Any]):
    assert not is_valid(**given)


def test_the_schema_says_what_each_is_for():
    properties: Any = schema()["$defs"]["Server"]["properties"]
    assert [key for key in FULL if not properties[key].get("description")] == []
