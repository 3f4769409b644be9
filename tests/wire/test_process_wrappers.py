"""Behind a wrapper (a shell, npx, uvx) stands the server that has something to save at its end."""

import asyncio
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.wire.helpers_stdio import BOUND, Undertaker, messages
from toolkeep._transport.stdio import StdioChannel
from toolkeep.config import ServerSpec, Timeouts

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc"),
    pytest.mark.requirement("S16"),
]

SAVING = """
import os, signal, sys, time
place = sys.argv[1]

def end(number, frame):
    with open(place + "/signals", "a") as file:
        file.write("T")
    if os.path.getsize(place + "/signals") > 1:
        os._exit(9)
    time.sleep(0.1)
    open(place + "/saved", "w").close()
    os._exit(0)

signal.signal(signal.SIGTERM, end)
os.write(1, b'{"jsonrpc": "2.0", "pids": [%d, %d]}\\n' % (os.getpid(), os.getppid()))
while True:
    time.sleep(1)
"""
"""Saves at the first SIGTERM; a second one means "at once", as it does to many programs."""

WAITS = '"$0" -I -S -c "$1" "$2"; exit 0'
"""Waits for its server, and dies of a SIGTERM at once."""
LEAVES = '"$0" -I -S -c "$1" "$2" & cat > /dev/null; exit 0'
"""Ends with its input, whatever its server does."""

HOLDER = """
import asyncio, json, sys
from pathlib import Path
from toolkeep._transport.stdio import StdioChannel
from tests.wire.test_process_wrappers import WAITS, wrapped

async def main():
    channel = StdioChannel(wrapped(WAITS, Path(sys.argv[1])))
    await channel.open()
    [message] = await channel.receive()
    print(json.dumps(message), flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


def wrapped(wrapper: str, place: Path) -> ServerSpec:
    args = ("-c", wrapper, sys.executable, SAVING, str(place))
    return ServerSpec(name="wrapped", command="sh", args=args, timeouts=Timeouts(close=3.0))


@pytest.fixture
def undertaker() -> Iterator[Undertaker]:
    undertaker = Undertaker()
    yield undertaker
    undertaker.bury()


def left_in(place: Path) -> tuple[bool, str]:
    """Whether it has saved, and the signals it got."""
    return (place / "saved").exists(), (place / "signals").read_text()


@pytest.mark.parametrize("wrapper", [WAITS, LEAVES], ids=["waits", "leaves"])
async def test_a_server_behind_a_wrapper_may_save_when_it_is_closed(
    undertaker: Undertaker, tmp_path: Path, wrapper: str
):
    channel = StdioChannel(wrapped(wrapper, tmp_path))
    await channel.open()
    try:
        [report] = await messages(channel, 1)
        assert isinstance(report, dict)
        undertaker.know(report["pids"])
    finally:
        await channel.close()
    assert left_in(tmp_path) == (True, "T")
    await undertaker.all_gone()


async def test_a_server_behind_a_wrapper_may_save_when_our_program_is_killed(
    undertaker: Undertaker, tmp_path: Path
):
    program = await asyncio.create_subprocess_exec(
        *(sys.executable, "-W", "ignore", "-c", HOLDER, str(tmp_path)),
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    try:
        assert program.stdout is not None
        async with asyncio.timeout(BOUND):
            report = json.loads(await program.stdout.readline())
        undertaker.know(report["pids"])
        program.kill()
        await undertaker.all_gone()
    finally:
        if program.returncode is None:
            program.kill()
        await program.communicate()
    assert left_in(tmp_path) == (True, "T")
