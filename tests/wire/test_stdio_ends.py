"""How a program is ended, and how its end is known."""

import asyncio
import os
import socket
from pathlib import Path

import pytest

from tests.wire.helpers_stdio import ending, messages, opened

POLITE = """
import os, signal, sys
def leave(*_):
    os.close(os.open(sys.argv[1], os.O_CREAT))
    os._exit(0)
signal.signal(signal.SIGTERM, leave)
os.write(1, b'{"jsonrpc": "2.0", "method": "ready"}\\n')
while True:
    signal.pause()
"""


@pytest.mark.requirement("S16")
async def test_a_program_that_stays_when_its_input_ends_is_asked_before_it_is_killed(
    tmp_path: Path,
):
    async with opened(POLITE, str(tmp_path / "left"), timeouts={"close": 1.5}) as channel:
        await messages(channel, 1)
    assert (tmp_path / "left").exists()


LENDS_ITS_OUTPUT = """
import socket, sys
with socket.socket(socket.AF_UNIX) as friend:
    friend.connect(sys.argv[1])
    socket.send_fds(friend, [b"x"], [1])
"""


@pytest.mark.requirement("S16")
async def test_an_output_that_somebody_else_holds_open_ends_with_its_program(tmp_path: Path):
    where = str(tmp_path / "friend")
    with socket.socket(socket.AF_UNIX) as ear:
        ear.bind(where)
        ear.listen()
        async with opened(LENDS_ITS_OUTPUT, where) as channel:
            friend, _ = await asyncio.to_thread(ear.accept)
            with friend:
                _, lent, *_ = await asyncio.to_thread(socket.recv_fds, friend, 1, 1)
            try:
                assert await ending(channel) == []
            finally:
                os.close(lent[0])
