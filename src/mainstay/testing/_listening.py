"""Who hears a notification: a legacy GET stream hears all, a modern listener what it asked for."""

from __future__ import annotations

from mainstay.testing.script import JsonObject

SUBSCRIPTION = "io.modelcontextprotocol/subscriptionId"
_FILTERS = {
    "notifications/tools/list_changed": "toolsListChanged",
    "notifications/prompts/list_changed": "promptsListChanged",
    "notifications/resources/list_changed": "resourcesListChanged",
}


def wanted(method: str, params: JsonObject, asked: JsonObject | None) -> bool:
    if asked is None:
        return True
    if method == "notifications/resources/updated":
        return params.get("uri") in (asked["filter"].get("resourceSubscriptions") or ())
    return bool(asked["filter"].get(_FILTERS.get(method, "")))


def tagged(params: JsonObject, asked: JsonObject | None) -> JsonObject:
    if asked is None:
        return params
    return {**params, "_meta": {**params.get("_meta", {}), SUBSCRIPTION: asked["id"]}}
