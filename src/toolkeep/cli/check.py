"""`check`: find out what is wrong with a server, step by step.

The diagnosis is `toolkeep._doctor`; this module chooses the servers and shows the findings. On a
terminal the step under way is shown, too.
"""

from __future__ import annotations

import re
import time
from collections.abc import Generator, Sequence
from contextlib import aclosing, contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from toolkeep.cli.completion import complete_server
from toolkeep.cli.errors import FAILED, OK, UsageError
from toolkeep.cli.output import COLUMN_GAP, Output, escape, first_line
from toolkeep.cli.prompt import can_prompt
from toolkeep.cli.source import (
    NO_SERVERS,
    ServerSource,
    add_headers,
    request_approvals,
    select_servers,
    server_names,
    silence_logging,
)
from toolkeep.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.status import Status

    from toolkeep._doctor import Finding, Step
    from toolkeep._transport.trace import TraceEvent
    from toolkeep.config import Configuration, ServerSpec

STATE_WORDS = {"ok": "ok", "warning": "warn", "failed": "FAIL", "skipped": "-"}
STATE_SIGNS = {"ok": "✓", "warning": "!", "failed": "✗", "skipped": "–"}
STATE_STYLES = {"ok": "green", "warning": "yellow", "failed": "red", "skipped": "dim"}
ACRONYMS = ("dns", "tcp", "tls", "http")
STEP_WIDTH, TIME_WIDTH = 13, 8
MAX_BODY = 1600
"""Characters of a message that `--trace` shows."""


def parse_duration(text: str) -> float:
    """`10`, `10s`, `5m`, `1h`: seconds."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(s|m|h)?", text.strip())
    seconds = float(found[1]) * {"m": 60, "h": 3600}.get(found[2], 1) if found else 0
    if not seconds:
        raise typer.BadParameter(f"{text!r} is not a duration: write 10s, 5m or 1h")
    return seconds


async def check(
    output: Output,
    source: ServerSource,
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="SERVER",
            help="Only these servers. Default: all that are configured.",
            autocompletion=complete_server,
            show_default=False,
        ),
    ] = None,
    timeout: Annotated[
        float | None,
        typer.Option(
            "--timeout",
            metavar="SECONDS",
            min=0.001,
            help="The time limit of each step. Default: 10, and 60 for what a program does.",
            show_default=False,
        ),
    ] = None,
    watch: Annotated[
        float | None,
        typer.Option(
            "--for",
            metavar="DURATION",
            parser=parse_duration,
            help="After the check, watch each connection for this long, such as 10s or 5m.",
            show_default=False,
        ),
    ] = None,
    trace: Annotated[
        bool, typer.Option("--trace", help="Show every request and response, without secrets.")
    ] = False,
) -> int:
    """Find out what is wrong with a server, and what to do about it.

    Goes step by step, from the configuration to a ping. A step that fails is shown with its cause
    and its remedy.
    """
    from toolkeep._doctor import configuration_failure
    from toolkeep.config.loader import find_errors

    silence_logging()
    report = Report(output)
    try:
        configuration = source.load()  # without notes: its warnings become findings
    except ConfigError as error:
        report.add(*map(configuration_failure, find_errors(source.to_load()) or (error,)))
    else:
        if can_prompt():
            configuration = await request_approvals(configuration, output)
        if not server_names(configuration):
            raise UsageError(NO_SERVERS)
        selected = select_servers(configuration, names or None).servers
        specs = add_headers(selected, source.headers)
        report.add(*_findings_beside(configuration, specs, names))
        for spec in specs:
            await _check_server(report, spec, configuration, timeout, watch, trace=trace)
    report.print_summary()
    output.print_json([finding.as_dict() for finding in report.findings])
    return FAILED if report.failures else OK


def _findings_beside(
    configuration: Configuration, specs: Sequence[ServerSpec], names: Sequence[str] | None
) -> list[Finding]:
    """What the configuration says of servers that are not checked: disabled, not approved."""
    from toolkeep._doctor import configuration_findings

    checked = {spec.name for spec in specs}
    wanted = (
        one for one in configuration_findings(configuration) if not names or one.server in names
    )
    return [one for one in wanted if one.server not in checked]


async def _check_server(
    report: Report,
    spec: ServerSpec,
    configuration: Configuration,
    timeout: float | None,
    watch: float | None,
    *,
    trace: bool,
) -> None:
    from toolkeep._doctor import configuration_findings, examine

    report.add(*(one for one in configuration_findings(configuration) if one.server == spec.name))
    findings = examine(
        spec,
        origins=configuration.origins.get(spec.name),
        timeout=timeout,
        watch=watch,
        tap=report.print_trace if trace else None,
        on_step=report.show_step,
    )
    with report.checking(spec.name):
        async with aclosing(findings):
            async for finding in findings:
                report.add(finding)


class Report:
    """The findings of one run; printed as they are added, and the trace between them."""

    def __init__(self, output: Output) -> None:
        self.findings: list[Finding] = []
        self._output = output
        self._status: Status | None = None
        self._began = time.monotonic()
        self._server = ""

    @contextmanager
    def checking(self, server: str) -> Generator[None]:
        """While one server is checked, a terminal shows the step under way."""
        self._began = time.monotonic()
        if self._output.json or not self._output.is_terminal:
            yield
            return
        with self._output.console.status(server) as self._status:
            yield
        self._status = None

    def show_step(self, server: str, step: Step) -> None:
        if self._status is not None:
            self._status.update(f"{_step_name(step)} …")

    @property
    def failures(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.state.value == "failed"]

    def add(self, *findings: Finding) -> None:
        for finding in findings:
            self.findings.append(finding)
            self._print_finding(finding)

    def _print_finding(self, finding: Finding) -> None:
        if self._output.json:
            return
        if finding.server != self._server:
            if self._server:
                self._print("")
            self._server = finding.server
            self._print(finding.server, style="bold")
        self._output.print(self._finding_line(finding))
        for label, text in (("cause", finding.cause), ("remedy", finding.remedy)):
            if text:
                self._output.print(_labelled(label, text))

    def _finding_line(self, finding: Finding) -> RenderableType:
        from rich.table import Table
        from rich.text import Text

        signs = STATE_SIGNS if self._output.is_terminal else STATE_WORDS
        style = STATE_STYLES[finding.state.value]
        # A sign alone is coloured; a failure and a skipped step are coloured as a whole.
        rest = style if style in ("red", "dim") else ""
        fault = f"[{finding.fault}]" if finding.fault else ""
        line = Table.grid(padding=(0, COLUMN_GAP, 0, 0))
        line.add_column(width=0)
        line.add_column(width=max(map(len, signs.values())))
        line.add_column(width=STEP_WIDTH)
        line.add_column(width=TIME_WIDTH, justify="right")
        line.add_column(overflow="fold")
        line.add_row(
            "",
            Text(signs[finding.state.value], style=style),
            Text(_step_name(finding.step), style=rest),
            Text(_duration(finding.seconds), style=rest),
            Text(f"{first_line(finding.seen)} {fault}".strip(), style=rest),
        )
        return line

    def print_summary(self) -> None:
        failures = self.failures
        servers = {finding.server for finding in self.findings}
        warnings = sum(finding.state.value == "warning" for finding in self.findings)
        if failures:
            failed = len({finding.server for finding in failures})
            first = f"{failures[0].server}, at {_step_name(failures[0].step)}"
            text = f"{failed} of {len(servers)} failed; first {first}"
        else:
            text = "all is well" if len(servers) == 1 else f"all {len(servers)} are well"
        if warnings:
            text += f"; {warnings} warning{'s' if warnings != 1 else ''}"
        self._print("")
        self._print(text, style="red" if failures else "green")

    def print_trace(self, passing: TraceEvent) -> None:
        """Print one message or event of the wire, with the seconds since the first step."""
        at = f"{passing.at - self._began:8.3f}"
        mark, lines = _trace_lines(passing)
        for line in lines or [passing.kind.value]:
            text = escape(f"{at} {mark} {line}")
            if self._output.json:
                self._output.note(text)
            else:
                self._print(text, style="dim")

    def _print(self, text: str, *, style: str = "") -> None:
        """Through rich on a terminal, even a blank line: it moves the status line below."""
        if self._output.is_terminal:
            from rich.text import Text

            self._output.print(Text(escape(text), style=style, overflow="fold"))
        else:
            self._output.print(text)


def _labelled(label: str, text: str) -> RenderableType:
    """`cause: …`, indented, with further lines below the text."""
    from rich.table import Table
    from rich.text import Text

    line = Table.grid(padding=(0, 1, 0, 0))
    line.add_column(width=9)
    line.add_column(no_wrap=True)
    line.add_column(overflow="fold")
    line.add_row("", f"{label}:", Text(first_line(text)))
    return line


def _step_name(step: Step) -> str:
    return step.value.upper() if step.value in ACRONYMS else step.value


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return ""
    return f"{seconds:.1f} s" if seconds >= 1 else f"{seconds * 1000:.0f} ms"


def _trace_lines(passing: TraceEvent) -> tuple[str, list[str]]:
    """The mark for the direction, and what was sent, received or happened."""
    from toolkeep._transport.trace import TraceKind

    mark, text = "*", passing.text
    match passing.kind:
        case TraceKind.REQUEST | TraceKind.SENT:
            mark = ">"
        case TraceKind.RESPONSE | TraceKind.BODY | TraceKind.RECEIVED:
            mark = "<"
        case TraceKind.STRAY_OUTPUT:
            mark, text = "<", "not a message:"
        case TraceKind.ABANDONED:
            text = "cancelled"
        case TraceKind.OPENED:
            text = "the program runs"
        case _:
            pass
    number = f"#{passing.request_number} " if passing.request_number else ""
    head = f"{number}{text}".strip()
    lines = [head] if head and passing.kind is not TraceKind.BODY else []
    lines += [f"{name}: {value}" for name, value in passing.headers.items()]
    body = passing.body
    if len(body) > MAX_BODY:
        body = f"{body[:MAX_BODY]}… ({len(body) - MAX_BODY} more characters)"
    return mark, [*lines, *body.splitlines()]
