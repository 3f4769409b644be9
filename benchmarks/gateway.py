"""What a gateway costs: toolkeep's beside those of others, in one run, with the same stub server.

    python -m benchmarks.gateway [--seconds 4] [--rounds 3] [--publish]

Each gateway is a process of its own on a core of its own; the caller and the stub have the other
one. Rounds alternate between the gateways, and the median of the rounds counts, so that a slow
minute of the machine slows all. `--publish` writes the figures into the docs.

Added p50: the median of a call through the gateway, less that of a call without one. Calls per
core second: calls by the processor time of the gateway's process, with 32 in flight.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import secrets
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import aiohttp

from benchmarks import stub
from benchmarks.cores import CLIENT, SERVER, started_on
from benchmarks.workers import ROOT
from tests.ports import free_port
from tests.state.servers import programs, running

RESULTS = ROOT / "benchmarks" / "gateway.json"
PAGE = ROOT / "docs" / "explanation" / "gateway.md"
BEGIN = "<!-- Written by `make bench-gateway ARGS=--publish` from benchmarks/gateway.json -->"
END = "<!-- Until here -->"
NPM_PROXY = ROOT / "benchmarks" / "npm" / "node_modules" / "mcp-proxy"
START_WITHIN = 30.0
IN_FLIGHT = 32
IDLE_SESSIONS = 1000
SIZE = 100
"""Characters of a result."""
WARM = 30
"""Calls before each measurement."""
MODERN = "2026-07-28"
META = "io.modelcontextprotocol/"
BOTH = {"accept": "application/json, text/event-stream", "content-type": "application/json"}


# -- gateways -----------------------------------------------------------------------------------

FASTMCP = """
import sys
from fastmcp.server import create_proxy
create_proxy(sys.argv[1]).run(
    transport="http", host="127.0.0.1", port=int(sys.argv[2]), show_banner=False,
    log_level="ERROR")
"""
TOOLKEEP = """
{state}
[servers.up]
url = "{url}"
mode = "{era}"

[gateway.profiles.bare]
prefix = false
"""


@dataclass(frozen=True)
class Contestant:
    """One way to the server. `command` starts its gateway; None: there is none."""

    name: str
    version: str
    eras: tuple[str, ...]
    command: Callable[[stub.Stub, str, int, Path], list[str]] | None = None
    path: str = "/mcp"
    has_idle_sessions: bool = True


def toolkeep(state: str) -> Callable[[stub.Stub, str, int, Path], list[str]]:
    def command(server: stub.Stub, era: str, port: int, folder: Path) -> list[str]:
        file = folder / f"{secrets.token_hex(4)}.toml"
        url = server.url(era, "json", SIZE)
        file.write_text(TOOLKEEP.format(url=url, era=era, state=state), "utf-8")
        return [sys.executable, "-m", "toolkeep", "serve", "-c", str(file), "--port", str(port)]

    return command


def fastmcp(server: stub.Stub, era: str, port: int, folder: Path) -> list[str]:
    return [sys.executable, "-c", FASTMCP, server.url(era, "json", SIZE), str(port)]


def mcp_proxy(server: stub.Stub, era: str, port: int, folder: Path) -> list[str]:
    program = NPM_PROXY / json.loads((NPM_PROXY / "package.json").read_text())["bin"]["mcp-proxy"]
    inner = [stub.node(), str(stub.ON_STDIO), era, str(SIZE)]
    own = ["--port", str(port), "--host", "127.0.0.1", "--server", "stream"]
    return [stub.node(), str(program), *own, "--", *inner]


def contestants(redis: str | None) -> Iterator[Contestant]:
    both = ("legacy", "modern")
    own = metadata.version("toolkeep")
    yield Contestant("direct", "", both)
    yield Contestant("toolkeep", own, both, toolkeep(""), "/mcp/bare")
    if redis is not None:
        key = secrets.token_hex(32)
        state = f'state = "{redis}"\nstate_keys = ["{key}"]'
        yield Contestant("toolkeep, Redis", own, both, toolkeep(state), "/mcp/bare")
    with contextlib.suppress(metadata.PackageNotFoundError):
        yield Contestant("FastMCP proxy", metadata.version("fastmcp"), both, fastmcp)
    if NPM_PROXY.is_dir():
        version = json.loads((NPM_PROXY / "package.json").read_text())["version"]
        # It takes programs only, and starts one for each session.
        yield Contestant("npm mcp-proxy", version, ("legacy",), mcp_proxy, has_idle_sessions=False)


@dataclass
class Gateway:
    """A gateway that runs."""

    url: str
    pid: int | None

    @property
    def cpu(self) -> float:
        """Processor seconds so far, of the process itself."""
        if self.pid is None:
            return 0.0
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    @property
    def rss(self) -> float:
        """Megabytes in memory."""
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        (line,) = [one for one in lines if one.startswith("VmRSS")]
        return int(line.split()[1]) / 1024


@contextlib.asynccontextmanager
async def started(
    contestant: Contestant, server: stub.Stub, era: str, folder: Path
) -> AsyncIterator[Gateway]:
    if contestant.command is None:
        yield Gateway(server.url(era, "json", SIZE), None)
        return
    port = free_port()
    with started_on(SERVER):
        process = subprocess.Popen(
            contestant.command(server, era, port, folder),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
    gateway = Gateway(f"http://127.0.0.1:{port}{contestant.path}", process.pid)
    try:
        async with asyncio.timeout(START_WITHIN):
            while not await is_serving(gateway.url, era):
                if process.poll() is not None:
                    raise SystemExit(f"{contestant.name} ended with code {process.returncode}")
                await asyncio.sleep(0.1)
        yield gateway
    finally:
        process.terminate()
        await asyncio.to_thread(process.wait, START_WITHIN)


async def is_serving(url: str, era: str) -> bool:
    with contextlib.suppress(aiohttp.ClientError, RuntimeError):
        async with aiohttp.ClientSession() as http:
            await (await Caller.opened(http, url, era)).call()
            return True
    return False


# -- a caller -----------------------------------------------------------------------------------


class Caller:
    """One client: sends calls as bytes, and checks what comes back."""

    def __init__(self, http: aiohttp.ClientSession, url: str, headers: Mapping[str, str]) -> None:
        self._http, self._url, self._headers = http, url, dict(headers)
        self._body = b""

    @classmethod
    async def opened(cls, http: aiohttp.ClientSession, url: str, era: str) -> Caller:
        params: dict[str, Any] = {"name": "echo", "arguments": {"text": "x"}}
        if era == "modern":
            about = {"mcp-protocol-version": MODERN, "mcp-method": "tools/call", "mcp-name": "echo"}
            caller = cls(http, url, {**BOTH, **about})
            version, can = f"{META}protocolVersion", f"{META}clientCapabilities"
            params["_meta"] = {version: MODERN, can: {}}
        else:
            caller = cls(http, url, BOTH)
            await caller.initialize()
        caller._body = to_body(1, "tools/call", params)
        return caller

    async def initialize(self) -> None:
        info = {"name": "benchmark", "version": "1"}
        params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": info}
        async with self._http.post(
            self._url, data=to_body(0, "initialize", params), headers=self._headers
        ) as response:
            await response.read()
            if response.status != 200:
                raise RuntimeError(f"initialize was answered with {response.status}")
            self._headers["mcp-session-id"] = response.headers["mcp-session-id"]
        self._headers["mcp-protocol-version"] = "2025-11-25"
        told = b'{"jsonrpc":"2.0","method":"notifications/initialized"}'
        async with self._http.post(self._url, data=told, headers=self._headers) as response:
            await response.read()

    async def call(self) -> None:
        async with self._http.post(self._url, data=self._body, headers=self._headers) as response:
            body = await response.read()
        if response.status != 200 or b'"result"' not in body or b'"isError":true' in body:
            raise RuntimeError(f"a call was answered with {response.status}: {body[:200]!r}")


def to_body(request_id: int, method: str, params: Mapping[str, Any]) -> bytes:
    message = {"jsonrpc": "2.0", "id": request_id, "method": method, "params": params}
    return json.dumps(message).encode()


# -- measuring ----------------------------------------------------------------------------------


async def one_by_one(gateway: Gateway, era: str, seconds: float) -> dict[str, float]:
    """Milliseconds of a call with one in flight."""
    async with aiohttp.ClientSession() as http:
        caller = await Caller.opened(http, gateway.url, era)
        for _ in range(WARM):
            await caller.call()
        took: list[float] = []
        until = time.perf_counter() + seconds
        while (began := time.perf_counter()) < until:
            await caller.call()
            took.append(1000 * (time.perf_counter() - began))
    return {"p50": statistics.median(took), "p99": quantile(took, 0.99), "calls": len(took)}


async def at_once(gateway: Gateway, era: str, seconds: float) -> dict[str, float]:
    """Calls a second with 32 in flight, each from a session of its own, and by core second."""
    took: list[float] = []
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
        callers = [await Caller.opened(http, gateway.url, era) for _ in range(IN_FLIGHT)]
        await asyncio.gather(*(caller.call() for caller in callers))
        began, before = time.perf_counter(), gateway.cpu

        async def work(caller: Caller) -> None:
            while (now := time.perf_counter()) < began + seconds:
                await caller.call()
                took.append(1000 * (time.perf_counter() - now))

        await asyncio.gather(*(work(caller) for caller in callers))
        spent, cpu = time.perf_counter() - began, gateway.cpu - before
    rates = {"rate": len(took) / spent, "p99_at_32": quantile(took, 0.99)}
    return {**rates, "per_core": len(took) / cpu} if cpu else rates


async def with_idle_sessions(gateway: Gateway) -> dict[str, float]:
    """Megabytes before and after so many clients have opened a session."""
    before = gateway.rss
    async with aiohttp.ClientSession() as http:
        for _ in range(IDLE_SESSIONS):
            await Caller(http, gateway.url, BOTH).initialize()
    return {"rss": before, "rss_idle": gateway.rss}


def quantile(values: Iterable[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


Cell = tuple[str, str]
"""A contestant and an era."""


async def measure(
    those: list[Contestant], server: stub.Stub, rounds: int, seconds: float, folder: Path
) -> dict[str, Any]:
    found: dict[Cell, list[dict[str, float]]] = defaultdict(list)
    async with contextlib.AsyncExitStack() as stack:
        gateways: dict[Cell, Gateway] = {}
        for contestant in those:
            for era in contestant.eras:
                gateways[contestant.name, era] = await stack.enter_async_context(
                    started(contestant, server, era, folder)
                )
        for _ in range(rounds):
            for cell, gateway in gateways.items():
                found[cell].append(
                    await one_by_one(gateway, cell[1], seconds)
                    | await at_once(gateway, cell[1], seconds)
                )
                print(line(cell, found[cell][-1]), flush=True)
        idle = {one.name for one in those if one.command and one.has_idle_sessions}
        memory = {
            cell[0]: await with_idle_sessions(gateway)
            for cell, gateway in gateways.items()
            if cell[0] in idle and cell[1] == "legacy"
        }
    rows = [
        {"name": name, "era": era, **{key: median(rounds, key) for key in rounds[0]}}
        for (name, era), rounds in found.items()
    ]
    for row in rows:
        row |= memory.get(row["name"], {}) if row["era"] == "legacy" else {}
    return {"rows": rows, "versions": {one.name: one.version for one in those if one.version}}


def median(rounds: list[dict[str, float]], key: str) -> float:
    return round(statistics.median(one[key] for one in rounds), 3)


def line(cell: Cell, row: Mapping[str, float]) -> str:
    text = f"{cell[0]:<16} {cell[1]:<7} p50 {row['p50']:7.2f} ms, p99 {row['p99']:7.2f} ms,"
    text += f" {row['rate']:7.0f} calls/s at {IN_FLIGHT}"
    return text + (f", {row['per_core']:7.0f} per core" if "per_core" in row else "")


# -- the page -----------------------------------------------------------------------------------


def table(report: Mapping[str, Any]) -> str:
    """The figures as the page shows them."""
    direct = {row["era"]: row["p50"] for row in report["rows"] if row["name"] == "direct"}
    lines = [
        "| | era | p50 | added p50 | p99 | calls/s, 32 in flight | calls per core second"
        " | memory | with 1,000 idle sessions |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in report["rows"]:
        version = report["versions"].get(row["name"], "")
        added = f"{row['p50'] - direct[row['era']]:.2f} ms" if version else ""
        cells = [
            f"{row['name']} {version}".strip(),
            row["era"],
            f"{row['p50']:.2f} ms",
            added,
            f"{row['p99']:.2f} ms",
            f"{row['rate']:,.0f}",
            f"{row['per_core']:,.0f}" if "per_core" in row else "",
            f"{row['rss']:.0f} MB" if "rss" in row else "",
            f"{row['rss_idle']:.0f} MB" if "rss_idle" in row else "",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    about = report["about"]
    where = (
        f"{about['date']}, {about['processor']}, {about['cores']} cores, load {about['load']}"
        f" before, Python {about['python']}. A result of {SIZE} characters."
    )
    return "\n".join([where, "", *lines])


def page(report: Mapping[str, Any]) -> str:
    """The page with these figures between its marks."""
    text = PAGE.read_text("utf-8")
    before, begun, rest = text.partition(BEGIN)
    _, ended, after = rest.partition(END)
    if not begun or not ended:
        raise SystemExit(f"{PAGE.name} has lost its marks")
    return f"{before}{BEGIN}\n\n{table(report)}\n\n{END}{after}"


@contextlib.contextmanager
def store() -> Iterator[str | None]:
    """A Redis of this run, if a wheel with one is installed."""
    program = next(iter(programs().values()), None)
    if program is None:
        yield None
        return
    with tempfile.TemporaryDirectory() as home, running(program, Path(home)) as redis:
        yield redis.url


async def taken(rounds: int, seconds: float, only: list[str]) -> dict[str, Any]:
    from benchmarks.about import about

    facts = about()
    with (
        started_on(CLIENT),
        store() as redis,
        stub.running() as server,
        tempfile.TemporaryDirectory() as folder,
    ):
        those = [one for one in contestants(redis) if not only or one.name in ("direct", *only)]
        report = await measure(those, server, rounds, seconds, Path(folder))
    return {"about": facts, **report}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gateway")
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--publish", action="store_true")
    parser.add_argument("only", nargs="*", help="names of gateways, beside direct")
    given = parser.parse_args()
    report = asyncio.run(taken(given.rounds, given.seconds, given.only))
    print(table(report))
    if given.publish:
        RESULTS.write_text(json.dumps(report, indent=1) + "\n", "utf-8")
        PAGE.write_text(page(report), "utf-8")


if __name__ == "__main__":
    main()
