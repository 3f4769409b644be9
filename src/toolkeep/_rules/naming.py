"""What a tool is called: its full name for people, and its name for models.

The identity of a tool is the pair of its server and its own name. The full name, `server.tool`,
says it in one string: a server's name has no dot, so the first dot parts the two, and the tool's
own name may hold any number of further ones.

Model providers take `[A-Za-z0-9_-]{1,64}` and nothing else. A name for models is a function of
the pair alone: no tool that comes or goes ever renames another one.

- `server__tool`, if that is legal and its only `__` is the one between the two: then it can be
  read in one way only.
- Otherwise `server__tool__digest`: both parts cleaned and cut, and the digest of the pair as it
  was. It has a second `__`, so it is never the plain name of another tool, whatever a server
  calls its tools.

In a program a tool goes by its name for models, with `_` for each `-`. Should that be the name of
another tool, it has a digest at its end.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable

__all__ = ["full_name", "model_name", "model_names", "parted", "python_names"]

LONGEST = 64
"""OpenAI and Anthropic allow 64 characters, Google 64 (once 63, with dots)."""

DIGEST = 16
"""Hexadecimal digits: 64 bits, beyond what a server could search through to meet another's name."""

SERVER_SHARE = 20
"""Characters that a server's name keeps in a name that is cut. The rest says what the tool does."""

SEPARATOR = "__"
PLAIN = re.compile(r"[A-Za-z0-9_-]{1,64}")
ILLEGAL = re.compile(r"[^A-Za-z0-9_-]+")

Pair = tuple[str, str]


def full_name(server: str, tool: str) -> str:
    return f"{server}.{tool}"


def parted(name: str) -> Pair | None:
    """The server and the tool that a full name means. None: it has no dot."""
    server, dot, tool = name.partition(".")
    return (server, tool) if dot else None


def model_name(server: str, tool: str) -> str:
    joined = f"{server}{SEPARATOR}{tool}"
    return joined if is_plain(server, tool, joined) else digested(server, tool, DIGEST)


def is_plain(server: str, tool: str, joined: str) -> bool:
    """Whether the joined name is legal, and these are the only two parts that it can have."""
    return (
        bool(server and tool)
        and PLAIN.fullmatch(joined) is not None
        and joined.find(SEPARATOR) == joined.rfind(SEPARATOR)
    )


def digested(server: str, tool: str, digits: int) -> str:
    room = LONGEST - digits - 2 * len(SEPARATOR)
    head = cleaned(server, min(SERVER_SHARE, room))
    tail = cleaned(tool, room - len(head))
    return SEPARATOR.join((head, tail, digest(server, tool)[:digits]))


def cleaned(text: str, room: int) -> str:
    return ILLEGAL.sub("_", text[:LONGEST])[:room]


def digest(server: str, tool: str) -> str:
    # With its length before it, so that ("a", "bc") and ("ab", "c") differ. JSON may carry half
    # of a surrogate pair.
    said = f"{len(server)}:{server}{tool}".encode("utf-8", "surrogatepass")
    return hashlib.sha256(said).hexdigest()


def model_names(pairs: Iterable[Pair]) -> dict[Pair, str]:
    """Names for many, no two alike: should two digests begin alike, theirs are lengthened."""
    return distinct({pair: model_name(*pair) for pair in pairs}, DIGEST)


def distinct(names: dict[Pair, str], digits: int) -> dict[Pair, str]:
    owners: dict[str, list[Pair]] = {}
    for pair, name in names.items():
        owners.setdefault(name, []).append(pair)
    clashing = [pair for sharing in owners.values() if len(sharing) > 1 for pair in sharing]
    if not clashing or digits >= LONGEST - 2 * len(SEPARATOR):
        return names
    longer = min(2 * digits, LONGEST - 2 * len(SEPARATOR))
    return distinct(names | {pair: digested(*pair, longer) for pair in clashing}, longer)


def python_names(names: Iterable[str]) -> dict[str, str]:
    """Identifiers for names for models, no two alike: `a-b__c` is `a_b__c`, unless a tool of that
    name is among them."""
    given = sorted(set(names), key=lambda name: ("-" in name or name[:1].isdigit(), name))
    taken: dict[str, str] = {}
    for name in given:
        wanted = identifier(name)
        taken[wanted if wanted not in taken else f"{wanted}__{digest('', name)}"] = name
    return {name: written for written, name in taken.items()}


def identifier(name: str) -> str:
    written = name.replace("-", "_")
    return f"_{written}" if written[:1].isdigit() else written
