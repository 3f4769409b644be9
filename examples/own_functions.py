"""Functions of your own, in the same catalogue as everybody's tools."""

import asyncio
from typing import Annotated

from pydantic import Field

from toolkeep import InvalidArguments, Runtime
from toolkeep.config import tool


def area(width: float, height: Annotated[float, Field(gt=0)] = 1.0) -> float:
    """The area of a rectangle."""
    return width * height


async def wipe(folder: str) -> str:
    """Remove everything in a folder."""
    return f"{folder} is empty"


FUNCTIONS = [area, tool(wipe, name="clean-up", destructive=True, tags=["dangerous"])]


async def main() -> None:
    async with Runtime.open({}, functions=FUNCTIONS) as runtime:
        print(runtime.summary())
        for one in runtime.catalogue:
            print(one.name, "may destroy" if one.destructive else "harmless", *one.tags)
        print((await runtime.call("area", {"width": 3, "height": 4})).text)
        try:
            await runtime.call("builtin.area", {"width": 3, "height": -1})
        except InvalidArguments as error:
            print(*error.problems)


asyncio.run(main())
