"""A server given as a text: a URL, a command, or the path of a script."""

import sys
from pathlib import Path

import pytest
from pydantic import SecretStr

from toolkeep import Client, ConfigError, Runtime, blocking
from toolkeep.config import ServerSpec


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def command_of(server: "str | Path") -> tuple[str, list[str]]:
    spec = Client(server).spec
    return spec.command, list(spec.args)


def test_a_script_of_python_is_started_with_this_python(here: Path):
    (here / "my server.py").touch()
    assert command_of("my server.py") == (sys.executable, ["my server.py"])
    assert command_of(here / "my server.py") == (sys.executable, [str(here / "my server.py")])
    assert command_of("'my server.py' --port 3")[1] == ["my server.py", "--port", "3"]
    assert Client("my server.py").name == "my-server"


def test_a_script_of_javascript_is_started_with_node(here: Path):
    (here / "index.mjs").touch()
    assert command_of("index.mjs") == ("node", ["index.mjs"])


def test_other_texts_are_commands():
    assert command_of("npx -y 'some server' --fast") == ("npx", ["-y", "some server", "--fast"])
    assert command_of("./serve") == ("./serve", [])


def test_a_url_stays_one():
    assert Client("http://localhost:8000/mcp").spec.url == "http://localhost:8000/mcp"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("missing.py", "there is no file 'missing.py' in"),
        ("localhost:8000/mcp", "it has no scheme. Write http://"),
        ("user:s3cret@example.com/mcp", "it has no scheme"),
        ("example.com/mcp", "it has no scheme"),
        ("mcp.json", "a configuration file, not a server. Open it with Runtime.open"),
        ("npx 'unclosed", "cannot be split into words"),
        ("  ", "the command is empty"),
    ],
)
def test_a_text_that_is_no_server_says_what_to_write(here: Path, text: str, problem: str):
    with pytest.raises(ConfigError) as raised:
        Client(text)
    assert problem in str(raised.value)
    assert "s3cret" not in str(raised.value)


@pytest.mark.parametrize("made", [Runtime, Runtime.open, blocking.Runtime, blocking.Runtime.open])
@pytest.mark.parametrize("value", [42, b"mcp.json", object()])
def test_a_runtime_refuses_what_is_no_configuration_at_once(made: type, value: object):
    with pytest.raises(TypeError, match="a runtime is opened with the path of a configuration"):
        made(value)


@pytest.mark.filterwarnings("ignore::toolkeep.config.spec.ConfigWarning")
def test_a_spec_shows_what_was_set_and_no_secret():
    spec = ServerSpec(
        name="s", url="https://u:s3cret@h/mcp", api_key=SecretStr("s3cret"), headers={"a": "s3cret"}
    )
    assert "s3cret" not in repr(spec)
    assert repr(spec).startswith("ServerSpec(name='s', url='https://")
    assert "timeouts" not in repr(spec)
    program = ServerSpec(name="p", command="x", args=("--token", "s3cret"), env={"K": "s3cret"})
    assert "s3cret" not in repr(program)
    assert "args=['--token', '***']" in repr(program)
