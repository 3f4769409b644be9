"""Gateways in trouble: three replicas on one Redis, plain round robin for every single request.

A hundred clients of both eras call servers of both eras, one call in three asks its client
something. Then, one after the other:

- `between calls`: a replica is killed while no call runs. No call may fail.
- `during calls`: a replica is killed while calls run. Only calls that it worked on may fail, or
  whose answer to a question it had just been sent, each told that it may have run.
- `rolling restart`: each replica is ended with SIGTERM and started anew, under load. No call may
  fail.

At no time may a session be unknown. At the end the servers' ledgers are compared with what the
callers were told.

    python -m chaos.gateway_fleet [--clients 100] [--rounds 3] [--seconds 5] [--seed 1]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import random
import re
import secrets
import signal
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from chaos.fleet import redis_server
from tests.ports import free_port
from toolkeep import CallRejected, Client, ToolkeepError
from toolkeep.events import InputNeeded
from toolkeep.gateway.errors import OUTCOME_UNKNOWN
from toolkeep.testing import ScriptedServer

PATIENCE = 60.0
THINKING = 0.1
"""Seconds that a person takes to answer, on average."""
RATE = 80.0
"""Calls a second of all clients, at most: this process, its balancer and the replicas share two
cores."""
FORM = {"type": "object", "properties": {"name": {"type": "string"}}}
QUESTION = {"method": "elicitation/create", "params": {"message": "Who?", "requestedSchema": FORM}}
CONFIGURATION = """\
state = "{state}"
state_keys = ["{key}"]

[servers.old]
url = "{old}"
mode = "legacy"

[servers.new]
url = "{new}"
mode = "modern"
"""
_METHOD = re.compile(rb'"method":\s*"([\w/]+)"')
_KEY = re.compile(rb'"key":\s*"(call-\d+)"')


class Replica:
    """A gateway process, at a port that stays its own."""

    def __init__(self, number: int, file: Path) -> None:
        self.name, self.port = f"replica {number}", free_port()
        self._command = [sys.executable, "-m", "toolkeep", "serve", "-c", str(file)]
        self._command += ["--port", str(self.port)]
        self._log = file.with_name(f"{number}.log")
        self.process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        with self._log.open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                *self._command, stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log
            )
        async with asyncio.timeout(PATIENCE):
            while not await self._is_ready():
                if self.process.returncode is not None:
                    raise SystemExit(f"{self.name} ended: {self._log.read_text()[-2000:]}")
                await asyncio.sleep(0.05)

    async def _is_ready(self) -> bool:
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        except OSError:
            return False
        try:
            writer.write(b"GET /readyz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
            return b" 200 " in await reader.readline()
        except OSError:
            return False
        finally:
            writer.close()

    async def end(self, how: signal.Signals) -> int:
        assert self.process is not None
        if self.process.returncode is None:
            self.process.send_signal(how)
        async with asyncio.timeout(PATIENCE):
            return await self.process.wait()


class Balancer:
    """Takes one request a connection to the next replica, and to another one only if that refuses
    to connect. Reads of a request its head and the key of its call, of an answer its status."""

    def __init__(self, replicas: list[Replica]) -> None:
        self._replicas, self._turns = replicas, itertools.count()
        self._open: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self.url = ""
        self.served: Counter[str] = Counter()
        """Requests by replica."""
        self.worked_on: defaultdict[str, set[str]] = defaultdict(set)
        """The replicas that saw a request of a call."""
        self.refused: Counter[str] = Counter()
        """Answers other than 2xx, by method (of MCP, or of HTTP) and status."""
        self.handshakes = self.lost_answers = 0
        """Answers to questions that got no response."""

    async def __aenter__(self) -> Balancer:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0, limit=1 << 20)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/mcp"
        return self

    async def __aexit__(self, *raised: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._open:
            task.cancel()
        if self._open:
            await asyncio.wait(self._open)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        try:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                await self._pass_on(reader, writer)
        except asyncio.CancelledError:
            pass
        finally:
            writer.close()
            self._open.discard(task)

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"(?i)\r\ncontent-length:\s*(\d+)", head)
        body = await reader.readexactly(int(length[1])) if length else b""
        found = await self._connect()
        if found is None:
            return
        replica, there, back = found
        self.served[replica.name] += 1
        self.handshakes += b'"initialize"' in body
        method = _METHOD.search(body)
        if key := _KEY.search(body):
            self.worked_on[key[1].decode()].add(replica.name)
        try:
            first, _, rest = head.partition(b"\r\n")
            back.write(first + b"\r\nconnection: close\r\n" + rest + body)
            what = (method[1] if method else first.partition(b" ")[0]).decode()
            answered = False
            with contextlib.suppress(OSError):
                answered = await self._copy_answer(what, there, reader, writer)
            self.lost_answers += not answered and method is None and b'"result"' in body
        finally:
            back.close()

    async def _copy_answer(
        self,
        what: str,
        there: asyncio.StreamReader,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> bool:
        """Until the replica has answered, or the client has left. Whether there was an answer."""
        leaving = asyncio.create_task(reader.read(1))
        try:
            start = b""
            while True:
                reading = asyncio.create_task(there.read(1 << 16))
                await asyncio.wait((reading, leaving), return_when=asyncio.FIRST_COMPLETED)
                if not reading.done():
                    reading.cancel()
                    await asyncio.wait((reading,))
                    return bool(start)
                if not (chunk := reading.result()):
                    return bool(start)
                if not start:
                    start = chunk
                    status = chunk[9:12].decode("latin-1")
                    if not status.startswith("2"):
                        self.refused[f"{what} {status}"] += 1
                writer.write(chunk)
                await writer.drain()
        finally:
            leaving.cancel()
            await asyncio.wait((leaving,))

    async def _connect(
        self,
    ) -> tuple[Replica, asyncio.StreamReader, asyncio.StreamWriter] | None:
        turn = next(self._turns) % len(self._replicas)
        for replica in (*self._replicas[turn:], *self._replicas[:turn]):
            with contextlib.suppress(ConnectionRefusedError):
                return replica, *(await asyncio.open_connection("127.0.0.1", replica.port))
        return None


# -- what happened --------------------------------------------------------------------------------

Phase = Literal["calm", "between calls", "during calls", "rolling restart"]


@dataclass(frozen=True)
class Told:
    """What the caller of one call was told."""

    phase: Phase
    asks: bool
    delivery: str | None = None
    """Of a call that failed."""
    error: str = ""
    attempts: int = 1


@dataclass
class Report:
    """What callers were told, and what replicas and servers saw."""

    clients: int
    told: dict[str, Told] = field(default_factory=dict[str, Told])
    ran: dict[str, int] = field(default_factory=dict[str, int])
    worked_on: dict[str, set[str]] = field(default_factory=dict[str, set[str]])
    killed: dict[Phase, set[str]] = field(default_factory=lambda: defaultdict(set))
    """The replicas that were killed in a phase while calls ran."""
    served: Counter[str] = field(default_factory=Counter[str])
    refused: Counter[str] = field(default_factory=Counter[str])
    handshakes: int = 0
    lost_answers: int = 0
    """Answers to questions that were sent to a replica as it was killed."""
    answers: int = 0
    """Questions that clients answered."""
    exits: list[int] = field(default_factory=list[int])
    """Exit codes of the rolling restart."""
    seconds: float = 0.0

    def findings(self) -> list[str]:
        """What broke a promise; empty if nothing did."""
        found: list[str] = []
        elsewhere: list[str] = []
        for key, told in self.told.items():
            ran = self.ran.get(key, 0)
            fits = {None: (1,), "NOT_SENT": (0,), "REFUSED": (0,)}.get(told.delivery, (0, 1))
            if ran not in fits:
                found.append(f"{key} ran {ran} times, and its caller was told {told.delivery}")
            if told.attempts > 1 + told.asks:  # a modern client sends its answers with the call
                found.append(f"{key} was sent {told.attempts} times")
            if told.delivery is None:
                continue
            if told.phase != "during calls":
                found.append(f"{told.phase}: {key} failed: {told.error}")
            elif told.delivery != "UNKNOWN":
                found.append(f"{key} failed and was not told that it may have run: {told.error}")
            elif not self.killed[told.phase] & self.worked_on.get(key, set()):
                elsewhere.append(f"{key} failed at no killed replica: {told.error}")
        if len(elsewhere) > self.lost_answers:
            found += elsewhere
        unknown = {what: n for what, n in self.refused.items() if what not in MAY_BE_REFUSED}
        if unknown:
            found.append(f"requests were refused: {unknown}")
        if self.handshakes > self.clients:
            found.append(f"{self.clients} legacy clients made {self.handshakes} handshakes")
        if any(self.exits):
            found.append(f"replicas ended with {self.exits} after SIGTERM")
        return found

    def __str__(self) -> str:
        phases: defaultdict[str, Counter[str]] = defaultdict(Counter)
        for told in self.told.values():
            phases[told.phase]["calls"] += 1
            phases[told.phase]["with a question"] += told.asks
            phases[told.phase]["failed"] += told.delivery is not None
        lines = [
            f"{phase}: {counts['calls']} calls ({counts['with a question']} with a question),"
            f" {counts['failed']} failed"
            for phase, counts in phases.items()
        ]
        lines += [
            f"{len(self.told)} calls in {self.seconds:.0f} s, {self.answers} questions answered,"
            f" {self.lost_answers} answers lost with their replica;"
            f" requests by replica: {dict(sorted(self.served.items()))}",
            f"refused: {dict(self.refused) or 'nothing'}; {self.handshakes} handshakes of"
            f" {self.clients} legacy clients",
        ]
        return "\n".join(lines)


MAY_BE_REFUSED = ("GET 503", "subscriptions/listen 503")
"""A stream that is opened at a replica that drains: its client comes back."""

# -- a run ----------------------------------------------------------------------------------------


class Fleet:
    """The clients, and what may be done to the replicas meanwhile."""

    def __init__(
        self, replicas: list[Replica], balancer: Balancer, clients: int, dice: random.Random
    ) -> None:
        self.replicas, self._balancer, self._dice = replicas, balancer, dice
        self._count, self._pause = clients, clients / RATE
        self.report = Report(clients=(clients + 1) // 2)
        self.phase: Phase = "calm"
        self._numbers = itertools.count()
        self._running = 0
        self._gate, self._quiet = asyncio.Event(), asyncio.Event()
        self._gate.set()
        self._quiet.set()
        self._stopping = False

    @asynccontextmanager
    async def calling(self) -> AsyncIterator[None]:
        """Clients call in the block, and end their calls at its end."""
        tasks = [asyncio.create_task(self._client(number)) for number in range(self._count)]
        try:
            yield
        finally:
            self._stopping = True
            self._gate.set()
            done, _ = await asyncio.wait(tasks, timeout=PATIENCE)
            for task in tasks:
                task.cancel()
        for task in tasks:
            if task not in done:
                raise TimeoutError("a client did not end")
            task.result()

    async def _client(self, number: int) -> None:
        mode: Literal["legacy", "modern"] = "modern" if number % 2 else "legacy"
        url = self._balancer.url
        async with Client({"url": url}, mode=mode, elicitation=self._answer) as client:
            while not self._stopping:
                await self._gate.wait()
                self._running += 1
                self._quiet.clear()
                try:
                    await self._call(client)
                finally:
                    self._running -= 1
                    if not self._running:
                        self._quiet.set()
                await asyncio.sleep(self._pause * 2 * self._dice.random())

    async def _answer(self, needed: InputNeeded) -> Any:
        await asyncio.sleep(THINKING * 2 * self._dice.random())
        self.report.answers += 1
        return {"action": "accept", "content": {"name": "Ada"}}

    async def _call(self, client: Client) -> None:
        number, phase = next(self._numbers), self.phase
        key, asks = f"call-{number}", number % 3 == 0
        server = self._dice.choice(("old", "new"))
        arguments: dict[str, Any] = {"key": key}
        if asks:
            arguments["requests"] = {"who": QUESTION}
        tool = f"{server}__{'ask' if asks else 'record'}"
        try:
            result = await client.call_tool(tool, arguments)
        except ToolkeepError as error:
            text = f"{type(error).__name__}: {error}"
            gone = isinstance(error, CallRejected) and error.code == OUTCOME_UNKNOWN
            told = "UNKNOWN" if gone else error.delivery.name
            self.report.told[key] = Told(phase, asks, told, text)
            return
        delivery = None if result.success else delivery_of(result)
        text = "" if result.success else result.text
        self.report.told[key] = Told(phase, asks, delivery, text, result.attempts)

    # -- trouble --------------------------------------------------------------------------------

    async def kill_between_calls(self) -> None:
        self.phase = "between calls"
        self._gate.clear()
        await self._quiet.wait()
        victim = self._dice.choice(self.replicas)
        await victim.end(signal.SIGKILL)
        self._gate.set()
        await victim.start()

    async def kill_during_calls(self, seconds: float) -> None:
        self.phase = "during calls"
        await asyncio.sleep(seconds / 2)
        victim = self._dice.choice(self.replicas)
        self.report.killed[self.phase].add(victim.name)
        await victim.end(signal.SIGKILL)
        await victim.start()
        # The calls that this has hurt end in this phase.
        self._gate.clear()
        await self._quiet.wait()
        self.phase = "calm"
        self._gate.set()

    async def restart_all(self) -> None:
        self.phase = "rolling restart"
        for replica in self.replicas:
            self.report.exits.append(await replica.end(signal.SIGTERM))
            await replica.start()


def delivery_of(result: Any) -> str:
    """What a gateway says of a call whose server failed it."""
    return str((result.meta or {}).get("toolkeep/delivery", "tool error")).upper()


async def run(
    state: str, *, clients: int = 100, rounds: int = 3, seconds: float = 5.0, seed: int = 1
) -> Report:
    """Calls with trouble: each kind `rounds` times, with calm of so many seconds before."""
    began = time.monotonic()
    async with contextlib.AsyncExitStack() as stack:
        old = await stack.enter_async_context(ScriptedServer.spawn(era="legacy"))
        new = await stack.enter_async_context(ScriptedServer.spawn(era="modern"))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        file = folder / "toolkeep.toml"
        key = secrets.token_hex(32)
        file.write_text(CONFIGURATION.format(state=state, key=key, old=old.url, new=new.url))
        replicas = [Replica(number, file) for number in (1, 2, 3)]
        stack.push_async_callback(end_all, replicas)
        await asyncio.gather(*(replica.start() for replica in replicas))
        balancer = await stack.enter_async_context(Balancer(replicas))
        fleet = Fleet(replicas, balancer, clients, random.Random(seed))
        async with fleet.calling():
            for _ in range(rounds):
                await asyncio.sleep(seconds)
                await fleet.kill_between_calls()
                fleet.phase = "calm"
                await asyncio.sleep(seconds)
                await fleet.kill_during_calls(seconds)
            await asyncio.sleep(seconds)
            await fleet.restart_all()
        report = fleet.report
        report.ran = {**await old.ledger(), **await new.ledger()}
        report.worked_on, report.refused = dict(balancer.worked_on), balancer.refused
        report.served, report.handshakes = balancer.served, balancer.handshakes
        report.lost_answers = balancer.lost_answers
    report.seconds = time.monotonic() - began
    return report


async def end_all(replicas: list[Replica]) -> None:
    await asyncio.gather(*(one.end(signal.SIGKILL) for one in replicas if one.process))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m chaos.gateway_fleet")
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=1)
    given = vars(parser.parse_args())
    with redis_server() as redis:
        report = asyncio.run(run(redis.url, **given))
    print(report)
    found = report.findings()
    for one in found[:20]:
        print(f"  {one}")
    print(f"{len(found)} findings" if found else "every promise was kept", flush=True)
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
