"""A runtime that lies, about calls that it chose, in every way that the judge must see through."""

import asyncio
import contextlib
import dataclasses
import logging
import socket
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, ClassVar

from chaos.judge import CALM
from chaos.scene import BY_NAME, PRINCIPALS, token
from chaos.schedule import DEADLINE, Schedule, Step
from toolkeep import (
    CallContext,
    CallNotDelivered,
    CallOutcomeUnknown,
    CallResult,
    Runtime,
    ServerUnavailable,
    ToolkeepError,
)
from toolkeep.config import Difference
from toolkeep.errors import Delivery
from toolkeep.events import Completed, Event, Progress, Started

SEED = 11
"""One in whose first calls every lie has its occasion."""
LATE = 3.0
"""Seconds; more than is allowed."""
SCHEDULE = Schedule(SEED)


class Liar(Runtime):
    """The last digit of a call's number says which lie is told of it."""

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self.told: dict[str, set[int]] = defaultdict(set)
        """Lies, with the calls of which they are certainly untrue."""
        self.leaked: list[Any] = []
        self._others: CallResult | None = None
        self._hung = self._shown = False

    async def call(self, name: Any, arguments: Any = None, **how: Any) -> CallResult:
        if arguments["key"].startswith(CALM):
            if name.startswith("modern."):
                raise ServerUnavailable("never again", server="modern")
            return await super().call(name, arguments, **how)
        step: Step = SCHEDULE.step(int(arguments["key"]))
        lie = self._lies.get(step.number % 10)
        if lie is None:
            return await self._resending(step, name, arguments, **how)
        return await lie(self, step, name, arguments, **how)

    # -- lies about calls -----------------------------------------------------------------------

    async def _resending(self, step: Step, name: str, arguments: Any, **how: Any) -> CallResult:
        """Takes an unknown outcome for a reason to send it again."""
        try:
            return await super().call(name, arguments, **how)
        except CallOutcomeUnknown:
            ran = step.fault is not None and "after it ran" in step.fault
            if not ran or step.tool in BY_NAME[step.server].replayed:
                raise
        for _ in range(20):
            with contextlib.suppress(ToolkeepError):
                result = await super().call(name, arguments, **how)
                self.told["resends"].add(step.number)
                return result
            await asyncio.sleep(0.05)
        raise AssertionError("nothing helps")

    async def _denies(self, step: Step, name: str, arguments: Any, **how: Any) -> CallResult:
        await super().call(name, arguments, **how)
        self.told["denies"].add(step.number)
        raise CallNotDelivered(
            "it did not run", server=step.server, tool=step.tool, delivery=Delivery.NOT_SENT
        )

    async def _disguises(self, step: Step, name: str, arguments: Any, **how: Any) -> CallResult:
        """The right principal with another's token."""
        if step.principal:
            other = PRINCIPALS[PRINCIPALS.index(step.principal) - 1]
            headers = {"authorization": token(other, step.rotation)}
            how["context"] = CallContext(principal=step.principal, headers=headers)
        result = await super().call(name, arguments, **how)
        if step.principal and "pipe" not in step.server:
            self.told["disguises"].add(step.number)
        return result

    async def _mixes(self, step: Step, name: str, arguments: Any, **how: Any) -> CallResult:
        """The right token in a session of another's: all in one."""
        if step.principal:
            how["context"] = CallContext(principal="ada", headers=how["context"].headers)
        return await super().call(name, arguments, **how)

    async def _confuses(self, step: Step, name: str, arguments: Any, **how: Any) -> CallResult:
        """Hands out the result of the call before."""
        result = await super().call(name, arguments, **how)
        others, self._others = self._others, result
        if others is None:
            return result
        self.told["confuses"].add(step.number)
        return others

    async def _stays(self, step: Step, name: str, arguments: Any, **how: Any) -> CallResult:
        """Takes the caller's cancellation for a failure."""
        try:
            return await super().call(name, arguments, **how)
        except asyncio.CancelledError:
            self.told["stays"].add(step.number)
            raise CallOutcomeUnknown(
                "cancelled", server=step.server, tool=step.tool, delivery=Delivery.UNKNOWN
            ) from None

    async def _hangs(self, step: Step, name: str, arguments: Any, **how: Any) -> CallResult:
        """One call for ever; the others show what they should not, say what nobody expects, or
        that they were cancelled."""
        if step.cancel_after is not None:
            self.told["pretends"].add(step.number)
            raise asyncio.CancelledError  # which nobody has asked for yet
        if step.timeout < DEADLINE and not self._hung:
            self._hung = True
            self.told["hangs"].add(step.number)
            await asyncio.Event().wait()
        if step.principal:
            self.told["tells"].add(step.number)
            raise CallNotDelivered(
                f"refused: {token(step.principal, step.rotation)}",
                server=step.server,
                tool=step.tool,
                delivery=Delivery.REFUSED,
            )
        self.told["stammers"].add(step.number)
        raise KeyError(name)

    async def _dawdles(self, step: Step, name: str, arguments: Any, **how: Any) -> CallResult:
        """Ends, but long after the deadline of one that has little time."""
        began = time.monotonic()
        result = await super().call(name, arguments, **how)
        if step.cancel_after is None and not self.told["dawdles"]:
            self.told["dawdles"].add(step.number)
            await asyncio.sleep(began + step.timeout + LATE - time.monotonic())
        return result

    async def _misdirects(self, step: Step, name: str, arguments: Any, **how: Any) -> CallResult:
        if step.server != "modern" or step.fault is not None:
            return await super().call(name, arguments, **how)
        result = await super().call(f"pair.{step.tool}", arguments, **how)
        self.told["misdirects"].add(step.number)
        return result

    _lies: ClassVar[Mapping[int, Callable[..., Awaitable[CallResult]]]] = {
        1: _denies,
        2: _disguises,
        3: _mixes,
        4: _confuses,
        5: _stays,
        6: _hangs,
        7: _misdirects,
        8: _dawdles,
    }

    # -- lies about the rest --------------------------------------------------------------------

    async def reload(self, config: object = None) -> Difference:
        """Says that it is done."""
        return Difference(self.configuration)

    async def forget(self, principal: str) -> None:
        raise KeyError("a bug")

    @property
    def servers(self) -> Any:
        return [dataclasses.replace(status, in_flight=1) for status in super().servers]

    def observe(self, observer: Any) -> Any:
        def twice(event: Event) -> None:
            observer(event)
            if isinstance(event, Completed) and event.server == "old":
                observer(event)
            if isinstance(event, Started) and not self._shown:
                self._shown = True
                self._show(observer, event)

        return super().observe(twice)

    def _show(self, observer: Any, event: Started) -> None:
        """A token where few look."""
        shown = f"of {event.tool}, for {token('ada', 1)}"
        about: dict[str, Any] = {
            "server": event.server,
            "tool": event.tool,
            "call_id": event.call_id,
        }
        observer(Progress(progress=1.0, message=f"a step {shown}", **about))
        logging.getLogger("toolkeep.liar").debug("a line %s", shown)

    async def aclose(self) -> None:
        """Leaves a task, a socket and a process behind, once, and an error that nobody catches."""
        await super().aclose()
        if self.leaked:
            return
        asyncio.get_running_loop().call_soon(lambda: 1 / 0)
        forever = [sys.executable, "-c", "import time; time.sleep(600)"]
        self.leaked = [
            asyncio.create_task(asyncio.sleep(600)),
            socket.create_connection(("127.0.0.1", self._port_of("modern"))),
            subprocess.Popen(forever),
        ]

    def _port_of(self, server: str) -> int:
        (spec,) = (spec for spec in self.configuration.servers if spec.name == server)
        return int(spec.url.split(":")[2].partition("/")[0])

    def give_back(self) -> None:
        if not self.leaked:
            return
        task, connection, process = self.leaked
        task.cancel()
        connection.close()
        process.kill()
        process.wait(10)
