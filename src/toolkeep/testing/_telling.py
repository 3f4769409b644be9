"""What a test may ask of a server, by name, whichever process the question comes from."""

from __future__ import annotations

from typing import Any

from toolkeep.testing._engine import Engine
from toolkeep.testing.script import JsonObject, Rule

LASTING = {"set_tools", "set_resource", "set_cache"}
"""What a server still knows after a restart."""


def tell(engine: Engine, question: str, details: JsonObject) -> Any:
    """Answer a test's question."""
    match question:
        case "snapshot":
            return engine.snapshot()
        case "ledger":
            return dict(engine.ledger)
        case "arrived":
            return engine.arrived(details["method"], details["tool"])
        case "gave_up":
            return len(engine.cancelled)
        case "sizes":
            return engine.accepted, engine.open_connections
        case "listeners":
            return len(engine.audience)
        case "subscriptions":
            return engine.audience.subscriptions()
        case "concerned":
            return len(engine.audience.concerned(details["uri"]))
        case "replied":
            return int(engine.desk.pushed(details["about"]) is not None)
        case "pushed":
            return engine.desk.pushed(details["about"])
        case _:
            return _order(engine, question, details)


def _order(engine: Engine, order: str, details: JsonObject) -> Any:
    match order:
        case "script":
            engine.rules.add(Rule.from_json(raw) for raw in details["rules"])
        case "clear":
            engine.rules.clear()
            engine.records.clear()
        case "hurry":
            engine.hurry.set()
        case "forget_sessions":
            engine.forget()
        case "strand_sessions":
            engine.strand()
        case "set_tools":
            size = details.get("page_size", engine.page_size)
            engine.use_tools(details["tools"], built_in=details["built_in"], page_size=size)
        case "set_resource":
            engine.texts[details["uri"]] = details["text"]
        case "set_cache":
            engine.hints = {"ttlMs": details["ttl_ms"], "cacheScope": details["scope"]}
        case "notify":
            return engine.audience.notify(details["method"], details["params"])
        case "updated":
            return engine.audience.updated(details["uri"])
        case "break_streams":
            return engine.audience.disperse(details["reset"])
        case "push":
            return _push(engine, details["method"], details["params"])
        case _:
            raise ValueError(f"unknown question: {order}")
    return None


def _push(engine: Engine, method: str, params: JsonObject) -> str:
    if (listener := engine.audience.newest) is None:
        raise RuntimeError("no client listens")
    return engine.desk.push(listener.outlet, method, params)
