"""`watch`: the servers and what happens to them, until Ctrl-C or q.

On a terminal the view is redrawn in place; elsewhere each event is a line. With `--events` the
servers and calls are those of another process, which writes its events to a file:

    runtime.observe(lambda event: print(event.to_json(), file=events, flush=True))

Events are formatted from plain data, as `Event.as_dict` gives it, so that those of a file read the
same. A file may hold anything: nothing in it is trusted, and memory is bounded.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import stat
import sys
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, TypeAlias, cast

import typer

from toolkeep.cli.errors import OK, UsageError, evidence_of
from toolkeep.cli.list import milliseconds, ping_all
from toolkeep.cli.output import Output, first_line, make_table
from toolkeep.cli.source import ServerSource, note_unavailable
from toolkeep.events import Event

if TYPE_CHECKING:
    from rich.console import RenderableType

    from toolkeep import Runtime
    from toolkeep.runtime import ServerStatus

EventData = Mapping[str, Any]
Draw: TypeAlias = "Callable[[RenderableType], None]"

SERVER_HEADERS = ("server", "transport", "era", "version", "latency", "tools", "health")
TOTAL_HEADERS = ("server", "era", "state", "running", "calls", "errors", "outcome unknown")

MAX_EVENTS = 1000
"""Events or lines that are kept until they are shown."""
REDRAW_INTERVAL = 1.0
POLL_INTERVAL = 0.2
"""Seconds between two reads of the file of `--events`."""
MAX_TEXT = 300
"""Characters of a name or a text in a line."""
NAME_WIDTH = 24
"""Columns to which the names of servers are aligned."""
MAX_CALLS, MAX_SERVERS = 1000, 1000
MAX_FILE_BYTES = 16 * 1024 * 1024
"""Bytes before the end of a file at which reading begins, and of the longest line."""
BAR_WIDTH = 24
SHOWN_CALLS = 10


async def watch(
    output: Output,
    source: ServerSource,
    events: Annotated[
        str | None,
        typer.Option(
            "--events",
            metavar="FILE",
            help="Watch another process: read the events that it writes to this file, one "
            "event.to_json() a line. No server is opened.",
            show_default=False,
        ),
    ] = None,
    interval: Annotated[
        float, typer.Option(metavar="SECONDS", min=0.1, help="The time between two health checks.")
    ] = 5.0,
    once: Annotated[bool, typer.Option("--once", help="Show the current state and exit.")] = False,
) -> int:
    """Watch the servers: their health, and what they report.

    Shows lists that change, log messages, lost and new connections; with --events also the calls
    of the process that writes them. With --json each event is a JSON object on its own line. Ctrl-C
    or q ends it, with exit code 0.
    """
    with contextlib.suppress(asyncio.CancelledError):  # Ctrl-C is the usual end
        if events is None:
            await _watch_servers(output, source, interval, once=once)
        elif source != ServerSource():
            raise UsageError("--events opens no server: give it without other sources")
        else:
            await _watch_file(output, events, once=once)
    return OK


# -- servers that are opened here ----------------------------------------------------------------


async def _watch_servers(
    output: Output, source: ServerSource, interval: float, *, once: bool
) -> None:
    from toolkeep.group import Backoff

    options: dict[str, Any] = {
        "listen": not once,
        "health_interval": interval,
        "backoff": Backoff(),
    }
    async with source.open(output, **options) as runtime:
        if once:
            await _print_state(runtime, output)
        elif output.is_terminal and not output.json:
            await _redraw_servers(runtime, output)
        else:
            await _print_events(runtime, output)


async def _statuses(runtime: Runtime) -> list[ServerStatus]:
    """With the latency of a ping, because the first health check is yet to come."""
    latencies = await ping_all(runtime)
    return [replace(one, latency=latencies.get(one.name)) for one in runtime.servers]


async def _print_state(runtime: Runtime, output: Output) -> None:
    statuses = await _statuses(runtime)
    output.print_json({"servers": [_status_as_dict(one) for one in statuses]})
    if not output.json:
        output.print_table(SERVER_HEADERS, [_status_row(one) for one in statuses])
        note_unavailable(runtime, output)
        output.print(runtime.summary())


async def _print_events(runtime: Runtime, output: Output) -> None:
    """Events are printed here, not in the observer: a slow or closed pipe must not reach the
    runtime."""
    buffer, formatter = EventBuffer(), _formatter(runtime)
    with contextlib.closing(runtime.observe(buffer)):
        if not output.json:
            await _print_state(runtime, output)
        for status in await _statuses(runtime) if output.json else ():
            line = {"event": "status", **_status_as_dict(status)}
            output.write(json.dumps(line, ensure_ascii=False) + "\n")
        while True:
            await buffer.wait()
            events, dropped = buffer.take()
            if dropped:
                output.note(f"warning: {dropped} events came too fast, and are not shown")
            for event in events:
                text = event.to_json() if output.json else formatter.line(event_data(event))
                if text is not None:
                    output.write(f"{text}\n")


async def _redraw_servers(runtime: Runtime, output: Output) -> None:
    buffer, formatter = EventBuffer(), _formatter(runtime)
    lines = deque[str](maxlen=MAX_EVENTS)
    with contextlib.closing(runtime.observe(buffer)), full_screen(output) as (draw, quit):
        while not quit.is_set():
            draw(_servers_view(runtime, list(lines), output.console.height))
            await buffer.wait(REDRAW_INTERVAL)
            events, _ = buffer.take()
            lines.extend(filter(None, (formatter.line(event_data(one)) for one in events)))
    output.print(runtime.summary())


def _formatter(runtime: Runtime) -> EventFormatter:
    return EventFormatter(status.name for status in runtime.servers)


def _status_row(status: ServerStatus) -> tuple[str, ...]:
    return (
        status.name,
        status.transport,
        status.era or "",
        status.protocol_version or "",
        milliseconds(status.latency),
        "" if status.error else f"{status.tools}{' (stale)' if status.stale else ''}",
        status.health.value,
    )


def _status_as_dict(status: ServerStatus) -> dict[str, Any]:
    return {
        "name": status.name,
        "transport": status.transport,
        "era": status.era,
        "protocol_version": status.protocol_version,
        "health": status.health.value,
        "latency": status.latency,
        "tools": status.tools,
        "stale": status.stale,
        "error": evidence_of(status.error) or None,
    }


class EventBuffer:
    """An observer that keeps events until they are taken; the oldest are dropped."""

    def __init__(self) -> None:
        self._events: deque[Event] = deque(maxlen=MAX_EVENTS)
        self._dropped = 0
        self._changed = asyncio.Event()

    def __call__(self, event: Event) -> None:
        self._dropped += len(self._events) == MAX_EVENTS
        self._events.append(event)
        self._changed.set()

    async def wait(self, timeout: float | None = None) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._changed.wait()
        self._changed.clear()

    def take(self) -> tuple[list[Event], int]:
        """The events, and how many were dropped."""
        taken, dropped = list(self._events), self._dropped
        self._events.clear()
        self._dropped = 0
        return taken, dropped


# -- a file of events ----------------------------------------------------------------------------


async def _watch_file(output: Output, path: str, *, once: bool) -> None:
    if output.json and not once:
        raise UsageError("--events FILE is JSON already: --json needs --once, and sums it up")
    with contextlib.closing(EventFile(path)) as file:
        totals = EventTotals()
        for event in file.read_new():
            totals.add(event)
        if once or not output.is_terminal:
            output.print_table(TOTAL_HEADERS, totals.rows())
            output.print(totals.summary())
            output.print_json({**totals.as_dict(), "summary": totals.summary()})
        if not once:
            await (_redraw_file if output.is_terminal else _print_file)(file, totals, output)


async def _print_file(file: EventFile, totals: EventTotals, output: Output) -> None:
    formatter = EventFormatter(totals.servers)
    while True:
        for line in filter(None, map(formatter.line, file.read_new())):
            output.write(f"{line}\n")
        await asyncio.sleep(POLL_INTERVAL)


async def _redraw_file(file: EventFile, totals: EventTotals, output: Output) -> None:
    formatter, lines = EventFormatter(totals.servers), deque[str](maxlen=MAX_EVENTS)
    with full_screen(output) as (draw, quit):
        while not quit.is_set():
            for event in file.read_new():
                totals.add(event)
                lines.extend(filter(None, (formatter.line(event),)))
            draw(_totals_view(totals, list(lines), output.console.width, output.console.height))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(quit.wait(), POLL_INTERVAL)
    output.print(totals.summary())


class EventFile:
    """A growing file of events, one a line. Read from near its end; from its beginning after it
    was truncated or replaced. Lines that are not events are skipped."""

    def __init__(self, path: str) -> None:
        self._path, self._partial_line = path, b""
        self._file = self._open()
        size = os.fstat(self._file.fileno()).st_size
        if size > MAX_FILE_BYTES:
            self._file.seek(size - MAX_FILE_BYTES)
            self._file.readline()

    def read_new(self) -> Iterator[EventData]:
        """The events that were added since the last call."""
        if self._was_replaced():
            with contextlib.suppress(UsageError):  # it may be gone for a moment
                replaced = self._open()
                self._file.close()
                self._file, self._partial_line = replaced, b""
        read = self._partial_line + self._file.read(MAX_FILE_BYTES)
        *lines, self._partial_line = read.split(b"\n")
        if len(self._partial_line) > MAX_FILE_BYTES:
            self._partial_line = b""
        for line in lines:
            with contextlib.suppress(ValueError, RecursionError):
                event = _mapping(json.loads(line))
                if "event" in event:
                    yield event

    def close(self) -> None:
        self._file.close()

    def _open(self) -> BinaryIO:
        try:
            # Non-blocking: opening a named pipe would wait for a writer.
            handle = os.open(self._path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
        except OSError as error:
            raise UsageError(f"cannot read --events {self._path}: {error.strerror}") from None
        file = os.fdopen(handle, "rb")
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            file.close()
            raise UsageError(f"cannot read --events {self._path}: it must be a regular file")
        return file

    def _was_replaced(self) -> bool:
        try:
            there, ours = os.stat(self._path), os.fstat(self._file.fileno())
        except OSError:
            return False
        is_shorter = ours.st_size < self._file.tell()
        return is_shorter or (there.st_ino, there.st_dev) != (ours.st_ino, ours.st_dev)


@dataclass
class ServerTotals:
    era: str = ""
    state: str = ""
    calls: int = 0
    errors: int = 0
    unknown: int = 0
    """Errors of calls that may have run."""


@dataclass
class WatchedCall:
    server: str
    tool: str
    since: float
    share: str = ""
    fraction: float | None = None
    message: str = ""


@dataclass
class EventTotals:
    """The servers and calls that events report. Of too many calls the oldest are dropped."""

    servers: dict[str, ServerTotals] = field(default_factory=dict[str, ServerTotals])
    running: dict[str, WatchedCall] = field(default_factory=dict[str, WatchedCall])

    def add(self, event: EventData) -> None:
        name = first_line(str(event.get("server") or ""))
        if not name or (name not in self.servers and len(self.servers) >= MAX_SERVERS):
            return
        server = self.servers.setdefault(name, ServerTotals())
        match event.get("event"):
            case "connected":
                server.era, server.state = first_line(str(event.get("era") or "")), "connected"
            case "disconnected":
                server.state = "closed" if event.get("requested") else "connection lost"
            case "server_lost":
                server.state = "down"
            case "health_changed":
                server.state = first_line(str(event.get("health") or ""))
            case _:
                self._add_call(name, server, event)

    def _add_call(self, name: str, server: ServerTotals, event: EventData) -> None:
        call_id = str(event.get("call_id"))
        match event.get("event"):
            case "started":
                server.calls += 1
                tool = first_line(str(event.get("tool")))
                self.running[call_id] = WatchedCall(name, tool, _number(event.get("at")) or 0.0)
                if len(self.running) > MAX_CALLS:
                    del self.running[next(iter(self.running))]
            case "progress" if call_id in self.running:
                call = self.running[call_id]
                call.share, call.fraction = _share(event), _number(event.get("fraction"))
                call.message = first_line(str(event.get("message") or ""))
            case "completed":
                self.running.pop(call_id, None)
                server.errors += bool(_mapping(event.get("result")).get("isError"))
            case "failed":
                self.running.pop(call_id, None)
                server.errors += 1
                server.unknown += _mapping(event.get("error")).get("delivery") == "unknown"
            case _:
                pass

    def rows(self) -> list[tuple[str, ...]]:
        return [
            (
                name,
                one.era,
                one.state,
                str(self._running_on(name)),
                str(one.calls),
                str(one.errors),
                str(one.unknown),
            )
            for name, one in self.servers.items()
        ]

    def as_dict(self) -> dict[str, Any]:
        servers = [
            {"name": name, "running": self._running_on(name), **vars(one)}
            for name, one in self.servers.items()
        ]
        return {"servers": servers, "running": [vars(one) for one in self.running.values()]}

    def summary(self) -> str:
        servers = self.servers.values()
        calls = f"{sum(one.calls for one in servers)} calls ({len(self.running)} running)"
        errors = f"{sum(one.errors for one in servers)} errors"
        unknown = f"{sum(one.unknown for one in servers)} with unknown outcome"
        return f"{len(servers)} servers, {calls}, {errors}, {unknown}"

    def _running_on(self, server: str) -> int:
        return sum(call.server == server for call in self.running.values())


# -- an event as a line --------------------------------------------------------------------------


def event_data(event: Event) -> EventData:
    """The event as plain data; `why` has the evidence of its error alone."""
    error = getattr(event, "error", None)
    why = {"why": evidence_of(error)} if isinstance(error, BaseException) else {}
    return {**event.as_dict(), **why}


class EventFormatter:
    """Lines for the events of one run. A server that stays down is reported once a reason."""

    def __init__(self, servers: Iterable[str]) -> None:
        self._name_width = min(max(map(len, servers), default=0), NAME_WIDTH)
        self._last: dict[str, str] = {}

    def line(self, event: EventData) -> str | None:
        server = first_line(str(event.get("server", "")))
        text = first_line(describe_event(event))[:MAX_TEXT]
        if event.get("event") == "server_lost" and self._last.get(server) == text:
            return None
        if server in self._last or len(self._last) < MAX_SERVERS:
            self._last[server] = text
        return f"{_clock(event.get('at'))}  {server[:MAX_TEXT]:{self._name_width}}  {text}"


def describe_event(event: EventData) -> str:
    match event.get("event"):
        case "connected":
            return f"connected ({event.get('era')}, {event.get('protocol_version')})"
        case "disconnected":
            return f"connection ended: {event.get('reason')}"
        case "server_added":
            attempt = event.get("attempt")
            return "ready" if attempt in (None, 1) else f"ready, at attempt {attempt}"
        case "server_lost":
            return f"unavailable: {_why(event)}"
        case "server_removed":
            return f"closed: {_why(event)}" if event.get("error") else "closed"
        case "health_changed":
            why = f": {_why(event)}" if event.get("error") else ""
            return f"{event.get('before')}, now {event.get('health')}{why}"
        case "changed":
            return f"reports that its {event.get('what')} changed {event.get('uri') or ''}".rstrip()
        case "catalogue_changed":
            return f"catalogue: {_changes(event)}"
        case "server_notification":
            return _notification(event)
        case _:
            return _describe_call_event(event)


def _describe_call_event(event: EventData) -> str:
    tool, kind = event.get("tool"), event.get("event")
    if tool is None:
        return str(kind)
    match kind:
        case "started":
            return f"{tool}: called"
        case "progress":
            return f"{tool}: {_share(event)} {event.get('message') or ''}".rstrip()
        case "log":
            return f"{tool}: {event.get('level')}: {_text(event.get('data'))}"
        case "retrying":
            failure = _mapping(event.get("failure"))
            return f"{tool}: retried after {failure.get('kind')}, {failure.get('message')}"
        case "completed":
            is_error = _mapping(event.get("result")).get("isError")
            return f"{tool}: {'reported an error' if is_error else 'completed'}"
        case "failed":
            return f"{tool}: failed: {_mapping(event.get('error')).get('message')}"
        case _:
            return f"{tool}: {kind}"


def _changes(event: EventData) -> str:
    if event.get("stale"):
        return "the server is unavailable; its list is stale"
    changes = _mapping(event.get("changes"))
    parts = [
        f"{sign}{name}"
        for kind in ("tools", "prompts", "resources", "templates")
        for sign, key in (("+", "added"), ("-", "removed"), ("~", "changed"))
        for name in _list(_mapping(changes.get(kind)).get(key))
    ]
    return ", ".join(parts) or "unchanged"


def _notification(event: EventData) -> str:
    if event.get("method") != "notifications/message":
        return str(event.get("method"))
    params = _mapping(event.get("params"))
    return f"{params.get('level', 'log')}: {_text(params.get('data', ''))}"


def _share(event: EventData) -> str:
    fraction, progress = event.get("fraction"), event.get("progress")
    if isinstance(fraction, int | float):
        return f"{fraction:.0%}"
    return f"{progress:g}" if isinstance(progress, int | float) else ""


def _why(event: EventData) -> str:
    return str(event.get("why") or _mapping(event.get("error")).get("message") or "")


def _clock(at: object) -> str:
    try:
        return time.strftime("%H:%M:%S", time.localtime(float(cast("float", at))))
    except (TypeError, ValueError, OverflowError, OSError):
        return "--:--:--"


def _text(data: object) -> str:
    return data if isinstance(data, str) else json.dumps(data, ensure_ascii=False, default=str)


def _mapping(found: object) -> EventData:
    return cast("EventData", found) if isinstance(found, Mapping) else {}


def _list(found: object) -> list[Any]:
    return cast("list[Any]", found) if isinstance(found, list) else []


def _number(found: object) -> float | None:
    if not isinstance(found, int | float) or not math.isfinite(found):
        return None
    return float(found)


# -- the view on a terminal ----------------------------------------------------------------------


def _servers_view(runtime: Runtime, lines: Sequence[str], height: int) -> RenderableType:
    from rich.text import Text

    table = make_table(SERVER_HEADERS, [_status_row(one) for one in runtime.servers], cut_last=True)
    errors = [
        Text(f"{one.name}: {evidence_of(one.error)}", "red", no_wrap=True, overflow="ellipsis")
        for one in runtime.servers
        if one.error is not None
    ]
    used = len(runtime.servers) + len(errors) + 4
    return _view([table, *errors], runtime.summary(), lines, height - used)


def _totals_view(
    totals: EventTotals, lines: Sequence[str], width: int, height: int
) -> RenderableType:
    from rich.text import Text

    calls = list(totals.running.values())[-SHOWN_CALLS:]
    upper: list[RenderableType] = [make_table(TOTAL_HEADERS, totals.rows(), cut_last=True)]
    upper += [Text(), _calls_table(calls, width)] if calls else []
    return _view(upper, totals.summary(), lines, height - len(totals.servers) - len(calls) - 6)


def _view(
    upper: Sequence[RenderableType], summary: str, lines: Sequence[str], room: int
) -> RenderableType:
    """The tables, the summary, and as many of the last lines as there is room for."""
    from rich.console import Group
    from rich.text import Text

    latest = lines[-room:] if room > 0 else ()
    return Group(
        *upper,
        Text(),
        Text(f"{summary}  ·  q quits", style="dim"),
        Text(),
        *(Text(line, no_wrap=True, overflow="ellipsis") for line in latest),
    )


def _calls_table(calls: Sequence[WatchedCall], width: int) -> RenderableType:
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0), width=width)
    for ratio, fixed in ((1, None), (None, BAR_WIDTH), (None, 6), (None, 8), (1, None)):
        table.add_column(no_wrap=True, overflow="ellipsis", ratio=ratio, width=fixed)
    for one in calls:
        share = one.fraction
        bar = "" if share is None else ProgressBar(total=1.0, completed=share, width=BAR_WIDTH)
        elapsed = f"{max(time.time() - one.since, 0):.0f} s"
        table.add_row(Text(f"{one.server}.{one.tool}"), bar, one.share, elapsed, Text(one.message))
    return table


@contextlib.contextmanager
def full_screen(output: Output) -> Generator[tuple[Draw, asyncio.Event]]:
    """Take the whole terminal until the end. The event is set when q is pressed."""
    from rich.live import Live

    quit = asyncio.Event()
    with _quit_key(quit.set), Live(console=output.console, screen=True, auto_refresh=False) as live:
        yield lambda what: live.update(what, refresh=True), quit


@contextlib.contextmanager
def _quit_key(pressed: Callable[[], None]) -> Generator[None]:
    """Call this when q is pressed, on terminals that report single keys."""
    if sys.platform == "win32" or not sys.stdin.isatty():
        yield
        return
    import termios
    import tty

    keyboard, loop = sys.stdin.fileno(), asyncio.get_running_loop()
    before = termios.tcgetattr(keyboard)

    def read_keys() -> None:
        if b"q" in os.read(keyboard, 64):
            pressed()

    tty.setcbreak(keyboard)
    loop.add_reader(keyboard, read_keys)
    try:
        yield
    finally:
        loop.remove_reader(keyboard)
        termios.tcsetattr(keyboard, termios.TCSADRAIN, before)
