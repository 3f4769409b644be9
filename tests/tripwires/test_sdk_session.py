"""Our protocol session against the SDK's: the same messages through both, and where they differ.

`DIFFERENCES` is the whole list of differences, each with its reason. A new one, or one that is
gone, fails: look at the specification, then mend our session or the table.
"""

import asyncio
import fnmatch
from collections.abc import Iterator
from typing import Any

import pytest
from mcp_types.methods import (
    CACHEABLE_METHODS,
    CLIENT_NOTIFICATIONS,
    SERVER_NOTIFICATIONS,
    SERVER_RESULTS,
)
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS as LEGACY
from mcp_types.version import KNOWN_PROTOCOL_VERSIONS as VERSIONS

from tests.tripwires.helpers_sessions import (
    DISCOVERED,
    INFO,
    MODERN,
    PATIENCE,
    URI,
    Error,
    Ours,
    Sdk,
    initialized,
)

Case = tuple[str, str, tuple[Any, ...]]
"""Its name, the method of `Ours` and `Sdk`, and the arguments."""

SUBSCRIPTION = "io.modelcontextprotocol/subscriptionId"
ACKNOWLEDGED = "notifications/subscriptions/acknowledged"


def wrong_fields(valid: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each field missing, null and of a wrong type."""
    for key in valid:
        yield f"without {key}", {name: value for name, value in valid.items() if name != key}
        yield f"null {key}", {**valid, key: None}
        yield f"wrong {key}", {**valid, key: 7 if not isinstance(valid[key], int) else "7"}


# -- handshakes ---------------------------------------------------------------------------------


def handshakes() -> Iterator[Case]:
    for version in (*VERSIONS, "1999-01-01", "", "2026-07-28-draft"):
        yield (
            f"initialize {version}",
            "negotiate",
            ("legacy", {"initialize": [initialized(version)]}),
        )
    odd = {
        "extra keys": {**initialized("2025-11-25"), "x": [1]},
        "instructions": {**initialized("2025-11-25"), "instructions": "Be kind"},
        "wrong instructions": {**initialized("2025-11-25"), "instructions": 7},
        "capabilities": {
            **initialized("2025-11-25"),
            "capabilities": {"tools": {"listChanged": True}, "extensions": {"x.y/z": {"a": 1}}},
        },
        "wrong tools": {**initialized("2025-11-25"), "capabilities": {"tools": 7}},
        "null tools": {**initialized("2025-11-25"), "capabilities": {"tools": None}},
        "later fields": {**initialized("2025-11-25"), "ttlMs": "soon", "resultType": 3},
        "snake case": {"protocol_version": "2025-11-25", "capabilities": {}, "server_info": INFO},
        "no name": {**initialized("2025-11-25"), "serverInfo": {"version": "1"}},
        "empty": {},
        **dict(wrong_fields(initialized("2025-11-25"))),
    }
    for name, raw in odd.items():
        yield f"initialize {name}", "negotiate", ("legacy", {"initialize": [raw]})
    for code in (-32601, -32602, -32603, -32022, -1):
        yield f"initialize error {code}", "negotiate", ("legacy", {"initialize": [Error(code)]})


def discoveries() -> dict[str, dict[str, Any]]:
    return {
        "valid": DISCOVERED,
        "extra keys": {**DISCOVERED, "x": [1]},
        "both eras": {**DISCOVERED, "supportedVersions": ["2025-11-25", MODERN, "2031-01-01"]},
        "legacy versions": {**DISCOVERED, "supportedVersions": ["2025-11-25"]},
        "no versions": {**DISCOVERED, "supportedVersions": []},
        "unknown versions": {**DISCOVERED, "supportedVersions": ["2031-01-01"]},
        "a version that is no text": {**DISCOVERED, "supportedVersions": [MODERN, 7]},
        "negative ttlMs": {**DISCOVERED, "ttlMs": -5},
        "odd cacheScope": {**DISCOVERED, "cacheScope": "world"},
        "unknown resultType": {**DISCOVERED, "resultType": "novel"},
        "snake case": {"supported_versions": [MODERN], "capabilities": {}},
        "empty": {},
        **dict(wrong_fields(DISCOVERED)),
    }


def refusals() -> dict[str, Any]:
    supported: list[Any] = [
        *([MODERN], [MODERN, "2025-11-25"], ["2025-11-25"], ["2031-01-01"], []),
        *([7], None, "2026-07-28"),
    ]
    return {
        **{f"error {code}": Error(code) for code in (-32601, -32600, -32603, -32001, 0)},
        **{
            f"-32022 {one}": Error(-32022, {"supported": one, "requested": "x"})
            for one in supported
        },
        "-32022 without requested": Error(-32022, {"supported": [MODERN]}),
        "-32022 with text": Error(-32022, "text"),
        "-32022 alone": Error(-32022),
    }


def negotiations() -> Iterator[Case]:
    handshake = initialized("2025-11-25")
    answers: dict[str, Any] = {**discoveries(), **refusals()}
    for mode in ("modern", "auto"):
        for name, first in answers.items():
            given = {"server/discover": [first], "initialize": [handshake]}
            yield f"{mode} {name}", "negotiate", (mode, given)
    for name, refused in refusals().items():
        again = {"server/discover": [refused, DISCOVERED], "initialize": [handshake]}
        yield f"auto {name}, then found", "negotiate", ("auto", again)
        back = {"server/discover": [Error(-32601), DISCOVERED], "initialize": [refused]}
        yield f"auto legacy, then {name}", "negotiate", ("auto", back)
        both = {"server/discover": [refused], "initialize": [refused]}
        yield f"auto twice {name}", "negotiate", ("auto", both)


# -- results ------------------------------------------------------------------------------------

TOOL = {"name": "add", "inputSchema": {"type": "object"}}
TEXT = {"type": "text", "text": "x"}
RESULTS: dict[str, dict[str, Any]] = {
    "completion/complete": {"completion": {"values": ["a"]}},
    "logging/setLevel": {},
    "ping": {},
    "prompts/get": {"messages": [{"role": "user", "content": TEXT}]},
    "prompts/list": {"prompts": [{"name": "p"}]},
    "resources/list": {"resources": [{"uri": URI, "name": "a"}]},
    "resources/read": {"contents": [{"uri": URI, "text": "x"}]},
    "resources/subscribe": {},
    "resources/templates/list": {"resourceTemplates": [{"uriTemplate": "kit://{a}", "name": "a"}]},
    "tools/call": {"content": [TEXT], "isError": False},
    "tools/list": {"tools": [TOOL]},
}


def results() -> Iterator[Case]:
    for method, plain in RESULTS.items():
        for version in VERSIONS:
            if (method, version) not in SERVER_RESULTS:
                continue
            valid = dict(plain)
            if version == MODERN:
                valid |= {"resultType": "complete"}
                valid |= {"ttlMs": 5, "cacheScope": "public"} if method in CACHEABLE_METHODS else {}
            odd = {
                "valid": valid,
                "extra": {**valid, "x-new": [1]},
                "meta": {**valid, "_meta": {"a": 1}},
                "wrong meta": {**valid, "_meta": 7},
                "later": {**valid, "ttlMs": "soon", "cacheScope": 5},
                "later resultType": {**valid, "resultType": 3},
                "negative ttlMs": {**valid, "ttlMs": -5},
                "unknown resultType": {**valid, "resultType": "novel"},
                "input": {"resultType": "input_required", "requestState": "s"},
                "empty": {},
                **dict(wrong_fields(valid)),
            }
            for name, raw in odd.items():
                yield f"{version} {method} {name}", "result", (version, method, raw)


# -- what the server sends ----------------------------------------------------------------------

PARAMS: dict[str, dict[str, Any]] = {
    "notifications/cancelled": {"requestId": 1},
    "notifications/elicitation/complete": {"elicitationId": "e"},
    "notifications/message": {"level": "info", "data": "x"},
    "notifications/progress": {"progressToken": 1, "progress": 1},
    "notifications/resources/updated": {"uri": URI},
    ACKNOWLEDGED: {"notifications": {}, "_meta": {SUBSCRIPTION: "other"}},
}
VENDOR = ("notifications/x.example/changed", "notifications/tasks/status", "x.example/changed", "")


def notifications() -> Iterator[Case]:
    known = dict.fromkeys(method for method, _ in (*SERVER_NOTIFICATIONS, *CLIENT_NOTIFICATIONS))
    for method in (*known, *VENDOR):
        valid = PARAMS.get(method, {})
        odd: dict[str, Any] = {
            "valid": valid,
            "extra": {**valid, "x": 1},
            "wrong meta": {**valid, "_meta": 7},
            "none": None,
            **dict(wrong_fields(valid)),
        }
        for version in VERSIONS:
            for name, params in odd.items():
                yield f"{version} {method} {name}", "notification", (version, method, params)


QUESTIONS: dict[str, tuple[Any, Any]] = {
    "ping": (None, {}),
    "roots/list": (None, {"roots": [{"uri": "file:///a"}]}),
    "sampling/createMessage": (
        {"messages": [{"role": "user", "content": TEXT}], "maxTokens": 5},
        {"role": "assistant", "content": TEXT, "model": "m"},
    ),
    "elicitation/create": (
        {"message": "?", "requestedSchema": {"type": "object", "properties": {}}},
        {"action": "accept", "content": {}},
    ),
    "x.example/ask": ({}, {}),
    "tools/call": ({"name": "x"}, {}),
}


def requests() -> Iterator[Case]:
    for method, (params, answer) in QUESTIONS.items():
        for version in VERSIONS:
            odd: dict[str, tuple[Any, Any]] = {
                "handled": (params, answer),
                "unhandled": (params, None),
                "wrong meta": ({**(params or {}), "_meta": 7}, answer),
                "hostile meta": ({**(params or {}), "_meta": {"progressToken": {}}}, answer),
                "extra": ({**(params or {}), "x": 1}, answer),
                "wrong answer": (params, {"odd": 1}),
                "answer of another": (params, {"roots": 7}),
                "answer of no object": (params, 7),
                "empty": ({}, answer),
            }
            for name, (given, back) in odd.items():
                yield f"{version} {method} {name}", "request", (version, method, given, back)


# -- what is sent -------------------------------------------------------------------------------


def sendings() -> Iterator[Case]:
    page, meta = {"cursor": "c"}, {"progressToken": "t", "x.example/a": [1]}
    known: dict[str, list[Any]] = {
        "ping": [None],
        "tools/list": [None, page, {**page, "_meta": meta}],
        "prompts/list": [None, page],
        "resources/list": [None, page],
        "resources/templates/list": [None, page],
        "logging/setLevel": [{"level": "info"}],
        "resources/subscribe": [{"uri": URI}],
        "resources/unsubscribe": [{"uri": URI}],
        "resources/read": [{"uri": URI}, {"uri": "kit://\u00e4 b", "_meta": meta}],
        "prompts/get": [{"name": "p", "arguments": {"a": "b"}}, {"name": " p"}],
        "tools/call": [
            {"name": "add", "arguments": {"a": 1}},
            {"name": "\u00e4dd", "arguments": {}},
            {"name": "=?base64?eA==?=", "arguments": {}, "_meta": meta},
            {"name": "a\r\nb", "arguments": {"deep": {"er": [None]}}},
        ],
        "completion/complete": [
            {"ref": {"type": "ref/prompt", "name": "p"}, "argument": {"name": "a", "value": ""}}
        ],
    }
    for method, variants in known.items():
        for version in VERSIONS:
            for number, params in enumerate(variants):
                yield f"{version} {method} {number}", "sent", (version, method, params)


# -- subscriptions ------------------------------------------------------------------------------


def ack(covered: Any, subscription_id: Any = "ID") -> tuple[str, Any]:
    return ACKNOWLEDGED, {"notifications": covered, "_meta": {SUBSCRIPTION: subscription_id}}


def subscriptions() -> Iterator[Case]:
    both = ack({"toolsListChanged": True, "resourceSubscriptions": [URI]})
    done = "end", {"resultType": "complete", "_meta": {SUBSCRIPTION: "x"}}
    cancelled = "notifications/cancelled", {"requestId": "ID"}
    stories: dict[str, list[Any]] = {
        "silence": [],
        "ack": [both],
        "ack with a filter": [ack({"resourceSubscriptions": []})],
        "ack of nothing": [ack({})],
        "ack with more": [ack({"resourceSubscriptions": [URI, "kit://b"]})],
        "ack twice": [both, ack({})],
        "ack, then a result": [both, done],
        "ack, then an error": [both, ("end", Error(-32603))],
        "ack, then cancelled": [both, cancelled],
        "ack after a result": [done, both],
        "result": [done],
        "result without a type": [("end", {})],
        "result of an unknown type": [("end", {"resultType": "novel"})],
        "ack, then a result of an unknown type": [both, ("end", {"resultType": "novel"})],
        "error": [("end", Error(-32601))],
        "error, then ack": [("end", Error(-32601)), both],
        "cancelled": [cancelled],
        "cancelled, then ack": [cancelled, both],
        "another cancelled": [("notifications/cancelled", {"requestId": "other"}), both],
        "cancelled without an id": [("notifications/cancelled", {}), both],
        "cancelled with a list": [("notifications/cancelled", {"requestId": ["ID"]}), both],
        "ack of another": [ack({}, "other")],
        "ack of a list": [ack({}, ["ID"])],
        "ack of a number": [ack({}, 1)],
        "ack of true": [ack({}, True)],
        "ack of null": [ack({}, None)],
        "ack without meta": [(ACKNOWLEDGED, {"notifications": {}})],
        "ack without a filter": [(ACKNOWLEDGED, {"_meta": {SUBSCRIPTION: "ID"}})],
        "ack with a wrong filter": [ack({"resourceSubscriptions": 7})],
        "ack with a list for a filter": [ack([])],
        "ack in snake case": [ack({"resource_subscriptions": [URI]})],
    }
    for name, steps in stories.items():
        yield name, "subscription", (steps,)


# -- the differences ----------------------------------------------------------------------------

GROUPS = {
    "handshakes": handshakes,
    "negotiations": negotiations,
    "results": results,
    "notifications": notifications,
    "requests": requests,
    "sendings": sendings,
    "subscriptions": subscriptions,
}

_TYPE = "2026-07-28: an absent resultType means complete, an unknown one is invalid"
_NAMES = "the names of fields are those of the schema; the SDK also accepts Python's"
_EMPTY_LIST = "-32022 that names no version proves nothing; a handshake settles it"
_REFUSED_ITSELF = "it refuses the version that it asked for: a handshake settles it"
_NO_REQUESTED = "the list is what counts; the SDK wants `requested`, too"
_USERS_MODEL = (
    "the SDK's table takes any object for a request for input; the user's model refuses it"
)
_LATER = "a field that the version does not define is ignored; the SDK checks it or shows it"
_RAW = "results of tools are given as received, and become a model on demand"
_VENDOR = "notifications of extensions are events; the SDK wants a binding for each"
_UNSUPPORTED = "the specification's code for a method without its capability is -32601"
_OUR_FAULT = "a malformed answer is the client's fault (-32603), not of the parameters"
_UNACKNOWLEDGED = (
    "the first message must be the acknowledgement; listening again is the same in both"
)

_DISCOVERED_ONCE = "refused after server/discover 2026-07-28"
_FELL_BACK = '2025-11-25 {"capabilities"'
_MODERN = "2026-07-28 {"

DIFFERENCES: list[tuple[str, str, str, str, str]] = [
    ("negotiations", "modern unknown resultType", _DISCOVERED_ONCE, _MODERN, _TYPE),
    ("negotiations", "auto unknown resultType", _FELL_BACK, _MODERN, _TYPE),
    ("negotiations", "modern snake case", _DISCOVERED_ONCE, _MODERN, _NAMES),
    ("negotiations", "auto snake case", _FELL_BACK, _MODERN, _NAMES),
    ("negotiations", "auto -32022 ??", _FELL_BACK, "refused", _EMPTY_LIST),
    ("negotiations", "auto -32022 ??, then found", _FELL_BACK, "refused", _EMPTY_LIST),
    ("negotiations", "auto twice -32022 ??", "refused", "refused", _EMPTY_LIST),
    ("negotiations", "auto -32022 ?'2026-07-28'?", _FELL_BACK, "refused", _REFUSED_ITSELF),
    ("negotiations", "auto twice -32022 ?'2026-*", "refused", "refused", _REFUSED_ITSELF),
    ("negotiations", "modern -32022 without requested", "refused", "refused", _NO_REQUESTED),
    ("negotiations", "auto -32022 without requested", _FELL_BACK, _FELL_BACK, _NO_REQUESTED),
    ("negotiations", "auto -32022 without requested, *", _MODERN, _FELL_BACK, _NO_REQUESTED),
    ("negotiations", "auto legacy, then -32022 without *", _MODERN, "refused", _NO_REQUESTED),
    ("negotiations", "auto twice -32022 without *", "refused", "refused", _NO_REQUESTED),
    ("results", "2026-* unknown resultType", "refused", "ok", _TYPE),
    ("results", "2026-* without resultType", "ok", "refused", _TYPE),
    ("results", "2026-* prompts/get empty", "returned", "refused", _USERS_MODEL),
    ("results", "2026-* prompts/get * messages", "returned", "refused", _USERS_MODEL),
    ("results", "2026-* resources/read empty", "returned", "refused", _USERS_MODEL),
    ("results", "2026-* resources/read * contents", "returned", "refused", _USERS_MODEL),
    ("results", "2026-* resources/read later", "returned", "refused", _USERS_MODEL),
    ("results", "2026-* resources/read null ttlMs", "returned", "refused", _USERS_MODEL),
    ("results", "2026-* resources/read null cacheScope", "returned", "refused", _USERS_MODEL),
    ("results", "2026-* resources/read wrong cacheScope", "returned", "refused", _USERS_MODEL),
    *(
        ("results", f"202[45]-* {method} {name}", "ok {}", sdk, _LATER)
        for method in ("ping", "logging/setLevel", "resources/subscribe")
        for name, sdk in (
            ("later resultType", "refused"),
            ("unknown resultType", 'ok {"resultType": "novel"}'),
            ("input", 'ok {"resultType": "input_required"}'),
        )
    ),
    ("results", "202[45]-* tools/call later resultType", "returned", "ok", _RAW),
    ("results", "202[45]-* tools/call unknown resultType", "ok", "ok", _RAW),
    ("results", "202[45]-* tools/call null isError", "returned", "refused", _RAW),
    ("notifications", "* notifications/x.example/changed *", "passed on", "dropped", _VENDOR),
    ("notifications", "* notifications/tasks/status *", "passed on", "dropped", _VENDOR),
    *(
        ("requests", f"{versions} {method} {name}", f"error {ours}", f"error {sdk}", why)
        for versions, method in (
            ("202[45]-*", "roots/list"),
            ("202[45]-*", "sampling/createMessage"),
            ("2025-[01][61]-*", "elicitation/create"),
        )
        for name, ours, sdk, why in (
            ("unhandled", -32601, -32600, _UNSUPPORTED),
            ("answer of no object", -32603, -32602, _OUR_FAULT),
        )
    ),
    ("subscriptions", "ack after a result", "refused", "open []; ended", _UNACKNOWLEDGED),
    ("subscriptions", "result*", "refused", "open []; ended", _UNACKNOWLEDGED),
    ("subscriptions", "ack in snake case", "open []", f"open ['{URI}']", _NAMES),
]
"""Group, pattern of names, how our outcome and the SDK's begin, and why. In all other cases both
are equal."""


async def outcome(side: Any, case: Case) -> str:
    _, method, arguments = case
    async with asyncio.timeout(PATIENCE):
        return await getattr(side, method)(*arguments)


@pytest.mark.parametrize("group", GROUPS)
async def test_our_session_differs_from_the_sdks_only_where_it_is_meant_to(group: str) -> None:
    surprises: list[str] = []
    rows = {row: 0 for row in DIFFERENCES if row[0] == group}
    for case in GROUPS[group]():
        ours, sdk = await outcome(Ours(), case), await outcome(Sdk(), case)
        matching = [row for row in rows if fnmatch.fnmatchcase(case[0], row[1])]
        for row in matching:
            rows[row] += 1
        if ours == sdk and not matching:
            continue
        fits = [row for row in matching if ours.startswith(row[2]) and sdk.startswith(row[3])]
        if ours == sdk or len(matching) != 1 or not fits:
            surprises.append(f"{case[0]}\n    ours: {ours}\n    SDK:  {sdk}")
    assert not surprises, "\n".join(surprises)
    assert [row for row, used in rows.items() if not used] == []


def test_the_corpus_is_large_and_each_name_stands_once() -> None:
    names = [(group, case[0]) for group, cases in GROUPS.items() for case in cases()]
    assert len(names) == len(set(names))
    assert len(names) >= 500
    assert VERSIONS[:-1] == LEGACY
