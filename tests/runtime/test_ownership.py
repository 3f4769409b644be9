"""Who owns whom, from a runtime to a socket: found by walking the references of live objects."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from toolkeep import CallContext, Runtime
from toolkeep.testing import ScriptedServer

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/explanation/architecture.md"
CHAIN = [
    *("Runtime", "ServerRegistry", "OpenServers", "Server", "SessionPool", "Client"),
    *("EndpointSelector", "ConnectionManager", "Connection", "StreamableHttpTransport"),
]
BORROWED = ["SessionPool", "Endpoint", "HttpClient"]
"""What the clients of a server share hangs on its pool."""


def attributes(thing: Any) -> Iterator[Any]:
    for kind in type(thing).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            yield getattr(thing, name, None)
    yield from vars(thing).values() if hasattr(thing, "__dict__") else ()


def owned_by(thing: Any) -> Iterator[Any]:
    """What its attributes hold: objects, also in a tuple, a list, a set or a dictionary."""
    for value in attributes(thing):
        if isinstance(value, dict):
            yield from value.values()
        elif isinstance(value, list | tuple | set):
            yield from value
        else:
            yield value


def descend(root: Any, chain: list[str]) -> list[Any]:
    """The objects from the root down the chain, each held by the one before."""
    assert type(root).__name__ == chain[0]
    level: list[Any] = [root]
    for name in chain[1:]:
        level = [each for one in level for each in owned_by(one) if type(each).__name__ == name]
        assert level, f"no {name} is held by {chain[chain.index(name) - 1]}"
    return level


async def test_one_chain_of_owners_leads_from_a_runtime_to_its_transports() -> None:
    async with (
        ScriptedServer.local(era="legacy") as server,
        Runtime([{"name": "kit", "url": server.url}]) as runtime,
    ):
        for user in ("ada", "ben"):
            context = CallContext(principal=user)
            await runtime.call("kit.echo", {"text": user}, context=context)
        transports = {id(one): one for one in descend(runtime, CHAIN)}
        sessions = {one.session_id for one in transports.values()}
        assert len(sessions) == 3  # the server's own, and one for each user
        (pool,) = {id(one): one for one in descend(runtime, CHAIN[:5])}.values()
        (sockets,) = {id(one): one for one in descend(pool, BORROWED)}.values()
        shared = [one for each in transports.values() for one in owned_by(each)]
        assert sum(one is sockets for one in shared) == 3


async def test_a_closed_runtime_holds_no_server() -> None:
    async with ScriptedServer.local() as server:
        runtime = Runtime([{"name": "kit", "url": server.url}])
        async with runtime:
            descend(runtime, CHAIN)
        with pytest.raises(AssertionError, match="no OpenServers"):
            descend(runtime, CHAIN)


def test_the_page_prints_this_chain() -> None:
    printed = re.search(r"```text\n(Runtime\n(?:.*\n)*?)```", PAGE.read_text(encoding="utf-8"))
    assert printed is not None
    names = re.findall(r"^[\s└─]*(\w+)", printed[1], re.MULTILINE)
    assert names == CHAIN
