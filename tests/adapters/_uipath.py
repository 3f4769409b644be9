"""UiPath's platform, played by a local HTTP server, and definitions of agents.

Nothing here asserts anything.
"""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from uipath.agent.models.agent import AgentDefinition, AgentMcpResourceConfig

TOKEN = "a-token"
FOLDER = "Shared/Team One"
NUMBER = {"type": "number"}
ADD = {
    "name": "add",
    "description": "Add two numbers, says the definition.",
    "inputSchema": {"type": "object", "properties": {"a": NUMBER, "b": NUMBER}},
}
RECORD = {"name": "record", "description": "Note it.", "inputSchema": {"type": "object"}}


class Platform:
    """Knows where servers are (by slug; `The {slug}` is the name), and remembers who asked."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.servers: dict[str, str | None] = {}
        self.asked: list[str] = []
        self.tokens: set[str | None] = set()
        self.looked_up: list[tuple[str, str | None]] = []
        """The name that was asked for, and the key of the folder."""
        self.status = 200

    def answer(self, path: str, folder: str | None) -> Any:
        if "GetFoldersForCurrentUser" in path:
            folders = [("f-1", FOLDER), ("f-2", "Shared/Elsewhere")]
            return {"PageItems": [{"Key": key, "FullyQualifiedName": one} for key, one in folders]}
        name = unquote(path.rpartition("/")[2])
        self.looked_up.append((name, folder))
        slug = name.removeprefix("The ")
        return {"slug": slug, "name": name, "mcpUrl": self.servers.get(slug)}


@contextmanager
def platform() -> Iterator[Platform]:
    class Desk(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            played.asked.append(path)
            played.tokens.add(self.headers.get("authorization"))
            folder = self.headers.get("x-uipath-folderkey")
            body = json.dumps(played.answer(path, folder)).encode()
            self.send_response(played.status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_POST(self) -> None:
            """At a server's address on the platform: what it is sent is handed on."""
            played.asked.append(self.path)
            body = self.rfile.read(int(self.headers["content-length"]))
            there = urlsplit(played.servers[self.path.rpartition("/")[2]] or "")
            onward = HTTPConnection(there.hostname or "", there.port, timeout=5)
            onward.request("POST", there.path, body, dict(self.headers))
            answer = onward.getresponse()
            said = answer.read()
            self.send_response(answer.status)
            self.send_header("content-type", answer.headers["content-type"])
            self.send_header("content-length", str(len(said)))
            self.end_headers()
            self.wfile.write(said)
            onward.close()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Desk)
    played = Platform(server.server_address[1])
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield played
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def settle(played: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have UiPath's SDK find it."""
    monkeypatch.setenv("UIPATH_URL", played.url)
    monkeypatch.setenv("UIPATH_ACCESS_TOKEN", TOKEN)
    for name in (
        "UNATTENDED_USER_ACCESS_TOKEN",
        "UIPATH_FOLDER_PATH",
        "UIPATH_FOLDER_KEY",
        "UIPATH_DISABLE_SSL_VERIFY",
    ):
        monkeypatch.delenv(name, raising=False)


def resource(slug: str = "kit", *listed: dict[str, Any], **more: Any) -> AgentMcpResourceConfig:
    given = {
        "$resourceType": "mcp",
        "name": f"The {slug}",
        "description": "",
        "folderPath": FOLDER,
        "slug": slug,
        "availableTools": list(listed or (ADD,)),
        **more,
    }
    return AgentMcpResourceConfig.model_validate(given)


def dynamic(*, allow_all: bool) -> dict[str, Any]:
    return {"toolsConfiguration": {"discoveryMode": {"type": "dynamic", "allowAll": allow_all}}}


def agent(*resources: AgentMcpResourceConfig) -> AgentDefinition:
    return AgentDefinition.model_validate(
        {
            "inputSchema": {},
            "outputSchema": {},
            "messages": [],
            "settings": {"engine": "basic", "model": "none", "maxTokens": 1, "temperature": 0},
            "resources": [one.model_dump(by_alias=True) for one in resources],
        }
    )
