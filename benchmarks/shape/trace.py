"""What one operation runs in one package: files, lines, functions, classes, changes of package."""

import os
import sys
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any, Self

COMPREHENSIONS = ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>")
"""Frames that are part of a function for the reader, and from Python 3.12 on mostly for Python."""


class Trace:
    """A context manager that records what a package runs in this thread while it is entered.

    All tasks of the event loop count, so connections must be quiet before. Code that has no line
    in a file (what `dataclass` generates) is not seen. Use an instance once.
    """

    def __init__(self, root: Path) -> None:
        self._root = f"{root}{os.sep}"
        self._lines: dict[str, set[int]] = defaultdict(set)
        self._calls: list[tuple[str, str]] = []
        """File and qualified name of each function, in the order in which they began."""
        self._record_line = self._line  # one object, by which a resumed frame is recognized
        self._before: Any = None

    def __enter__(self) -> Self:
        self._before = sys.gettrace()
        sys.settrace(self._call)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._before)

    def _call(self, frame: FrameType, event: str, arg: Any) -> Any:
        code = frame.f_code
        if not code.co_filename.startswith(self._root):
            return None
        # A coroutine that goes on after an await is "called" again, with the tracer it has.
        is_resumed = frame.f_trace is self._record_line
        if not is_resumed and code.co_name not in COMPREHENSIONS:
            self._calls.append((code.co_filename, code.co_qualname))
        return self._record_line

    def _line(self, frame: FrameType, event: str, arg: Any) -> Any:
        if event == "line":
            self._lines[frame.f_code.co_filename].add(frame.f_lineno)
        return self._record_line

    def measures(self) -> dict[str, Any]:
        lines = sum(map(len, self._lines.values()))
        packages = [os.path.dirname(file) for file, _ in self._calls]
        return {
            "files": len(self._lines),
            "lines": lines,
            "lines_per_file": round(lines / max(1, len(self._lines)), 1),
            "functions": len(set(self._calls)),
            "calls": len(self._calls),
            "classes": len({(file, owner(name)) for file, name in self._calls if owner(name)}),
            "package_changes": sum(one != other for one, other in pairwise(packages)),
            "lines_by_file": {
                file.removeprefix(self._root): len(found)
                for file, found in sorted(self._lines.items(), key=lambda item: -len(item[1]))
            },
        }


def owner(qualified_name: str) -> str:
    """The class that a method belongs to; empty for a function."""
    before = qualified_name.rpartition(".")[0]
    return "" if before.endswith("<locals>") else before
