"""`python -m toolkeep.testing.server`: a scripted server as a process of its own.

Speaks JSON lines on stdin and stdout with `SpawnedHome`, and ends when its stdin closes, so that no
process is ever left behind. Not for use by hand.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from toolkeep.testing._engine import Engine
from toolkeep.testing._exchange import converse
from toolkeep.testing._options import Settings
from toolkeep.testing._telling import tell
from toolkeep.testing.script import JsonObject


async def _stdin() -> asyncio.StreamReader:
    reader = asyncio.StreamReader(limit=1 << 30)
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    return reader


def _say(message: JsonObject) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def _answered(engine: Engine, line: JsonObject) -> JsonObject:
    number = line["number"]
    try:
        answer: Any = tell(engine, line["question"], line["details"])
    except Exception as error:  # the test's mistake belongs in the test's process
        return {"number": number, "error": f"{type(error).__name__}: {error}"}
    return {"number": number, "answer": answer}


async def _main() -> None:
    lines = await _stdin()
    start = json.loads(await lines.readline())
    engine = Engine(Settings.from_json(start["settings"]), converse)
    engine.sequence, engine.accepted = start["first"]["sequence"], start["first"]["accepted"]
    for question, details in start["kept"]:
        tell(engine, question, details)
    try:
        await engine.listen()
    except OSError as error:
        _say({"number": start["number"], "error": f"{type(error).__name__}: {error}"})
        return
    _say({"number": start["number"], "answer": engine.port})
    while raw := await lines.readline():
        _say(_answered(engine, json.loads(raw)))
    await engine.hang_up()


if __name__ == "__main__":
    asyncio.run(_main())
