"""`Recorder`: what happened in one runtime lately, for the viewers of its console.

Observes the runtime only while a viewer is there, and a while longer; otherwise the runtime pays
nothing. Everything is kept in bounded rings. Each change gets a version from one counter, so that a
viewer needs a number to go on where it was: a slow one skips states in between, and is told how
many calls it will never see. It decides nothing, calls no tool, and changes nothing in the runtime.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import OrderedDict, deque
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import Context
from dataclasses import dataclass, field
from functools import partial
from time import time
from typing import TYPE_CHECKING, Any

from toolkeep._catalogue.catalogue import Catalogue, compare_catalogues
from toolkeep.console.calls import MAX_NAME, MAX_REASON, CallRecord
from toolkeep.console.values import MAX_HEAD, Kept, Redact, cut_redacted, cut_text, mask
from toolkeep.console.views import KINDS, Item, definition_json, server_json
from toolkeep.console.wire import STREAMED_BODY, Wire
from toolkeep.events import (
    CallEvent,
    CatalogueChanged,
    CatalogueChanges,
    Event,
    InputNeeded,
    Reloaded,
)
from toolkeep.telemetry.logs import server_text

if TYPE_CHECKING:
    from toolkeep._client.observers import Observation
    from toolkeep.runtime import Runtime

logger = logging.getLogger("toolkeep.console")

MAX_CALLS = 1000
MAX_VALUES = 32 * 1024 * 1024
"""Characters of arguments, results and log lines that are kept of all calls."""
MAX_QUESTIONS = 100
MAX_NOTES = 500
MAX_CHANGES, MAX_CHANGES_AT_ONCE = 200, 100
"""Changes of the catalogue that are kept, and of one event."""
MAX_TICKS = 300
MAX_STREAMED = 50
"""Exchanges of the wire in one batch."""
TICK = 1.0
"""Seconds between two looks at the servers."""
LINGER = 30.0
"""Seconds for which recording goes on after the last viewer has left: it may come back."""


@dataclass(slots=True)
class Change:
    """One change of the catalogue."""

    server: str
    facts: dict[str, Any]
    before: Kept | None
    after: Kept | None

    def as_dict(self, redact: Redact, *, whole: bool = False) -> dict[str, Any]:
        facts = {**self.facts, "server": self.server, "name": redact(self.facts["name"])}
        kept = {"before": self.before, "after": self.after} if whole else {}
        return facts | {name: one and one.shown(redact) for name, one in kept.items()}


@dataclass(slots=True)
class Batch:
    """What a viewer does not know yet."""

    version: int
    gap: dict[str, Any] | None
    """Calls that the viewer will never see: how many, if that is known, and why."""
    data: dict[str, Any] = field(default_factory=dict[str, Any])
    is_complete: bool = True
    """Whether there was room for all of it."""


class Recorder:
    """Records one runtime, from its first viewer until the runtime closes. One for each opening of
    a runtime: `runtime.component(Recorder)`."""

    def __init__(self) -> None:
        self.instance = secrets.token_hex(8)
        """Differs after a restart of the process or the runtime."""
        self.version = 0
        self.since: float | None = None
        """Since when calls are recorded; None: they are not."""
        self.is_closed = False
        self.console_calls: dict[asyncio.Task[Any], str] = {}
        """The ids of running calls that were made in the console; empty until they begin."""
        self.calls: OrderedDict[str, CallRecord] = OrderedDict()
        """By id, in the order of their last change."""
        self.changes: deque[Change] = deque(maxlen=MAX_CHANGES)
        self.ticks: deque[dict[str, Any]] = deque(maxlen=MAX_TICKS)
        self.wire = Wire(self.next_version)
        self._questions: dict[str, InputNeeded] = {}
        """By an id; as long as an answer counts."""
        self._questions_version = self._tracing_version = 0
        self._servers_version = self._tick_version = self._revision_version = 0
        self._servers: list[dict[str, Any]] = []
        self._notes: deque[tuple[int, dict[str, Any]]] = deque(maxlen=MAX_NOTES)
        self._evicted: deque[int] = deque(maxlen=10 * MAX_CALLS)
        self._value_size = 0
        self._resumed_at = 0
        """The version at which recording began again."""
        self._numbers = 0
        self._catalogue: Catalogue | None = None
        self._last_seen = 0.0
        self._runtime: Runtime | None = None
        self._observation: Observation | None = None
        self._viewers = 0
        self._ticker: asyncio.Task[None] | None = None
        self._stopping: asyncio.TimerHandle | None = None
        self._changed = asyncio.Event()

    def __repr__(self) -> str:
        return f"<Recorder, {len(self.calls)} calls, {self._viewers} viewers>"

    def next_version(self) -> int:
        self.version += 1
        self._changed.set()
        return self.version

    # -- viewers --------------------------------------------------------------------------------

    @contextmanager
    def viewing(self, runtime: Runtime) -> Generator[None]:
        """Record while the block runs, and for `LINGER` seconds after the last one."""
        if self._stopping is not None:
            self._stopping.cancel()
            self._stopping = None
        self._viewers += 1
        try:
            self._start(runtime)
            yield
        finally:
            self._viewers -= 1
            if not self._viewers and not self.is_closed:
                loop = asyncio.get_running_loop()
                self._stopping = loop.call_later(LINGER, self.stop)

    def _start(self, runtime: Runtime) -> None:
        if self._observation is not None or self.is_closed:
            return
        self._runtime, self.since = runtime, time()
        self._resumed_at = self.next_version()
        if self._catalogue is not None:
            missed = compare_catalogues(self._catalogue, runtime.catalogue)
            self._add_changes(missed, runtime.catalogue, since=self._last_seen)
        self._catalogue = runtime.catalogue
        self._observation = runtime.observe(self)
        self._look()
        self._ticker = asyncio.get_running_loop().create_task(self._tick(), context=Context())

    def stop(self) -> None:
        """End the recording. What was recorded stays, without the calls that still run."""
        self._stopping, observation, self._observation = None, self._observation, None
        if observation is None:
            return
        observation.close()
        assert self._runtime is not None
        for server in tuple(self.wire.servers):
            self.trace(server, on=False)
        self.since, self._last_seen = None, time()
        if self._ticker is not None:
            self._ticker.cancel()
        for record in [each for each in self.calls.values() if each.ended is None]:
            self._drop(record)
        self._questions.clear()
        self._runtime = None

    async def aclose(self) -> None:
        """End with the runtime: the viewers are told."""
        self.is_closed = True
        tasks = [*self.console_calls, *((self._ticker,) if self._ticker else ())]
        if self._stopping is not None:
            self._stopping.cancel()
        if self._runtime is not None:
            self.stop()
        for task in tasks:
            task.cancel()
        self._changed.set()
        if tasks:
            await asyncio.wait(tasks)

    async def wait_changed(self, version: int, timeout: float) -> None:
        """Return once there is something after this version, or the time has passed."""
        try:
            async with asyncio.timeout(timeout):
                while self.version <= version and not self.is_closed:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            return

    # -- what a viewer gets ---------------------------------------------------------------------

    def batch(self, after: int, *, values: bool, first: bool = False, most: int = 250) -> Batch:
        """What has changed since version `after`; 0: everything that is kept. `first`: the viewer
        comes, perhaps again."""
        batch = Batch(self.version, self._gap(after, first=first))
        calls = self._calls_since(after)
        if len(calls) > most:
            calls, batch.is_complete = calls[:most], False
            batch.version = calls[-1].version
        data: dict[str, Any] = {}
        if calls:
            data["calls"] = [call.as_dict(values=values) for call in calls]
        batch.data = data
        if self._servers_version > after:
            data["servers"] = self._servers
        if self._tick_version > after and self.ticks:
            data["tick"] = self.ticks[-1]
        if self._questions_version > after:
            data["questions"] = self.questions(values=values)
        if self._tracing_version > after:
            data["tracing"] = sorted(self.wire.servers)
        if self._revision_version > after and self._catalogue is not None:
            data["revision"] = self._catalogue.revision
        if notes := [note for version, note in self._notes if version > after]:
            data["notes"] = notes
        if exchanges := self.wire.changed_since(after):
            if len(exchanges) > MAX_STREAMED:
                exchanges, batch.is_complete = exchanges[:MAX_STREAMED], False
                batch.version = min(batch.version, exchanges[-1].version)
            data["wire"] = [each.as_dict(limit=STREAMED_BODY, values=values) for each in exchanges]
        return batch

    def _calls_since(self, after: int) -> list[CallRecord]:
        found: list[CallRecord] = []
        for record in reversed(self.calls.values()):
            if record.version <= after:
                break
            found.append(record)
        return found[::-1]

    def _gap(self, after: int, *, first: bool) -> dict[str, Any] | None:
        if first and not after:
            return None
        if first and after < self._resumed_at:
            return {"missed": None, "reason": "away"}
        missed = 0
        for version in reversed(self._evicted):
            if version <= after:
                break
            missed += 1
        return {"missed": missed, "reason": "slow"} if missed else None

    def questions(self, *, values: bool) -> list[dict[str, Any]]:
        """The questions that wait for an answer."""
        waiting = ((number, event) for number, event in self._questions.items() if event.is_open)
        return [
            question_json(number, event, self._redact(event.server), values=values)
            for number, event in waiting
        ]

    def question(self, number: str) -> InputNeeded | None:
        return self._questions.get(number)

    def trace(self, server: str, *, on: bool) -> None:
        """Begin or end the trace of a server. Raises `UnknownServer`."""
        if self._runtime is not None:
            (self.wire.begin if on else self.wire.end)(self._runtime, server)
            self._tracing_version = self.next_version()

    # -- recording ------------------------------------------------------------------------------

    def __call__(self, event: Event) -> None:
        """The observer."""
        match event:
            case InputNeeded():
                self._add_question(event)
                if event.call_id:
                    self._add_call_event(event)
            case CallEvent():
                self._add_call_event(event)
            case CatalogueChanged():
                self._on_catalogue_changed(event)
                self._add_note(event)
            case Reloaded():
                for server in set(event.changed) & self.wire.servers:
                    self.trace(server, on=True)
                self._add_note(event)
            case _:
                self._add_note(event)

    def _add_call_event(self, event: CallEvent) -> None:
        record = self.calls.get(event.call_id)
        if record is None:
            record = self.calls[event.call_id] = CallRecord.of(event, self._redact(event.server))
        before = record.size
        record.add(event, self._redact(event.server))
        record.console = record.console or event.call_id in self.console_calls.values()
        record.version = self.next_version()
        self.calls.move_to_end(event.call_id)
        self._value_size += record.size - before
        while len(self.calls) > MAX_CALLS or self._value_size > MAX_VALUES:
            self._evict()

    def _redact(self, server: str) -> Redact:
        assert self._runtime is not None
        return partial(self._runtime.redact, server)

    def mark_console(self, task: asyncio.Task[Any], call_id: str) -> None:
        """This call was made in the console."""
        self.console_calls[task] = call_id
        if record := self.calls.get(call_id):
            record.console, record.version = True, self.next_version()
            self.calls.move_to_end(call_id)

    def _evict(self) -> None:
        """Drop the call whose last change is the oldest; one that has ended, if there is one."""
        ended = (each for each in self.calls.values() if each.ended is not None)
        record = next(ended, None) or next(iter(self.calls.values()))
        self._evicted.append(record.version)
        self._drop(record)

    def _drop(self, record: CallRecord) -> None:
        del self.calls[record.id]
        self._value_size -= record.size

    def _add_question(self, event: InputNeeded) -> None:
        if not event.is_open or len(self._questions) >= MAX_QUESTIONS:
            return
        self._questions[secrets.token_hex(8)] = event
        self._questions_version = self.next_version()

    def prune_questions(self) -> None:
        """Drop the questions that were answered, or whose call is over."""
        waiting = {number: event for number, event in self._questions.items() if event.is_open}
        if len(waiting) < len(self._questions):
            self._questions, self._questions_version = waiting, self.next_version()

    def _add_note(self, event: Event) -> None:
        self._numbers += 1
        text = cut_text(self._redact(event.server)(server_text(event)), MAX_REASON)
        note = {"id": self._numbers, "at": event.at, "server": event.server, "kind": event.kind}
        self._notes.append((self.next_version(), {**note, "text": text}))

    # -- the catalogue --------------------------------------------------------------------------

    def _on_catalogue_changed(self, event: CatalogueChanged) -> None:
        if self._runtime is None:
            return
        self._add_changes(event.changes, self._runtime.catalogue, server=event.server)
        self._catalogue = self._runtime.catalogue
        self._revision_version = self.next_version()

    def _add_changes(
        self,
        changes: CatalogueChanges,
        new: Catalogue,
        *,
        server: str = "",
        since: float | None = None,
    ) -> None:
        left = MAX_CHANGES_AT_ONCE
        for kind in KINDS:
            if names := getattr(changes, kind):
                before = by_name(self._catalogue, kind)
                after = by_name(new, kind)
                for change in ("added", "removed", "changed"):
                    for name in getattr(names, change)[:left]:
                        old, now = before.get(name), after.get(name)
                        self._numbers += 1
                        of = server or getattr(now or old, "server", "")
                        facts = {"id": self._numbers, "at": time(), "since": since, "kind": kind}
                        facts |= {"change": change, "name": name, "revision": new.revision}
                        self.changes.append(Change(of, facts, self._keep(old), self._keep(now)))
                        left -= 1

    def _keep(self, item: Item | None) -> Kept | None:
        if item is None:
            return None
        return Kept(cut_redacted(definition_json(item), self._redact(item.server), MAX_HEAD)[0])

    def changed_at(self) -> dict[tuple[str, str], float]:
        """When an item of the catalogue was last seen to change, by kind and name."""
        facts = (change.facts for change in self.changes)
        return {(each["kind"], each["name"]): each["at"] for each in facts}

    # -- servers --------------------------------------------------------------------------------

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK)
            try:
                self.prune_questions()
                self._look()
            except Exception:
                logger.exception("the console could not look at the servers")

    def _look(self) -> None:
        """Look at the servers, and count the last second."""
        if self._runtime is None:
            return
        before = {each["name"]: each for each in self._servers}
        traced = self.wire.servers
        servers = [
            server_json(one, self._redact(one.name), traced=one.name in traced)
            for one in self._runtime.servers
        ]
        if servers == self._servers:
            if self.ticks and not self.ticks[-1]["servers"]:
                return  # nothing happens: no tick either
        else:
            self._servers, self._servers_version = servers, self.next_version()
        counts = {
            each["name"]: activity(before[each["name"]], each)
            for each in servers
            if each["name"] in before
        }
        active = {name: count for name, count in counts.items() if any(count.values())}
        self.ticks.append({"at": time(), "servers": active})
        self._tick_version = self.next_version()


def question_json(
    number: str, event: InputNeeded, redact: Redact, *, values: bool
) -> dict[str, Any]:
    params, _ = cut_redacted(event.params, redact, MAX_HEAD)
    return {
        "id": number,
        "server": event.server,
        "tool": cut_text(redact(event.tool), MAX_NAME),
        "call": event.call_id,
        "principal": event.context.principal if event.context else None,
        "method": event.method,
        "params": params if values else mask(params),
        "at": event.at,
        "answer_required": event.answer_required,
    }


def activity(before: dict[str, Any], now: dict[str, Any]) -> dict[str, int]:
    """The calls and errors between two looks at a server."""

    def more(*names: str) -> int:
        return max(sum(now[name] - before[name] for name in names), 0)

    errors = more("failed", "tool_errors")
    return {"calls": more("calls"), "errors": errors, "in_flight": now["in_flight"]}


def by_name(catalogue: Catalogue | None, kind: str) -> dict[str, Item]:
    return {one.name: one for one in getattr(catalogue, kind)} if catalogue else {}
