"""Usage figures: exact where they count, close where they estimate, bounded in memory."""

import asyncio
import json
import math
import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkeep._client.stats import (
    ACCURACY,
    MAX_SECONDS,
    MIN_SECONDS,
    CallStats,
    Latency,
    LatencyHistogram,
    Stats,
    bucket_of,
)
from toolkeep.errors import CallOutcomeUnknown, CallTimedOut, Delivery, InvalidArguments
from toolkeep.results import CallResult

durations = st.floats(MIN_SECONDS, MAX_SECONDS)


def result(*, is_error: bool = False, attempts: int = 1) -> CallResult:
    return CallResult({"isError": is_error}, "kit", "echo", attempts)


def timed_out(attempts: int = 1) -> CallTimedOut:
    return CallTimedOut("late", server="kit", attempts=attempts, delivery=Delivery.UNKNOWN)


def latency_of(seconds: list[float]) -> Latency:
    times = LatencyHistogram()
    for each in seconds:
        times.add(each, bucket_of(each))
    return times.latency()


def nearest_rank(seconds: list[float], percent: int) -> float:
    """The definition, to the letter."""
    return next(
        value
        for value in sorted(seconds)
        if 100 * sum(each <= value for each in seconds) >= percent * len(seconds)
    )


@given(st.lists(durations, min_size=1, max_size=150))
def test_percentiles_are_close_to_the_exact_ones(seconds: list[float]):
    latency = latency_of(seconds)
    for percent, estimate in ((50, latency.p50), (95, latency.p95), (99, latency.p99)):
        exact = nearest_rank(seconds, percent)
        assert estimate == pytest.approx(exact, rel=ACCURACY + 1e-9)


@given(st.lists(durations, min_size=1, max_size=150))
def test_count_mean_and_max_are_exact_and_the_percentiles_in_order(seconds: list[float]):
    latency = latency_of(seconds)
    assert (latency.count, latency.max) == (len(seconds), max(seconds))
    assert latency.mean == pytest.approx(math.fsum(seconds) / len(seconds))
    assert latency.p50 is not None
    assert latency.p95 is not None
    assert latency.p99 is not None
    assert latency.p50 <= latency.p95 <= latency.p99 <= max(seconds)


@given(st.floats(0, 1e9))
def test_any_duration_has_a_bucket(seconds: float):
    latency = latency_of([seconds])
    nearest = min(max(seconds, MIN_SECONDS), MAX_SECONDS)
    assert latency.p50 is not None
    # Never more than the longest there was, which is exact.
    assert latency.p50 == pytest.approx(min(nearest, seconds), rel=ACCURACY + 1e-9)


@given(durations, durations)
def test_a_longer_duration_has_no_smaller_bucket(one: float, other: float):
    assert (bucket_of(one) <= bucket_of(other)) or one > other


def test_without_a_result_there_is_no_latency():
    figures = Stats()
    figures.begin("kit", "echo").failed(timed_out())
    assert figures.tool("kit", "echo").latency == Latency()


def test_a_call_counts_for_its_tool_and_its_server():
    figures = Stats()
    figures.begin("kit", "echo").done(result())
    figures.begin("kit", "fail").done(result(is_error=True, attempts=3))
    running = figures.begin("kit", "echo")
    echo, fail, kit = (
        figures.tool("kit", "echo"),
        figures.tool("kit", "fail"),
        figures.server("kit"),
    )
    assert (echo.calls, echo.in_flight, echo.tool_errors, echo.latency.count) == (2, 1, 0, 1)
    assert (fail.tool_errors, fail.attempts, fail.retries, fail.failed) == (1, 3, 2, 0)
    assert (kit.calls, kit.in_flight, kit.attempts, kit.retries) == (3, 1, 4, 2)
    running.done(result())
    assert figures.server("kit").in_flight == 0
    assert echo.in_flight == 1, "what was read stays as it was"


def test_errors_are_counted_by_type_and_delivery_and_cancellations_apart():
    figures = Stats()
    unknown = CallOutcomeUnknown("?", server="kit", attempts=2, delivery=Delivery.UNKNOWN)
    errors = [timed_out(), timed_out(), unknown, OSError("private"), asyncio.CancelledError()]
    for error in errors:
        figures.begin("kit", "echo").failed(error)
    echo = figures.tool("kit", "echo")
    assert echo.errors == {"CallTimedOut/unknown": 2, "CallOutcomeUnknown/unknown": 1, "other": 1}
    assert (echo.failed, echo.cancelled, echo.in_flight, echo.retries) == (4, 1, 0, 1)
    assert echo.last_error == "other"
    assert echo.last_error_at is not None
    assert echo.last_call_at is not None


def test_no_figure_repeats_what_an_error_says():
    figures = Stats()
    refused = InvalidArguments("'sekret' is no number", server="kit", tool="echo")
    figures.begin("kit", "echo").failed(refused)
    assert "sekret" not in json.dumps(figures.as_dict()) + repr(figures.tool("kit", "echo"))


def test_a_call_ends_once():
    figures = Stats()
    running = figures.begin("kit", "echo")
    running.done(result())
    running.failed(timed_out())
    running.done(result())
    echo = figures.tool("kit", "echo")
    assert (echo.calls, echo.in_flight, echo.failed, echo.latency.count) == (1, 0, 0, 1)


def test_what_was_never_called_is_all_zero():
    figures = Stats()
    assert zeros(figures.tool("kit", "echo")) == zeros(figures.server("kit"))
    assert figures.as_dict() == {}


def zeros(figures: CallStats) -> dict[str, Any]:
    plain = figures.as_dict()
    assert not any(plain[name] for name in plain if name not in ("server", "tool", "latency"))
    return plain["latency"]


def test_beyond_the_bound_a_tool_counts_for_its_server_only():
    figures = Stats(max_tools=2)
    for tool in ("one", "two", "three", "three", "one"):
        figures.begin("kit", tool).done(result())
        figures.record_progress("kit", tool)
    kit = figures.server("kit")
    assert (kit.calls, kit.untracked, kit.in_flight) == (5, 2, 0)
    assert (figures.tool("kit", "one").calls, figures.tool("kit", "three").calls) == (2, 0)
    assert figures.tools_with_progress == {("kit", "one"), ("kit", "two")}


def test_a_forgotten_server_leaves_nothing_and_makes_room():
    figures = Stats(max_tools=1)
    running = figures.begin("old", "echo")
    figures.record_progress("old", "echo")
    figures.remove_server("old")
    figures.remove_server("never there")
    running.done(result())
    figures.begin("new", "echo").done(result())
    assert list(figures.as_dict()) == ["new"]
    assert (figures.tool("new", "echo").calls, figures.tools_with_progress) == (1, set())


def test_everything_can_be_written_as_json():
    figures = Stats()
    figures.begin("kit", "echo").done(result())
    figures.begin("kit", "echo").failed(timed_out())
    read = json.loads(json.dumps(figures.as_dict()))
    assert read["kit"]["tools"]["echo"]["errors"] == {"CallTimedOut/unknown": 1}
    assert read["kit"]["latency"]["count"] == 1


def test_figures_can_be_read_from_another_thread_while_calls_run():
    figures, failed, over = Stats(), list[Exception](), threading.Event()

    def read() -> None:
        while not over.is_set():
            try:
                figures.as_dict()
            except Exception as error:
                failed.append(error)
                return

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for number in range(5_000):
            figures.begin("kit", f"tool {number % 500}").done(result())
    finally:
        over.set()
        reader.join(timeout=10)
    assert failed == []
    assert figures.server("kit").calls == 5_000


def test_the_histogram_of_a_server_sums_up_those_of_its_tools():
    stats = Stats()
    for tool in ("add", "add", "echo"):
        stats.begin("kit", tool).done(result())
    stats.begin("kit", "echo").failed(timed_out())
    whole, of_add = stats.histogram("kit"), stats.histogram("kit", "add")
    assert (sum(count for _, count in whole), sum(count for _, count in of_add)) == (3, 2)
    assert [seconds for seconds, _ in whole] == sorted(seconds for seconds, _ in whole)
    assert stats.tools("kit") == ("add", "echo")
    assert (stats.histogram("kit", "other"), stats.histogram("none"), stats.tools("none")) == (
        (),
        (),
        (),
    )
