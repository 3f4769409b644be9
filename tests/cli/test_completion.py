"""What the shell is offered after Tab: from what was listed before, with no server asked."""

import subprocess
from collections.abc import Sequence

import pytest

from tests.cli.helpers_running import BOUND, TOOLKEEP, Home
from toolkeep.testing import ScriptedServer

UNIT = {
    "name": "weather",
    "inputSchema": {
        "type": "object",
        "properties": {"city": {"type": "string"}, "unit": {"enum": ["celsius", "kelvin"]}},
    },
}


def offered(home: Home, *words: str, **env: str) -> Sequence[str]:
    """What bash is told, with the cursor at the end of the last word."""
    asking = {
        "_TOOLKEEP_COMPLETE": "complete_bash",
        "COMP_WORDS": " ".join(("toolkeep", *words)),
        "COMP_CWORD": str(len(words)),
    }
    told = subprocess.run(
        [TOOLKEEP],
        env=home.env(**asking, **env),
        cwd=home.path,
        capture_output=True,
        text=True,
        timeout=BOUND,
    )
    assert "Traceback" not in told.stderr
    return told.stdout.split()


@pytest.mark.requirement("O2")
async def test_names_and_keys_are_completed_without_asking_any_server(home: Home):
    async with ScriptedServer.stdio(tools=[UNIT]) as program:
        named = home.configure({"kit": program.spec})
        assert offered(home, "call", "-c", named, "k") == []
        assert (await home.run("tools", "-c", named)).code == 0
        before = await program.starts()
        of = ("-c", named)
        assert "kit.weather" in offered(home, "call", *of, "kit.w")
        assert offered(home, "call", *of, "weather", "u") == ["unit=celsius", "unit=kelvin"]
        assert offered(home, "call", *of, "kit.weather", "unit=c") == ["unit=celsius"]
        assert offered(home, "call", *of, "weather", "ci") == ["city=", "city=..."]
        assert offered(home, "call", *of, "weather", "unit=kelvin", "un") == []
        broken_up = ("weather", "unit", "=", "k")
        assert offered(home, "call", *of, *broken_up) == ["kelvin"], "as bash does it"
        assert offered(home, "servers", *of, "k") == ["kit"]
        assert offered(home, "read", *of, "kit://n") == ["kit://notes"]
        assert await program.starts() == before
    (kept,) = (home.path / "cache").rglob("*.json")
    assert kept.stat().st_mode & 0o077 == 0
    for broken in (b"{", b"[1]", b'{"kit": {"tools": 7, "resources": [3]}}'):
        kept.write_bytes(broken)
        assert offered(home, "call", *of, "kit.w") == []
