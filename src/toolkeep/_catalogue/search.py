"""Full-text search over tools: BM25 on names, titles, tags, parameters and descriptions.

The index is immutable and its work is bounded for any query. Equal queries give equal answers.
"""

from __future__ import annotations

import heapq
import math
import re
import unicodedata
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, cast

from toolkeep._catalogue.tool import Tool

MAX_TEXT = 4_000
"""Characters of one text that are indexed."""
MAX_WORD = 64
"""Characters of one word that are indexed: longer runs are data."""
MAX_PARAMETERS = 100
"""Parameters of one tool that are indexed."""
MAX_DEPTH = 4
"""Levels of a schema that are indexed."""
MAX_QUERY_WORDS = 64
"""Words of a query that count."""
MAX_OCCURRENCES_READ = 40_000
"""Occurrences that one search reads: about 2.5 ms. The rarest word is always read."""

SATURATION, LENGTH_SHARE = 1.2, 0.75
"""The k1 and b of BM25, at their usual values (Robertson and Zaragoza, 2009)."""

# The weight of a word by its place, chosen by us: a name says most about what a tool does, the
# description of a parameter least.
NAME_WEIGHT = 4.0
TITLE_WEIGHT = 3.0
TAG_WEIGHT = 3.0
SERVER_WEIGHT = 1.5
PARAMETER_WEIGHT = 1.5
DESCRIPTION_WEIGHT = 1.0
EXPLANATION_WEIGHT = 0.5

WORD_RUN = re.compile(r"[^\W_]+")
UNSPACED = re.compile(r"[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\u0e00-\u0eff]+")
"""Scripts without spaces: Kana, Han, Hangul, Thai and Lao."""


def raw_words(text: str) -> list[str]:
    """The words of a text as they are written."""
    return WORD_RUN.findall(text[:MAX_TEXT])


def terms_of(word: str) -> tuple[str, ...]:
    """The terms that one raw word is indexed under, without repeats."""
    word = unicodedata.normalize("NFKC", word[:MAX_WORD])
    if word.isascii() and word.islower():
        return (singular(word),)
    parts: list[str] = []
    for run in WORD_RUN.findall(word):
        parts += [run, *camel_case_parts(run)]
        for unspaced in UNSPACED.findall(run):
            parts += bigrams(unspaced)
    return tuple(dict.fromkeys(singular(part.casefold()) for part in parts))


def camel_case_parts(word: str) -> list[str]:
    """The parts of camelCase: `parseHTTPAnswer` is parse, HTTP, Answer."""
    starts = [0]
    for i in range(1, len(word)):
        before, here, after = word[i - 1], word[i], word[i + 1 : i + 2]
        if here.isupper() and (not before.isupper() or after.islower()):
            starts.append(i)
    return [word[a:b] for a, b in zip(starts, [*starts[1:], len(word)], strict=True)]


def bigrams(text: str) -> list[str]:
    return [text[i : i + 2] for i in range(len(text) - 1)] or [text]


def singular(word: str) -> str:
    if len(word) > 3 and word.endswith("s") and not word.endswith("ss"):
        return f"{word[:-3]}y" if word.endswith("ies") else word[:-1]
    return word


@dataclass(frozen=True, slots=True)
class SearchHit:
    tool: Tool
    score: float


class SearchIndex:
    """Immutable; may be searched from any thread."""

    def __init__(self, tools: Iterable[Tool]) -> None:
        self._tools = sorted(tools, key=lambda tool: tool.name)
        builder = IndexBuilder()
        for number, tool in enumerate(self._tools):
            builder.add(number, tool)
        self._terms = builder.terms
        self._starts, self._holders, self._shares = builder.build()

    def search(
        self, query: str, limit: int = 10, keep: Callable[[Tool], bool] | None = None
    ) -> list[SearchHit]:
        """The best tools of those that `keep` keeps, the best first."""
        scores = self._scores(query)
        if keep is not None:
            kept = zip(scores, self._tools, strict=False)
            scores = [score if score and keep(tool) else 0.0 for score, tool in kept]
        best = heapq.nlargest(max(limit, 0), scores)
        least = best[-1] if best else math.inf
        found = [(-score, at) for at, score in enumerate(scores) if score >= least and score]
        return [SearchHit(self._tools[at], -score) for score, at in heapq.nsmallest(limit, found)]

    def _scores(self, query: str) -> list[float]:
        spans = self._spans(query)
        scores = [0.0] * len(self._tools) if spans else []
        read = 0
        for start, end in spans:
            read += end - start
            if read > MAX_OCCURRENCES_READ and read > end - start:
                break
            holders, shares = self._holders[start:end].tolist(), self._shares[start:end].tolist()
            for number, share in zip(holders, shares, strict=True):
                scores[number] += share
        return scores

    def _spans(self, query: str) -> list[tuple[int, int]]:
        """Where the occurrences of the query's words are stored, the rarest word first."""
        words = dict.fromkeys(term for word in raw_words(query) for term in terms_of(word))
        known = [self._terms[word] for word in words if word in self._terms][:MAX_QUERY_WORDS]
        spans = [(self._starts[term], self._starts[term + 1]) for term in known]
        return sorted(spans, key=lambda span: (span[1] - span[0], span))


class IndexBuilder:
    """Collects terms and counts of all tools; `build` computes the scores once the averages are
    known."""

    def __init__(self) -> None:
        self.terms: dict[str, int] = {}
        self.term_ids_by_word: dict[str, tuple[int, ...]] = {}
        self.holders: list[array[int]] = []
        self.counts: list[array[float]] = []
        self.lengths: list[float] = []

    def add(self, number: int, tool: Tool) -> None:
        counts: dict[int, float] = {}
        length = 0.0
        for weight, text in searchable_texts(tool):
            words = dict.fromkeys(raw_words(text))
            length += weight * len(words)
            for word in words:
                for term in self.term_ids_by_word.get(word) or self.term_ids(word):
                    counts[term] = counts.get(term, 0.0) + weight
        for term, count in counts.items():
            self.holders[term].append(number)
            self.counts[term].append(count)
        self.lengths.append(length)

    def term_ids(self, word: str) -> tuple[int, ...]:
        numbers = tuple(self.term_id(term) for term in terms_of(word))
        self.term_ids_by_word[word] = numbers
        return numbers

    def term_id(self, term: str) -> int:
        number = self.terms.setdefault(term, len(self.terms))
        if number == len(self.holders):
            self.holders.append(array("I"))
            self.counts.append(array("f"))
        return number

    def build(self) -> tuple[array[int], array[int], array[float]]:
        """The start of each term; the tools that contain it; what it adds to the score of each."""
        starts, holders, shares = array("I", [0]), array("I"), array("f")
        average = sum(self.lengths) / (len(self.lengths) or 1) or 1.0
        damping = [
            SATURATION * (1 - LENGTH_SHARE + LENGTH_SHARE * n / average) for n in self.lengths
        ]
        for mine, counts in zip(self.holders, self.counts, strict=True):
            weight = (SATURATION + 1) * inverse_document_frequency(len(mine), len(self.lengths))
            pairs = zip(counts, mine, strict=True)
            shares.extend(weight * count / (count + damping[number]) for count, number in pairs)
            holders.extend(mine)
            starts.append(len(holders))
        return starts, holders, shares


def inverse_document_frequency(holders: int, among: int) -> float:
    """The inverse document frequency of BM25, in the form that is never negative."""
    return math.log(1 + (among - holders + 0.5) / (holders + 0.5))


def searchable_texts(tool: Tool) -> Iterator[tuple[float, str]]:
    """The texts of a tool, each with its weight."""
    yield NAME_WEIGHT, tool.tool
    yield SERVER_WEIGHT, tool.server
    if tool.title != tool.tool:
        yield TITLE_WEIGHT, tool.title
    yield DESCRIPTION_WEIGHT, tool.definition.description or ""
    yield DESCRIPTION_WEIGHT, tool.guide
    for tag in sorted(tool.tags):
        yield TAG_WEIGHT, tag
    yield from parameter_texts(tool.definition.input_schema)


def parameter_texts(schema: Any) -> Iterator[tuple[float, str]]:
    """Names and descriptions of the parameters, also of nested objects and lists."""
    waiting: list[tuple[Any, int]] = [(schema, 0)]
    left = MAX_PARAMETERS
    while waiting:
        part, depth = waiting.pop()
        held = as_mapping(part)
        named = dict(islice(as_mapping(held.get("properties")).items(), left))
        left -= len(named)
        for name, parameter in named.items():
            yield PARAMETER_WEIGHT, str(name)
            yield EXPLANATION_WEIGHT, str(as_mapping(parameter).get("description") or "")
        if depth < MAX_DEPTH:
            waiting += [(inner, depth + 1) for inner in (held.get("items"), *named.values())]


def as_mapping(value: Any) -> Mapping[Any, Any]:
    return cast("Mapping[Any, Any]", value) if isinstance(value, Mapping) else {}
