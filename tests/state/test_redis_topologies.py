"""Cluster, Sentinel and TLS, each with real servers."""

import asyncio
import contextlib
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engine.certificates import Authority
from tests.state.servers import Server, running, until
from toolkeep.errors import StoreUnavailable
from toolkeep.state import RedisStore
from toolkeep.testing.store_suite import CHECKS

PATIENCE = 20.0
SLOTS = 16384


@pytest.fixture(scope="module")
def cluster(program: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Server]]:
    with contextlib.ExitStack() as stack:
        nodes: list[Server] = []
        for number in range(3):
            home = tmp_path_factory.mktemp("node")
            options = ("--cluster-enabled", "yes", "--cluster-node-timeout", "2000")
            nodes.append(stack.enter_context(running(program, home, *options)))
            share = range(number * SLOTS // 3, (number + 1) * SLOTS // 3)
            assert nodes[-1].ask(f"CLUSTER ADDSLOTS {' '.join(map(str, share))}") == "+OK\r\n"
        for node in nodes[1:]:
            nodes[0].ask(f"CLUSTER MEET 127.0.0.1 {node.port}")
        for node in nodes:
            until(lambda node=node: "cluster_state:ok" in node.ask("CLUSTER INFO"))
        yield nodes


def cluster_url(nodes: list[Server]) -> str:
    return "redis+cluster://" + ",".join(f"127.0.0.1:{node.port}" for node in nodes)


@pytest.mark.requirement("D1")
@pytest.mark.parametrize("name", CHECKS)
async def test_a_cluster_passes_the_suite(name: str, cluster: list[Server]):
    await CHECKS[name](lambda: RedisStore(cluster_url(cluster[1:]), timeout=5))


async def test_a_node_of_a_cluster_that_restarts_is_found_again(cluster: list[Server]):
    store = RedisStore(cluster_url(cluster), timeout=1)
    try:
        for number in range(30):
            await store.put(f"key{number}", b"x")
        cluster[2].restart()
        async with asyncio.timeout(PATIENCE):
            for number in range(30):
                await until_done(lambda number=number: store.put(f"key{number}", b"y"))
        async with store.subscribe("channel") as messages:
            await store.publish("channel", b"x")
            assert await asyncio.wait_for(anext(messages), PATIENCE) == b"x"
    finally:
        await store.aclose()


async def until_done(call):
    while True:
        with contextlib.suppress(StoreUnavailable):
            return await call()
        await asyncio.sleep(0.05)


async def test_a_sentinel_failover_is_followed(program: Path, tmp_path: Path):
    with contextlib.ExitStack() as stack:
        primary = stack.enter_context(running(program, tmp_path))
        replica = stack.enter_context(
            running(program, tmp_path, "--replicaof", "127.0.0.1", str(primary.port))
        )
        until(lambda: "master_link_status:up" in replica.ask("INFO replication"))
        sentinel = Server(program, tmp_path)
        stack.callback(sentinel.stop)
        sentinel.start_sentinel(
            f"sentinel monitor main 127.0.0.1 {primary.port} 1\n"
            "sentinel down-after-milliseconds main 300\n"
            "sentinel failover-timeout main 3000\n"
        )
        until(lambda: "slaves=1" in sentinel.ask("INFO sentinel"))
        # A port where nothing listens comes first: the next Sentinel is asked.
        store = RedisStore(
            f"redis+sentinel://127.0.0.1:1,127.0.0.1:{sentinel.port}/main", timeout=2
        )
        try:
            await follow(store, primary, replica)
        finally:
            await store.aclose()


async def follow(store: RedisStore, primary: Server, replica: Server) -> None:
    async with asyncio.timeout(PATIENCE), store.subscribe("channel") as messages:
        before = await until_done(lambda: store.put("key", b"x"))
        until(lambda: "slave0" in primary.ask("INFO replication"))
        assert primary.ask("WAIT 1 5000") == ":1\r\n"
        primary.stop()
        await until_done(lambda: store.put("other", b"x"))
        entry = await until_done(lambda: store.get("key"))
        assert entry is not None
        assert (entry.value, entry.version) == (b"x", before)
        assert await until_done(lambda: store.put("key", b"y")) > before
        assert "role:master" in replica.ask("INFO replication")
        publishing = asyncio.create_task(publish_always(store))
        try:
            assert await anext(messages) == b"after"
        finally:
            publishing.cancel()
            await asyncio.wait([publishing])


async def publish_always(store: RedisStore) -> None:
    while True:
        await until_done(lambda: store.publish("channel", b"after"))
        await asyncio.sleep(0.05)


@contextlib.asynccontextmanager
async def tls_in_front_of(port: int, context: ssl.SSLContext):
    """A port that speaks TLS and passes on what it hears: the servers of the wheels have none."""
    tasks: set[asyncio.Task[None]] = set()

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", port)
        for one in (pass_on(reader, inner_writer), pass_on(inner_reader, writer)):
            task = asyncio.create_task(one)
            tasks.add(task)
            task.add_done_callback(tasks.discard)

    server = await asyncio.start_server(accepted, "127.0.0.1", 0, ssl=context)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        if tasks:
            await asyncio.wait(tasks, timeout=PATIENCE)


async def test_tls_is_verified(redis: Server, tmp_path: Path):
    authority = Authority(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority.issue("127.0.0.1").both)
    async with tls_in_front_of(redis.port, context) as port:
        good = RedisStore(f"rediss://127.0.0.1:{port}?ssl_ca_certs={authority.file}", timeout=5)
        assert await good.put("tls", b"x")
        async with good.subscribe("channel") as messages:
            await good.publish("channel", b"x")
            assert await asyncio.wait_for(anext(messages), PATIENCE) == b"x"
        await good.aclose()
        bad = RedisStore(f"rediss://127.0.0.1:{port}", timeout=5)
        with pytest.raises(StoreUnavailable, match="no connection"):
            await bad.get("tls")
        await bad.aclose()
