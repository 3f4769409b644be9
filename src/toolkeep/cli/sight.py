"""How findings look: a spinner and signs on a terminal, plain lines elsewhere, and the trace."""

from __future__ import annotations

import textwrap
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from toolkeep._doctor import Finding, State, Step
from toolkeep._wire.tap import Move, Passing
from toolkeep.cli.screen import Screen, harmless, one_line

if TYPE_CHECKING:
    from rich.status import Status
    from rich.text import Text

WORDS = {State.OK: "ok", State.WARNING: "warn", State.FAILED: "FAIL", State.SKIPPED: "-"}
SIGNS = {State.OK: "✓", State.WARNING: "!", State.FAILED: "✗", State.SKIPPED: "–"}
STYLES = {State.OK: "green", State.WARNING: "yellow", State.FAILED: "red", State.SKIPPED: "dim"}
NAMES = {Step.DNS: "DNS", Step.TCP: "TCP", Step.TLS: "TLS", Step.HTTP: "HTTP"}

_LONGEST_BODY = 1600
_MARKS = {
    Move.ASKED: ">",
    Move.OUT: ">",
    Move.ANSWERED: "<",
    Move.BODY: "<",
    Move.IN: "<",
    Move.NOISE: "<",
}
_SAID = {
    Move.GIVEN_UP: "given up",
    Move.OPENED: "the program runs",
    Move.NOISE: "no message:",
}


class Sight:
    """One for each run."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._status: Status | None = None
        self._begun = time.monotonic()
        self._server = ""

    # -- findings -------------------------------------------------------------------------------

    @contextmanager
    def looking(self, server: str) -> Generator[None]:
        """While one server is examined."""
        self._begun = time.monotonic()
        if self._screen.json or not self._screen.terminal:
            yield
            return
        with self._screen.console.status(server) as self._status:
            yield
        self._status = None

    def begin(self, server: str, step: Step) -> None:
        if self._status is not None:
            self._status.update(f"{NAMES.get(step, step.value)} …")

    def show(self, finding: Finding) -> None:
        if finding.server != self._server:
            self._say("" if self._server else None)
            self._server = finding.server
            self._say(finding.server, style="bold")
        self._say(self._line(finding), style=STYLES[finding.state], sign_only=True)
        for label, text in (("cause", finding.cause), ("remedy", finding.remedy)):
            if text:
                self._say(self._under(label, text))

    def _line(self, finding: Finding) -> str:
        words = SIGNS if self._screen.terminal else WORDS
        step = NAMES.get(finding.step, finding.step.value)
        took = "" if finding.seconds is None else _duration(finding.seconds)
        fault = f"[{finding.fault}]" if finding.fault else ""
        said = " ".join(part for part in (one_line(finding.seen), fault) if part)
        if not self._screen.terminal:
            return f"  {words[finding.state]:4}  {step:13}  {took:>8}  {said}".rstrip()
        line = f"  {words[finding.state]}  {step:13}  {took:>8}  {said}"
        return _folded(line, self._screen.width, 30).rstrip()

    def _under(self, label: str, text: str) -> str:
        text = " " * 10 + f"{label}: {one_line(text)}"
        return _folded(text, self._screen.width, 12 + len(label))

    def sum_up(self, findings: Sequence[Finding]) -> None:
        servers = list(dict.fromkeys(finding.server for finding in findings))
        failed = {one.server for one in findings if one.state is State.FAILED}
        doubts = sum(one.state is State.WARNING for one in findings)
        self._say("")
        if failed:
            first = next(one for one in findings if one.state is State.FAILED)
            step = NAMES.get(first.step, first.step.value)
            told = f"{len(failed)} of {len(servers)} failed; first {first.server}, at {step}"
        else:
            told = "all is well" if len(servers) == 1 else f"all {len(servers)} are well"
        warned = f"; {doubts} warning{'s' if doubts != 1 else ''}" if doubts else ""
        self._say(f"{told}{warned}", style="red" if failed else "green")

    # -- the trace ------------------------------------------------------------------------------

    def trace(self, passing: Passing) -> None:
        """A `Tap`."""
        at = f"{passing.at - self._begun:8.3f}"
        mark = _MARKS.get(passing.move, "*")
        number = f"#{passing.number} " if passing.number else ""
        text = f"{number}{_SAID.get(passing.move, '')}{passing.text}".strip()
        lines = [text] if text and passing.move is not Move.BODY else []
        lines += [f"{name}: {value}" for name, value in passing.headers.items()]
        lines += _cut(passing.body).splitlines()
        for line in lines or [passing.move.value]:
            self._trace_line(f"{at} {mark} {line}")

    def _trace_line(self, line: str) -> None:
        if self._screen.json:
            self._screen.note(harmless(line))
        else:
            self._say(harmless(line), style="dim")

    # -- one line -------------------------------------------------------------------------------

    def _say(self, text: str | None, *, style: str = "", sign_only: bool = False) -> None:
        if text is None:
            return
        if not self._screen.terminal:
            self._screen.say(text)
            return
        self._screen.say(_styled(harmless(text), style, sign_only=sign_only))


def _folded(text: str, width: int, indent: int) -> str:
    return textwrap.fill(
        text,
        width,
        subsequent_indent=" " * indent,
        drop_whitespace=True,
        break_long_words=False,
        break_on_hyphens=False,
        replace_whitespace=False,
    )


def _styled(text: str, style: str, *, sign_only: bool) -> Text:
    from rich.text import Text

    made = Text(text, style="" if sign_only else style, overflow="fold")
    if sign_only:
        made.stylize(style, 2, len(text) if style in ("red", "dim") else 3)
    return made


def _duration(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 1 else f"{seconds * 1000:.0f} ms"


def _cut(body: str) -> str:
    if len(body) <= _LONGEST_BODY:
        return body
    return f"{body[:_LONGEST_BODY]}… ({len(body) - _LONGEST_BODY} characters more)"
