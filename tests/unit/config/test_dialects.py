"""One model, many dialects: each product's documented format, read as that product means it."""

import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from toolkeep.config import ServerSpec
from toolkeep.config.approval import MemoryApprovals
from toolkeep.config.dialects.draft import InputDefinition
from toolkeep.config.loader import load
from toolkeep.config.spec import Configuration, ConfigWarning
from toolkeep.errors import ConfigError

pytestmark = pytest.mark.requirement("C1")

FIXTURES = Path(__file__).parents[2] / "fixtures" / "config"
ENV = {"API_TOKEN": "token-secret", "DB_URL": "db://secret"}


def shown(value: object) -> str:
    """The same in every process, for tests that are shared out by their names."""
    return re.sub(r" at 0x\w+", "", repr(value))


def loaded(name: str, **given: Any) -> Configuration:
    return load(FIXTURES / name, **{"env": ENV, **given})


def test_claude_desktop():
    found = loaded("claude_desktop.json")
    assert [spec.name for spec in found.servers] == ["filesystem", "brave-search"]
    assert found["filesystem"].args[-1] == "/srv/notes"
    assert found["brave-search"].env == {"BRAVE_API_KEY": "brave-secret"}
    assert found.warnings == ()


def test_claude_code_in_milliseconds_with_variables():
    with pytest.warns(ConfigWarning, match="headersHelper"):
        found = loaded("claude_code.json")
    sentry, asana, database = found.servers
    assert sentry.headers == {"Authorization": "Bearer token-secret"}
    assert sentry.timeouts.call == 600
    assert str(found.origins["sentry"]["timeouts.call"]).endswith("claude_code.json:9 600000 ms")
    assert (asana.transport, asana.url) == ("sse", "https://mcp.asana.example/sse")
    assert database.args == ("--config", "/etc/db.json")
    assert database.env == {"DB_URL": "db://secret"}


def test_cursor_with_its_variables_and_its_env_file(tmp_path: Path):
    (tmp_path / ".cursor").mkdir()
    path = Path(shutil.copy(FIXTURES / "cursor.json", tmp_path / ".cursor" / "mcp.json"))
    (tmp_path / ".env").write_text("FROM_FILE='kept'\nAPI_KEY=overridden\n")
    found = load(path, env=ENV)
    local = found["local-server"]
    assert local.args == (f"{tmp_path}/mcp-server.py",)
    assert local.env == {
        "FROM_FILE": "kept",
        "API_KEY": "token-secret",
        "CACHE": f"{Path.home()}/cache",
    }
    assert found["remote"].headers == {"API_KEY": "value"}
    assert found.files == (path, tmp_path / ".env")


def test_cline_in_seconds_and_without_what_is_disabled():
    found = loaded("cline.json")
    assert [spec.timeouts.call for spec in found.servers] == [1800, 60]
    assert found["remote-server"].transport == "http"
    assert found.disabled == {"asleep": "disabled is true"}


@pytest.mark.parametrize(
    ("entry", "seconds"),
    [
        ({"timeout": 60_000}, 60),
        ({"timeout": 1000}, 1),
        ({"timeout": 999}, 999),
        ({"timeout": 30}, 30),
        ({"timeout": "${T}"}, 45),
        ({"timeout": 3600, "alwaysAllow": []}, 3600),
        ({"timeout": 100_000, "autoApprove": []}, 100),
        ({"timeouts": {"call": 5000}}, 5000),
    ],
    ids=shown,
)
def test_a_timeout_is_in_the_unit_of_whoever_wrote_it(entry: dict[str, Any], seconds: float):
    document = {"mcpServers": {"kit": {"url": "http://localhost:1/", **entry}}}
    assert load(document, env={"T": "45000"})["kit"].timeouts.call == seconds


def vscode(tmp_path: Path) -> Path:
    (tmp_path / ".vscode").mkdir()
    return Path(shutil.copy(FIXTURES / "vscode.json", tmp_path / ".vscode" / "mcp.json"))


def test_vscode_with_inputs_and_comments(tmp_path: Path):
    asked: list[InputDefinition] = []

    def ask(one: InputDefinition) -> str | None:
        asked.append(one)
        return "key-secret" if one.password else None

    found = load(vscode(tmp_path), env={}, inputs=ask)
    perplexity, github = found.servers
    assert perplexity.env == {"PERPLEXITY_API_KEY": "key-secret", "RETRIES": "3"}
    assert perplexity.args[-1] == "https://example.com//path"
    assert perplexity.cwd == str(tmp_path)
    assert github.url.endswith("?region=eu")
    assert [(one.id, one.password) for one in asked] == [
        ("perplexity-key", True),
        ("region", False),
    ]
    assert str(found.origins["github"]["url"]) == f"{found.files[0]}:30"


@pytest.mark.parametrize(
    "inputs", [None, {}, {"region": "eu"}, {"perplexity-key": "k", "region": "moon"}], ids=shown
)
def test_an_input_that_nobody_answers_is_a_mistake(tmp_path: Path, inputs: Any):
    with pytest.raises(ConfigError) as caught:
        load(vscode(tmp_path), env={}, inputs=inputs, strict=True)
    assert caught.value.server in ("perplexity", "github")
    assert caught.value.key in ("env.PERPLEXITY_API_KEY", "url")
    assert caught.value.remedy


def test_vscode_settings_hold_the_servers_under_mcp():
    servers = {"kit": {"type": "http", "url": "http://localhost:1/${input:x}"}}
    inputs = [{"type": "promptString", "id": "x"}]
    found = load({"mcp": {"servers": servers, "inputs": inputs}}, inputs={"x": "way"}, env={})
    assert found["kit"].url == "http://localhost:1/way"


def test_toml_with_defaults_that_a_server_overrides():
    found = loaded("toolkeep.toml")
    research, files = found.servers
    assert (research.timeouts.call, research.timeouts.connect) == (90, 4)
    assert research.headers == {"x-tenant": "blue"}
    assert research.max_retries == 1
    assert research.api_key is not None
    assert research.api_key.get_secret_value() == "token-secret"
    assert (files.max_retries, files.health_interval, files.timeouts.call) == (0, 15, 20)
    assert files.headers == {}
    assert found.disabled == {"later": "enabled is false"}
    place = str(found.origins["research"]["api_key"])
    assert place.endswith("toolkeep.toml:8")


def test_our_own_words_in_python():
    servers = {"kit": "http://localhost:1/", "more": {"command": "x", "max_retries": 2}}
    found = load({"servers": servers, "defaults": {"max_retries": 9}}, env={})
    assert [spec.max_retries for spec in found.servers] == [9, 2]


def test_a_tool_service():
    found = loaded("service.json")
    research, scripts = found.servers
    assert (research.url, research.transport) == ("http://localhost:8000/mcp", "http")
    assert (research.timeouts.call, research.max_in_flight, research.max_retries) == (45, 8, 2)
    assert (scripts.command, scripts.args) == (sys.executable, ("./scripts.py",))
    assert scripts.health_interval == 30


def test_a_tool_service_that_is_switched_off():
    servers = [{"name": "kit", "endpoint": "http://localhost:1/"}]
    found = load({"tool_service": {"enable_mcp": False, "mcp_servers": servers}}, env={})
    assert found.servers == ()
    assert found.disabled == {"kit": "enable_mcp is false"}


def test_an_env_file_with_both_forms():
    found = loaded("servers.env")
    listed, tools, scripts = found.servers
    assert (listed.name, listed.timeouts.call) == ("listed", 12)
    assert (tools.name, tools.url) == ("my_tools", "http://localhost:8000/mcp")
    assert tools.api_key is not None
    assert tools.api_key.get_secret_value() == "token-secret"
    assert tools.timeouts.call == 15
    assert (scripts.command, scripts.args) == ("scripts", ("--root", "/srv/my notes"))
    assert {spec.max_retries for spec in found.servers} == {5}
    assert found.disabled == {"off": "MCP_SERVER_OFF_ENABLED is false"}
    assert str(found.origins["my_tools"]["url"]).endswith("servers.env:4 MCP_SERVER_MY_TOOLS_URL")


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"MCP_SERVER_A_URL": "http://localhost:1/"}, {"a": "http://localhost:1/"}),
        ({"MCP_SERVER_A_B_C_URL": "http://localhost:1/"}, {"a_b_c": "http://localhost:1/"}),
        ({"MCP_SERVER_API_URL": "http://localhost:1/"}, {"api": "http://localhost:1/"}),
        ({"MCP_SERVER_TYPE_ENDPOINT": "http://localhost:1/"}, {"type": "http://localhost:1/"}),
        ({"MCP_SERVERS": '{"a": "http://localhost:1/"}'}, {"a": "http://localhost:1/"}),
        (
            {"MCP_SERVERS": ' [{"name": "b", "endpoint": "${X}"}]', "X": "http://[::1]/"},
            {"b": "http://[::1]/"},
        ),
    ],
    ids=shown,
)
def test_servers_in_the_environment(
    variables: dict[str, str], expected: dict[str, str], tmp_path: Path
):
    found = load(env=variables, cwd=tmp_path)
    assert {spec.name: spec.url for spec in found.servers} == expected


def test_a_local_server_in_the_environment_is_a_program_or_a_python_file(tmp_path: Path):
    env = {
        "MCP_SERVER_FILE_TYPE": "local",
        "MCP_SERVER_FILE_URL": "./tools.py",
        "MCP_SERVER_FILE_ARGS": '["--verbose"]',
        "MCP_SERVER_PROGRAM_TYPE": "local",
        "MCP_SERVER_PROGRAM_COMMAND": "tools",
    }
    file, program = load(env=env, cwd=tmp_path, approvals=MemoryApprovals()).servers
    assert (file.command, file.args) == (sys.executable, ("./tools.py", "--verbose"))
    assert (program.command, program.transport) == ("tools", None)


def test_cortex_flows_own_keys_are_read(tmp_path: Path):
    env = {
        "MCP_SERVER_UTILS_TYPE": "local",
        "MCP_SERVER_UTILS_TRANSPORT": "stdio",
        "MCP_SERVER_UTILS_LOCAL_PATH": "/app/utils_server.py",
        "MCP_SERVER_UTILS_PROMPTS_FILE": "/app/prompts.md",
        "MCP_SERVER_UTILS_PROMPT_TOOL_ASSOCIATION": "query_database",
    }
    found = load(env=env, cwd=tmp_path, approvals=MemoryApprovals())
    assert found["utils"].args == ("/app/utils_server.py",)
    assert found["utils"].prompts_file == "/app/prompts.md"
    assert found["utils"].guides == {"query_database": "*"}
    assert found.warnings == ()


def add(a: int, b: int) -> int:
    return a + b


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("http://localhost:1/mcp", ["localhost"]),
        ({"url": "http://localhost:1/"}, ["localhost"]),
        ({"command": "tools", "name": "kit"}, ["kit"]),
        ({"a": "http://localhost:1/", "b": {"command": "x"}}, ["a", "b"]),
        (["http://localhost:1/", {"name": "b", "command": "x"}], ["localhost", "b"]),
        (ServerSpec(name="kit", url="http://localhost:1/"), ["kit"]),
        ([ServerSpec(name="b", command="x"), ServerSpec(name="a", command="x")], ["b", "a"]),
        (add, ["add"]),
        ({"sums": add, "more": [add]}, ["sums", "more"]),
        ({"sums": {"server": add}}, ["sums"]),
        ({}, []),
        ([], []),
    ],
    ids=shown,
)
def test_python_values(source: Any, names: list[str]):
    found = load(source, env={})
    assert [spec.name for spec in found.servers] == names
    assert all(
        str(one) == "given in Python" for of in found.origins.values() for one in of.values()
    )
