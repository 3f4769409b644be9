"""One bad entry is set aside and named, and the others are used; names of others become ours."""

import json
import warnings
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkeep import Client, ConfigError, Runtime
from toolkeep.config import (
    Configuration,
    FileApprovals,
    MemoryApprovals,
    ServerSpec,
    difference,
    load,
    watch,
)
from toolkeep.config.approval import default_approvals_path
from toolkeep.config.fields import SERVER_NAME, valid_server_names
from toolkeep.config.loader import find_errors
from toolkeep.config.spec import ConfigWarning
from toolkeep.testing import ScriptedServer

pytestmark = pytest.mark.requirement("C3")

URL = "http://localhost:1/mcp"
GOOD = {"url": URL}
BAD: dict[str, tuple[Any, str]] = {
    "an unset variable": ({"url": URL, "headers": {"x": "${NOPE}"}}, "NOPE is not set"),
    "a misspelt way": ({"urll": URL}, "unknown key 'urll', did you mean 'url'?"),
    "a misspelt command": ({"comand": "x"}, "unknown key 'comand', did you mean 'command'?"),
    "a bad URL": ({"url": "localhost"}, "not an http(s) URL"),
    "a negative timeout": ({"url": URL, "timeout": -1}, "it must be more than 0"),
    "a list for a text": ({"url": [URL]}, "it is not a text"),
    "no mapping": (5, "a server must be a URL or a mapping, not a number"),
    "nothing": ({}, "the server has no location"),
}


def quietly(source: object, **how: Any) -> Configuration:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConfigWarning)
        return load(source, **{"env": {}, "approvals": MemoryApprovals(), **how})


FRAMES: dict[str, Any] = {
    "products": lambda good, bad: {"mcpServers": {"good": good, "bad": bad}},
    "VS Code": lambda good, bad: {"servers": {"good": good, "bad": bad}, "inputs": []},
    "ours": lambda good, bad: {"servers": {"bad": bad, "good": good}, "defaults": {}},
    "a service": lambda good, bad: {"tool_service": {"mcp_servers": {"bad": bad, "good": good}}},
    "plain": lambda good, bad: {"good": good, "bad": bad},
}


@pytest.mark.parametrize("frame", FRAMES)
@pytest.mark.parametrize("bad", BAD)
def test_one_bad_entry_is_set_aside_and_the_others_are_used(frame: str, bad: str, tmp_path: Path):
    entry, said = BAD[bad]
    file = tmp_path / "mcp.json"
    file.write_text(json.dumps(FRAMES[frame](GOOD, entry), indent=1))
    with pytest.warns(ConfigWarning, match="this server is skipped"):
        found = load(file, env={}, cwd=tmp_path)
    assert [spec.name for spec in found.servers] == ["good"]
    (error,) = found.invalid
    assert error.server == "bad"
    assert said in error.problem
    assert (error.file or "").startswith("mcp.json:")
    assert error.remedy
    with pytest.raises(ConfigError) as caught:
        quietly(file, cwd=tmp_path, strict=True)
    assert said in caught.value.problem
    assert next(one.server for one in find_errors(file, env={}, cwd=tmp_path)) == "bad"


def test_in_a_list_and_in_variables_too():
    listed = quietly([{"name": "good", "url": URL}, {"name": "bad", "urll": URL}, 5])
    assert [spec.name for spec in listed.servers] == ["good"]
    assert [error.server for error in listed.invalid] == ["bad", None]
    env = {"MCP_SERVER_GOOD_URL": URL, "MCP_SERVER_BAD_URL": URL, "MCP_SERVER_BAD_TIMEOT": "5"}
    found = quietly(None, env=env, cwd="/")
    assert [spec.name for spec in found.servers] == ["good"]
    assert "did you mean 'MCP_SERVER_BAD_TIMEOUT'?" in found.invalid[0].problem


@pytest.mark.parametrize(
    "source",
    [
        {"mcpServers": {"bad": {"urll": URL}}},
        {"urll": URL, "command": ""},
        {"servers": {"good": GOOD}, "defaults": {"timeout": -1}},
        {"servers": {"good": GOOD}, "defaults": {"timeot": 1}},
        {"mcpServers": 5},
    ],
    ids=str,
)
def test_what_leaves_no_server_or_is_wrong_for_all_is_an_error(source: Any):
    with pytest.raises(ConfigError):
        quietly(source)


def test_a_bad_entry_that_is_switched_off_is_not_looked_at():
    found = quietly({"mcpServers": {"a": GOOD, "b": {"urll": URL, "disabled": True}}})
    assert list(found.disabled) == ["b"]
    assert found.invalid == ()


async def test_a_runtime_opens_the_others_and_a_strict_one_nothing(
    caplog: pytest.LogCaptureFixture,
):
    async with ScriptedServer.local() as server:
        source = {"mcpServers": {"kit": {"url": server.url}, "bad": {"url": "${NOPE}"}}}
        runtime = Runtime(source, env={})
        with pytest.warns(ConfigWarning, match="this server is skipped"):
            await runtime.connect()
        assert (await runtime.call("kit.echo", {"text": "x"})).text == "x"
        assert [one.server for one in runtime.configuration.invalid] == ["bad"]
        await runtime.aclose()
        assert "a server is skipped: server 'bad'" in caplog.text
        opened = len(await server.requests())
        for given in (source, quietly(source)):
            with pytest.raises(ConfigError):
                async with Runtime.open(given, env={}, strict=True):
                    pass
        assert len(await server.requests()) == opened


def test_an_edit_that_breaks_one_entry_leaves_its_server_as_it_is():
    old = quietly({"a": GOOD, "b": GOOD})
    new = quietly({"a": {"url": URL, "timeout": 5}, "b": {"urll": URL}, "c": GOOD})
    edit = difference(old, new)
    assert [spec.name for spec in edit.changed] == ["a"]
    assert [spec.name for spec in edit.added] == ["c"]
    assert (edit.removed, edit.unchanged) == ((), ("b",))
    assert [spec.name for spec in edit.configuration.servers] == ["a", "c", "b"]


async def test_watching_tells_the_mistake_and_the_rest_of_the_edit(tmp_path: Path):
    file = tmp_path / "mcp.json"

    def write(**servers: Any) -> None:
        file.write_text(json.dumps({"mcpServers": servers}))

    async def ticks(_: object) -> AsyncGenerator[object, None]:
        while True:
            yield True

    write(a=GOOD, b=GOOD)
    since = quietly(file)
    write(a={"url": URL, "timeout": 5000}, b={"urll": URL})
    edits = watch(file, since=since, env={}, notice=ticks)
    first, second = await anext(edits), await anext(edits)
    await edits.aclose()
    assert not isinstance(first, ConfigError)
    assert [spec.name for spec in first.changed] == ["a"]
    assert isinstance(second, ConfigError)
    assert second.server == "b"


# -- keys that are misspelt ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "meant"),
    [
        ({"mcpservers": {"a": GOOD}}, "mcpServers"),
        ({"mcp-servers": {"a": GOOD}}, "mcpServers"),
        ({"MCPServers": {"a": GOOD}}, "mcpServers"),
        ({"mcpServer": {"a": GOOD, "b": GOOD}}, "mcpServers"),
        ({"server": [{"url": URL}]}, "servers"),
    ],
    ids=str,
)
def test_a_misspelt_frame_is_named(source: Any, meant: str):
    with pytest.raises(ConfigError, match=f"unknown key .* did you mean '{meant}'"):
        quietly(source)


def test_a_server_may_be_called_like_a_frame():
    assert quietly({"server": GOOD})["server"].url == URL


def test_a_key_that_is_nearly_known_is_hinted_at_where_it_is_only_a_warning():
    with pytest.warns(ConfigWarning, match="'heders' means nothing .*did you mean 'headers'"):
        load({"mcpServers": {"a": {**GOOD, "heders": {}}}}, env={})


WRONG: dict[str, Any] = {
    "url": 5,
    "args": 5,
    "env": 5,
    "mode": "x",
    "timeouts": 5,
    "tls": [1],
    "max_retries": 1.5,
    "serialize": "perhaps",
    "tags": 5,
    "urls": [URL] * 70,
    "headers": {"x": 5},
    "include_tools": [""],
    "retry_tools": {"x": "y"},
    "api_key": {},
}


@pytest.mark.parametrize("key", WRONG)
def test_no_text_of_pydantics_is_shown(key: str):
    with pytest.raises(ConfigError) as caught:
        ServerSpec(name="a", **{"url": URL, key: WRONG[key]})
    said = str(caught.value)
    for word in ("Input should", "valid", "pydantic", "should have", "instance of", "expected"):
        assert word not in said
    assert caught.value.remedy


# -- names of other products -----------------------------------------------------------------------

FOREIGN = {
    "io.github.upstash/context7": "io-github-upstash-context7",
    "Google Maps": "Google-Maps",
    "a.b": "a-b-2",
    "a b": "a-b-3",
    "a-b": "a-b",
    "日本": "server",
}


@pytest.mark.parametrize("frame", ["mcpServers", "servers", "plain", "listed", "service", "env"])
def test_names_of_other_products_become_ours_without_collisions(frame: str):
    named = dict.fromkeys(FOREIGN, GOOD)
    listed = [{"name": name, **GOOD} for name in FOREIGN]
    source: Any = {
        "plain": named,
        "listed": listed,
        "service": {"mcp_servers": listed},
        "env": None,
    }.get(frame, {frame: named, **({"inputs": []} if frame == "servers" else {})})
    env = {"MCP_SERVERS": json.dumps(listed)} if frame == "env" else {}
    with pytest.warns(ConfigWarning) as warned:
        found = load(source, env=env, cwd="/")
    assert [spec.name for spec in found.servers] == list(FOREIGN.values())
    said = "\n".join(found.warnings)
    for theirs, ours in FOREIGN.items():
        assert (f"the server {theirs!r} is renamed to {ours}" in said) is (theirs != ours)
    assert len(warned) == len(FOREIGN) - 1


def test_a_toml_table_and_a_python_value_may_have_such_a_name(tmp_path: Path):
    file = tmp_path / "toolkeep.toml"
    file.write_text(f'[servers."io.x/y"]\nurl = "{URL}"\n')
    assert [spec.name for spec in quietly(file).servers] == ["io-x-y"]
    with pytest.warns(ConfigWarning, match="'io.x/y' is renamed to io-x-y"):
        assert Client({"name": "io.x/y", "url": URL}).name == "io-x-y"


async def test_a_runtime_takes_such_a_name_too():
    async with (
        ScriptedServer.local() as server,
        Runtime.open({"kit": {"url": server.url}}, env={}) as runtime,
    ):
        with pytest.warns(ConfigWarning, match="is renamed to io-x-y"):
            await runtime.add({"name": "io.x/y", "url": server.url})
        assert (await runtime.call("io-x-y.echo", {"text": "x"})).text == "x"


def test_a_variable_may_name_a_server():
    found = quietly([{"name": "${N}", "url": URL}], env={"N": "kit"})
    assert [spec.name for spec in found.servers] == ["kit"]


@given(st.lists(st.text(min_size=1) | st.text("ab .-/", min_size=1), max_size=20))
def test_every_name_becomes_one_of_its_own(names: list[str]):
    ours = valid_server_names(names)
    assert all(SERVER_NAME.fullmatch(one) for one in ours.values())
    assert len(set(ours.values())) == len(set(names))
    assert all(ours[name] == name for name in names if SERVER_NAME.fullmatch(name))


# -- .env ------------------------------------------------------------------------------------------

ENV = """# comment
export TOKEN="first
second"
EMPTY=
KEY='-----BEGIN KEY-----
abc
-----END KEY-----'
TOKEN2=plain # comment
SAME=1
SAME=2
"""


@pytest.mark.requirement("C1")
def test_python_dotenv_reads_values_of_several_lines(tmp_path: Path):
    (tmp_path / "kit.env").write_text(ENV)
    program = {"command": "x", "env_file": "kit.env"}
    spec = quietly({"a": program}, cwd=tmp_path)["a"]
    assert dict(spec.env) == {
        "TOKEN": "first\nsecond",
        "EMPTY": "",
        "KEY": "-----BEGIN KEY-----\nabc\n-----END KEY-----",
        "TOKEN2": "plain",
        "SAME": "2",
    }


@pytest.mark.requirement("C1")
@pytest.mark.parametrize("name", ["mcp.json", ".vscode/mcp.json", "toolkeep.toml"])
def test_the_env_file_beside_the_configuration_is_read(name: str, tmp_path: Path):
    file = tmp_path / name
    file.parent.mkdir(exist_ok=True)
    text = {"servers": {"a": {"url": URL, "headers": {"x": "${A}-${B}"}}}}
    toml = f'[servers.a]\nurl = "{URL}"\nheaders = {{x = "${{A}}-${{B}}"}}\n'
    file.write_text(toml if name.endswith("toml") else json.dumps(text))
    (tmp_path / ".env").write_text("A=file\nB=file\n")
    found = quietly(file, env={"B": "environment"}, cwd=tmp_path)
    assert found["a"].headers["x"] == "file-environment"
    assert tmp_path / ".env" in found.files


def test_an_env_file_beside_it_that_cannot_be_read_is_a_warning(tmp_path: Path):
    (tmp_path / "mcp.json").write_text(json.dumps({"mcpServers": {"a": GOOD}}))
    (tmp_path / ".env").write_text('A="open\n')
    with pytest.warns(ConfigWarning, match=r"\.env:1 is ignored"):
        assert "a" in load(tmp_path / "mcp.json", env={}, cwd=tmp_path)


@pytest.mark.requirement("C4")
def test_a_program_of_an_env_file_that_was_found_needs_approval(tmp_path: Path):
    (tmp_path / ".env").write_text("MCP_SERVER_X_COMMAND=x\n")
    found = quietly(None, env={}, cwd=tmp_path)
    assert [one.name for one in found.needs_approval] == ["x"]


@pytest.mark.requirement("C1")
@pytest.mark.parametrize(
    "source",
    [
        {"enable_mcp_tools": False},
        {"enable_mcp_tools": False, "mcpServers": {"a": GOOD}},
        {"enable_mcp_tools": "false", "servers": {"a": GOOD}, "inputs": []},
        {"enable_mcp_tools": False, "a": GOOD},
        {"tool_service": {"enable_mcp_tools": False, "mcp_servers": {"a": GOOD}}},
        {"enable_mcp": False, "mcp_servers": {"a": GOOD}},
        {"ENABLE_MCP_TOOLS": False, "mcpServers": {"a": GOOD}},
    ],
    ids=str,
)
def test_the_switch_of_a_document_is_obeyed(source: Any):
    found = quietly(source)
    assert found.servers == ()
    assert list(found.disabled) == (["a"] if len(source) > 1 or "tool_service" in source else [])


def test_a_switch_that_is_on_changes_nothing_and_one_that_is_none_is_refused():
    assert "a" in quietly({"enable_mcp_tools": True, "mcpServers": {"a": GOOD}})
    with pytest.raises(ConfigError, match="neither true nor false"):
        quietly({"enable_mcp_tools": "perhaps", "mcpServers": {"a": GOOD}})


@pytest.mark.requirement("C4")
@pytest.mark.parametrize("variable", ["XDG_STATE_HOME", "HOME"])
def test_an_env_file_that_was_found_cannot_say_where_approvals_are_kept(
    variable: str, tmp_path: Path
):
    """Otherwise a cloned folder could bring the approval of its own programs."""
    folder, home = tmp_path / "cloned", tmp_path / "home"
    folder.mkdir()
    home.mkdir(mode=0o700)
    (folder / "mcp.json").write_text(json.dumps({"mcpServers": {"x": {"command": "x"}}}))
    own = {"HOME": str(home)} if variable != "HOME" else {}
    pending = load(None, env=own, cwd=folder, approvals=MemoryApprovals()).needs_approval[0]
    (folder / ".env").write_text(f"{variable}={folder}\n")
    brought = FileApprovals(default_approvals_path({"HOME": str(home), variable: str(folder)}))
    brought.approve(pending.digest, "by nobody")
    assert load(None, env=own, cwd=folder).needs_approval == (pending,)
