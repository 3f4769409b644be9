"""Text as the words that a search compares.

Names are taken apart at `_`, `-`, dots and the humps of camelCase, and kept whole beside: both
`hub` and `github` find `GitHub`. Case and compatibility forms of Unicode make no difference, nor
does the plural of English. Scripts without blanks are taken as pairs of characters.
"""

from __future__ import annotations

import re
import unicodedata

__all__ = ["raw_words", "terms_of"]

LONGEST_TEXT = 4_000
"""Characters of one text that are read: five pages tell what a tool does, five megabytes do not."""

LONGEST_WORD = 64
"""Characters of a word: beyond, it is data."""

RUN = re.compile(r"[^\W_]+")
UNSPACED = re.compile(r"[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\u0e00-\u0eff]+")
"""Kana, Han, Hangul; Thai and Lao."""


def raw_words(text: str) -> list[str]:
    """The words of a text as they are written: those of one spelling need only be read once."""
    return RUN.findall(text[:LONGEST_TEXT])


def terms_of(word: str) -> tuple[str, ...]:
    """What one raw word is compared as, none twice."""
    word = unicodedata.normalize("NFKC", word[:LONGEST_WORD])
    if word.isascii() and word.islower():
        return (singular(word),)
    parts: list[str] = []
    for run in RUN.findall(word):
        parts += [run, *humps(run)]
        for unspaced in UNSPACED.findall(run):
            parts += pairs(unspaced)
    return tuple(dict.fromkeys(singular(part.casefold()) for part in parts))


def humps(word: str) -> list[str]:
    """The parts of camelCase: `parseHTTPAnswer` is parse, HTTP, Answer."""
    starts = [0]
    for i in range(1, len(word)):
        before, here, after = word[i - 1], word[i], word[i + 1 : i + 2]
        if here.isupper() and (not before.isupper() or after.islower()):
            starts.append(i)
    return [word[a:b] for a, b in zip(starts, [*starts[1:], len(word)], strict=True)]


def pairs(text: str) -> list[str]:
    return [text[i : i + 2] for i in range(len(text) - 1)] or [text]


def singular(word: str) -> str:
    if len(word) > 3 and word.endswith("s") and not word.endswith("ss"):
        return f"{word[:-3]}y" if word.endswith("ies") else word[:-1]
    return word
