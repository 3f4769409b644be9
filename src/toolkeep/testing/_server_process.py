"""`python -m toolkeep.testing._server_process`: a scripted server in a process of its own.

Started by `ProcessBackend`, which sends commands as JSON lines on stdin and reads the answers from
stdout. Ends when its stdin closes, so that no process is left behind.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from toolkeep.testing._state import ServerState, run_command
from toolkeep.testing.script import JsonObject, Settings
from toolkeep.testing.scripted import http_server


async def _stdin() -> asyncio.StreamReader:
    reader = asyncio.StreamReader(limit=1 << 30)
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    return reader


def _send(message: JsonObject) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def _answer(state: ServerState, line: JsonObject) -> JsonObject:
    number = line["number"]
    try:
        answer: Any = run_command(state, line["command"], line["details"])
    except Exception as error:  # raised in the test's process
        return {"number": number, "error": f"{type(error).__name__}: {error}"}
    return {"number": number, "answer": answer}


async def _main() -> None:
    lines = await _stdin()
    start = json.loads(await lines.readline())
    state = ServerState(Settings.from_json(start["settings"]))
    state.sequence, state.accepted = start["first"]["sequence"], start["first"]["accepted"]
    for command, details in start["commands"]:
        run_command(state, command, details)
    server = http_server(state)
    try:
        await server.listen()
    except OSError as error:
        _send({"number": start["number"], "error": f"{type(error).__name__}: {error}"})
        return
    _send({"number": start["number"], "answer": server.port})
    while raw := await lines.readline():
        _send(_answer(state, json.loads(raw)))
    await server.close()


if __name__ == "__main__":
    asyncio.run(_main())
