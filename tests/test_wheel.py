"""The wheel, as a user gets it: built, installed outside the checkout, and tried there.

Nothing is downloaded. The new environment sees the dependencies through a `.pth` line that names
this environment's packages; Python does not follow the `.pth` files in there, so the editable
toolkeep of the checkout stays out of sight.
"""

import json
import subprocess
import sys
import sysconfig
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

TRIAL = """
import json, sys
import toolkeep
from toolkeep import Client

client = Client("http://127.0.0.1:9/mcp")
package = __import__("pathlib").Path(toolkeep.__file__).parent
print(json.dumps({
    "home": str(package),
    "version": toolkeep.__version__,
    "typed": (package / "py.typed").is_file(),
    "opened": client.is_initialized,
}))
"""

WITHOUT_SDK = """
import asyncio, json, sys

# What comes with the SDK, as if it were not installed.
sys.modules.update(dict.fromkeys(("mcp", "anyio", "starlette", "uvicorn", "httpx2", "httpx")))
from toolkeep import Client, ConfigError, Runtime
from toolkeep.testing import ScriptedServer

def add(a: int, b: int) -> int:
    return a + b

async def main():
    told = {}
    for era in ("legacy", "modern"):
        async with ScriptedServer.local(era=era) as server:
            async with Runtime([{"name": "kit", "url": server.url}]) as runtime:
                told[era] = (await runtime.call("kit.echo", {"text": era})).text
    async with ScriptedServer.stdio() as server, Client({"name": "kit", **server.spec}) as client:
        told["stdio"] = (await client.call_tool("echo", {"text": "stdio"})).text
    local = {"client": Client(add), "runtime": Runtime([], functions=[add], strict=True)}
    for name, server in local.items():
        try:
            await server.connect()
        except ConfigError as error:
            told[name] = str(error)
    print(json.dumps(told))

asyncio.run(main())
"""

NEW_SERVER = """
import sys

sys.modules["mcp"] = None
sys.argv[1:] = ["new-server", "math"]
from toolkeep.cli import main

main()
"""


@dataclass(frozen=True)
class Installed:
    """A virtual environment with the wheel in it."""

    python: Path
    wheel: Path
    site: Path


def run(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    home = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", home / "dist", cwd=ROOT)
    (wheel,) = (home / "dist").glob("*.whl")
    run(sys.executable, "-m", "venv", "--without-pip", home / "venv", cwd=home)
    scheme = {"base": str(home / "venv"), "platbase": str(home / "venv")}
    site = Path(sysconfig.get_path("purelib", scheme="venv", vars=scheme))
    python = Path(sysconfig.get_path("scripts", scheme="venv", vars=scheme), "python")
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python)
    run(*pip, "install", "--quiet", "--no-deps", "--no-index", wheel, cwd=home)
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    return Installed(python, wheel, site)


def test_the_wheel_works_outside_the_checkout(installed: Installed):
    from toolkeep import __version__

    told = json.loads(run(installed.python, "-I", "-c", TRIAL, cwd=installed.wheel.parent))
    assert told == {
        "home": str(installed.site / "toolkeep"),
        "version": __version__,
        "typed": True,
        "opened": False,
    }


def test_the_wheel_holds_the_package_and_its_licence_only(installed: Installed):
    names = zipfile.ZipFile(installed.wheel).namelist()
    assert {name.split("/")[0].split("-")[0] for name in names} == {"toolkeep"}
    assert any(name.endswith("/licenses/LICENSE") for name in names)


def test_the_page_of_the_console_is_in_the_wheel(installed: Installed):
    names = set(zipfile.ZipFile(installed.wheel).namelist())
    page = ROOT / "src/toolkeep/console/static"
    files = {f"toolkeep/console/static/{path.name}" for path in page.iterdir()}
    assert "toolkeep/console/static/index.html" in files
    assert files <= names


def test_the_core_needs_no_sdk_and_names_the_extra_for_servers_in_this_process(
    installed: Installed,
):
    told = json.loads(run(installed.python, "-I", "-c", WITHOUT_SDK, cwd=installed.wheel.parent))
    for kind in ("client", "runtime"):
        assert "toolkeep[mcp]" in told.pop(kind)
    assert told == {name: name for name in ("legacy", "modern", "stdio")}


def test_a_new_server_says_which_extra_it_needs_where_that_is_missing(
    installed: Installed, tmp_path: Path
):
    said = run(installed.python, "-I", "-c", NEW_SERVER, cwd=tmp_path)
    assert "pip install 'toolkeep[mcp]'" in said
    assert (tmp_path / "math/server.py").is_file()
