"""The processes of a scripted stdio server: how they start, what they refuse, and that all end."""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit.pipe import pipe_to
from tests.kit.wire import BOUND, request
from toolkeep.testing import ScriptedProgram, ScriptedServer
from toolkeep.testing._stdio import is_alive


async def no_longer(pid: int) -> None:
    async with asyncio.timeout(BOUND):
        while is_alive(pid):
            await asyncio.sleep(0.01)


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def start(server: ScriptedProgram, stdout: int | None = None) -> "subprocess.Popen[bytes]":
    spec = server.spec
    return subprocess.Popen(
        [spec["command"], *spec["args"]], env=spec["env"], stdin=subprocess.PIPE, stdout=stdout
    )


async def test_noise_comes_first_and_stderr_is_apart():
    async with (
        ScriptedServer.stdio(stdout_noise="hello\nworld\n", stderr="warming up\n") as server,
        pipe_to(server) as pipe,
    ):
        assert [await pipe.line() for _ in range(2)] == [b"hello\n", b"world\n"]
        assert await pipe.stderr.readline() == b"warming up\n"
        assert (await pipe.ask("ping"))["result"] == {}


async def test_it_can_exit_before_it_answers_anything():
    async with ScriptedServer.stdio(exit_at_start=9, stderr="no config\n") as server:
        async with pipe_to(server) as pipe:
            pipe.send(request("ping"))
            assert await pipe.ended() == 9
            assert await pipe.stderr.read() == b"no config\n"
        assert (await server.starts(), await server.requests()) == (1, [])


async def test_the_process_gets_what_the_client_gives_and_nothing_else():
    async with ScriptedServer.stdio() as server, pipe_to(server):
        (running,) = await server.processes(at_least=1)
        (launch,) = await server.launches()
        # Python itself adds LC_CTYPE where there is no locale (PEP 538).
        assert set(launch.environment) - {"LC_CTYPE"} == set(server.spec["env"])
        assert launch.cwd == os.getcwd()
        assert launch.pid == running


async def test_a_process_that_is_killed_is_gone_and_the_next_one_works():
    async with ScriptedServer.stdio() as server:
        async with pipe_to(server) as pipe:
            await pipe.initialize()
            server.kill()
            assert await pipe.ended() == -signal.SIGKILL
            assert await server.processes() == []
        async with pipe_to(server) as pipe:
            assert (await pipe.initialize())["id"] == 7
            server.kill(pipe.child.pid, signal.SIGTERM)
            assert await pipe.ended() == -signal.SIGTERM
        with pytest.raises(ProcessLookupError):
            server.kill(os.getpid(), signal.SIGCONT)


async def test_children_stay_until_the_block_ends_or_they_are_killed():
    async with ScriptedServer.stdio(children=3, children_ignore_signals=True) as server:
        with start(server) as parent:
            children = await server.children(at_least=3)
            assert sorted(os.getsid(pid) == pid for pid in children) == [False, True, True]
            assert sorted(parent_of(pid) == parent.pid for pid in children) == [False, True, True]
            for pid in children:
                os.kill(pid, signal.SIGTERM)
            server.kill()
            parent.wait(BOUND)
            assert await server.processes() == []
            assert sorted(await server.children()) == sorted(children)
            server.kill(children[0])
            await no_longer(children[0])
            assert len(await server.children()) == 2
    assert not any(map(is_alive, children))


async def test_plain_children_obey_sigterm():
    async with ScriptedServer.stdio(children=1) as server:
        with start(server):
            (child,) = await server.children(at_least=1)
            server.kill(child, signal.SIGTERM)
            await no_longer(child)
            server.kill()


@pytest.mark.parametrize("deaf", [False, True])
async def test_it_can_outlast_the_end_of_its_stdin_but_not_the_block(deaf: bool):
    async with ScriptedServer.stdio(ignore_stdin=deaf, ignore_stdin_end=not deaf) as server:
        child = start(server, stdout=subprocess.PIPE)
        assert child.stdin is not None
        assert child.stdout is not None
        await server.processes(at_least=1)
        child.stdin.close()
        with pytest.raises(subprocess.TimeoutExpired):
            child.wait(0.2)
        assert await server.processes() == [child.pid]
    assert child.wait(BOUND) == 0
    child.stdout.close()


async def test_a_deaf_process_reads_nothing():
    async with ScriptedServer.stdio(ignore_stdin=True) as server:
        with start(server) as child:
            assert child.stdin is not None
            await server.processes(at_least=1)
            os.set_blocking(child.stdin.fileno(), False)
            with contextlib.suppress(BlockingIOError):
                while os.write(child.stdin.fileno(), b"x" * 65536):
                    pass
            assert await server.requests() == []
            server.kill()


async def test_it_can_ignore_sigterm():
    async with ScriptedServer.stdio(ignore_sigterm=True) as server, pipe_to(server) as pipe:
        await pipe.initialize()
        server.kill(signal=signal.SIGTERM)
        assert (await pipe.ask("ping"))["result"] == {}
        pipe.stdin.close()
        assert await pipe.ended() == 0


async def test_a_client_that_does_not_read_holds_nobody_up():
    async with ScriptedServer.stdio() as server:
        child = start(server, stdout=subprocess.PIPE)
        assert child.stdin is not None
        assert child.stdout is not None
        line = b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"big","arguments":'
        child.stdin.write(line + b'{"bytes":1000000}}}\n')
        child.stdin.flush()
        await server.requests("tools/call", at_least=1)
    assert child.wait(BOUND) == 0
    child.stdin.close()
    child.stdout.close()


async def test_a_stranger_is_not_a_process_of_the_server():
    async with ScriptedServer.stdio() as server:
        with socket.create_connection(("127.0.0.1", server.port)) as stranger:
            stranger.sendall(b'{"secret": "guess", "role": "server", "pid": 1}\n')
            reader, writer = await asyncio.open_connection(sock=stranger.dup())
            async with asyncio.timeout(BOUND):
                assert await reader.read() == b""
            writer.close()
            await writer.wait_closed()
        with socket.create_connection(("127.0.0.1", server.port)):
            await server.__aexit__(None, None, None)
        assert (await server.starts(), await server.processes()) == (0, [])


async def test_no_process_outlives_the_program_that_made_the_server():
    code = (
        "import asyncio, subprocess, toolkeep.testing as t\n"
        "async def main():\n"
        "    async with t.ScriptedServer.stdio(\n"
        "        children=2, children_ignore_signals=True,\n"
        "        ignore_stdin_end=True, ignore_sigterm=True\n"
        "    ) as server:\n"
        "        spec = server.spec\n"
        "        command = [spec['command'], *spec['args']]\n"
        "        child = subprocess.Popen(command, env=spec['env'], stdin=subprocess.PIPE)\n"
        "        print(child.pid, *await server.children(at_least=2), flush=True)\n"
        "        await asyncio.sleep(60)\n"
        "asyncio.run(main())\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    with parent, parent.stdout as lines:
        pids = [int(word) for word in lines.readline().split()]
        assert len(pids) == 3
        parent.kill()
        parent.wait(BOUND)
    for pid in pids:
        await no_longer(pid)
