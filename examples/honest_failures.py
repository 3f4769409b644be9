"""When a call fails, the error says whether the tool ran."""

import asyncio

from toolkeep import CallNotDelivered, CallOutcomeUnknown, CallRejected, Client, ToolkeepError
from toolkeep.testing import Behaviour, Rule, ScriptedServer


async def pay(client: Client, invoice: str) -> str:
    try:
        result = await client.call_tool("record", {"key": invoice}, timeout=2.0)
    except CallOutcomeUnknown:
        return "it may have run: look it up before paying again"
    except CallRejected as error:
        return f"the server said no (code {error.code})"
    except CallNotDelivered as error:
        return f"it did not run (HTTP {error.status}): paying again is safe"
    except ToolkeepError as error:
        return f"it was {error.delivery.value}: {error}"
    return "the tool failed: " + result.text if result.is_error else "paid"


async def main() -> None:
    lost = Behaviour(drop="after_run")
    refused = Behaviour(status=422)
    rejected = Behaviour(error={"code": -32000, "message": "no"})
    async with ScriptedServer.spawn() as server, Client(server.url) as client:
        for invoice, fault in {"1": Behaviour(), "2": lost, "3": refused, "4": rejected}.items():
            await server.script(Rule(tool="record", times=1, do=fault))
            print(f"invoice {invoice}: {await pay(client, invoice)}")
        print("runs, counted at the server:", await server.ledger())


asyncio.run(main())
