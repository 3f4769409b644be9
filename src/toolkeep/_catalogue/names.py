"""From what somebody wrote to what was meant.

A full name, `server.tool`, is one look-up and needs nothing of this module. What is left are short
names, the tool's own name without its server, and mistakes.

A short name must be unique. And one that begins with the name of a server that is known, with `.`
or `__` after it, is looked for at that server alone: `pay.send` never means a tool `pay.send` of
another server, not even while `pay` is out of reach or has lost its `send`. Otherwise any server
could take over another's calls by the names it gives to its tools.

A mistake is told with the nearest names, found with bounded work, whatever the names.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Mapping
from difflib import SequenceMatcher
from typing import Protocol, TypeVar

from toolkeep.errors import AmbiguousTool, NotOffered, UnknownPrompt, UnknownTool

__all__ = ["Named", "by_own_name", "find", "nearest"]

LONGEST = 80
"""Characters of a name that are compared, or shown: model providers stop at 64."""

LOOKED_AT = 20_000
"""Names that are looked at for suggestions: about 30 ms, and twice any catalogue we know of."""

MOST_PIECES = 24
"""Pieces of a name that are looked for: enough to tell names apart."""

SHORTLIST = 16
"""Names that are compared in earnest, at up to 0.3 ms each."""

SUGGESTED = 3
LIKENESS = 0.6
"""From 0 to 1: the cutoff of `difflib.get_close_matches`."""

LISTED = 10
"""Candidates that a message names. The error holds them all."""


class Named(Protocol):
    @property
    def key(self) -> tuple[str, str]: ...
    @property
    def name(self) -> str: ...


Item = TypeVar("Item", bound=Named)


def by_own_name(items: Iterable[Item]) -> dict[str, list[Item]]:
    found: dict[str, list[Item]] = {}
    for item in items:
        found.setdefault(item.key[1], []).append(item)
    return found


def find(
    name: str, what: str, own: Mapping[str, list[Item]], servers: Collection[str]
) -> Item | None:
    """The one item that goes by this short name; None: there is none."""
    found = own.get(name, [])
    owner = claimed_by(name, servers)
    if owner is not None:
        found = [item for item in found if item.key[0] == owner]
    if len(found) > 1:
        raise ambiguous(name, what, tuple(item.name for item in found))
    return found[0] if found else None


def claimed_by(name: str, servers: Collection[str]) -> str | None:
    """The server whose name this one begins with, as if it were a name of that server's."""
    for separator in (".", "__"):
        server, parting, _ = name.partition(separator)
        if parting and server in servers:
            return server
    return None


# --- mistakes ----------------------------------------------------------------------------------


def ambiguous(name: str, what: str, candidates: tuple[str, ...]) -> NotOffered:
    shown = ", ".join(short(candidate) for candidate in candidates[:LISTED])
    more = f", and {len(candidates) - LISTED} more" if len(candidates) > LISTED else ""
    text = f"{len(candidates)} servers have a {what} {short(name)!r}; say which: {shown}{more}"
    if what == "prompt":
        return UnknownPrompt(text, suggestions=candidates)
    return AmbiguousTool(text, candidates=candidates)


def unknown(
    name: str, what: str, names: Collection[str], servers: Collection[str] = ()
) -> NotOffered:
    near = nearest(name, (one for one in names if not passes_for_another(one, servers)))
    if near:
        hint = f"did you mean {' or '.join(short(one) for one in near)}?"
    else:
        hint = "none has a name like it" if names else f"no server offers any {what}"
    kind = UnknownPrompt if what == "prompt" else UnknownTool
    return kind(f"there is no {what} {short(name)!r}: {hint}", suggestions=near)


def passes_for_another(name: str, servers: Collection[str]) -> bool:
    """Whether one server's tool is called as if it were another's: nobody is led there."""
    owner, _, own = name.partition(".")
    claimed = claimed_by(own, servers)
    return claimed is not None and claimed != owner


def nearest(name: str, names: Iterable[str]) -> tuple[str, ...]:
    """The full names that are most like the one that was given, the best first."""
    wanted = name[:LONGEST].casefold()
    matcher = SequenceMatcher(autojunk=False)
    matcher.set_seq2(wanted)
    scored = [(likeness(matcher, candidate), candidate) for candidate in shortlist(wanted, names)]
    # Of equals, those of the server that was named: no other's tool is to pass for one of its own.
    owner = f"{name.partition('.')[0]}."
    good = [
        (-score, not candidate.startswith(owner), candidate)
        for score, candidate in scored
        if score >= LIKENESS
    ]
    return tuple(candidate for *_, candidate in sorted(good)[:SUGGESTED])


def shortlist(wanted: str, names: Iterable[str]) -> list[str]:
    """Those that share the most with it: cheap, and enough to drop the rest."""
    pieces = pieces_of(wanted)
    scored: list[tuple[int, int, str]] = []
    for _, candidate in zip(range(LOOKED_AT), names, strict=False):
        text = candidate[:LONGEST].casefold()
        shared = sum([piece in text for piece in pieces])
        if shared:
            unlike = abs(len(text) - text.find(".") - 1 - len(wanted))
            scored.append((-shared, unlike, candidate))
    return [candidate for _, _, candidate in heapq.nsmallest(SHORTLIST, scored)]


def pieces_of(text: str) -> list[str]:
    """Its pairs of letters; of a short one its letters too, since swapped ones share no pair."""
    letters = text if len(text) <= MOST_PIECES // 2 else ""
    pairs = (text[i : i + 2] for i in range(len(text) - 1))
    return list(dict.fromkeys((*letters, *pairs)))[:MOST_PIECES]


def likeness(matcher: SequenceMatcher[str], candidate: str) -> float:
    """With or without the server, whichever is more like it."""
    whole = candidate[:LONGEST].casefold()
    own = candidate.partition(".")[2][:LONGEST].casefold()
    return max(ratio(matcher, whole), ratio(matcher, own))


def ratio(matcher: SequenceMatcher[str], text: str) -> float:
    matcher.set_seq1(text)
    bound = min(matcher.real_quick_ratio(), matcher.quick_ratio())
    return matcher.ratio() if bound >= LIKENESS else 0.0


def short(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"
