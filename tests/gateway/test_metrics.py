"""The page of metrics: read by Prometheus' rules, within its bounds."""

import math
import re

import pytest

from toolkeep.gateway import metrics as module
from toolkeep.gateway.metrics import BUCKETS, Metrics

pytestmark = pytest.mark.requirement("W5")

SAMPLE = re.compile(
    r"(?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)"
    r'(?:\{(?P<labels>(?:[a-z_]+="(?:[^"\\\n]|\\[\\"n])*",?)*)\})? '
    r"(?P<value>[0-9.e+-]+|\+Inf|-Inf|NaN)"
)
LABEL = re.compile(r'([a-z_]+)="((?:[^"\\\n]|\\[\\"n])*)"')


def parsed(page: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """The samples of a page. Fails at a line that is none, and at one that is there twice."""
    found = {}
    for line in page.removesuffix("\n").split("\n"):
        if line.startswith("# "):
            assert re.fullmatch(r"# (HELP \S+ .+|TYPE \S+ (counter|gauge|histogram))", line)
            continue
        sample = SAMPLE.fullmatch(line)
        assert sample is not None, line
        key = sample["name"], frozenset(LABEL.findall(sample["labels"] or ""))
        assert key not in found, line
        found[key] = float(sample["value"])
    return found


def value(metrics: Metrics, name: str, **labels: str) -> float:
    return parsed(metrics.render())[f"toolkeep_gateway_{name}", frozenset(labels.items())]


def test_calls_are_counted_by_tool_and_outcome() -> None:
    metrics = Metrics()
    for outcome in ("ran", "ran", "did not run"):
        metrics.observe_call("files", "search", outcome, 0.01)
    where = {"server": "files", "tool": "search"}
    assert value(metrics, "calls_total", **where, outcome="ran") == 2
    assert value(metrics, "calls_total", **where, outcome="did not run") == 1


def test_durations_are_a_histogram() -> None:
    metrics = Metrics()
    for seconds in (0.0005, 0.001, 0.03, 0.03, 500.0):
        metrics.observe_call("files", "search", "ran", seconds)
    where = {"server": "files", "tool": "search"}
    name = "call_duration_seconds"
    counts = [value(metrics, f"{name}_bucket", **where, le=f"{one:.15g}") for one in BUCKETS]
    assert counts[:7] == [2, 2, 2, 2, 2, 4, 4]
    assert value(metrics, f"{name}_bucket", **where, le="+Inf") == 5
    assert value(metrics, f"{name}_count", **where) == 5
    assert value(metrics, f"{name}_sum", **where) == pytest.approx(500.0615)


def test_a_page_without_calls_is_a_page() -> None:
    assert parsed(Metrics().render()) == {}


def test_gauges_and_counters_are_read_when_the_page_is() -> None:
    metrics, sessions, dropped = Metrics(), ["a"], [0]
    metrics.gauge("sessions", "Open sessions.", lambda: len(sessions))
    metrics.counter("audit_dropped_total", "Lost entries.", lambda: dropped[0])
    metrics.gauge("up", "By server.", lambda: {(("server", "files"),): 1, (("server", "b"),): 0})
    sessions.append("b")
    dropped[0] = 3
    assert value(metrics, "sessions") == 2
    assert value(metrics, "audit_dropped_total") == 3
    assert value(metrics, "up", server="b") == 0
    assert "# TYPE toolkeep_gateway_audit_dropped_total counter" in metrics.render()


def test_a_source_that_fails_leaves_the_others(caplog: pytest.LogCaptureFixture) -> None:
    metrics = Metrics()
    metrics.gauge("broken", "x", lambda: 1 / 0)
    metrics.gauge("wrong", "x", lambda: "much")  # pyright: ignore[reportArgumentType]
    metrics.gauge("fine", "x", lambda: 1)
    assert value(metrics, "fine") == 1
    assert "ZeroDivisionError" in caplog.text
    assert "broken" not in metrics.render()


def test_a_name_is_given_once() -> None:
    metrics = Metrics()
    metrics.gauge("sessions", "x", lambda: 1)
    with pytest.raises(ValueError, match="already"):
        metrics.counter("sessions", "x", lambda: 1)


@pytest.mark.requirement("F5")
def test_the_number_of_tools_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_TOOLS", 10)
    metrics = Metrics()
    for number in range(1000):
        metrics.observe_call("files", f"made-up-{number}", "did not run", 0.01)
    metrics.observe_call("files", "made-up-3", "ran", 0.01)
    other = {"server": "_other", "tool": "_other"}
    assert value(metrics, "calls_total", **other, outcome="did not run") == 990
    assert value(metrics, "calls_total", server="files", tool="made-up-3", outcome="ran") == 1
    assert len(metrics.render().splitlines()) < 11 * (len(BUCKETS) + 5) + 10


@pytest.mark.requirement("F5")
def test_the_lines_of_a_source_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_SERIES", 5)
    metrics = Metrics()
    metrics.gauge("by", "x", lambda: {(("n", str(number)),): number for number in range(100)})
    assert len(parsed(metrics.render())) == 5


@pytest.mark.parametrize("name", ['a"b', "a\\b", "a\nb", "a\ud800", "\x00", "ä" * 500, ""])
def test_foreign_names_cannot_break_the_page(name: str) -> None:
    metrics = Metrics()
    metrics.observe_call("files", name, "ran", 0.01)
    page = metrics.render()
    assert parsed(page)
    assert page.encode()
    assert len(page) < 20_000


def test_numbers_are_written_as_prometheus_reads_them() -> None:
    metrics = Metrics()
    for name, number in (("a", math.inf), ("b", -math.inf), ("c", 1e300), ("d", 12345678901)):
        metrics.gauge(name, "x", lambda number=number: number)
        assert value(metrics, name) == number
    metrics.gauge("e", "x", lambda: math.nan)
    assert "toolkeep_gateway_e NaN" in metrics.render()
