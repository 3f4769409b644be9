"""A result that is too large for a model is set aside, and read in parts by its caller."""

import asyncio

from toolkeep import CallContext, NotOffered, Runtime, reading

ADA, GRACE = CallContext(principal="ada"), CallContext(principal="grace")


def minutes() -> str:
    """The minutes of all meetings."""
    return "\n".join(f"{number}. Nothing was decided." for number in range(1, 2001))


async def main() -> None:
    spec = {"name": "office", "server": minutes, "result_limit": 2_000, "oversized": "spill"}
    async with Runtime.open([spec]) as runtime:
        result = await runtime.call("office.minutes", context=ADA)
        about = result.meta["toolkeep/oversized"]
        print(f"{about['length']} characters are kept, {len(result.text)} are shown")

        part = await runtime.read_result(about["handle"], 0, 23, context=ADA)
        print(f"{part.text} ({part.end} of {part.total})")
        try:
            await runtime.read_result(about["handle"], context=GRACE)
        except NotOffered:
            print("for anybody else there is no such result")

        (tool,) = reading(runtime, ADA)
        answer = await tool.call({"handle": about["handle"], "start": 23, "length": 25})
        print(f"a model reads on with {tool.model_name}: {answer.text.partition('.]')[0]}.]")


asyncio.run(main())
