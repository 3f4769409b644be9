"""`toolkeep.Client`.

Not its defaults: `timeouts.call` is the time granted; `listen` is on, so that it hears of a list
that has changed; `neutral_headers` names the header of headers-of-each-call, without which a legacy
session refuses a call that brings headers of its own.
"""

from toolkeep import Client, ToolkeepError


class Adapter:
    name = "toolkeep.Client"
    packages = ("toolkeep",)

    async def open(self, url, timeout):
        self.client = Client(
            {
                "name": "kit",
                "url": url,
                "timeouts": {"call": timeout},
                "listen": True,
                "neutral_headers": ["x-user"],  # says nothing about whose session it is
            }
        )

    async def list_tools(self):
        return [tool.name for tool in await self.client.list_tools()]

    async def call(self, name, arguments, *, headers, on_progress):
        result = await self.client.call_tool(
            name, arguments, headers=headers, on_progress=on_progress
        )
        return result.text, result.is_error

    def outcome(self, error):
        words = {"not sent": "not run", "refused": "not run", "unknown": "unknown"}
        delivery = getattr(error, "delivery", None)
        return words.get(delivery.value, "ran") if isinstance(error, ToolkeepError) else None

    async def close(self):
        await self.client.aclose()
