"""Edits of the configuration while calls are under way: nobody is disturbed who need not be.

Nine servers of three kinds: of each kind one stays, one is changed and one goes. A hundred calls
are held up in the middle by a question that is answered after the edit.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.engine.helpers_rounds import ELICIT
from tests.runtime._life import (
    PATIENCE,
    Ear,
    Hesitant,
    config_of,
    ended,
    eventually,
    failure_of,
    sessions_in,
    write,
)
from toolkeep import CallResult, Runtime, UnknownTool
from toolkeep.events import Reloaded
from toolkeep.testing import Recorded, ScriptedProgram, ScriptedServer

KINDS = ("legacy", "modern", "stdio")
FATES = ("stays", "changes", "goes")
NAMES = [f"{fate}-{kind}" for fate in FATES for kind in KINDS]
CALLS = 100


@dataclass
class Town:
    """Three servers of the kit under nine names; each request says under which it was made."""

    kits: dict[str, Any]
    edition: dict[str, int] = field(default_factory=dict[str, int])

    def spec(self, name: str) -> dict[str, Any]:
        kit, label = self.kits[name.split("-")[1]], f"{name}/{self.edition.get(name, 1)}"
        if isinstance(kit, ScriptedProgram):
            return {**kit.spec, "env": {**kit.spec.get("env", {}), "KIT_LABEL": label}}
        return {**kit.spec, "headers": {"x-label": label}}

    def config(self, names: list[str]) -> dict[str, Any]:
        return config_of(**{name: self.spec(name) for name in names})

    async def seen(self, name: str, edition: int = 1) -> list[Recorded]:
        """What arrived from a server of this name and edition."""
        kit, label = self.kits[name.split("-")[1]], f"{name}/{edition}"
        if not isinstance(kit, ScriptedProgram):
            return [one for one in await kit.requests() if one.headers.get("x-label") == label]
        pids = {
            str(one.pid)
            for one in await kit.launches()
            if one.environment.get("KIT_LABEL") == label
        }
        return [one for one in await kit.requests() if one.session_id in pids]

    async def ledger(self) -> dict[str, int]:
        found = dict[str, int]()
        for kit in self.kits.values():
            found |= await kit.ledger()
        return {key: count for key, count in found.items() if not key.endswith(":legs")}


@asynccontextmanager
async def town() -> AsyncIterator[Town]:
    async with AsyncExitStack() as stack:
        kits = {
            "legacy": ScriptedServer.local(era="legacy", encoding="sse"),
            "modern": ScriptedServer.local(era="modern"),
            "stdio": ScriptedServer.stdio(era="legacy"),
        }
        yield Town({kind: await stack.enter_async_context(kit) for kind, kit in kits.items()})


def asking(runtime: Runtime, name: str, key: str) -> "asyncio.Task[CallResult]":
    arguments = {"requests": {"who": ELICIT}, "key": key}
    return asyncio.create_task(runtime.call(f"{name}.ask", arguments))


async def keep_calling(runtime: Runtime, over: asyncio.Event) -> list[str]:
    """Whoever can still be called is called, again and again, until it is over."""
    keys, number = list[str](), 0
    while not over.is_set():
        for name in (name for name in NAMES if not name.startswith("goes")):
            key = f"meanwhile-{name}-{number}"
            assert (await runtime.call(f"{name}.record", {"key": key})).text == "recorded"
            keys.append(key)
        number += 1
    return keys


@pytest.mark.requirement("G6")
@pytest.mark.parametrize("how", ["reload", "follow"])
async def test_an_edit_while_a_hundred_calls_are_under_way_disturbs_nobody(
    tmp_path: Path, how: str
):
    hesitant, path = Hesitant(), tmp_path / "mcp.json"
    async with town() as there:
        write(path, there.config(NAMES))
        options: Any = {"elicitation": hesitant, "auto_reload": how == "follow"}
        async with Runtime.open(path, **options, health_interval=None) as runtime:
            ear = Ear(runtime)
            held = [
                asking(runtime, NAMES[number % len(NAMES)], f"held-{number}")
                for number in range(CALLS)
            ]
            await hesitant.until(asked=CALLS)
            over = asyncio.Event()
            caller = asyncio.create_task(keep_calling(runtime, over))
            there.edition |= {name: 2 for name in NAMES if name.startswith("changes")}
            kept = [name for name in NAMES if not name.startswith("goes")]
            write(path, there.config([*kept, "comes-modern"]))
            if how == "reload":
                async with asyncio.timeout(PATIENCE):
                    await runtime.reload()
            told = await ear.first(Reloaded)
            assert not any(call.done() for call in held)
            changed = {name for name in NAMES if name.startswith("changes")}
            assert (set(told.changed), told.added) == (changed, ("comes-modern",))
            assert set(told.removed) == {name for name in NAMES if name.startswith("goes")}
            assert (await runtime.call("comes-modern.record", {"key": "new"})).success
            assert isinstance(await failure_of(runtime.call("goes-legacy.record")), UnknownTool)
            over.set()
            meanwhile = (await ended(caller))[0]
            hesitant.go.set()
            results = await ended(*held)
            assert [getattr(one, "text", one) for one in results] == ["1 rounds"] * CALLS
            await check_who_kept_what(there)
            await check_who_left(there)
        keys = [*(f"held-{number}" for number in range(CALLS)), *meanwhile, "new"]
        assert await there.ledger() == dict.fromkeys(keys, 1)


async def check_who_kept_what(there: Town) -> None:
    """Sessions and processes of those that stayed are the first ones; the changed have two."""
    for kind in ("legacy", "stdio"):
        seen = await there.seen(f"stays-{kind}")
        assert len(sessions_in(seen)) == 1, kind
        assert sum(record.rpc_method == "initialize" for record in seen) == 1
    discoveries = [one.rpc_method for one in await there.seen("stays-modern")]
    assert discoveries.count("server/discover") <= 1
    for kind in ("legacy", "stdio"):
        old, new = [sessions_in(await there.seen(f"changes-{kind}", n)) for n in (1, 2)]
        assert len(old) == len(new) == 1
        assert old != new
    for kind in KINDS:
        asked = [one for one in await there.seen(f"changes-{kind}", 2) if one.tool == "ask"]
        assert asked == [], "calls end where they began"


async def check_who_left(there: Town) -> None:
    """Closed, and not before their last call was over."""
    for name in ("goes-legacy", "changes-legacy"):
        seen = await eventually(lambda name=name: deleted(there, name))
        (session,) = sessions_in(seen)
        last = [one for one in seen if one.session_id == session][-1]
        assert last.http_method == "DELETE", "nothing came after the end"
    program = there.kits["stdio"]
    labels = {one.pid: one.environment["KIT_LABEL"] for one in await program.launches()}
    expected = {"stays-stdio/1", "changes-stdio/2"}

    async def only_those() -> bool:
        return {labels[pid] for pid in await program.processes()} == expected

    await eventually(only_those)


async def deleted(there: Town, name: str) -> list[Recorded]:
    seen = await there.seen(name)
    return seen if any(record.http_method == "DELETE" for record in seen) else []
