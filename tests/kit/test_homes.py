"""Nothing of a scripted server outlives its block: no process, no socket, no task."""

import asyncio
import os
import signal
import ssl
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tests.kit.wire import Wire, request, wire_to
from toolkeep.testing import Behaviour, Rule, ScriptedServer


def children() -> set[int]:
    listed = Path(f"/proc/self/task/{os.getpid()}/children")
    return {int(pid) for pid in listed.read_text().split()} if listed.exists() else set()


async def test_a_block_that_fails_leaves_no_process():
    before = children()
    with pytest.raises(ZeroDivisionError):
        async with ScriptedServer.spawn():
            assert len(children() - before) == 1
            raise ZeroDivisionError
    assert children() <= before


async def test_a_block_can_end_with_calls_in_every_state(home: Callable[..., ScriptedServer]):
    async with home(encoding="sse") as server:
        await server.script(Rule(tool="echo", do=Behaviour(hang=True)))
        async with wire_to(server.port) as one, wire_to(server.port) as two:
            await one.initialize()
            two.session = one.session
            await one.send(
                "POST", request("tools/call", {"name": "slow", "arguments": {"seconds": 60}})
            )
            await two.send("POST", request("tools/call", {"name": "echo", "arguments": {}}))
            await server.requests("tools/call", at_least=2)
            async with asyncio.timeout(5):
                await server.__aexit__(None, None, None)


async def test_the_process_ends_when_its_parent_is_killed():
    code = (
        "import asyncio, toolkeep.testing as t\n"
        "async def main():\n"
        "    async with t.ScriptedServer.spawn() as server:\n"
        "        print(server.port, flush=True)\n"
        "        await asyncio.sleep(60)\n"
        "asyncio.run(main())\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    with parent, parent.stdout as lines:
        port = int(lines.readline())
        parent.send_signal(signal.SIGKILL)
        parent.wait(5)
    async with asyncio.timeout(5):
        while await listens(port):
            await asyncio.sleep(0.02)


async def listens(port: int) -> bool:
    try:
        async with wire_to(port):
            return True
    except ConnectionError:
        return False


async def test_a_mistake_in_the_child_is_told_to_the_test():
    async with ScriptedServer.local() as taken:
        with pytest.raises(RuntimeError, match="OSError"):
            async with ScriptedServer.spawn(port=taken.port):
                pass


async def test_a_cancelled_question_does_not_disturb_the_next():
    async with ScriptedServer.spawn() as server:
        for _ in range(5):
            asking = asyncio.create_task(server.requests())
            await asyncio.sleep(0)
            asking.cancel()
            await asyncio.wait([asking])
            assert await server.ledger() == {}
            assert await server.connections() == 0


async def test_it_speaks_tls(home: Callable[..., ScriptedServer], tmp_path: Path):
    certificate, key = certify(tmp_path)
    async with home(tls=(str(certificate), str(key))) as server:
        await server.script(Rule(method="tools/list", do=Behaviour(drop="after_body", reset=True)))
        context = ssl.create_default_context(cafile=str(certificate))
        streams = await asyncio.open_connection("127.0.0.1", server.port, ssl=context)
        wire = Wire(*streams)
        try:
            assert server.url.startswith("https://")
            assert (await wire.initialize()).status == 200
            assert (await wire.ask("POST", request("tools/list"))).ended != "whole"
        finally:
            await wire.close()


def certify(folder: Path) -> tuple[Path, Path]:
    secret = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "kit")])
    now = datetime.now(UTC)
    alternative = x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))])
    signed = (
        x509.CertificateBuilder(name, name, secret.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(hours=1))
        .add_extension(alternative, critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(secret, hashes.SHA256())
    )
    pem, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    certificate, key = folder / "cert.pem", folder / "key.pem"
    certificate.write_bytes(signed.public_bytes(pem))
    key.write_bytes(secret.private_bytes(pem, form, serialization.NoEncryption()))
    return certificate, key
