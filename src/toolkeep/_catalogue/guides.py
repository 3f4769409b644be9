"""Usage guides: what is appended to the descriptions of tools.

A configuration's `guides` go from globs over a server's own tool names to what is said about them:
one word is the name of a prompt, `*` is the whole prompts file, and what has a blank in it is the
text itself. Pure; who fetches the prompts decides what is done about those that nobody has.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Protocol

from toolkeep.config.tools import EVERY_PROMPT

__all__ = ["guides_for", "named_prompts"]


class Named(Protocol):
    """The SDK's `Tool`, or whatever else has a name."""

    @property
    def name(self) -> str: ...


def named_prompts(guides: Mapping[str, str]) -> frozenset[str]:
    """The prompts that the guides need."""
    return frozenset(
        said for said in guides.values() if said != EVERY_PROMPT and not _is_text(said)
    )


def guides_for(
    tools: Iterable[Named],
    guides: Mapping[str, str],
    prompts: Mapping[str, str],
    file: Sequence[str] = (),
) -> dict[str, str]:
    """For each tool that has one, its guide. `prompts` are the texts of prompts by their names,
    `file` those of the prompts file, in its order.

    Where several globs fit, each says its own, in the order of the configuration; nothing is said
    twice, and a prompt that nobody has says nothing.
    """
    every = "\n\n".join(file)
    texts = {pattern: _text(said, prompts, every) for pattern, said in guides.items()}
    found: dict[str, str] = {}
    for tool in tools:
        fitting = [texts[pattern] for pattern in texts if fnmatchcase(tool.name, pattern)]
        guide = "\n\n".join(dict.fromkeys(text for text in fitting if text))
        if guide:
            found[tool.name] = guide
    return found


def _text(said: str, prompts: Mapping[str, str], every: str) -> str:
    if said == EVERY_PROMPT:
        return every
    return (said if _is_text(said) else prompts.get(said, "")).strip()


def _is_text(said: str) -> bool:
    return any(one.isspace() for one in said)
