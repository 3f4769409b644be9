"""Server-sent events: every legal stream, cut anywhere, gives the same events."""

import re
import tracemalloc
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from toolkeep._transport.framing import SseDecoder, SseEvent, SseEventTooLarge

LIMIT = 10_000
BOM = b"\xef\xbb\xbf"


def decoded(stream: bytes, cuts: list[int] | None = None, limit: int = LIMIT) -> list[SseEvent]:
    """The events of a stream that arrives in pieces, and then ends."""
    edges = [0, *sorted(cut % (len(stream) + 1) for cut in cuts or ()), len(stream)]
    decoder = SseDecoder(limit)
    events: list[SseEvent] = []
    for start, end in pairwise(edges):
        if stream[start:end]:
            events += decoder.feed(stream[start:end])
    return events + decoder.finish()


def by_the_book(stream: bytes) -> list[str]:
    """The data of every event, as the HTML Standard (9.2.6) has it: line by line."""
    found: list[str] = []
    data: list[str] = []
    for line in re.split("\r\n|\n|\r", stream.removeprefix(BOM).decode())[:-1]:
        name, _, value = line.partition(":")
        if name == "data":
            data.append(value.removeprefix(" "))
        elif not line:
            found += ["\n".join(data)] if data else []
            data = []
    return [each for each in found if each]


line_ends = st.sampled_from(["\n", "\r\n", "\r"])
texts = st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"]), max_size=8)
lines = st.one_of(
    st.just(""),
    texts.map(lambda text: f"data: {text}"),
    texts.map(lambda text: f"data:{text}"),
    texts.map(lambda text: f": {text}"),
    st.sampled_from(["data", "id: 7", "event: message", "retry: 10", "unknown: x"]),
)
streams = st.tuples(st.booleans(), st.lists(st.tuples(lines, line_ends), max_size=12)).map(
    lambda drawn: (BOM if drawn[0] else b"") + "".join(a + b for a, b in drawn[1]).encode()
)


@given(streams, st.lists(st.integers(0, 10_000), max_size=12))
@example(BOM + b"data: a\n\n", [1])
@example(b"data: a\r\n\r\ndata: b\r\n\r\n", [8, 9, 10, 11])
@pytest.mark.requirement("S13")
def test_chunks_may_be_cut_anywhere(stream: bytes, cuts: list[int]) -> None:
    assert decoded(stream, cuts) == decoded(stream)
    assert decoded(stream, list(range(len(stream)))) == decoded(stream)


@given(streams)
@example(b"data: a\n\rdata: b\n\n")
@example(b"data: a\r\r\ndata: b\n\n")
@pytest.mark.requirement("S13")
def test_events_are_those_of_the_standard(stream: bytes) -> None:
    assert [event.data for event in decoded(stream) if event.data] == by_the_book(stream)


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_fields_of_an_event(end: bytes) -> None:
    stream = end.join(
        [b": hello", b"event: note", b"id: s1.2", b"retry: 1500", b"data: {", b"data: }"]
    )
    (event,) = decoded(stream + end + end)
    assert event == SseEvent(data="{\n}", id="s1.2", event="note", retry=1.5)


@pytest.mark.parametrize(
    ("line", "retry"),
    [(b"retry: 0", 0.0), (b"retry: soon", None), (b"retry: -1", None), (b"retry: \xc2\xb2", None)],
)
def test_a_retry_that_is_no_number_is_ignored(line: bytes, retry: float | None) -> None:
    (event,) = decoded(line + b"\ndata: x\n\n")
    assert event.retry == retry


def test_an_event_that_only_primes_a_stream_tells_its_id() -> None:
    assert decoded(b"id: s1.0\ndata: \n\n") == [SseEvent(data="", id="s1.0")]


def test_an_id_with_a_null_character_is_ignored() -> None:
    assert decoded(b"id: a\0b\ndata: x\n\n") == [SseEvent(data="x")]


def test_comments_and_blank_lines_alone_are_no_events() -> None:
    assert decoded(b"\n\n: ping\n\n\r\n\r\n: ping\r\n\r\n") == []


def test_an_event_without_its_blank_line_is_dropped() -> None:
    assert decoded(b"data: a\n\ndata: half") == [SseEvent(data="a")]
    assert decoded(b"data: a\n\ndata: half\n") == [SseEvent(data="a")]


def test_bytes_that_are_no_utf8_become_replacement_characters() -> None:
    assert decoded(b"data: \xff\n\n") == [SseEvent(data="\ufffd")]


@pytest.mark.parametrize("cuts", [[], [50], list(range(0, 300, 7))])
@pytest.mark.requirement("P11")
def test_an_event_over_the_limit_is_refused_however_it_comes(cuts: list[int]) -> None:
    with pytest.raises(SseEventTooLarge):
        decoded(b"data: " + b"x" * 200 + b"\n\n", cuts, limit=100)


@pytest.mark.requirement("P11")
def test_an_event_without_end_is_refused_before_it_is_whole() -> None:
    decoder = SseDecoder(100)
    with pytest.raises(SseEventTooLarge):
        for _ in range(100):
            decoder.feed(b"data: " + b"x" * 14 + b"\n")


def test_an_event_without_end_is_not_kept() -> None:
    decoder = SseDecoder(limit=1_000)
    with pytest.raises(SseEventTooLarge):
        decoder.feed(b"data: " + b"x" * 100_000)
    tracemalloc.start()
    try:
        for _ in range(100):
            assert decoder.feed(b"x" * 100_000) == []
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()
    assert decoder.feed(b"\n\ndata: next\n\n") == [SseEvent(data="next")]


def test_an_event_as_large_as_the_limit_is_taken() -> None:
    assert decoded(b"data: four\n\n", limit=10) == [SseEvent(data="four")]


def test_the_limit_is_for_one_event_not_for_the_stream() -> None:
    assert len(decoded(b"data: 12345\n\n" * 1000, [100, 5000], limit=20)) == 1000
