"""Reports that wait to be read, within their budget."""

from typing import Any

import pytest

from toolkeep._rules.limits import REPORT_OVERHEAD, ReportBuffer, report_size
from toolkeep.events import Log, Progress, Started

CALL: dict[str, Any] = {"server": "kit", "tool": "t", "call_id": "1"}


def of_length(item: str) -> int | None:
    return None if item == "end" else len(item)


@pytest.mark.requirement("F5")
def test_the_oldest_reports_go_when_too_much_waits():
    unread = ReportBuffer(of_length, max_bytes=10)
    for item in ("end", "aaaa", "bbbb", "cccc", "end"):
        unread.append(item)
    assert unread.dropped == 1
    assert [unread.popleft() for _ in range(4)] == ["end", "bbbb", "cccc", "end"]
    assert not unread


def test_what_is_read_makes_room():
    unread = ReportBuffer(of_length, max_bytes=10)
    for _ in range(100):
        unread.append("aaaaaa")
        assert unread.popleft() == "aaaaaa"
    assert unread.dropped == 0


def test_a_report_that_is_too_large_by_itself_goes_alone():
    unread = ReportBuffer(of_length, max_bytes=10)
    for item in ("end", "a" * 11, "b"):
        unread.append(item)
    assert [unread.popleft(), unread.popleft()] == ["end", "b"]
    assert unread.dropped == 1


def test_progress_and_log_lines_are_reports_and_nothing_else_is():
    assert report_size(Started(**CALL)) is None
    progress = report_size(Progress(progress=1, message="x" * 1000, **CALL))
    assert progress is not None
    assert progress > REPORT_OVERHEAD + 1000
    line = report_size(Log(level="info", data={"a": ["x" * 5000]}, **CALL))
    assert line is not None
    assert line > REPORT_OVERHEAD + 5000
