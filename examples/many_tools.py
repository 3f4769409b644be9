"""A model that sees a thousand tools through two: one to search, one to call."""

import asyncio
from collections.abc import Callable

from toolkeep import Runtime, browsing


def report(number: int) -> Callable[[], str]:
    def made() -> str:
        return f"report {number}"

    made.__name__ = f"report_{number}"
    made.__doc__ = f"The report of department {number}, with its figures of the year."
    return made


def exchange_rate(currency: str) -> float:
    """How many euros one unit of a foreign currency is worth."""
    return {"USD": 0.92, "NOK": 0.085}[currency]


async def main() -> None:
    functions = [exchange_rate, *(report(number) for number in range(1_000))]
    async with Runtime({}, functions=functions) as runtime:
        print(f"{len(runtime.catalogue.tools)} tools")
        search, call = browsing(runtime)
        print(f"the model is given {search.model_name} and {call.model_name}")

        found = await search.call({"query": "convert foreign currency", "limit": 1})
        (tool,) = found.data["tools"]
        print(f"it finds {tool['name']}: {tool['description']}")
        result = await call.call({"name": tool["name"], "arguments": {"currency": "NOK"}})
        print(f"it is told: {result.text}")


asyncio.run(main())
