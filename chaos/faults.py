"""Every fault there is, by name: those that a call brings upon itself, and those of the scenery.

A fault of a call is a wish (fields of the kit's `Behaviour`) that the server grants to the first
attempt. Trouble befalls a server, its connections or the runtime, whatever calls are under way.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from chaos.scene import Kind

_HTML = "<html><body>Bad Gateway</body></html>"
_ERROR = {"code": -32050, "message": "not today"}
_CHARGED = {"code": -32000, "message": "card declined after checkout session cs_12 was charged"}
_COMPLAINT = '{"jsonrpc":"2.0","id":null,"error":{"code":-32601,"message":"Method not found"}}'
"""What many servers say about a notification that they do not know."""
_LOG = '{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"again"}}'
HTTP: tuple[Kind, ...] = ("http",)
NET: tuple[Kind, ...] = ("http", "sse")
PIPES: tuple[Kind, ...] = ("stdio",)
ALL: tuple[Kind, ...] = ("http", "sse", "stdio")


@dataclass(frozen=True, slots=True)
class Fault:
    kinds: tuple[Kind, ...]
    wish: Mapping[str, Any]
    weight: int = 4
    silent: bool = False
    """Whether the call can only end by its deadline."""
    eras: tuple[str, ...] = field(default=("legacy", "modern", "both"))


FAULTS: Mapping[str, Fault] = {
    "closed before it runs": Fault(NET, {"drop": "after_body"}),
    "reset before it runs": Fault(NET, {"drop": "after_body", "reset": True}),
    "closed after it ran": Fault(NET, {"drop": "after_run"}),
    "reset after it ran": Fault(NET, {"drop": "after_run", "reset": True}),
    "JSON cut in the middle": Fault(HTTP, {"drop": "mid_answer", "encoding": "json"}),
    "SSE cut in the middle": Fault(HTTP, {"drop": "mid_answer", "encoding": "sse"}),
    "SSE reset in the middle": Fault(
        HTTP, {"drop": "mid_answer", "encoding": "sse", "reset": True}
    ),
    "SSE ends without the answer": Fault(HTTP, {"encoding": "sse", "cut_stream_after_events": 0}),
    "SSE to be resumed": Fault(
        HTTP,
        {"encoding": "sse", "prime": True, "retry_ms": 20, "cut_stream_after_events": 0},
        eras=("legacy",),
    ),
    "endless SSE": Fault(HTTP, {"endless": True, "encoding": "sse"}, weight=1, silent=True),
    "stream of all cut in the middle": Fault(("sse",), {"drop": "mid_answer"}, weight=2),
    "429 with Retry-After": Fault(NET, {"status": 429, "headers": {"retry-after": "0"}}, weight=8),
    "503 with Retry-After": Fault(NET, {"status": 503, "headers": {"retry-after": "1"}}),
    "503": Fault(NET, {"status": 503}),
    "500 although it ran": Fault(NET, {"status": 500, "run": True, "body": _HTML}),
    "a page in place of the answer": Fault(HTTP, {"body": _HTML, "content_type": "text/html"}),
    "half a JSON": Fault(HTTP, {"body": '{"jsonrpc":"2.0","id":', "encoding": "json"}),
    "an answer to somebody else": Fault(HTTP, {"error": _ERROR, "error_id": "other"}),
    "an error that names a session, although it ran": Fault(
        HTTP, {"status": 400, "run": True, "error": _CHARGED}
    ),
    "404 with an answer, although it ran": Fault(
        HTTP, {"status": 404, "run": True, "error": _ERROR}
    ),
    "a complaint about something else before the answer": Fault(
        HTTP, {"encoding": "sse", "sse_prefix": f"data: {_COMPLAINT}\n\n"}
    ),
    "a complaint about something else on the pipe": Fault(
        PIPES, {"prefix_lines": f"{_COMPLAINT}\n"}
    ),
    "a flood of events before the answer": Fault(
        HTTP, {"encoding": "sse", "sse_prefix": f"data: {_LOG}\n\n" * 300 + ":\n" * 3000}, weight=2
    ),
    "a flood of lines on the pipe": Fault(
        PIPES, {"prefix_lines": f"{_LOG}\n" * 200 + "x\n" * 3000}, weight=2
    ),
    "answered twice at once": Fault(HTTP, {"encoding": "json", "repeat_after": 0.0}),
    "answered twice, later": Fault(HTTP, {"encoding": "json", "repeat_after": 0.005}),
    "redirected for good": Fault(HTTP, {"status": 308, "redirect": "/mcp?key=of-this-call"}),
    "rejected": Fault(ALL, {"error": _ERROR}),
    "slow": Fault(ALL, {"delay": 0.15}, weight=16),
    "silent": Fault(ALL, {"hang": True}, weight=2, silent=True),
    "silent and not run": Fault(NET, {"hang": True, "run": False}, weight=2, silent=True),
    "noise on the pipe": Fault(PIPES, {"prefix_lines": "Loading weights ...\n"}, weight=16),
    "exit before it runs": Fault(PIPES, {"drop": "after_body", "exit_code": 3}, weight=1),
    "exit after it ran": Fault(PIPES, {"drop": "after_run", "exit_code": 3}, weight=1),
    "exit in the middle of the answer": Fault(PIPES, {"drop": "mid_answer"}, weight=1),
}


@dataclass(frozen=True, slots=True)
class Trouble:
    kinds: tuple[Kind, ...]
    """Of servers; empty: it befalls the runtime."""
    longest: float = 0.0
    """Seconds; zero: it happens in a moment."""
    weight: int = 4


TROUBLES: Mapping[str, Trouble] = {
    "restart": Trouble(NET, weight=2),
    "sessions forgotten": Trouble(NET, weight=6),
    "connections reset": Trouble(NET),
    "connections closed": Trouble(NET),
    "all restarted": Trouble(NET, weight=1),
    "all connections reset": Trouble(NET, weight=1),
    "deaf": Trouble(NET, 0.8),
    "refusing": Trouble(NET, 0.4),
    "throttled": Trouble(NET, 0.6),
    "reset in requests": Trouble(NET, 0.2),
    "reset in answers": Trouble(NET, 0.2),
    "closed in answers": Trouble(NET, 0.2),
    "sessions stranded": Trouble(HTTP, 1.0, weight=2),
    "streams broken": Trouble(NET),
    "streams that end at once": Trouble(HTTP),
    "list changed": Trouble(NET),
    "processes killed": Trouble(PIPES, weight=3),
    "one process killed": Trouble(PIPES, weight=3),
    "processes stopped": Trouble(PIPES, 0.6, weight=3),
    "headers edited": Trouble((), weight=8),
    "environment edited": Trouble((), weight=2),
    "guest goes and comes": Trouble((), 1.5, weight=5),
    "visitor goes and comes": Trouble((), 1.5, weight=5),
    "principal forgotten": Trouble((), weight=4),
    "failed servers retried": Trouble((), weight=2),
    "all servers opened again": Trouble((), weight=1),
    "lists refreshed": Trouble((), weight=2),
    "event loop held up": Trouble((), 0.3, weight=2),
}
OF_ONE: Mapping[str, str] = {
    "all restarted": "restart",
    "all connections reset": "connections reset",
}
"""Troubles of all servers with an address at once, and what befalls each."""
