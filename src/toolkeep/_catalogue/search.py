"""Which tools say the most about a query: BM25 over names, titles, tags, parameters, descriptions.

The index is made once for a snapshot and never changes: an inverted one, flat, in which every
occurrence already holds what it adds to a score. So a search only adds up numbers. Equal queries
have equal answers; equal scores are in the order of the names.

In one text a word counts once, however often it stands there: a server that repeats itself gets no
better place by it.

Its work is bounded whatever the query: the rarest words are looked up first, because they decide,
and the commonest are left out once enough has been read.
"""

from __future__ import annotations

import heapq
import math
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, cast

from toolkeep._catalogue.tool import Tool
from toolkeep._catalogue.words import raw_words, terms_of

__all__ = ["Hit", "Index"]

SATURATION, LENGTH_SHARE = 1.2, 0.75
"""The k1 and b of BM25, at their usual values (Robertson and Zaragoza, 2009)."""

NAME, TITLE, TAG, SERVER, PARAMETER, DESCRIPTION, EXPLANATION = 4.0, 3.0, 3.0, 1.5, 1.5, 1.0, 0.5
"""How often a word counts, by where it stands: our choice. A name says what a tool does; what a
parameter means says it least."""

MOST_PARAMETERS = 100
DEEPEST = 4
"""How much of a tool's schema is read."""

MOST_WORDS = 64
"""Words of a query that are looked at."""

MOST_READ = 40_000
"""Occurrences that one search reads: about 2.5 ms. A single word is read whatever it costs."""


@dataclass(frozen=True, slots=True)
class Hit:
    tool: Tool
    score: float


class Index:
    """Immutable, for any number of searches, in any thread."""

    def __init__(self, tools: Iterable[Tool]) -> None:
        self._tools = sorted(tools, key=lambda tool: tool.name)
        draft = Draft()
        for number, tool in enumerate(self._tools):
            draft.add(number, tool)
        self._terms = draft.terms
        self._starts, self._holders, self._shares = draft.flat()

    def search(
        self, query: str, limit: int = 10, keep: Callable[[Tool], bool] | None = None
    ) -> list[Hit]:
        """The best tools, of those that `keep` keeps, the best first."""
        scores = self._scores(query)
        if keep is not None:
            kept = zip(scores, self._tools, strict=False)
            scores = [score if score and keep(tool) else 0.0 for score, tool in kept]
        best = heapq.nlargest(max(limit, 0), scores)
        least = best[-1] if best else math.inf
        found = [(-score, at) for at, score in enumerate(scores) if score >= least and score]
        return [Hit(self._tools[at], -score) for score, at in heapq.nsmallest(limit, found)]

    def _scores(self, query: str) -> list[float]:
        spans = self._spans(query)
        scores = [0.0] * len(self._tools) if spans else []
        read = 0
        for start, end in spans:
            read += end - start
            if read > MOST_READ and read > end - start:
                break
            holders, shares = self._holders[start:end].tolist(), self._shares[start:end].tolist()
            for number, share in zip(holders, shares, strict=True):
                scores[number] += share
        return scores

    def _spans(self, query: str) -> list[tuple[int, int]]:
        """Where the occurrences of the query's words are, the rarest word first."""
        words = dict.fromkeys(term for word in raw_words(query) for term in terms_of(word))
        known = [self._terms[word] for word in words if word in self._terms][:MOST_WORDS]
        spans = [(self._starts[term], self._starts[term + 1]) for term in known]
        return sorted(spans, key=lambda span: (span[1] - span[0], span))


class Draft:
    """An index that is being made: what counts how much for whom, before the averages are known."""

    def __init__(self) -> None:
        self.terms: dict[str, int] = {}
        self.spellings: dict[str, tuple[int, ...]] = {}
        self.holders: list[array[int]] = []
        self.counts: list[array[float]] = []
        self.lengths: list[float] = []

    def add(self, number: int, tool: Tool) -> None:
        counts: dict[int, float] = {}
        length = 0.0
        for weight, text in fields(tool):
            words = dict.fromkeys(raw_words(text))
            length += weight * len(words)
            for word in words:
                for term in self.spellings.get(word) or self.numbers_of(word):
                    counts[term] = counts.get(term, 0.0) + weight
        for term, count in counts.items():
            self.holders[term].append(number)
            self.counts[term].append(count)
        self.lengths.append(length)

    def numbers_of(self, word: str) -> tuple[int, ...]:
        numbers = tuple(self.number_of(term) for term in terms_of(word))
        self.spellings[word] = numbers
        return numbers

    def number_of(self, term: str) -> int:
        number = self.terms.setdefault(term, len(self.terms))
        if number == len(self.holders):
            self.holders.append(array("I"))
            self.counts.append(array("f"))
        return number

    def flat(self) -> tuple[array[int], array[int], array[float]]:
        """Where each term begins; who holds it; what it adds to that one's score."""
        starts, holders, shares = array("I", [0]), array("I"), array("f")
        average = sum(self.lengths) / (len(self.lengths) or 1) or 1.0
        damping = [
            SATURATION * (1 - LENGTH_SHARE + LENGTH_SHARE * n / average) for n in self.lengths
        ]
        for mine, counts in zip(self.holders, self.counts, strict=True):
            weight = (SATURATION + 1) * rarity(len(mine), len(self.lengths))
            pairs = zip(counts, mine, strict=True)
            shares.extend(weight * count / (count + damping[number]) for count, number in pairs)
            holders.extend(mine)
            starts.append(len(holders))
        return starts, holders, shares


def rarity(holders: int, among: int) -> float:
    """The inverse document frequency of BM25, in the form that is never negative."""
    return math.log(1 + (among - holders + 0.5) / (holders + 0.5))


def fields(tool: Tool) -> Iterator[tuple[float, str]]:
    """All that a tool says about itself, and how much it counts."""
    yield NAME, tool.tool
    yield SERVER, tool.server
    if tool.title != tool.tool:
        yield TITLE, tool.title
    yield DESCRIPTION, tool.definition.description or ""
    yield DESCRIPTION, tool.guide
    for tag in sorted(tool.tags):
        yield TAG, tag
    yield from parameters(tool.definition.input_schema)


def parameters(schema: Any) -> Iterator[tuple[float, str]]:
    """Names and descriptions of the parameters, those of objects and lists within them too."""
    waiting: list[tuple[Any, int]] = [(schema, 0)]
    left = MOST_PARAMETERS
    while waiting:
        part, depth = waiting.pop()
        held = mapping(part)
        named = dict(islice(mapping(held.get("properties")).items(), left))
        left -= len(named)
        for name, parameter in named.items():
            yield PARAMETER, str(name)
            yield EXPLANATION, str(mapping(parameter).get("description") or "")
        if depth < DEEPEST:
            waiting += [(inner, depth + 1) for inner in (held.get("items"), *named.values())]


def mapping(value: Any) -> Mapping[Any, Any]:
    return cast("Mapping[Any, Any]", value) if isinstance(value, Mapping) else {}
