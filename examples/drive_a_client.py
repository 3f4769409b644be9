"""Drive a client through trouble, and see what it makes of it."""

import asyncio

from benchmarks.scenarios import SCENARIOS, run
from toolkeep import Client


class Adapter:
    name = "my client"
    packages = ("toolkeep",)  # their versions are in the report

    async def open(self, url, timeout):
        self.client = Client({"name": "kit", "url": url, "timeouts": {"call": timeout}})

    async def list_tools(self):
        return [tool.name for tool in await self.client.list_tools()]

    async def call(self, name, arguments, *, headers, on_progress):
        result = await self.client.call_tool(
            name, arguments, headers=headers, on_progress=on_progress
        )
        return result.text, result.is_error

    async def close(self):
        await self.client.aclose()


async def main() -> None:
    wanted = [each for each in SCENARIOS if each.name in ("restart", "tool-error")]
    report = await run(Adapter, scenarios=wanted)
    for verdict in report.verdicts:
        print(verdict.scenario, verdict.result)
    assert not report.of("failed"), str(report)


if __name__ == "__main__":
    asyncio.run(main())
