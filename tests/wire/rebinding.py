"""A DNS server on loopback whose answers change, and a resolver that asks it over UDP."""

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

NAME = "rebind.example"


class RebindingDns(asyncio.DatagramProtocol):
    """Answers each question with the next list of addresses, and with the last one ever after."""

    def __init__(self, *answers: list[str]) -> None:
        self.answers, self.questions, self.port = list(answers), 0, 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: Any = transport
        self.port = transport.get_extra_info("sockname")[1]

    def datagram_received(self, data: bytes, addr: Any) -> None:
        self.questions += 1
        addresses = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        question = data[12:]
        head = data[:2] + struct.pack("!HHHHH", 0x8180, 1, len(addresses), 0, 0)
        rows = [
            b"\xc0\x0c" + struct.pack("!HHIH", 1, 1, 0, 4) + socket.inet_aton(address)
            for address in addresses
        ]
        self._transport.sendto(head + question + b"".join(rows), addr)

    def lookup(self, host: str) -> list[str]:
        """Ask this server, over UDP. Blocks: for another thread than the server's."""
        labels = b"".join(bytes([len(part)]) + part.encode() for part in host.split("."))
        question = labels + b"\0" + struct.pack("!HH", 1, 1)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.settimeout(10)
            sock.sendto(b"\x12\x34\x01\x00\x00\x01" + bytes(6) + question, ("127.0.0.1", self.port))
            reply = sock.recv(4096)
        count, place = struct.unpack("!H", reply[6:8])[0], 12 + len(question)
        rows = (reply[place + 16 * row : place + 16 * (row + 1)] for row in range(count))
        return [socket.inet_ntoa(row[12:16]) for row in rows]

    async def resolve(self, host: str, port: int) -> list[str]:
        return await asyncio.to_thread(self.lookup, host)


@contextlib.asynccontextmanager
async def rebinding_dns(*answers: list[str]) -> AsyncIterator[RebindingDns]:
    loop = asyncio.get_running_loop()
    transport, made = await loop.create_datagram_endpoint(
        lambda: RebindingDns(*answers), local_addr=("127.0.0.1", 0)
    )
    try:
        yield made
    finally:
        transport.close()


@contextlib.contextmanager
def used_by_the_system(dns: RebindingDns, patch: pytest.MonkeyPatch, *names: str) -> Iterator[None]:
    """Resolve `names` by this server in the whole process: its address cannot be configured."""
    real = socket.getaddrinfo

    def getaddrinfo(host: Any, port: Any, *rest: Any, **options: Any) -> Any:
        name = host.decode() if isinstance(host, bytes) else host
        if name not in names:
            return real(host, port, *rest, **options)
        found = dns.lookup(name)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, port)) for each in found]

    with patch.context() as context:
        context.setattr(socket, "getaddrinfo", getaddrinfo)
        yield
