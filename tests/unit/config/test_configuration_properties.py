"""Whatever a file holds, it is a Configuration or a ConfigError; and all dialects mean the same."""

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from toolkeep.config.approval import MemoryApprovals
from toolkeep.config.dialects.draft import OWN_KEYS
from toolkeep.config.formats import KeyPath, locate_json_keys
from toolkeep.config.loader import load
from toolkeep.config.spec import Configuration, difference
from toolkeep.errors import ConfigError

pytestmark = pytest.mark.filterwarnings("ignore::toolkeep.config.spec.ConfigWarning")

SECRET = "hunter2hunter2"


def read(content: bytes | str, name: str) -> Configuration | ConfigError:
    with TemporaryDirectory() as folder:
        path = Path(folder, name)
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return attempt(path, cwd=folder)


def attempt(source: Any, **given: Any) -> Configuration | ConfigError:
    try:
        return load(source, **{"env": {"S": SECRET}, "approvals": MemoryApprovals(), **given})
    except ConfigError as caught:
        error = caught
    assert error.remedy
    assert SECRET not in str(error)
    return error


# --- anything --------------------------------------------------------------------------------

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=8),
    st.sampled_from(
        ["http://localhost:1/", "stdio", "local", "x.py", "true", "${S}", "${input:i}"]
    ),
)
keys = st.one_of(
    st.sampled_from([*OWN_KEYS, "disabled", "envFile", "serverUrl", "inputs", "id"]),
    st.text(max_size=4),
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=4),
    max_leaves=12,
)
entries = st.dictionaries(keys, values, max_size=5)
frames = st.sampled_from(["mcpServers", "servers", "tool_service", "mcp_servers", "mcp", "kit"])
documents = st.one_of(
    values,
    st.dictionaries(frames, st.dictionaries(st.text(max_size=4), entries, max_size=3), max_size=2),
    st.dictionaries(frames, st.lists(entries, max_size=3), max_size=2),
)


@given(st.binary(max_size=200), st.sampled_from(["a.json", "a.toml", "a.env", ".vscode/mcp.json"]))
def test_any_bytes(content: bytes, name: str):
    read(content, name)


@given(
    st.text('{}[],:"\\/*# =\n\tamcpServers.', max_size=60),
    st.sampled_from(["a.json", "a.toml", "a.env", ".vscode/mcp.json"]),
)
def test_any_text_of_punctuation(content: str, name: str):
    read(content, name)


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(documents)
def test_any_json(document: Any):
    text = json.dumps(document)
    from_file = read(text, "a.json")
    again = attempt(json.loads(text)) if isinstance(document, dict | list) else from_file
    assert isinstance(from_file, ConfigError) == isinstance(again, ConfigError)
    if isinstance(from_file, Configuration) and isinstance(again, Configuration):
        assert not difference(from_file, again) or "envFile" in text or "env_file" in text
        assert SECRET not in repr(from_file)


@given(
    st.dictionaries(
        st.text("ABC_URLTYPEINMO", max_size=12).map(lambda name: f"MCP_SERVER_{name}"),
        st.text(max_size=8).filter(lambda text: "\0" not in text)
        | st.sampled_from(["http://localhost:1/", "${S}", "true", "[]", "local"]),
        max_size=5,
    ),
    values.map(json.dumps) | st.text(max_size=5),
)
def test_any_environment(variables: dict[str, str], listed: str):
    with TemporaryDirectory() as folder:
        attempt(None, env={**variables, "MCP_SERVERS": listed, "S": SECRET}, cwd=folder)


# --- the same in every dialect ---------------------------------------------------------------

names = st.from_regex(r"[a-z][a-z0-9_]{0,8}", fullmatch=True)
texts = st.text("abc XYZ-=/.$ü\"'\\", max_size=12).filter(lambda text: "${" not in text)
remote = st.fixed_dictionaries(
    {"url": st.integers(1, 65535).map("http://localhost:{}/mcp".format)},
    optional={
        "headers": st.dictionaries(st.sampled_from(["x-a", "x-b"]), texts, max_size=2),
        "api_key": st.from_regex(r"[A-Za-z0-9]{1,20}", fullmatch=True),
        "transport": st.sampled_from(["http", "sse"]),
    },
)
program = st.fixed_dictionaries(
    {"command": st.sampled_from(["npx", "/usr/bin/python", "a b"])},
    optional={
        "args": st.lists(texts, max_size=3),
        "env": st.dictionaries(st.sampled_from(["A", "B_C"]), texts, max_size=2),
        "max_retries": st.integers(0, 9),
        "timeouts": st.fixed_dictionaries({"call": st.integers(1, 500)}),
    },
)
configurations = st.dictionaries(names, remote | program, max_size=4)


def in_toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(k)} = {in_toml(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(in_toml, value)) + "]"
    return json.dumps(value, ensure_ascii=False)


@pytest.mark.requirement("C1")
@given(configurations)
def test_every_dialect_reads_the_same_servers(servers: dict[str, dict[str, Any]]):
    listed = [{"name": name, **entry} for name, entry in servers.items()]
    toml = "".join(
        f"[servers.{name}]\n" + "".join(f"{k} = {in_toml(v)}\n" for k, v in e.items())
        for name, e in servers.items()
    )
    with TemporaryDirectory() as folder:
        found = [
            load(servers, env={}),
            load(listed, env={}),
            load({"mcpServers": servers}, env={}),
            load({"servers": servers, "inputs": []}, env={}),
            load({"tool_service": {"mcp_servers": listed}}, env={}),
            load(env={"MCP_SERVERS": json.dumps(listed)}, cwd=folder),
            read(json.dumps({"mcpServers": servers}), "a.json"),
            read(toml or "servers = {}", "a.toml"),
        ]
    for one in found:
        assert isinstance(one, Configuration), one
        assert one.servers == found[0].servers


@given(documents, st.integers(0, 2))
def test_every_key_is_found_in_its_line(document: Any, indent: int):
    text = json.dumps(document, indent=indent)
    lines = text.splitlines()
    found = locate_json_keys(text)
    assert found.duplicates == []
    for steps in all_steps(document):
        key = steps[-1]
        here = lines[found.lines[steps] - 1].lstrip()
        assert not isinstance(key, str) or here.startswith(f"{json.dumps(key)}:")


def all_steps(value: Any, steps: KeyPath = ()) -> list[KeyPath]:
    items = list(value.items()) if isinstance(value, dict) else []
    items += list(enumerate(value)) if isinstance(value, list) else []
    below = [all_steps(inner, (*steps, key)) for key, inner in items]
    return [(*steps, key) for key, _ in items] + [one for many in below for one in many]
