"""The program in which a client is driven: `python _process.py ADAPTER`, JSON lines in and out.

It stands alone: on the standard library, and not even on the rest of the kit, so that a client can
be driven where toolkeep is not installed. One scenario after the other, each with an adapter and an
event loop of its own. The task that opened the client also makes its calls, one after the other, as
a program's own task would; calls beside each other have tasks of their own. A cancellation that
nobody asked for is said, and that task makes no more calls. The program ends with its stdin.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import json
import os
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any, TextIO

_LONGEST = 300
"""Characters of an error's text that are handed on."""
_LEAVING = 1.0
"""Seconds for the tasks of a scenario that is over."""

Json = dict[str, Any]


def load(where: str) -> Callable[[], Any]:
    """What `package.module:Name` or `path/to/file.py:Name` names."""
    place, _, name = where.rpartition(":")
    if not place.endswith(".py"):
        return getattr(importlib.import_module(place), name)
    spec = importlib.util.spec_from_file_location(Path(place).stem, place)
    if spec is None or spec.loader is None:
        raise ImportError(f"no module at {place}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return getattr(module, name)


def facts(adapter: Any) -> Json:
    packages = getattr(adapter, "packages", ())
    return {
        "name": getattr(adapter, "name", None) or adapter.__name__,
        "python": sys.version.split()[0],
        "packages": {name: metadata.version(name) for name in packages},
    }


def name_of(error: BaseException) -> str:
    """The type and the first line of an error; of a group, of what is in it."""
    inner: tuple[BaseException, ...] = getattr(error, "exceptions", ())
    if inner:
        return f"{type(error).__name__}[{', '.join(map(name_of, inner))}]"[:_LONGEST]
    words = str(error).strip().splitlines()
    return f"{type(error).__name__}: {words[0]}"[:_LONGEST] if words else type(error).__name__


def set_proxy(proxy: str) -> None:
    """What the environment says of proxies; this machine is reached without."""
    given = {"HTTP_PROXY": proxy, "http_proxy": proxy, "NO_PROXY": "127.0.0.1,localhost"}
    for name, value in given.items():
        os.environ.pop(name, None)
        if value and proxy:
            os.environ[name] = value


class Scene:
    """One client, for one scenario."""

    def __init__(self, adapter: Any, say: Callable[[Json], None]) -> None:
        self._adapter, self._say = adapter, say
        self._turns: asyncio.Queue[Json] = asyncio.Queue()
        self._beside: dict[int, asyncio.Task[None]] = {}
        self._asked: set[int] = set()
        """Calls that are to be cancelled."""

    async def run(self, lines: asyncio.StreamReader) -> bool:
        """Whether there may be another one."""
        owner = asyncio.create_task(self._take_turns())
        owner.add_done_callback(self._gone)
        while raw := await lines.readline():
            turn = json.loads(raw)
            if turn["do"] == "end":
                tasks = [owner, *self._beside.values()]
                for task in tasks:
                    task.cancel()
                await asyncio.wait(tasks, timeout=_LEAVING)
                return True
            if turn["do"] == "cancel":
                self._asked.add(turn["number"])
                self._beside[turn["number"]].cancel()
            elif turn.get("beside"):
                self._beside[turn["number"]] = asyncio.create_task(self._perform(turn))
            elif owner.done():
                self._say({"number": turn["number"], "cancelled": True, "asked": False})
            else:
                self._turns.put_nowait(turn)
        return False

    async def _take_turns(self) -> None:
        while True:
            await self._perform(await self._turns.get())

    def _gone(self, owner: asyncio.Task[None]) -> None:
        if not owner.cancelled():
            owner.exception()
        while not self._turns.empty():
            number = self._turns.get_nowait()["number"]
            self._say({"number": number, "cancelled": True, "asked": False})

    async def _perform(self, turn: Json) -> None:
        number = turn["number"]
        try:
            said = await self._do(turn)
        except asyncio.CancelledError:
            self._say({"number": number, "cancelled": True, "asked": number in self._asked})
            raise
        except NotImplementedError as lacking:
            said = {"unsupported": str(lacking)}
        except Exception as error:
            said = {"error": name_of(error), "outcome": self._outcome(error)}
        except BaseExceptionGroup as error:
            said = {"error": name_of(error), "outcome": None}
        self._say({"number": number, **said})

    async def _do(self, turn: Json) -> Json:
        match turn["do"]:
            case "open":
                await self._adapter.open(turn["url"], turn["timeout"])
                return {}
            case "log_in":
                if not hasattr(self._adapter, "log_in"):
                    raise NotImplementedError("its adapter does not log in")
                set_proxy(turn["proxy"])
                try:
                    await self._adapter.log_in(turn["url"], turn["timeout"], turn["folder"])
                finally:
                    set_proxy("")
                return {}
            case "list":
                return {"tools": list(await self._adapter.list_tools())}
            case "call":
                return await self._call(turn)
            case _:
                await self._adapter.close()
                return {}

    async def _call(self, turn: Json) -> Json:
        async def on_progress(
            progress: float, total: float | None = None, message: str | None = None
        ) -> None:
            self._say({"number": turn["number"], "progress": progress})

        text, failed = await self._adapter.call(
            turn["name"],
            turn["arguments"],
            headers=turn["headers"],
            on_progress=on_progress if turn["watched"] else None,
        )
        return {"text": text, "failed": bool(failed)}

    def _outcome(self, error: Exception) -> str | None:
        outcome = getattr(self._adapter, "outcome", None)
        return outcome(error) if outcome is not None else None


async def play(adapter: Any, say: Callable[[Json], None]) -> bool:
    lines = asyncio.StreamReader(limit=1 << 26)
    loop = asyncio.get_running_loop()
    transport, _ = await loop.connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(lines), os.fdopen(os.dup(0), "rb")
    )
    try:
        return await Scene(adapter(), say).run(lines)
    finally:
        transport.close()


def main(where: str) -> None:
    answers: TextIO = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a library prints must not be taken for an answer

    def say(message: Json) -> None:
        answers.write(json.dumps(message) + "\n")
        answers.flush()

    adapter = load(where)
    say({"ready": facts(adapter)})
    while asyncio.run(play(adapter, say)):
        say({"ended": True})


if __name__ == "__main__":
    main(sys.argv[1])
