"""What happens, as log lines in JSON; and what has happened, as figures."""

import asyncio
import json
import logging
import sys

from toolkeep import Runtime, ToolkeepError
from toolkeep.telemetry import LogObserver
from toolkeep.testing import Behaviour, Rule, ScriptedServer

LEFT_OUT = ("at", "call_id", "duration", "needs_input", "after", "code")
BUSY = Behaviour(status=503, headers={"retry-after": "0"})


class AsJson(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        facts = getattr(record, "toolkeep", {"message": record.getMessage()})
        return json.dumps({k: v for k, v in facts.items() if k not in LEFT_OUT})


async def main() -> None:
    logging.basicConfig(level=logging.INFO, stream=sys.stdout)
    logging.root.handlers[0].setFormatter(AsJson())
    async with ScriptedServer.local() as server, Runtime.open({"notes": server.url}) as runtime:
        observation = runtime.observe(LogObserver())
        await runtime.call("notes.fail", {"message": "secret"})
        await server.script(Rule(tool="echo", times=1, do=BUSY))
        await runtime.call("notes.echo", {"text": "secret"})
        await server.script(Rule(tool="record", times=1, do=Behaviour(drop="after_run")))
        try:
            await runtime.call("notes.record")
        except ToolkeepError:
            observation.close()
        of = runtime.servers[0].figures
        print(f"{of.calls} calls, {of.tool_errors} tool error, {of.replays} replay, {of.errors}")


asyncio.run(main())
