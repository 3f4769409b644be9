"""Whatever is sent to a gateway, the answer is never a fault of its own."""

from typing import Any
from urllib.parse import quote

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.gateway.front import Wire, front, wire
from toolkeep.testing import ScriptedServer

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner),
    max_leaves=8,
)
METHODS = [
    *("initialize", "ping", "tools/list", "tools/call", "prompts/list", "prompts/get"),
    *("resources/list", "resources/templates/list", "resources/read", "completion/complete"),
    *("resources/subscribe", "resources/unsubscribe", "logging/setLevel", "server/discover"),
    *("notifications/cancelled", "notifications/initialized", "x"),
]
FIELDS = st.sampled_from(
    [
        *("name", "uri", "arguments", "cursor", "ref", "level", "_meta", "inputResponses"),
        *("requestState", "protocolVersion", "capabilities", "clientInfo", "argument"),
    ]
)
KNOWN = st.sampled_from(["kit__echo", "kit__greet", "kit://notes", "ref/prompt"])


@st.composite
def messages(draw: Any) -> dict[str, Any]:
    """Messages that are nearly right, which reach further than noise."""
    params = draw(st.dictionaries(FIELDS, JSON | KNOWN))
    message = {"jsonrpc": "2.0", "id": 1, "method": draw(st.sampled_from(METHODS))}
    message["params"] = params
    return {**message, **draw(st.dictionaries(st.sampled_from([*message, "result"]), JSON))}


def headers_for(client: Wire, message: dict[str, Any], era: str, session: str) -> dict[str, str]:
    if era == "legacy":
        return {"mcp-session-id": session}
    if era == "modern":
        body, headers = client.modern_request(quote(str(message["method"])), {}, {}, {})
        if isinstance(message["params"], dict):
            message["params"]["_meta"] = body["params"]["_meta"]
            headers["mcp-name"] = quote(str(message["params"].get("name")))
        return headers
    return {"mcp-protocol-version": "9"} if era == "odd" else {}


async def test_no_message_makes_the_gateway_fail():
    found: list[tuple[dict[str, Any], str]] = []

    @given(messages(), st.sampled_from(["legacy", "modern", "none", "odd"]))
    @settings(max_examples=300, database=None, derandomize=True)
    def collect(message: dict[str, Any], era: str) -> None:
        found.append((message, era))

    collect()
    async with (
        ScriptedServer.local(record=False) as kit,
        front({"kit": kit.url}) as gateway,
        wire(gateway.url) as client,
    ):
        await client.initialize()
        session = client.headers.pop("mcp-session-id")
        for message, era in found:
            headers = headers_for(client, message, era, session)
            answer = await client.send(message, **headers)
            assert answer.status < 500, (message, answer)
            assert "the gateway failed" not in answer.text, (message, answer)
        echoed = await client.modern("tools/call", name="kit__echo", arguments={"text": "x"})
        assert echoed.json["result"]["content"][0]["text"] == "x"
