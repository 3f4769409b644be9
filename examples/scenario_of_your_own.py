"""A trouble of your own, for any client that has an adapter."""

import asyncio
from pathlib import Path

from benchmarks.scenarios import Stage, run, scenario
from toolkeep.testing import Behaviour, Rule

ADAPTER = f"{Path(__file__).with_name('drive_a_client.py')}:Adapter"


@scenario("the server is slow to answer", "the answer arrives, and the tool ran once")
async def slow_answer(stage: Stage) -> None:
    await stage.ready()  # opened, and a first call made
    await stage.server.script(Rule(tool="record", do=Behaviour(delay=1.0)))
    told = await stage.answered("record", key="k")  # or it is broken, with the evidence
    await stage.ran("k")  # by the server's ledger
    stage.require(told.seconds >= 1.0, "the answer came before it was sent")


async def main() -> None:
    print((await run(ADAPTER, scenarios=[slow_answer]))["slow-answer"].result)


if __name__ == "__main__":
    asyncio.run(main())
