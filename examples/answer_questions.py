"""What a server asks in the middle of a call: answered by a function, a watcher, or later."""

import asyncio

from toolkeep import Client, Completed, InputNeeded
from toolkeep.testing import ScriptedServer

FORM = {"type": "object", "properties": {"name": {"type": "string"}}}
QUESTION = {"message": "Your name?", "mode": "form", "requestedSchema": FORM}
ASK = {"requests": {"who": {"method": "elicitation/create", "params": QUESTION}}}


async def fill_in(needed: InputNeeded) -> object:
    print("a function is asked:", needed.params["message"])
    return {"action": "accept", "content": {"name": "Ada"}}


async def main() -> None:
    async with ScriptedServer.spawn() as server:
        async with Client(server.url, elicitation=fill_in) as client:
            print((await client.call_tool("ask", ASK)).data["answers"])
        async with Client(server.url, elicitation="caller") as client:
            async with client.stream("ask", ASK) as call:
                async for event in call:
                    match event:
                        case InputNeeded("elicitation/create", asked):
                            print("a watcher is asked:", asked["message"])
                            event.accept({"name": "Grace"})
                        case Completed(result):
                            print(result.data["answers"])

            paused = await client.call_tool("ask", ASK, input="return")
            print("asked, for later:", *paused.input_requests)
            state, answers = paused.request_state, {"who": {"action": "decline"}}
            done = await client.call_tool("ask", ASK, input_responses=answers, request_state=state)
            print(done.data["answers"])


asyncio.run(main())
