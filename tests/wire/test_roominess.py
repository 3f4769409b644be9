"""Large answers find their memory again."""

import platform
import subprocess
import sys

import pytest

from toolkeep.testing import ScriptedServer

SIZE = 1_000_000
PROGRAM = f"""
import asyncio, resource, sys
from toolkeep import Client

async def main():
    async with Client(sys.argv[1], mode=sys.argv[2]) as client:
        async def ask(times):
            for _ in range(times):
                result = await client.call_tool("big", {{"bytes": {SIZE}}})
                assert len(result.text) == {SIZE}
        await ask(20)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        await ask(20)
        print((resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) / 20)

asyncio.run(main())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other allocators have other ways")
@pytest.mark.parametrize("encoding", ["json", "sse"])
@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_a_megabyte_takes_no_new_pages(era: str, encoding: str) -> None:
    """One page is 4 KiB: without `make_room`, hundreds are taken anew for each answer."""
    async with ScriptedServer.spawn(era=era, encoding=encoding) as server:  # pyright: ignore[reportArgumentType]
        command = [sys.executable, "-c", PROGRAM, server.url, era]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert float(done.stdout) < SIZE / 4096 / 4
