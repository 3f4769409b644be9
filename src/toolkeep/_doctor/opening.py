"""The opening of a real client, watched: it is opened once, and its steps are told apart by what
passes over its wire.

The client is the one that calls use, but for patience: it sends nothing twice.
"""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Callable
from email.utils import parsedate_to_datetime
from time import monotonic, time
from urllib.parse import urljoin

from toolkeep._doctor.case import Case
from toolkeep._doctor.configuration import trouble_of
from toolkeep._doctor.disagreement import disagreement, exited, noisy
from toolkeep._doctor.endpoint import diagnose
from toolkeep._doctor.faults import Fault, Step
from toolkeep._doctor.finding import Doubt, Seen, Trouble
from toolkeep._doctor.record import Record
from toolkeep._engine.client import Client
from toolkeep._engine.core import Core
from toolkeep._engine.inputs import Inputs
from toolkeep._engine.setup import Setup
from toolkeep._wire.tap import Move
from toolkeep.config import ServerSpec, redact_url
from toolkeep.errors import ConfigError, ToolkeepError

_MOST_SKEW = 300.0
"""Seconds between two clocks; tokens and certificates allow for less."""


def client_for(case: Case, record: Record) -> Client:
    spec = _impatient(case)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # told with the configuration
        return Client.of(Core(spec, Setup(tap=record), Inputs(spec.name, case.wait)))


def _impatient(case: Case) -> ServerSpec:
    patience = {"connect": case.wait, "call": case.wait}
    return case.spec.model_copy(
        update={
            "timeouts": case.spec.timeouts.model_copy(update=patience),
            "max_replays": 0,
            "breaker_threshold": 0,
            "listen": False,
        }
    )


class Opening:
    """One for each examination; started by the first step that needs it."""

    def __init__(self, case: Case) -> None:
        self._case, self.record = case, Record(case.tap)
        self.client = client_for(case, self.record)
        self._task: asyncio.Task[None] | None = None
        self._begun = self._ended = 0.0
        """In the clock of the record."""
        self._trouble: Trouble | None = None

    async def aclose(self) -> None:
        await self.client.aclose()
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)

    async def _until(self, ready: Callable[[], bool]) -> ToolkeepError | None:
        """Wait for the end of the opening, or for this; returns why it failed, if it has."""
        if self._task is None:
            self._begun = monotonic()
            self._task = asyncio.ensure_future(self.client.connect())
            self._task.add_done_callback(self._note_end)
        while not (self._task.done() or ready()):
            self.record.news.clear()
            await self.record.news.wait()
        error = self._task.exception() if self._task.done() else None
        if error is not None and not isinstance(error, ToolkeepError):
            raise error
        return error

    def _note_end(self, _: asyncio.Task[None]) -> None:
        self._ended = monotonic()
        self.record.news.set()

    # -- a program ------------------------------------------------------------------------------

    async def started(self) -> Seen:
        """It runs, and has said something or at least not ended."""
        record = self.record
        error = await self._until(lambda: bool(record.of(Move.IN)))
        if isinstance(error, ConfigError):
            raise trouble_of(error, Step.PROCESS)
        if error is not None and error.exit_code is not None and not record.of(Move.IN):
            raise exited(self._case, error, Step.PROCESS)
        began = record.opened.at - self._begun if record.opened else None
        return Seen("it runs", seconds=began)

    # -- HTTP -----------------------------------------------------------------------------------

    async def answered(self) -> Seen:
        """An HTTP answer that can be one of the protocol."""
        error = await self._until(lambda: self.record.welcomed)
        if error is not None:
            self._trouble = await diagnose(self._case, self.record, error)
            if self._trouble is not None and self._trouble.step is Step.HTTP:
                raise self._trouble
        return Seen(self._head(), tuple(self._doubts()), seconds=self._first_answer())

    def _first_answer(self) -> float:
        if self.record.answers:
            return self.record.answers[0].at - self._begun
        last = {one.move: one.at for one in self.record.asides}
        return max(0.0, last[Move.ANSWERED] - last[Move.ASKED])

    def _head(self) -> str:
        if not self.record.answers:
            return "a plain GET is answered"
        last = self.record.answers[-1]
        by = f" from {last.headers['server'][:80]}" if last.headers.get("server") else ""
        return f"HTTP {last.status}{by}"

    def _doubts(self) -> list[Doubt]:
        case, found = self._case, list[Doubt]()
        for answer in self.record.answers:
            if 300 <= (answer.status or 0) < 400:
                target = redact_url(urljoin(case.url, answer.headers.get("location", "")))
                cause = f"HTTP {answer.status}: the server has every request go to {target}"
                found.append(Doubt(Fault.REDIRECT, cause, f"Use it in {case.place('url')}"))
                break
        return found + self._skew()

    def _skew(self) -> list[Doubt]:
        dates = [one.headers["date"] for one in self.record.answers if "date" in one.headers]
        try:
            skew = parsedate_to_datetime(dates[-1]).timestamp() - time()
        except (ValueError, IndexError, OverflowError):
            return []
        if abs(skew) <= _MOST_SKEW:
            return []
        which = "ahead of" if skew > 0 else "behind"
        cause = f"the server's clock is {abs(skew) / 60:.0f} minutes {which} this machine's"
        return [Doubt(Fault.CLOCK, cause, "Set the wrong one right")]

    # -- the handshake --------------------------------------------------------------------------

    async def agreed(self) -> Seen:
        error = await self._until(lambda: False)
        begun = self.record.opened.at if self.record.opened else self._begun
        if error is not None:
            await self.client.aclose()  # after which all that was printed is known
            trouble = self._trouble or disagreement(self._case, self.record, error)
            trouble.seconds = self._ended - begun
            raise trouble
        doubts = noisy(self._case, self.record)
        return Seen(self._agreement(), doubts, seconds=self._ended - begun)

    def _agreement(self) -> str:
        said = self.client.handshake
        about = getattr(said, "server_info", None)  # a modern server need not say who it is
        known = (about.name, about.version) if about is not None else ()
        name = " ".join(one for one in known if one)[:120]
        older = any(one.text.startswith("GET") for one in self.record.of(Move.ASKED))
        way = ", over HTTP+SSE of 2024-11-05" if older else ""
        spoken = f"protocol {self.client.protocol_version} ({self.client.era}){way}"
        return f"{name}, {spoken}" if name else spoken
