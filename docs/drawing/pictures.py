"""The pictures: the layers, as pyproject.toml has them; a call; transports; states and moves.

Where things stand is said here. What there is, is asked of the code: a layer or a state without a
place is a mistake, and so is a place for what does not exist.
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
from toolkeep._rules.lifecycle import CLIENT_LEGAL, LEGAL
from toolkeep._rules.membership import MEMBER_LEGAL

PROJECT = Path(__file__).resolve().parents[2] / "pyproject.toml"

# -- layers -----------------------------------------------------------------------------------

FLOORS: list[tuple[str, str, str]] = [
    ("cli _doctor", "the toolkeep command, and what it shows and finds", BLUE),
    ("testing", "a scriptable server, a fault proxy: for your tests, too", BLUE),
    ("adapters telemetry", "five agent frameworks; log lines, spans, metrics", BLUE),
    ("blocking code_mode", "without an event loop; programs that call tools", BLUE),
    ("runtime", "Runtime: the one object that you hold", BLUE),
    ("_runtime", "who wants what, may they, and where is it", PLAIN),
    ("_catalogue", "what the servers offer, and to whom", PLAIN),
    ("_engine", "clients, connections, the way of a call", PLAIN),
    ("auth", "credentials: what a request carries, and OAuth", BLUE),
    ("_wire", "HTTP, processes, streams, JSON-RPC", PLAIN),
    ("stores", "where sessions and results are kept", BLUE),
    ("state", "what processes share: one store, three drivers", BLUE),
    ("_rules", "every decision, and nothing else: no clock, no network", GREEN),
    ("config", "what you said, checked and frozen", SAND),
    ("events context results errors failures _files _logs", "the words for all of it", SAND),
]
STEP, WIDTH = 40, 760


def contract() -> list[str]:
    """The modules, from the top, as the build is held to them."""
    project = tomllib.loads(PROJECT.read_text(encoding="utf-8"))
    (layers,) = [
        one["layers"] for one in project["tool"]["importlinter"]["contracts"] if "layers" in one
    ]
    return re.findall(r"\w+", " ".join(layers))


def layers() -> str:
    drawn = " ".join(names for names, _, _ in FLOORS).split()
    if sorted(drawn) != sorted(contract()):
        raise SystemExit(f"docs/drawing/pictures.py: layers {set(drawn) ^ set(contract())}")
    parts = [way((28, 24), (28, STEP * len(FLOORS) + 6))]
    for row, (names, said, colour) in enumerate(FLOORS):
        box = Box(404, 32 + STEP * row, 688, 32)
        shown = [name for name in names.split() if name not in ("_files", "_logs")]
        parts += [
            box.drawn(colour),
            text(74, box.y + 5, " · ".join(shown), "code", "start"),
            text(734, box.y + 5, said, "said", "end"),
        ]
    about = "The layers of toolkeep, one above the other; imports point down only"
    return picture(WIDTH, STEP * len(FLOORS) + 24, about, parts)


# -- a call -----------------------------------------------------------------------------------


def call() -> str:
    agent, server = Box(393, 38, 706, 40), Box(393, 504, 706, 40)
    left = [Box(182, y, 284, 64) for y in (124, 216, 308, 400)]
    right = [Box(566, y, 284, 64) for y in (124, 216, 308, 400)]
    out = [
        ("Runtime", "finds the tool, asks permissions,", "checks arguments, merges headers"),
        ("Sessions", "lend the client of whoever", "the call is for"),
        ("Client", "has a connection ready;", "one deadline, one budget"),
        ("Wire", "sends it in the caller's own task,", "and keeps all that it sees"),
    ]
    back = [
        ("an error that says whether it ran", "CallNotDelivered, CallOutcomeUnknown, …"),
        ("decide", "is the connection finished?", "may the call be sent again?"),
        ("classify", "what it means: how far did it get,", "and who says so"),
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
    about = "The way of a call: down to the server, and back as a result, an error, or once more"
    return picture(WIDTH, 544, about, parts)


# -- transports -------------------------------------------------------------------------------


def transports() -> str:
    engine = Box(78, 122, 112, 44)
    http, pipe = Box(236, 62, 134, 44), Box(236, 182, 134, 44)
    asks, reads = Box(422, 62, 172, 44), Box(422, 182, 172, 44)
    ends = [Box(640, y, 196, 44) for y in (62, 124, 182, 240)]
    said = [
        ("streamable HTTP", "each request on its own"),
        ("SseDuct", "HTTP+SSE of 2024-11-05"),
        ("StdioDuct", "a program, under its warden"),
        ("LocalDuct", "a server in this process"),
    ]
    parts = [
        label(engine, "Opener", "one for all", kind="code"),
        label(http, "HttpLine", "keeps its sockets", kind="code"),
        label(pipe, "PipeLine", "one channel for all", kind="code"),
        label(asks, "HttpDispatcher", "a fault touches no other", kind="code"),
        label(reads, "PipeDispatcher", "sorts, and no more", kind="code"),
        *(label(box, *words, colour=SAND) for box, words in zip(ends, said, strict=True)),
        *(curve(engine, line) for line in (http, pipe)),
        *(curve(line, wire) for line, wire in ((http, asks), (pipe, reads))),
        curve(asks, ends[0]),
        *(curve(reads, end) for end in ends[1:]),
        text(240, 24, "a Line outlives generations", "said"),
        text(420, 24, "a Wire is one generation", "said"),
    ]
    about = "From the engine to four transports: lines make wires; pipes carry them in ducts"
    return picture(WIDTH, 282, about, parts)


# -- states and moves -------------------------------------------------------------------------

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
    "retrying": (650, 276),
    "closing": (270, 276),
}
MEMBER_BENDS: Bends = {
    ("connected", "closing"): -0.2,
    ("failed", "retrying"): 0.14,
    ("retrying", "failed"): 0.14,
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
    "pictures/layers.svg": layers,
    "pictures/call.svg": call,
    "pictures/transports.svg": transports,
    "pictures/connection.svg": partial(states, "States of a connection", LEGAL, CONNECTION, {}),
    "pictures/client.svg": partial(
        states, "States of a client", CLIENT_LEGAL, CLIENT, CLIENT_BENDS
    ),
    "pictures/member.svg": partial(
        states, "States of a member", MEMBER_LEGAL, MEMBER, MEMBER_BENDS
    ),
}
