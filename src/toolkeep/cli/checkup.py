"""One run of `toolkeep check`: which servers, one after the other, and how it is told.

On a terminal each step is shown while it is taken. Elsewhere each is a line once it is over. The
doctor itself is `toolkeep._doctor`; nothing is judged here.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING

from toolkeep._doctor import Finding, State, examine, finding_of, waiting
from toolkeep.cli.asking import can_ask
from toolkeep.cli.ending import DONE, FAILED, Misused
from toolkeep.cli.place import (
    NOTHING,
    Place,
    approved,
    configuration,
    headers_of,
    names_of,
    quiet,
    source_of,
    unknown_server,
)
from toolkeep.cli.screen import Screen
from toolkeep.cli.sight import Sight
from toolkeep.config.loading import problems
from toolkeep.errors import ConfigError

if TYPE_CHECKING:
    from toolkeep.config import Configuration, ServerSpec


class _Silent(Screen):
    """What a configuration's loading has to note is among the findings."""

    def note(self, text: str) -> None: ...


class Checkup:
    def __init__(
        self,
        place: Place,
        screen: Screen,
        names: Sequence[str],
        timeout: float | None,
        trace: bool,
    ) -> None:
        self._place, self._screen, self._names = place, screen, names
        self._timeout, self._trace = timeout, trace
        self._found: list[Finding] = []
        self._sight = Sight(screen)

    async def carry_out(self) -> int:
        quiet()
        try:
            found = await self._configuration()
        except ConfigError as error:
            self._tell(*map(finding_of, problems(source_of(self._place)) or (error,)))
        else:
            await self._examine(found)
        self._sight.sum_up(self._found)
        self._screen.give([finding.as_dict() for finding in self._found])
        return FAILED if any(one.state is State.FAILED for one in self._found) else DONE

    async def _configuration(self) -> Configuration:
        found = configuration(self._place, _Silent(json=True))
        return await approved(found, self._screen) if can_ask() else found

    async def _examine(self, found: Configuration) -> None:
        if not names_of(found):
            raise Misused(NOTHING)
        wanted = self._with_headers(self._wanted(found))
        beside = [one for one in waiting(found) if not self._names or one.server in self._names]
        opened = [spec.name for spec in wanted]
        self._tell(*(one for one in beside if one.server not in opened))
        for spec in wanted:
            self._tell(*(one for one in beside if one.server == spec.name))
            await self._look_at(spec, found)

    def _wanted(self, found: Configuration) -> list[ServerSpec]:
        known = names_of(found)
        for name in self._names:
            if name not in known:
                raise unknown_server(name, known)
        return [spec for spec in found.servers if not self._names or spec.name in self._names]

    def _with_headers(self, specs: list[ServerSpec]) -> list[ServerSpec]:
        """A header may be a credential: it goes to one server, or nowhere."""
        given = headers_of(self._place.headers)
        if not given:
            return specs
        if len(specs) != 1 or not specs[0].url:
            raise Misused("--header is for one server over HTTP: say which, with its name or --url")
        return [specs[0].model_copy(update={"headers": {**specs[0].headers, **given}})]

    async def _look_at(self, spec: ServerSpec, found: Configuration) -> None:
        findings = examine(
            spec,
            origins=found.origins.get(spec.name),
            timeout=self._timeout,
            tap=self._sight.trace if self._trace else None,
            on_step=self._sight.begin,
        )
        with self._sight.looking(spec.name):
            async with aclosing(findings):
                async for finding in findings:
                    self._tell(finding)

    def _tell(self, *findings: Finding) -> None:
        for finding in findings:
            self._found.append(finding)
            self._sight.show(finding)
