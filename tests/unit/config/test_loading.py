"""Where a configuration comes from, what counts for all its servers, and what it never shows."""

from pathlib import Path
from typing import Any

import pytest

from toolkeep.config import ServerSpec, Timeouts
from toolkeep.config.approval import MemoryApprovals
from toolkeep.config.loader import DEFAULT_PATHS, load
from toolkeep.config.spec import Configuration, ConfigWarning, difference
from toolkeep.errors import ConfigError

URL = "http://localhost:8000/mcp"
JSON = '{"mcpServers": {"%s": {"url": "http://localhost:8000/mcp"}}}'
TOML = '[servers.%s]\nurl = "http://localhost:8000/mcp"\n'


def put(folder: Path, place: str, text: str) -> Path:
    path = folder / place
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def names(found: Configuration) -> list[str]:
    return [spec.name for spec in found.servers]


def describing(place: str, name: str) -> str:
    return (TOML if place.endswith(".toml") else JSON) % name


# --- where -----------------------------------------------------------------------------------


def test_the_first_of_the_usual_places_is_taken(tmp_path: Path):
    env = {"MCP_SERVER_ENVIRONMENT_URL": URL}
    expected = "environment"
    assert names(load(env=env, cwd=tmp_path)) == [expected]
    for number, place in reversed(list(enumerate(DEFAULT_PATHS))):
        put(tmp_path, place, describing(place, f"place{number}"))
        assert names(load(env=env, cwd=tmp_path)) == [f"place{number}"]
    put(tmp_path, "sub/named.json", JSON % "named")
    env["TOOLKEEP_CONFIG"] = "sub/named.json"
    assert names(load(env=env, cwd=tmp_path)) == ["named"]
    assert names(load({"argument": URL}, env=env, cwd=tmp_path)) == ["argument"]


def test_where_nothing_is_configured_that_is_said(tmp_path: Path):
    with pytest.warns(ConfigWarning, match=r"toolkeep\.toml"):
        assert load(env={}, cwd=tmp_path).servers == ()


def test_a_named_file_that_is_missing_is_not_passed_over(tmp_path: Path):
    put(tmp_path, "mcp.json", JSON % "other")
    with pytest.raises(ConfigError) as caught:
        load(env={"TOOLKEEP_CONFIG": "gone.json"}, cwd=tmp_path)
    assert caught.value.file == "gone.json"


@pytest.mark.parametrize("name", ["kit.json", "kit.toml", ".env", "kit.env", ".env.production"])
def test_a_path_is_a_text_or_a_path(tmp_path: Path, name: str):
    text = f"MCP_SERVER_KIT_URL={URL}" if "env" in name else describing(name, "kit")
    path = put(tmp_path, name, text)
    for source in (path, str(path), name, Path(name)):
        assert names(load(source, env={}, cwd=tmp_path)) == ["kit"]


def test_a_byte_order_mark_is_no_mistake(tmp_path: Path):
    path = tmp_path / "mcp.json"
    path.write_bytes(b"\xef\xbb\xbf" + (JSON % "kit").encode())
    assert names(load(path, env={})) == ["kit"]


# --- what counts for all ---------------------------------------------------------------------

GLOBAL = {
    "MCP_CLIENT_RETRY_ATTEMPTS": "7",
    "MCP_CLIENT_TIMEOUT": "12.5",
    "MCP_HEALTH_CHECK_INTERVAL": "9",
}


def settings(spec: ServerSpec) -> tuple[float | None, ...]:
    return spec.max_retries, spec.timeouts.call, spec.health_interval


@pytest.mark.requirement("C2")
def test_global_defaults_count_for_every_dialect(tmp_path: Path):
    env = {**GLOBAL, "MCP_SERVER_KIT_URL": URL}
    sources: list[Any] = [
        *(describing_file for describing_file in _each_kind(tmp_path)),
        {"kit": URL},
        [{"name": "kit", "url": URL}],
        {"tool_service": {"mcp_servers": [{"name": "kit", "endpoint": URL}]}},
        None,
    ]
    for source in sources:
        found = load(source, env=env, cwd=tmp_path / "empty")
        assert settings(found["kit"]) == (7, 12.5, 9), source
        said = str(found.origins["kit"]["timeouts.call"])
        assert said == "default of MCP_CLIENT_TIMEOUT"


def _each_kind(folder: Path) -> list[Path]:
    (folder / "empty").mkdir()
    return [put(folder, name, describing(name, "kit")) for name in ("kit.json", "kit.toml")]


@pytest.mark.requirement("C2")
def test_a_default_that_is_joined_with_a_servers_own_says_where_it_came_from(tmp_path: Path):
    file = tmp_path / "toolkeep.toml"
    file.write_text(
        "[defaults]\ntimeouts = {call = 20, connect = 4}\n"
        f"[servers.kit]\nurl = {URL!r}\ntimeouts = {{call = 90}}\n"
    )
    found = load(file, env={})
    assert (found["kit"].timeouts.call, found["kit"].timeouts.connect) == (90, 4)
    lines = {key: origin.line for key, origin in found.origins["kit"].items()}
    assert lines == {"url": 4, "timeouts": 5, "timeouts.call": 5, "timeouts.connect": 2}


@pytest.mark.requirement("C2")
def test_without_any_the_built_in_ones_count():
    # Without a wish of its own, a server is looked after as its group does: every 60 s.
    assert settings(load({"kit": URL}, env={})["kit"]) == (3, 30, None)


@pytest.mark.requirement("C2")
@pytest.mark.parametrize(
    "own",
    [
        {"max_retries": 1, "timeouts": {"call": 2}, "health_interval": 3},
        {"retry_attempts": 1, "timeout": 2, "health_check_interval": 3},
        {"retry_attempts": "${ONE}", "timeout": "2", "health_check_interval": 3.0},
        {"retry_attempts": 1, "timeouts": Timeouts(call=2), "health_interval": 3},
    ],
    ids=str,
)
def test_a_servers_own_value_wins(own: dict[str, Any]):
    found = load({"kit": {"url": URL, **own}}, env={**GLOBAL, "ONE": "1"})
    assert settings(found["kit"]) == (1, 2, 3)


def test_a_spec_that_is_made_already_stays_as_it_is():
    made = ServerSpec(name="kit", url=URL)
    assert load([made], env=GLOBAL)["kit"] is made


@pytest.mark.requirement("C1")
@pytest.mark.parametrize("variable", ["MCP_ENABLE", "ENABLE_MCP_TOOLS"])
@pytest.mark.parametrize("word", ["false", "0", "no", "off", "FALSE"])
def test_one_switch_turns_all_off(variable: str, word: str):
    source = {"a": URL, "b": {"command": "${NOT_EVEN_LOOKED_AT}"}}
    found = load(source, env={variable: word})
    assert found.servers == ()
    assert set(found.disabled) == {"a", "b"}
    assert all(variable in reason for reason in found.disabled.values())


@pytest.mark.parametrize("word", ["true", "1", "on", ""])
def test_a_switch_that_is_on_changes_nothing(word: str):
    assert names(load({"a": URL}, env={"MCP_ENABLE": word})) == ["a"]


# --- what is shown ---------------------------------------------------------------------------


@pytest.mark.requirement("H6")
def test_nothing_that_is_shown_holds_a_secret(tmp_path: Path):
    secret = "hunter2-hunter2"
    path = put(
        tmp_path,
        "mcp.json",
        """{"mcpServers": {
            "a": {"url": "https://user:${S}@example.com/?token=${S}", "headers": {"x": "${S}"}},
            "b": {"command": "b", "args": ["--api-key", "${S}"], "env": {"X": "${S}"}},
            "c": {"url": "https://example.com/", "api_key": "${S}"}}}""",
    )
    with pytest.warns(ConfigWarning) as warned:
        found = load(env={"S": secret}, cwd=tmp_path, approvals=MemoryApprovals())
    assert found.files == (path,)
    (pending,) = found.needs_approval
    shown = [repr(found), repr(found.origins), repr(pending), pending.command_line, *found.warnings]
    shown += [str(one.message) for one in warned]
    shown += [spec.model_dump_json() for spec in found.servers]
    assert [text for text in shown if secret in text] == []


@pytest.mark.requirement("H6")
@pytest.mark.parametrize(
    "entry",
    [
        {"url": "ftp://user:${S}@example.com"},
        {"url": "${S}"},
        {"url": URL, "api_key": "${S} ${S}"},
        {"url": URL, "headers": "${S}"},
        {"url": URL, "timeout": "${S}"},
        {"url": URL, "mode": "${S}"},
        {"url": URL, "transport": "${S}"},
        {"url": URL, "enabled": "${S}"},
        {"command": "x", "env": ["${S}"]},
        {"command": "x", "args": "${S}"},
    ],
    ids=str,
)
def test_no_error_holds_a_secret(entry: dict[str, Any]):
    secret = "hunter2@hunter2"
    with pytest.raises(ConfigError) as caught:
        load({"mcpServers": {"kit": entry}}, env={"S": secret})
    assert "hunter2" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_a_password_among_the_arguments_is_a_warning():
    servers = {"kit": {"command": "x", "args": ["${input:key}"]}}
    source = {"servers": servers, "inputs": [{"id": "key", "password": True}]}
    with pytest.warns(ConfigWarning, match="password"):
        found = load(source, env={}, inputs={"key": "hunter2"})
    assert "hunter2" not in " ".join(found.warnings)


@pytest.mark.requirement("C3")
def test_what_is_unwise_is_among_the_warnings():
    with pytest.warns(ConfigWarning):
        found = load({"kit": "http://example.com/?token=hunter2"}, env={})
    assert len(found.warnings) == 2


# --- the difference --------------------------------------------------------------------------


def test_the_difference_names_what_came_went_and_changed():
    old = load({"a": URL, "b": URL, "c": {"url": URL, "headers": {"x": "1"}}}, env={})
    new = load({"d": URL, "c": {"url": URL, "headers": {"x": "2"}}, "a": URL}, env={})
    found = difference(old, new)
    assert [spec.name for spec in found.added] == ["d"]
    assert found.removed == ("b",)
    assert [spec.headers for spec in found.changed] == [{"x": "2"}]
    assert found.unchanged == ("a",)
    assert found
    assert not difference(new, load({"c": new["c"], "a": URL, "d": {"url": URL}}, env={}))
