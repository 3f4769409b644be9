"""A corpus of configurations that cannot work. Each is named by file, line, server, key, remedy."""

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from toolkeep.config.approval import MemoryApprovals
from toolkeep.config.loader import load
from toolkeep.errors import ConfigError

URL = '"url": "http://localhost:1/"'


@dataclass(frozen=True)
class Case:
    """What a file holds, and what must be said about it."""

    file: str
    content: str | bytes
    line: int | None = None
    server: str | None = None
    key: str | None = None
    more: int = 0
    env: dict[str, str] = field(default_factory=dict[str, str])


def servers(text: str) -> str:
    """The first line, and what follows."""
    return '{\n"mcpServers": {' + text + "}}"


def claude(entry: str, **expected: object) -> Case:
    """One server of an `mcp.json`, in the fourth line."""
    content = servers(f'\n"kit":\n{{{entry}}}\n')
    return Case("mcp.json", content, **{"line": 4, "server": "kit", **expected})


def toml(entry: str, **expected: object) -> Case:
    """One server of a `toolkeep.toml`, from the second line on."""
    content = f"[servers.kit]\n{entry}\n"
    return Case("toolkeep.toml", content, **{"line": 2, "server": "kit", **expected})


def environment(**env: str) -> Case:
    """The last variable is the wrong one."""
    return Case("environment", "", key=list(env)[-1], env=env)


NOT_EVEN_A_DOCUMENT = {
    "empty JSON": Case("mcp.json", ""),
    "blank JSON": Case("mcp.json", " \n\t\n"),
    "empty TOML": Case("toolkeep.toml", ""),
    "empty .env": Case("kit.env", "\n"),
    "not JSON": Case("mcp.json", "mcpServers: {}", 1),
    "YAML": Case("mcp.json", "mcpServers:\n  kit:\n", 1),
    "cut off": Case("mcp.json", '{\n"mcpServers": {\n"kit": {', 3),
    "trailing comma": Case("mcp.json", servers(f'"kit": {{{URL}}},\n'), 2),
    "trailing comma in a list": Case("mcp.json", '[\n"http://localhost:1/",\n]', 2),
    "comment": Case("mcp.json", '{\n// mine\n"mcpServers": {}}', 2),
    "comment of several lines": Case("mcp.json", '{"mcpServers":\n/* mine\n*/ {}}', 2),
    "unclosed comment": Case(".vscode/mcp.json", '{\n"servers": {}\n/* mine }', 3),
    "single quotes": Case("mcp.json", "{'mcpServers': {}}", 1),
    "unquoted key": Case("mcp.json", "{\nmcpServers: {}}", 2),
    "two documents": Case("mcp.json", '{"mcpServers": {}}\n{}', 2),
    "line break in a text": Case("mcp.json", '{"mcpServers": {"kit": {"url": "http://\n"}}}', 1),
    "NaN": Case("mcp.json", servers('"kit": {"timeout": NaN}')),
    "a number without end": Case("mcp.json", '{"mcpServers": ' + "9" * 5000 + "}"),
    "deep": Case("mcp.json", '{"mcpServers": ' + "[" * 100 + "]" * 100 + "}"),
    "very deep": Case("mcp.json", "[" * 100_000 + "]" * 100_000),
    "a key of many parts": Case("toolkeep.toml", "a." * 400_000 + "b = 1"),
    "deep TOML": Case("toolkeep.toml", "a = " + "[" * 100 + "]" * 100),
    "very deep TOML": Case("toolkeep.toml", "a = " + "[" * 5000 + "]" * 5000),
    "huge": Case("mcp.json", '{"mcpServers": {}}' + " " * 1024 * 1024),
    "UTF-16": Case("mcp.json", '{"mcpServers": {}}'.encode("utf-16")),
    "UTF-16 without its mark": Case("mcp.json", '{"mcpServers": {}}'.encode("utf-16-le")),
    "UTF-32": Case("mcp.json", '{"mcpServers": {}}'.encode("utf-32")),
    "Latin-1": Case("mcp.json", '{\n"mcpServers": {"süd": 1}}'.encode("latin-1"), 2),
    "a picture": Case("mcp.json", b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", 1),
    "TOML without quotes": toml("url = http://localhost:1/", server=None),
    "TOML with one table twice": Case(
        "toolkeep.toml", "[servers.kit]\nurl='http://[::1]/'\n[servers.kit]\n", 3
    ),
    "TOML with one key twice": toml("mode = 'auto'\nmode = 'auto'", line=3, server=None),
    "JSON in a TOML file": Case("toolkeep.toml", '{"mcpServers": {}}', 1),
    ".env without an equals sign": Case("kit.env", "A=1\nMCP_SERVER_KIT_URL\n", 2),
    ".env with an open quote": Case("kit.env", 'MCP_SERVER_KIT_URL="http://localhost', 1),
    "neither JSON nor TOML": Case("mcp.yaml", "a: 1"),
}

NOT_SERVERS = {
    "null": Case("mcp.json", "null", 1),
    "a number": Case("mcp.json", "5", 1),
    "a word": Case("mcp.json", '"localhost"', 1, key="url"),
    "a list of numbers": Case("mcp.json", "[\n1,\n2\n]", 2, key="0", more=1),
    "servers are a text": Case("mcp.json", '{"mcpServers": "kit"}', 1, key="mcpServers"),
    "servers are null": Case("mcp.json", '{\n"mcpServers": null}', 2, key="mcpServers"),
    "a server is null": Case(
        "mcp.json", '{"mcpServers":\n{"kit": null}}', 2, server="kit", key="kit"
    ),
    "a server is a list": Case(
        "mcp.json", '{"mcpServers":\n{"kit": []}}', 2, server="kit", key="kit"
    ),
    "an unknown frame": Case("mcp.json", '{\n"clients": {}}', 2, server="clients", key="url"),
    "TOML with an unknown frame": Case("toolkeep.toml", "[clients.kit]\nx = 1", 1, key="clients"),
    "TOML with defaults that are none": Case("toolkeep.toml", "defaults = 5", 1, key="defaults"),
    "TOML with an unknown default": Case(
        "toolkeep.toml", "[defaults]\ncolour = 1", 2, key="colour"
    ),
    "TOML with one address for all": Case("toolkeep.toml", "[defaults]\nurl = 'x'", 2, key="url"),
    "a tool service that is a list": Case(
        "mcp.json", '{"tool_service": []}', 1, key="tool_service"
    ),
    "a tool service of neither": Case(
        "mcp.json", '{"tool_service":\n{"enable_mcp": "maybe"}}', 2, key="tool_service.enable_mcp"
    ),
    "one name twice": Case(
        "mcp.json", servers(f'"a": {{{URL}}},\n"a": {{{URL}}}'), 3, key="mcpServers.a"
    ),
    "one key twice": claude(f"{URL},\n{URL}", line=5, server=None, key="mcpServers.kit.url"),
    "one name twice in a list": Case(
        "mcp.json",
        f'[{{"name": "a", {URL}}},\n{{"name": "a", {URL}}}]',
        2,
        server="a",
        key="name",
    ),
    "inputs are a mapping": Case("mcp.json", '{"servers": {},\n"inputs": {}}', 2, key="inputs"),
    "an input without an id": Case(
        "mcp.json", '{"servers": {},\n"inputs": [{}]}', 2, key="inputs.0.id"
    ),
    "an input twice": Case(
        "mcp.json", '{"servers": {}, "inputs":\n[{"id": "a"},\n{"id": "a"}]}', 3, key="inputs.1.id"
    ),
}

WRONG_VALUES = {
    "no name": Case("mcp.json", servers(f'"": {{{URL}}}'), 2, key="name"),
    "no address": claude("", line=3, key="url"),
    "two ways": claude(f'{URL}, "command": "x"', key="url"),
    "not a URL": claude('"url": "localhost:8000"', key="url"),
    "a number for a URL": claude('"url": 5', key="url"),
    "both words for one thing": claude(
        f'{URL},\n"endpoint": "http://[::1]/"', line=5, key="endpoint"
    ),
    "an unknown transport": claude(f'{URL},\n"type": "carrier-pigeon"', line=5, key="type"),
    "two transports": claude(f'{URL},\n"type": "sse", "transport": "http"', line=5, key="type"),
    "stdio with a URL": claude(f'{URL},\n"type": "stdio"', line=3, key="transport"),
    "a local address": claude(f'"type": "local", {URL}', key="url"),
    "a local nothing": claude('"type": "local", "url": "tools.exe"', key="url"),
    "a negative timeout": claude(f'{URL},\n"timeout": -1', line=5, key="timeout"),
    "a timeout of no time": claude(f'{URL},\n"timeout": 0', line=5, key="timeout"),
    "a timeout in words": claude(f'{URL},\n"timeout": "soon"', line=5, key="timeout"),
    "a timeout that is true": claude(f'{URL},\n"timeout": []', line=5, key="timeout"),
    "headers in a list": claude(f'{URL},\n"headers": ["x: y"]', line=5, key="headers"),
    "a header that is a number": claude(f'{URL}, "headers": {{\n"x": 5}}', line=5, key="headers.x"),
    "arguments in one text": claude('"command": "x",\n"args": "-v"', line=5, key="args"),
    "an argument that is a number": claude(
        '"command": "x", "args": ["a",\n5]', line=5, key="args.1"
    ),
    "an environment in a list": claude('"command": "x",\n"env": ["A=b"]', line=5, key="env"),
    "an unset variable": claude(
        f'{URL}, "headers": {{\n"x": "${{NOPE}}"}}', line=5, key="headers.x"
    ),
    "an unset variable among arguments": claude(
        '"command": "x", "args": ["-v",\n"${env:NOPE}"]', line=5, key="args.1"
    ),
    "half a reference": claude('"url": "http://localhost/${"', key="url"),
    "a reference in a reference": claude('"url": "${A:-${B}}"', key="url"),
    "an input outside of VS Code": claude('"url": "${input:x}"', key="url"),
    "a variable that holds a reference to itself": claude(
        '"url": "${LOOP}"', key="url", env={"LOOP": "${LOOP}"}
    ),
    "NUL": claude('"command": "x", "args": ["a\\u0000b"]', key="args.0"),
    "NUL in a variable's name": claude('"command": "x", "env": {"a\\u0000": "b"}', key="env.a\0"),
    "half a character": claude('"command": "x", "args": ["\\ud800"]', key="args.0"),
    "neither on nor off": claude(f'{URL},\n"disabled": "perhaps"', line=5, key="disabled"),
    "a missing envFile": claude('"command": "x",\n"envFile": "no.env"', line=5, key="envFile"),
    "an envFile that is a number": claude('"command": "x",\n"envFile": 5', line=5, key="envFile"),
    "an unknown key of ours": toml("url = 'http://[::1]/'\nadress = 1", line=3, key="adress"),
    "an unknown key in a part": toml(
        "url = 'http://[::1]/'\ntimeouts.cal = 5", line=3, key="timeouts.cal"
    ),
    "a wrong type in TOML": toml(
        "url = 'http://[::1]/'\nmax_retries = 'many'", line=3, key="max_retries"
    ),
    "a date in TOML": toml("url = 2026-07-28", key="url"),
    "a negative count": toml(
        "url = 'http://[::1]/'\nretry_attempts = -1", line=3, key="retry_attempts"
    ),
    "a key that a header cannot carry": toml(
        "url = 'http://[::1]/'\napi_key = 'a b'", line=3, key="api_key"
    ),
    "several mistakes": claude(
        f'{URL},\n"headers": 5,\n"timeout": -1,\n"mode": "x"', line=5, key="headers", more=2
    ),
}

IN_THE_ENVIRONMENT = {
    "MCP_SERVERS is no JSON": environment(MCP_SERVERS="[{"),
    "MCP_SERVERS is a number": environment(MCP_SERVERS="5"),
    "a bad address": environment(MCP_SERVER_KIT_URL="localhost"),
    "a bad timeout": environment(MCP_SERVER_KIT_URL="http://[::1]/", MCP_SERVER_KIT_TIMEOUT="-1"),
    "no switch": environment(MCP_SERVER_KIT_URL="http://[::1]/", MCP_SERVER_KIT_ENABLED="?"),
    "no type": environment(MCP_SERVER_KIT_URL="http://[::1]/", MCP_SERVER_KIT_TYPE="?"),
    "a typing error": environment(MCP_SERVER_KIT_URL="http://[::1]/", MCP_SERVER_KIT_APIKEY="x"),
    "open quotes": environment(MCP_SERVER_KIT_COMMAND="x", MCP_SERVER_KIT_ARGS="'"),
    "no address": Case(
        "environment", "", key="MCP_SERVER_KIT_URL", env={"MCP_SERVER_KIT_TIMEOUT": "1"}
    ),
    "a bad default": environment(MCP_SERVER_KIT_URL="http://[::1]/", MCP_CLIENT_TIMEOUT="soon"),
    "a bad switch": environment(MCP_SERVER_KIT_URL="http://[::1]/", MCP_ENABLE="perhaps"),
    "an unset variable": environment(MCP_SERVER_KIT_API_KEY="${NOPE}"),
}

CORPUS = {**NOT_EVEN_A_DOCUMENT, **NOT_SERVERS, **WRONG_VALUES, **IN_THE_ENVIRONMENT}


def test_the_corpus_is_large():
    assert len(CORPUS) >= 60


@pytest.mark.requirement("C3")
@pytest.mark.parametrize("case", CORPUS.values(), ids=CORPUS)
def test_a_malformed_configuration_is_named(case: Case, tmp_path: Path):
    source = None if case.file == "environment" else tmp_path / case.file
    if source is not None:
        source.parent.mkdir(exist_ok=True)
        content = case.content
        source.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(ConfigError) as caught:
        load(source, env=case.env, cwd=tmp_path, approvals=MemoryApprovals(), strict=True)
    error = caught.value
    assert error.file == (f"{case.file}:{case.line}" if case.line else case.file)
    assert error.key == case.key
    if case.server:
        assert error.server == case.server
    assert error.remedy
    assert ("more)" in error.problem) == bool(case.more)
    assert not case.more or f"and {case.more} more" in error.problem
    assert error.__cause__ is None


@pytest.mark.parametrize("kind", ["missing", "directory", "pipe", "NUL"])
def test_what_is_no_file_is_named(kind: str, tmp_path: Path):
    import os

    path = tmp_path / "mcp.json"
    if kind == "directory":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    with pytest.raises(ConfigError) as caught:
        load("mcp\0.json" if kind == "NUL" else path, env={}, cwd=tmp_path)
    assert caught.value.remedy


@pytest.mark.parametrize("source", [5, b"mcp.json", object, 1.5, {1: "x"}, {"a": {2: 3}}, "kit"])
def test_a_python_value_that_describes_nothing_is_named(source: object):
    with pytest.raises(ConfigError) as caught:
        load(source, env={})
    assert caught.value.remedy


def test_a_python_value_that_holds_itself_is_named():
    loop: dict[str, object] = {"command": "x"}
    loop["env"] = loop
    with pytest.raises(ConfigError):
        load(loop, env={})
