"""`mainstay check --json` as tests read it, and servers that no framework would make.

One run is asked about many servers, because starting Python is what costs. The doctor looks at them
one after the other.
"""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.cli.helpers_running import Home, Ran

STEPS = ("configuration", "command", "process", "dns", "tcp", "tls", "http")
STEPS += ("handshake", "session", "tools", "ping")
STATES = ("ok", "warning", "failed", "skipped")


@dataclass(frozen=True)
class Found:
    """What one run found."""

    ran: Ran
    findings: Sequence[Mapping[str, Any]]

    def of(self, server: str) -> "Found":
        return Found(self.ran, [one for one in self.findings if one["server"] == server])

    @property
    def states(self) -> dict[str, str]:
        """How each step ended, in order. A warning beside it is not its end."""
        return {one["step"]: one["state"] for one in self.findings if one["state"] != "warning"}

    @property
    def failure(self) -> Mapping[str, Any]:
        (failed,) = (one for one in self.findings if one["state"] == "failed")
        return failed

    @property
    def warnings(self) -> list[str]:
        return [one["fault"] for one in self.findings if one["state"] == "warning"]

    def failed_at(self, server: str) -> tuple[str, str]:
        failed = self.of(server).failure
        return failed["step"], failed["fault"]


async def check(home: Home, *words: str, env: Mapping[str, str] | None = None) -> Found:
    ran = await home.run("check", *words, "--json", env=env)
    assert ran.code in (0, 1), ran.said
    found = Found(ran, ran.document)
    for one in found.findings:
        assert well_formed(one), one
    failed = any(one["state"] == "failed" for one in found.findings)
    assert ran.code == (1 if failed else 0)
    return found


def well_formed(finding: Mapping[str, Any]) -> bool:
    """What a program may rely on: a failure and a warning are named, explained and remedied."""
    keys = {"server", "step", "state", "seconds", "seen", "fault", "cause", "remedy"}
    told = finding["state"] not in ("failed", "warning") or all(
        finding[key] for key in ("fault", "cause", "remedy")
    )
    known = finding["step"] in STEPS and finding["state"] in STATES
    return set(finding) == keys and known and told


@contextlib.contextmanager
def closed_port() -> Iterator[int]:
    """A port of this machine that nobody listens on, and nobody else is given."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


@contextlib.asynccontextmanager
async def answering(*answers: bytes, hang: bool = False) -> AsyncIterator[str]:
    """The address of something that answers every connection with these bytes, whatever is asked,
    and closes it; or says nothing more."""
    tasks: set[asyncio.Task[None]] = set()

    async def attend(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            if answers:
                await reader.readuntil(b"\r\n\r\n")
            for answer in answers:
                writer.write(answer)
                await writer.drain()
            if hang:
                await reader.read()
        writer.close()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(attend(reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/mcp"
    finally:
        server.close()
        for task in tuple(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def page(body: str, content_type: str = "text/html", status: str = "200 OK") -> bytes:
    head = f"HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nConnection: close\r\n"
    return f"{head}Content-Length: {len(body.encode())}\r\n\r\n{body}".encode()
