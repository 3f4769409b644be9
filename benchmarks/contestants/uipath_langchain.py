"""uipath-langchain: a tool that it makes of an agent's definition.

The platform, which says where the server is, is played by a local HTTP server; it is asked once.
"""

import importlib
import json
import os
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from uipath.agent.models.agent import AgentMcpResourceConfig

from benchmarks.contestants.common import ARGUMENTS, Send

FOLDER = "Shared"
RESOURCE: dict[str, Any] = {
    "$resourceType": "mcp",
    "name": "stub",
    "description": "",
    "folderPath": FOLDER,
    "slug": "stub",
    "availableTools": [],
    "toolsConfiguration": {"discoveryMode": {"type": "dynamic", "allowAll": True}},
}


@asynccontextmanager
async def calls(url: str, era: str) -> AsyncIterator[Send]:
    mcp = importlib.import_module("uipath_langchain.agent.tools.mcp")
    config = AgentMcpResourceConfig.model_validate(RESOURCE)
    with platform(url) as address:
        os.environ |= {
            "UIPATH_URL": address,
            "UIPATH_ACCESS_TOKEN": "platform",
            "UIPATH_FOLDER_PATH": FOLDER,
        }
        async with mcp.open_mcp_tools([config]) as (tool,):
            yield lambda: tool.ainvoke(ARGUMENTS)


@contextmanager
def platform(server: str) -> Iterator[str]:
    class Desk(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            said: Any = {"slug": "stub", "name": "stub", "mcpUrl": server}
            if "GetFoldersForCurrentUser" in self.path:
                said = {"PageItems": [{"Key": "f-1", "FullyQualifiedName": FOLDER}]}
            body = json.dumps(said).encode()
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    desk = ThreadingHTTPServer(("127.0.0.1", 0), Desk)
    threading.Thread(target=desk.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{desk.server_address[1]}"
    finally:
        desk.shutdown()
        desk.server_close()
