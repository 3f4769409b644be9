"""The pictures: an overview; the layers of pyproject.toml; a call; transports; states.

This module holds positions only. The code supplies what is drawn: a layer or state without a
position is an error, and so is a position without a layer or state.
"""

from __future__ import annotations

import itertools
import re
import tomllib
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from drawing.svg import (
    BLUE,
    GREEN,
    PLAIN,
    ROSE,
    SAND,
    Box,
    curve,
    label,
    picture,
    text,
    way,
)
from toolkeep._rules.health import MEMBER_TRANSITIONS
from toolkeep._rules.states import CLIENT_TRANSITIONS, CONNECTION_TRANSITIONS

WIDTH = 760
ROOT = Path(__file__).resolve().parents[2]

# -- overview ---------------------------------------------------------------------------------


def overview() -> str:
    agents = [Box(102, y, 164, 44) for y in (76, 146, 216)]
    middle = Box(380, 146, 232, 228)
    servers = [Box(654, y, 172, 52) for y in (60, 146, 232)]
    left = [("Ada's agent", BLUE), ("Grace's agent", BLUE), ("a script", BLUE)]
    right = [
        ("billing", "remote server, up", GREEN),
        ("search", "remote server, restarting", ROSE),
        ("files", "local program (stdio)", GREEN),
    ]
    does = [
        "one catalogue of all tools",
        "a session for each user",
        "reconnects, and retries if safe",
        "reports whether a call ran",
        "limits, caches, permissions",
    ]
    parts = [
        *(
            label(box, name, colour=colour)
            for box, (name, colour) in zip(agents, left, strict=True)
        ),
        middle.drawn(SAND),
        text(380, 66, "toolkeep", "bold"),
        *(text(380, 104 + 28 * row, words, "said") for row, words in enumerate(does)),
        *(
            label(box, name, words, colour=colour)
            for box, (name, words, colour) in zip(servers, right, strict=True)
        ),
        *(way((186, box.y), (260, box.y)) for box in agents),
        *(way((498, box.y), (564, box.y)) for box in servers),
        text(102, 24, "your application", "said"),
        text(654, 24, "MCP servers", "said"),
    ]
    about = (
        "Agents of several users call tools through toolkeep, which connects to many MCP servers"
    )
    return picture(WIDTH, 286, about, parts)


# -- layers -----------------------------------------------------------------------------------

FLOORS: list[tuple[str, str, str]] = [
    ("cli _doctor", "the toolkeep command; diagnosis of servers", BLUE),
    ("console gateway", "a page about a live runtime; the runtime as one MCP server", BLUE),
    ("testing", "a scripted server and a fault proxy, for your tests too", BLUE),
    ("adapters telemetry", "agent frameworks; log lines, spans, metrics", BLUE),
    ("blocking code_mode", "without an event loop; programs that call tools", BLUE),
    ("runtime", "Runtime: many servers, one catalogue", BLUE),
    ("_runtime", "servers, session pools, identity, access, calls", PLAIN),
    ("_catalogue", "snapshots of what servers list; search", PLAIN),
    ("group", "ServerGroup: open, check and reconnect servers", BLUE),
    ("client", "Client: one server for one principal", BLUE),
    ("_client", "connections, retries, listings, notifications", PLAIN),
    ("auth", "credentials and OAuth", BLUE),
    ("_transport", "HTTP, processes, streams, JSON-RPC", PLAIN),
    ("state", "what processes share: one protocol, three drivers", BLUE),
    ("_rules", "every decision: no clock, no network", GREEN),
    ("config", "configuration, checked and frozen", SAND),
    ("events context results errors _files _logs _tasks", "shared vocabulary", SAND),
]
STEP = 40


def contract() -> list[str]:
    """The modules of the layers, from the top, as import-linter checks them."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    (layers,) = [
        one["layers"] for one in project["tool"]["importlinter"]["contracts"] if "layers" in one
    ]
    return re.findall(r"\w+", " ".join(layers))


def exists(module: str) -> bool:
    """The contract names some layers before their code is there."""
    place = ROOT / "src" / "toolkeep" / module
    return place.with_suffix(".py").is_file() or (place / "__init__.py").is_file()


def layers() -> str:
    named = " ".join(names for names, _, _ in FLOORS).split()
    if sorted(named) != sorted(contract()):
        raise SystemExit(f"docs/drawing/pictures.py: layers {set(named) ^ set(contract())}")
    floors = [
        (shown, said, colour)
        for names, said, colour in FLOORS
        if (shown := [name for name in names.split() if exists(name)])
    ]
    parts = [way((28, 24), (28, STEP * len(floors) + 6))]
    for row, (names, said, colour) in enumerate(floors):
        box = Box(404, 32 + STEP * row, 688, 32)
        shown = [name for name in names if name not in ("_files", "_logs", "_tasks")]
        parts += [
            box.drawn(colour),
            text(74, box.y + 5, " · ".join(shown), "code", "start"),
            text(734, box.y + 5, said, "said", "end"),
        ]
    about = "The layers of toolkeep, one above the other; imports point down only"
    return picture(WIDTH, STEP * len(floors) + 24, about, parts)


# -- a call -----------------------------------------------------------------------------------


def call() -> str:
    agent, server = Box(393, 38, 706, 40), Box(393, 504, 706, 40)
    left = [Box(182, y, 284, 64) for y in (124, 216, 308, 400)]
    right = [Box(566, y, 284, 64) for y in (124, 216, 308, 400)]
    out = [
        ("RuntimeCall", "resolves tool and identity,", "checks access, merges headers"),
        ("SessionPool", "returns the client of the", "principal of the call"),
        ("RetryLoop", "checks out a connection;", "one deadline, one budget"),
        ("Transport", "sends in the caller's task,", "records what it sees"),
    ]
    back = [
        ("an error that says whether it ran", "CallNotDelivered, CallOutcomeUnknown, …"),
        ("decide", "is the connection finished?", "may the call be sent again?"),
        ("classify", "what it means: how far did", "the request get?"),
        ("evidence", "status, headers, error, exit code;", "was a byte written?"),
    ]
    parts = [
        label(agent, "your agent, an adapter, the command line", colour=BLUE),
        label(server, "an MCP server", colour=SAND),
        *(label(box, *said) for box, said in zip(left, out, strict=True)),
        label(right[0], *back[0], colour=ROSE),
        label(right[1], *back[1], colour=GREEN),
        label(right[2], *back[2], colour=GREEN),
        label(right[3], *back[3]),
    ]
    down = [agent, *left, server]
    up = [server, *reversed(right), agent]
    for first, then in itertools.pairwise(down):
        parts.append(way((182, first.y + first.height / 2), (182, then.y - then.height / 2 - 2)))
    for first, then in itertools.pairwise(up):
        parts.append(way((566, first.y - first.height / 2), (566, then.y + then.height / 2 + 2)))
    parts += [
        way((424, 216), (386, 216), (386, 308), (326, 308)),
        text(380, 266, "again", "said", "end"),
        text(576, 466, "anything else", "said", "start"),
        text(576, 174, "not again", "said", "start"),
        way((727, 484), (727, 60)),
        text(720, 466, "a result", "said", "end"),
    ]
    about = "The path of a call: down to the server, and back as a result, an error, or once more"
    return picture(WIDTH, 544, about, parts)


# -- transports -------------------------------------------------------------------------------


def transports() -> str:
    connector = Box(62, 122, 92, 44)
    http, duplex = Box(220, 62, 184, 44), Box(220, 182, 184, 44)
    posts, reads = Box(428, 62, 192, 44), Box(428, 182, 192, 44)
    ends = [Box(646, y, 188, 44) for y in (62, 124, 182, 240)]
    said = [
        ("streamable HTTP", "each request on its own"),
        ("SseChannel", "HTTP+SSE of 2024-11-05"),
        ("StdioChannel", "a program and its supervisor"),
        ("InProcessChannel", "a server in this process"),
    ]
    parts = [
        label(connector, "Client", "one for all", kind="code"),
        label(http, "HttpTransportFactory", "keeps its sockets", kind="code"),
        label(duplex, "DuplexTransportFactory", "one channel for all", kind="code"),
        label(posts, "StreamableHttpTransport", "one POST per request", kind="code"),
        label(reads, "DuplexTransport", "dispatches messages", kind="code"),
        *(label(box, *words, colour=SAND) for box, words in zip(ends, said, strict=True)),
        *(curve(connector, factory) for factory in (http, duplex)),
        *(curve(factory, made) for factory, made in ((http, posts), (duplex, reads))),
        curve(posts, ends[0]),
        *(curve(reads, end) for end in ends[1:]),
        text(220, 24, "outlives connections", "said"),
        text(428, 24, "one per connection", "said"),
    ]
    about = "From the client to the four transports: factories make transports"
    return picture(WIDTH, 282, about, parts)


# -- states and transitions -------------------------------------------------------------------

Places = Mapping[str, tuple[float, float]]
Bends = Mapping[tuple[str, str], float]

CONNECTION: Places = {
    "new": (80, 50),
    "opening": (270, 50),
    "ready": (460, 50),
    "draining": (650, 50),
    "closed": (365, 160),
}
CLIENT: Places = {
    "idle": (80, 96),
    "opening": (270, 96),
    "ready": (460, 96),
    "replacing": (650, 96),
    "closing": (365, 216),
}
CLIENT_BENDS: Bends = {
    ("idle", "opening"): 0.12,
    ("opening", "idle"): 0.12,
    ("ready", "replacing"): 0.12,
    ("replacing", "ready"): 0.12,
    ("replacing", "idle"): -0.28,
    ("idle", "closing"): 0.07,
    ("closing", "idle"): 0.07,
}
MEMBER: Places = {
    "idle": (80, 170),
    "opening": (270, 56),
    "connected": (650, 56),
    "failed": (490, 166),
    "reconnecting": (650, 276),
    "closing": (270, 276),
}
MEMBER_BENDS: Bends = {
    ("connected", "closing"): -0.2,
    ("failed", "reconnecting"): 0.14,
    ("reconnecting", "failed"): 0.14,
}


def states(about: str, legal: Mapping[Any, frozenset[Any]], places: Places, bends: Bends) -> str:
    if {state.value for state in legal} != set(places):
        raise SystemExit(f"docs/drawing/pictures.py: {about} {set(places)} is not what there is")
    boxes = {name: Box(x, y, 116, 36) for name, (x, y) in places.items()}
    begins, goes_on = next(iter(legal)).value, {"ready": GREEN, "connected": GREEN}
    parts = [label(box, name, colour=goes_on.get(name, PLAIN)) for name, box in boxes.items()]
    first = boxes[begins]
    parts.append(way((first.x - 58 - 18, first.y), (first.x - 60, first.y)))
    for state, followers in legal.items():
        for to in (to for to in legal if to in followers):
            bend = bends.get((state.value, to.value), 0.0)
            parts.append(curve(boxes[state.value], boxes[to.value], bend))
    lowest = int(max(box.y for box in boxes.values()))
    return picture(740, lowest + 40, about, parts)


PICTURES: dict[str, Callable[[], str]] = {
    "pictures/overview.svg": overview,
    "pictures/layers.svg": layers,
    "pictures/call.svg": call,
    "pictures/transports.svg": transports,
    "pictures/connection.svg": partial(
        states, "States of a connection", CONNECTION_TRANSITIONS, CONNECTION, {}
    ),
    "pictures/client.svg": partial(
        states, "States of a client", CLIENT_TRANSITIONS, CLIENT, CLIENT_BENDS
    ),
    "pictures/member.svg": partial(
        states, "States of a member", MEMBER_TRANSITIONS, MEMBER, MEMBER_BENDS
    ),
}
