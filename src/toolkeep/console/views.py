"""What a runtime shows of itself, as JSON: servers, catalogue, sessions, latencies.

Reads snapshots; asks no server and changes nothing. What servers wrote is cut to a size and passed
on as data.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from toolkeep._catalogue.listing import Prompt, Resource, Template
from toolkeep._catalogue.tool import Tool
from toolkeep._doctor.judge import likely_fault
from toolkeep.console.values import MAX_HEAD, MAX_VALUE, Redact, cut_redacted, cut_text
from toolkeep.errors import Failure, ToolkeepError
from toolkeep.events import Health

if TYPE_CHECKING:
    from toolkeep._catalogue.catalogue import Catalogue
    from toolkeep._client.stats import CallStats
    from toolkeep.runtime import Runtime, ServerStatus, SessionStatus

MAX_MESSAGE = 2000
MAX_PAGE = 200
DESCRIPTION_SHOWN = 500
"""Characters of a description in a list."""
MAX_TITLE = 200
MAX_TOOL_SERIES = 100

SHOWN_OF_SERVER = (
    *("name", "transport", "since", "era", "protocol_version", "can_log_in", "latency"),
    *("tools", "prompts", "resources", "stale", "sessions"),
)
SHOWN_OF_STATS = (
    *("calls", "in_flight", "failed", "tool_errors", "cancelled", "cached", "retries"),
    "last_call_at",
)
SHOWN_OF_LATENCY = ("mean", "p50", "p95", "p99", "max")

Item = Tool | Prompt | Resource | Template
KINDS = ("tools", "prompts", "resources", "templates")


# -- errors -------------------------------------------------------------------------------------


def error_json(error: BaseException | None, redact: Redact) -> dict[str, Any] | None:
    if error is None:
        return None
    text = cut_text(redact(str(error)), MAX_MESSAGE)
    failure = error.failure if isinstance(error, ToolkeepError) else None
    delivery = error.delivery.value if isinstance(error, ToolkeepError) else "unknown"
    about = failure_json(failure, redact) or dict.fromkeys(("kind", "status", "code", "rule"))
    return {**about, "type": type(error).__name__, "message": text, "delivery": delivery}


def failure_json(failure: Failure | None, redact: Redact) -> dict[str, Any] | None:
    if failure is None:
        return None
    return {
        "kind": failure.kind.value,
        "message": cut_text(redact(failure.message), MAX_MESSAGE),
        "delivery": failure.delivery.value,
        "status": failure.status,
        "code": failure.code,
        "rule": failure.rule or None,
    }


# -- servers ------------------------------------------------------------------------------------


def server_json(status: ServerStatus, redact: Redact, *, traced: bool) -> dict[str, Any]:
    is_down = status.health in (Health.DOWN, Health.NEEDS_AUTHORIZATION)
    error = status.error or (status.last_error if is_down else None)
    fault = likely_fault(error, can_log_in=status.can_log_in)
    return {
        **{name: getattr(status, name) for name in SHOWN_OF_SERVER},
        "target": cut_text(status.target, MAX_MESSAGE),
        "state": status.state.value,
        "health": status.health.value,
        "server_version": cut_text(redact(status.server_version or ""), 200) or None,
        "error": error_json(status.error, redact),
        "last_error": error_json(status.last_error, redact),
        "fault": fault.value if fault else None,
        "remedy": fault.remedy if fault else None,
        "breaker": status.breaker.value if status.breaker else None,
        "endpoints": [asdict(one) for one in status.endpoints],
        "traced": traced,
        **stats_json(status.stats),
    }


def stats_json(stats: CallStats) -> dict[str, Any]:
    latency = stats.latency
    return {
        **{name: getattr(stats, name) for name in SHOWN_OF_STATS},
        "errors": dict(stats.errors),
        **{name: getattr(latency, name) for name in SHOWN_OF_LATENCY},
    }


# -- latency ------------------------------------------------------------------------------------


def latency_json(runtime: Runtime, server: str | None) -> dict[str, Any]:
    """One series for each server; with `server`, also one for each of its tools, the most called
    ones first."""
    stats = runtime.stats
    if server is None:
        return {"series": [_series(runtime, one.name) for one in runtime.servers]}
    names = sorted(stats.tools(server), key=lambda one: -stats.tool(server, one).calls)
    series = [
        _series(runtime, server),
        *(_series(runtime, server, one) for one in names[:MAX_TOOL_SERIES]),
    ]
    return {"series": series, "dropped": max(0, len(names) - MAX_TOOL_SERIES)}


def _series(runtime: Runtime, server: str, tool: str | None = None) -> dict[str, Any]:
    stats = runtime.stats
    found = stats.server(server) if tool is None else stats.tool(server, tool)
    shown = {name: getattr(found.latency, name) for name in ("count", *SHOWN_OF_LATENCY)}
    buckets = [list(bucket) for bucket in stats.histogram(server, tool)]
    name = None if tool is None else cut_text(runtime.redact(server, tool), 200)
    return {"server": server, "tool": name, **shown, "calls": found.calls, "buckets": buckets}


# -- sessions -----------------------------------------------------------------------------------


def session_json(session: SessionStatus) -> dict[str, Any]:
    return {
        "id": f"{session.server}/{session.id}",
        "server": session.server,
        "principal": session.principal,
        "label": cut_text(session.label, 200),
        "own": session.is_own,
        "state": "closing" if session.is_closing else "in use" if session.in_use else "idle",
        "era": session.era,
        "protocol_version": session.protocol_version,
        "has_session": session.has_session,
        "users": session.in_use,
        "uses": session.uses,
        "made": session.opened_at,
    }


# -- the catalogue ------------------------------------------------------------------------------


def catalogue_json(
    runtime: Runtime,
    kind: str,
    *,
    query: str = "",
    server: str = "",
    tag: str = "",
    offset: int = 0,
    limit: int = 100,
    changed_at: Mapping[tuple[str, str], float] | None = None,
) -> dict[str, Any]:
    """One page of the items of a kind: those whose name or description has all words of `query`."""
    catalogue = runtime.catalogue
    items = cast("tuple[Item, ...]", getattr(catalogue, kind))
    found = [one for one in items if _matches(one, query.lower().split(), server, tag)]
    page = found[offset : offset + min(limit, MAX_PAGE)]
    return {
        "revision": catalogue.revision,
        "kind": kind,
        "total": len(found),
        "offset": offset,
        "tags": list(catalogue.by_tag())[:MAX_PAGE] if kind == "tools" else [],
        "items": [
            {
                **item_json(one, partial(runtime.redact, one.server)),
                "changed_at": (changed_at or {}).get((kind, one.name)),
            }
            for one in page
        ],
    }


def _matches(item: Item, words: Iterable[str], server: str, tag: str) -> bool:
    if server and item.server != server:
        return False
    if tag and not (isinstance(item, Tool) and tag in item.tags):
        return False
    name, description = item.name.lower(), (item.definition.description or "")[:MAX_HEAD].lower()
    return all(word in name or word in description for word in words)


def find_item(catalogue: Catalogue, kind: str, name: str) -> Item | None:
    items = cast("tuple[Item, ...]", getattr(catalogue, kind))
    return next((one for one in items if one.name == name), None)


def item_json(item: Item, redact: Redact) -> dict[str, Any]:
    definition = item.definition
    description = definition.description or ""
    title = item.title if isinstance(item, Tool) else definition.title or definition.name
    facts = {
        "name": item.name,
        "short": item.key[1],
        "title": cut_text(title, 2 * MAX_TITLE),
        "description": description[: 2 * DESCRIPTION_SHOWN],
        **_facts(item),
    }
    shown = {name: redact(fact) for name, fact in facts.items()}
    return {
        **shown,
        "title": cut_text(shown["title"], MAX_TITLE),
        "description": shown["description"][:DESCRIPTION_SHOWN],
        "description_chars": len(description),
        "server": item.server,
        "stale": item.stale if isinstance(item, Tool) else False,
    }


def _facts(item: Item) -> dict[str, Any]:
    match item:
        case Tool():
            return {
                "tags": sorted(item.tags),
                "read_only": item.read_only,
                "destructive": item.destructive,
                "idempotent": item.idempotent,
                "open_world": item.open_world,
                "model_name": item.model_name,
            }
        case Prompt():
            given = (item.definition.arguments or [])[:100]
            return {
                "arguments": [
                    {
                        "name": one.name,
                        "description": cut_text(one.description or "", DESCRIPTION_SHOWN),
                        "required": bool(one.required),
                    }
                    for one in given
                ]
            }
        case Resource():
            return {"uri": item.uri, "mime_type": item.definition.mime_type}
        case Template():
            uri, mime = item.uri_template, item.definition.mime_type
            return {"uri_template": uri, "mime_type": mime}


def whole_item_json(item: Item, redact: Redact, *, whole: bool) -> dict[str, Any]:
    limit = MAX_VALUE if whole else MAX_HEAD
    definition, truncated = cut_redacted(definition_json(item), redact, limit)
    guide = cut_text(redact(item.guide), MAX_HEAD) if isinstance(item, Tool) else ""
    more = {"definition": definition, "truncated": truncated, "guide": guide}
    return {**item_json(item, redact), **more}


def definition_json(item: Item) -> dict[str, Any]:
    """The definition as the server listed it."""
    return item.definition.model_dump(by_alias=True, mode="python", exclude_none=True)
