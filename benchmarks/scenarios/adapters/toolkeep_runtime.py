"""`toolkeep.Runtime`, with one server.

Not its defaults: `timeouts.call` and `timeouts.connect` are the time granted.
"""

from toolkeep import Runtime, ToolkeepError


class Adapter:
    name = "toolkeep.Runtime"
    packages = ("toolkeep",)

    async def open(self, url, timeout):
        server = {"url": url, "timeouts": {"call": timeout, "connect": timeout}}
        self.runtime = Runtime({"mcpServers": {"kit": server}})
        await self.runtime.connect()

    async def list_tools(self):
        return [tool.tool for tool in self.runtime.catalogue.tools]

    async def call(self, name, arguments, *, headers, on_progress):
        result = await self.runtime.call(
            f"kit.{name}", arguments, headers=headers, on_progress=on_progress
        )
        return result.text, result.is_error

    def outcome(self, error):
        words = {"not sent": "not run", "refused": "not run", "unknown": "unknown"}
        delivery = getattr(error, "delivery", None)
        return words.get(delivery.value, "ran") if isinstance(error, ToolkeepError) else None

    async def close(self):
        await self.runtime.aclose()
