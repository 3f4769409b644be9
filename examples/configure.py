"""One server, configured: checked before anything is opened, frozen afterwards."""

import asyncio

from toolkeep import Client, ConfigError, ServerSpec, Timeouts
from toolkeep.testing import ScriptedServer


async def main() -> None:
    async with ScriptedServer.spawn() as server:
        spec = ServerSpec(
            name="billing",
            url=server.url,
            timeouts=Timeouts(call=20.0, extend_on_progress=True),
            replay_tools={"record": "never", "echo": "always"},
            max_in_flight=16,
        )
        async with Client(spec) as client:
            print(client, (await client.call_tool("echo", {"text": "hello"})).text)

        parsed = ServerSpec.parse(
            {"url": server.url, "api_key": "${BILLING_KEY}"},
            name="billing",
            env={"BILLING_KEY": "k-123"},
        )
        async with Client(parsed) as client:
            print((await client.call_tool("echo", {"text": "hello again"})).text)
        try:
            Client({"url": server.url, "timeout": 20})
        except ConfigError as error:
            print(error.key, error.problem)


asyncio.run(main())
