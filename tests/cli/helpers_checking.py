"""`toolkeep check --json` as tests read it, and servers that no framework would make.

One run is asked about many servers, because starting Python is what costs. The doctor looks at them
one after the other.
"""

import asyncio
import contextlib
import datetime
import re
import socket
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tests.cli.helpers_running import Home, Ran
from tests.engine.certificates import DAY, NOW, Pair

STEPS = ("configuration", "command", "process", "dns", "tcp", "tls", "http")
STEPS += ("handshake", "session", "tools", "ping", "watch")
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


@dataclass(frozen=True)
class Seeded:
    """A fault that a test seeds: what the doctor must call it, and what people must be told."""

    server: str
    step: str
    fault: str
    cause: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.fault}, {self.server}"

    def assert_in(self, found: Found, said: str) -> None:
        """In what programs are told, and in what people are."""
        assert found.failed_at(self.server) == (self.step, self.fault)
        told = paragraphs(said)[self.server].partition(f"[{self.fault}] cause: ")[2]
        cause, _, remedy = told.partition(" remedy: ")
        assert self.cause in cause
        assert self.remedy in remedy


def paragraphs(said: str) -> dict[str, str]:
    """What was said to people of each server, on one line."""
    parts = re.split(r"^(\S+)$", said, flags=re.MULTILINE)
    return {
        name: " ".join(text.split()) for name, text in zip(parts[1::2], parts[2::2], strict=True)
    }


async def told_twice(
    home: Home, *words: str, env: Mapping[str, str] | None = None
) -> tuple[Found, str]:
    """What programs are told, and what people are, of the same servers."""
    found, people = await asyncio.gather(
        check(home, *words, env=env), home.run("check", *words, env=env)
    )
    assert (people.code, people.err) == (found.ran.code, "")
    return found, people.out


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
async def answering(
    answer: bytes = b"", *, hang: bool = False, eager: bool = False
) -> AsyncIterator[str]:
    """The address of something that answers every request with these bytes, whatever is asked, and
    closes the connection; or says nothing more. `eager`: it answers what is no request, too."""
    tasks: set[asyncio.Task[None]] = set()

    async def attend(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            await (reader.read(65536) if eager else reader.readuntil(b"\r\n\r\n"))
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


def self_signed(home: Path, name: str, host: str, begins: datetime.datetime = NOW - DAY) -> Pair:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, host)])
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begins)
        .not_valid_after(begins + 3 * DAY)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    plain = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    cert, private = home / f"{name}.pem", home / f"{name}.key"
    cert.write_bytes(made.public_bytes(pem))
    private.write_bytes(plain)
    return Pair(str(cert), str(private))
