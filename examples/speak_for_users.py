"""Every user's calls in that user's own session, with that user's own headers."""

import asyncio
from dataclasses import replace

from toolkeep import CallContext, NotPermitted, Runtime
from toolkeep.testing import ScriptedServer

ADA = CallContext(principal="ada", user_id="u-1", headers={"authorization": "Bearer old"})
GRACE = CallContext(principal="grace", user_id="u-2", headers={"authorization": "Bearer hers"})


async def main() -> None:
    async with ScriptedServer.local(era="legacy") as server:
        team = {"url": server.url, "derived_headers": ["user"]}
        solo = {"url": server.url, "session": "shared"}
        async with Runtime.open({"team": team, "solo": solo}) as runtime:
            renewed = replace(ADA, headers={"authorization": "Bearer new"})
            for context in (ADA, renewed, GRACE):
                seen = (await runtime.call("team.headers", context=context)).data
                print(context.principal, seen["x-user-id"], seen["authorization"])
            calls = await server.requests(tool="headers")
            first, second, third = (call.session_id for call in calls)
            print("ada's session is kept:", first == second, "- grace has another:", third != first)
            print("sessions of principals:", runtime.servers[0].sessions)

            await runtime.forget("ada")
            await runtime.call("team.headers", context=renewed)
            *_, fourth = (call.session_id for call in await server.requests(tool="headers"))
            print("forgotten, ada begins anew:", fourth != first)

            await runtime.call("solo.record", context=ADA)
            try:
                await runtime.call("solo.record", context=GRACE)
            except NotPermitted as error:
                print(error)


asyncio.run(main())
