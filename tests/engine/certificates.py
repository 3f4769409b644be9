"""A certificate authority of the test's own, and a proxy to go through."""

import asyncio
import contextlib
import datetime
import hashlib
import ipaddress
import re
import ssl
from dataclasses import dataclass, field
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

NOW = datetime.datetime.now(datetime.UTC)
DAY = datetime.timedelta(days=1)


@dataclass(frozen=True)
class Pair:
    """The files of one certificate and its key."""

    cert: str
    key: str

    @property
    def both(self) -> tuple[str, str]:
        return self.cert, self.key


class Authority:
    """Issues certificates into a directory."""

    def __init__(self, home: Path, name: str = "toolkeep test ca") -> None:
        self._home = home
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        key_use = x509.KeyUsage(True, False, False, False, False, True, True, False, False)
        made = (
            self._builder(self._name, self._key.public_key(), NOW + DAY)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(key_use, critical=True)
        )
        self.file = self._write("ca.pem", self._signed(made))

    def issue(
        self, name: str, *, until: datetime.datetime = NOW + DAY, password: bytes | None = None
    ) -> Pair:
        """A certificate for a host name, an address, or somebody."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        try:
            shown: x509.GeneralName = x509.IPAddress(ipaddress.ip_address(name))
        except ValueError:
            shown = x509.DNSName(name)
        made = self._builder(subject, key.public_key(), until).add_extension(
            x509.SubjectAlternativeName([shown]), critical=False
        )
        lock = serialization.BestAvailableEncryption(password) if password else None
        plain = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            lock or serialization.NoEncryption(),
        )
        return Pair(
            self._write(f"{name}.pem", self._signed(made)), self._write(f"{name}.key", plain)
        )

    def directory(self) -> str:
        """The authority in a directory as OpenSSL looks it up: by the hash of its name.

        The hash is over the canonical name; ours is lower case already, so it is its own.
        """
        digest = hashlib.sha1(self._name.public_bytes()[2:]).digest()
        home = self._home / "hashed"
        home.mkdir()
        name = f"{int.from_bytes(digest[:4], 'little'):08x}.0"
        (home / name).write_bytes(Path(self.file).read_bytes())
        return str(home)

    def _builder(
        self, subject: x509.Name, key: ec.EllipticCurvePublicKey, until: datetime.datetime
    ) -> x509.CertificateBuilder:
        authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(NOW - 3 * DAY)
            .not_valid_after(until)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
            .add_extension(authority, critical=False)
        )

    def _signed(self, made: x509.CertificateBuilder) -> bytes:
        return made.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    def _write(self, name: str, data: bytes) -> str:
        path = self._home / name
        path.write_bytes(data)
        return str(path)


def wants_client_certificate(pair: Pair, authority: Authority) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*pair.both)
    context.load_verify_locations(authority.file)
    context.verify_mode = ssl.CERT_REQUIRED
    return context


@dataclass
class HttpProxy:
    """Forwards plain requests, and tunnels where it is asked to CONNECT."""

    refusal: bytes = b""
    asked: list[str] = field(default_factory=list)
    headers: list[str] = field(default_factory=list)
    port: int = 0
    _server: asyncio.Server | None = None
    _tasks: set["asyncio.Task[None]"] = field(default_factory=set)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def __aenter__(self) -> "HttpProxy":
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=5.0)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._attend(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _attend(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._serve(reader, writer)
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        verb, target, _ = head.split("\r\n")[0].split(" ")
        self.asked.append(f"{verb} {target}")
        self.headers.append(head)
        if self.refusal:
            writer.write(self.refusal)
            await writer.drain()
        else:
            await self._join(reader, writer, verb, target, head)

    async def _join(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        verb: str,
        target: str,
        head: str,
    ) -> None:
        there = target.removeprefix("http://").partition("/")[0]
        host, _, port = there.rpartition(":")
        answers, onward = await asyncio.open_connection(host, int(port))
        if verb == "CONNECT":
            writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
            upwards = pump(reader, onward)
        else:
            upwards = forward(reader, onward, head, f"http://{there}")
        pumps = [asyncio.create_task(upwards), asyncio.create_task(pump(answers, writer))]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in pumps:
                one.cancel()
            onward.close()
            await asyncio.wait(pumps)
            with contextlib.suppress(OSError):
                await onward.wait_closed()


async def forward(
    reader: asyncio.StreamReader, sink: asyncio.StreamWriter, head: str, origin: str
) -> None:
    """Request by request, with the target in the form that servers expect."""
    with contextlib.suppress(OSError, asyncio.IncompleteReadError):
        while True:
            length = re.search(r"(?im)^content-length: *(\d+)", head)
            body = await reader.readexactly(int(length[1]) if length else 0)
            sink.write(head.replace(origin, "", 1).encode("latin-1") + body)
            await sink.drain()
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")


async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await source.read(65536):
            sink.write(data)
            await sink.drain()
