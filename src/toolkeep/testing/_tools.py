"""The built-in tools: what is listed, and what each body does.

A body gets a `Run` and returns a result, or an awaitable of one if it takes time. Counting who ran
how often is the engine's business, and happens before a body starts. `ask`, which talks with the
client in between, is in `_rounds`.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from toolkeep.testing.script import JsonObject

Emit = Callable[[str, JsonObject], None]
_PIXEL = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk"
    "+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
_SILENCE = "UklGRiQAAABXQVZFZm10IBAAAAABAAEAESsAABErAAABAAgAZGF0YQAAAAA="


@dataclass(frozen=True, slots=True)
class Run:
    """One execution of a tool: its arguments, the request's headers and `_meta`, and a way to
    notify.
    """

    arguments: JsonObject
    meta: JsonObject
    headers: dict[str, str]
    modern: bool
    emit: Emit
    pause: Callable[[float], Awaitable[None]]
    """So many seconds, or less when the test is in a hurry."""


Body = Callable[[Run], JsonObject | Awaitable[JsonObject]]


def text(value: str, **more: Any) -> JsonObject:
    return {"content": [{"type": "text", "text": value}], "isError": False, **more}


def _echo(run: Run) -> JsonObject:
    return text(str(run.arguments.get("text", "")))


def _add(run: Run) -> JsonObject:
    total = run.arguments["a"] + run.arguments["b"]
    return text(json.dumps({"sum": total}), structuredContent={"sum": total})


def _record(run: Run) -> JsonObject:
    return text("recorded")


async def _slow(run: Run) -> JsonObject:
    await run.pause(float(run.arguments.get("seconds", 1.0)))
    return text("done")


async def _steps(run: Run) -> JsonObject:
    count, gap = int(run.arguments.get("count", 3)), float(run.arguments.get("gap", 0.0))
    token = run.meta.get("progressToken")
    for step in range(1, count + 1):
        if token is not None:
            params = {"progressToken": token, "progress": step, "total": count}
            run.emit("notifications/progress", {**params, "message": f"step {step} of {count}"})
        await run.pause(gap)
    return text(f"{count} steps")


def _logs(run: Run) -> JsonObject:
    count = int(run.arguments.get("count", 3))
    wanted = not run.modern or "io.modelcontextprotocol/logLevel" in run.meta
    for line in range(1, count + 1) if wanted else ():
        run.emit(
            "notifications/message", {"level": "info", "logger": "kit", "data": f"line {line}"}
        )
    return text(f"{count} lines")


def _fail(run: Run) -> JsonObject:
    return {**text(str(run.arguments.get("message", "failed"))), "isError": True}


def _big(run: Run) -> JsonObject:
    return text("x" * int(run.arguments.get("bytes", 1024)))


def _headers(run: Run) -> JsonObject:
    return text(json.dumps(run.headers), structuredContent=dict(run.headers))


def _bad_output(run: Run) -> JsonObject:
    return text("not what the schema says", structuredContent={"count": "three"})


def _content(run: Run) -> JsonObject:
    embedded = {"uri": "kit://notes", "mimeType": "text/plain", "text": "a note"}
    return {
        "content": [
            {"type": "text", "text": "some text", "_meta": {"kit/part": 1}},
            {"type": "image", "data": _PIXEL, "mimeType": "image/png"},
            {"type": "audio", "data": _SILENCE, "mimeType": "audio/wav"},
            {"type": "resource_link", "uri": "kit://notes", "name": "notes"},
            {"type": "resource", "resource": embedded},
        ],
        "isError": False,
        "_meta": {"kit/whole": True},
    }


def _unscripted(run: Run) -> JsonObject:
    return text(json.dumps(run.arguments))


_NUMBER, _STRING, _INTEGER = {"type": "number"}, {"type": "string"}, {"type": "integer"}


def _spec(name: str, about: str, required: str = "", **properties: JsonObject) -> JsonObject:
    schema: JsonObject = {"type": "object", "properties": {**properties, "key": _STRING}}
    if required:
        schema["required"] = required.split()
    return {"name": name, "description": about, "inputSchema": schema}


def _object(name: str, kind: JsonObject) -> JsonObject:
    return {"type": "object", "properties": {name: kind}, "required": [name]}


_BUILT_IN: tuple[tuple[JsonObject, Body], ...] = (
    (_spec("echo", "Say it again.", "text", text=_STRING), _echo),
    (
        _spec("add", "Add two numbers.", "a b", a=_NUMBER, b=_NUMBER)
        | {"outputSchema": _object("sum", _NUMBER)},
        _add,
    ),
    (_spec("record", "A plain side effect."), _record),
    (
        _spec("record_read_only", "Changes nothing.") | {"annotations": {"readOnlyHint": True}},
        _record,
    ),
    (
        _spec("record_idempotent", "May be repeated.")
        | {"annotations": {"readOnlyHint": False, "idempotentHint": True}},
        _record,
    ),
    (_spec("slow", "Takes its time.", "seconds", seconds=_NUMBER), _slow),
    (_spec("steps", "Reports progress.", "count", count=_INTEGER, gap=_NUMBER), _steps),
    (_spec("logs", "Writes log lines.", "count", count=_INTEGER), _logs),
    (_spec("fail", "Fails as a tool fails.", "message", message=_STRING), _fail),
    (_spec("big", "A long answer.", "bytes", bytes=_INTEGER), _big),
    (_spec("headers", "The HTTP headers of this very request."), _headers),
    (
        _spec("bad_output", "Breaks its own output schema.")
        | {"outputSchema": _object("count", _INTEGER)},
        _bad_output,
    ),
    (_spec("content", "One of every kind of content."), _content),
    (
        _spec(
            *("ask", "Asks the client before it answers.", "requests"),
            requests={"type": "object"},
            rounds=_INTEGER,
            state_only={"type": "boolean"},
        ),
        _unscripted,
    ),
)
SPECS: tuple[JsonObject, ...] = tuple(spec for spec, _ in _BUILT_IN)
_BODIES: dict[str, Body] = {spec["name"]: body for spec, body in _BUILT_IN}


def body_of(name: str) -> Body:
    """The body of a tool; one that a test added answers with its arguments."""
    return _BODIES.get(name, _unscripted)
