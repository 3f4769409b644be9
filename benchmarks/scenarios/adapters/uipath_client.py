"""`McpClient` of uipath-langchain. The platform that says where the server is, is played here.

Not its default: `timeout` is the time granted.
"""

import json
import os
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from uipath.agent.models.agent import AgentMcpResourceConfig
from uipath_langchain.agent.tools.mcp.mcp_client import McpClient

RESOURCE = {
    "$resourceType": "mcp",
    "name": "kit",
    "description": "",
    "folderPath": "Shared",
    "slug": "kit",
    "availableTools": [],
    "toolsConfiguration": {"discoveryMode": {"type": "dynamic", "allowAll": True}},
}


class Platform(BaseHTTPRequestHandler):
    """In a thread: the client asks for its folder without leaving the event loop to others."""

    def do_GET(self):
        said = {"slug": "kit", "name": "kit", "mcpUrl": self.server.mcp_url}
        if "GetFoldersForCurrentUser" in self.path:
            said = {"PageItems": [{"Key": "f-1", "FullyQualifiedName": "Shared"}]}
        body = json.dumps(said).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format, *args):
        pass


class Adapter:
    name = "UiPath"
    packages = ("uipath-langchain", "mcp")

    async def open(self, url, timeout):
        self.platform = ThreadingHTTPServer(("127.0.0.1", 0), Platform)
        self.platform.mcp_url = url
        threading.Thread(target=self.platform.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{self.platform.server_address[1]}"
        os.environ |= {"UIPATH_URL": address, "UIPATH_ACCESS_TOKEN": "platform"}
        os.environ["UIPATH_FOLDER_PATH"] = "Shared"
        config = AgentMcpResourceConfig.model_validate(RESOURCE)
        self.client = McpClient(config, timeout=timeout)

    async def list_tools(self):
        return [tool.name for tool in (await self.client.list_tools()).tools]

    async def call(self, name, arguments, *, headers, on_progress):
        if headers:
            raise NotImplementedError("headers are the platform's, not a call's")
        if on_progress:
            raise NotImplementedError("progress is not handed on")
        result = await self.client.call_tool(name, arguments)
        return "".join(part.text for part in result.content), result.is_error

    async def close(self):
        await self.client.dispose()
        self.platform.shutdown()
        self.platform.server_close()
