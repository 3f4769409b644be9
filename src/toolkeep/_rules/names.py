"""Names of tools: the full name for people, the name for models, the identifier for programs.

A tool is identified by its server and its own name. The full name is `server.tool`; the first
dot separates them, because a server's name has no dot. Model providers accept
`[A-Za-z0-9_-]{1,64}`: the name for models is `server__tool` if that is legal and unambiguous,
else `server__tool__digest` with both parts cleaned and cut. It depends only on the pair, so a
tool that is added or removed never renames another. In a program, `_` replaces each `-`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable

MAX_LENGTH = 64
"""OpenAI and Anthropic allow 64 characters, Google 64 (once 63, with dots)."""

DIGEST_DIGITS = 16
"""Hexadecimal digits: 64 bits, so that a server cannot search for a collision with another tool."""

MAX_SERVER_PART = 20
"""Characters of a server's name in a name that is cut. The rest is for the tool's name."""

SEPARATOR = "__"
LEGAL_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
ILLEGAL_CHARACTERS = re.compile(r"[^A-Za-z0-9_-]+")

ToolKey = tuple[str, str]


def full_name(server: str, tool: str) -> str:
    return f"{server}.{tool}"


def split_full_name(name: str) -> ToolKey | None:
    """Split a full name into server and tool. None without a dot."""
    server, dot, tool = name.partition(".")
    return (server, tool) if dot else None


def model_name(server: str, tool: str) -> str:
    joined = f"{server}{SEPARATOR}{tool}"
    return (
        joined
        if is_unambiguous(server, tool, joined)
        else name_with_digest(server, tool, DIGEST_DIGITS)
    )


def is_unambiguous(server: str, tool: str, joined: str) -> bool:
    """Whether the joined name is legal and can be split in one way only."""
    return (
        bool(server and tool)
        and LEGAL_NAME.fullmatch(joined) is not None
        and joined.find(SEPARATOR) == joined.rfind(SEPARATOR)
    )


def name_with_digest(server: str, tool: str, digits: int) -> str:
    room = MAX_LENGTH - digits - 2 * len(SEPARATOR)
    head = clean(server, min(MAX_SERVER_PART, room))
    tail = clean(tool, room - len(head))
    return SEPARATOR.join((head, tail, digest(server, tool)[:digits]))


def clean(text: str, room: int) -> str:
    return ILLEGAL_CHARACTERS.sub("_", text[:MAX_LENGTH])[:room]


def digest(server: str, tool: str) -> str:
    # The length makes ("a", "bc") and ("ab", "c") differ. JSON may contain a lone surrogate.
    text = f"{len(server)}:{server}{tool}".encode("utf-8", "surrogatepass")
    return hashlib.sha256(text).hexdigest()


def model_names(pairs: Iterable[ToolKey]) -> dict[ToolKey, str]:
    """Distinct names for many tools: digests that collide are lengthened."""
    return make_distinct({pair: model_name(*pair) for pair in pairs}, DIGEST_DIGITS)


def make_distinct(names: dict[ToolKey, str], digits: int) -> dict[ToolKey, str]:
    owners: dict[str, list[ToolKey]] = {}
    for pair, name in names.items():
        owners.setdefault(name, []).append(pair)
    clashing = [pair for sharing in owners.values() if len(sharing) > 1 for pair in sharing]
    if not clashing or digits >= MAX_LENGTH - 2 * len(SEPARATOR):
        return names
    longer = min(2 * digits, MAX_LENGTH - 2 * len(SEPARATOR))
    return make_distinct(
        names | {pair: name_with_digest(*pair, longer) for pair in clashing}, longer
    )


def python_names(names: Iterable[str]) -> dict[str, str]:
    """Distinct Python identifiers for model names: `a-b__c` becomes `a_b__c`, or gets a digest if
    that name is taken."""
    given = sorted(set(names), key=lambda name: ("-" in name or name[:1].isdigit(), name))
    taken: dict[str, str] = {}
    for name in given:
        wanted = identifier(name)
        taken[wanted if wanted not in taken else f"{wanted}__{digest('', name)}"] = name
    return {name: written for written, name in taken.items()}


def identifier(name: str) -> str:
    written = name.replace("-", "_")
    return f"_{written}" if written[:1].isdigit() else written
