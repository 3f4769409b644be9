"""A runtime's servers from its opening to its close: read, opened, followed, closed.

Opening and closing take turns. What an opening that fails or is cancelled has opened, it closes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import aclosing
from contextvars import Context
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from toolkeep._catalogue.builtin import builtin
from toolkeep._catalogue.terms import Terms
from toolkeep._engine.group_turns import uninterrupted
from toolkeep._engine.observing import Observation
from toolkeep._engine.setup import Setup
from toolkeep._rules.identity import identify
from toolkeep._rules.membership import summary
from toolkeep._runtime.desk import Desk
from toolkeep._runtime.events import EditRefused
from toolkeep._runtime.finding import new_home
from toolkeep._runtime.roster import Roster
from toolkeep._runtime.status import ServerStatus, status_of
from toolkeep.config import (
    Configuration,
    Difference,
    ServerSpec,
    difference,
    load,
    watch,
)
from toolkeep.config.watching import check_can_watch
from toolkeep.context import CallContext
from toolkeep.errors import ConfigError, ServerUnavailable, ToolkeepError

logger = logging.getLogger("toolkeep.runtime")

_PAUSE = 1.0
"""Seconds before a configuration that could not be watched is watched again."""


@dataclass(frozen=True, slots=True)
class Sources:
    """Where the servers are described."""

    config: object = field(repr=False)
    options: Mapping[str, Any] = field(repr=False)
    """How it is read; see `load`."""
    functions: Iterable[Callable[..., Any]] | None

    async def read(self, config: object = None) -> Configuration:
        source = self.config if config is None else config
        if isinstance(source, Configuration):
            if self.options.get("strict") and source.set_aside:
                raise source.set_aside[0]
            return source
        return await asyncio.to_thread(load, source, **self.options)

    @property
    def builtin(self) -> tuple[ServerSpec, ...]:
        return () if self.functions is None else (builtin(self.functions),)


class House:
    """One for each runtime."""

    def __init__(
        self,
        desk: Desk,
        sources: Sources,
        setup: Setup,
        answers: Mapping[str, Any],
        group: Mapping[str, Any],
        *,
        live: bool,
        follow: bool,
    ) -> None:
        self._desk, self._sources, self._group = desk, sources, group
        self._follows = follow
        self._terms = Terms(setup=setup, answers=answers, live=live, changed=desk.publish)
        self.configuration = Configuration()
        self._roster: Roster | None = None
        self._following: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None
        self._closes = 0
        """How often it was asked to close."""
        self._reloads = self._reloaded = 0
        """How many were asked for by hand, and the last of them that was applied."""
        self._turn = asyncio.Lock()

    @property
    def is_open(self) -> bool:
        """Whether there is anything to close that is not being closed."""
        return self._roster is not None and self._desk.is_open

    # -- opening and closing --------------------------------------------------------------------

    async def open(self) -> None:
        self._be_at_home()
        closes = self._closes
        if self._roster is not None and self._desk.is_open:
            return
        configuration = await self._sources.read()  # may ask a person, and take its time
        async with self._turn:
            if self._roster is not None:
                return
            if closes != self._closes:
                text = "the runtime was closed while opening"
                raise ServerUnavailable(text, server="runtime")
            if self._follows and not isinstance(self._sources.config, str | Path | None):
                remedy = "Give the path of a file, or nothing to look in the usual places"
                raise ConfigError("only a file can be followed", remedy=remedy, key="follow")
            if self._follows:
                check_can_watch()
            self._roster = Roster(self._desk, self._terms, **self._group)
            self._desk.is_open = True
            try:
                await self._open(self._roster, configuration)
            except BaseException:
                await uninterrupted(self._close())
                raise

    async def _open(self, roster: Roster, configuration: Configuration) -> None:
        await roster.open(configuration, self._sources.builtin)
        self._desk.check_open()  # it may have been closed meanwhile
        self.configuration = configuration
        for pending in configuration.needs_approval:
            logger.warning("%s waits for approval and is not started", pending.name)
        for error in configuration.set_aside:
            logger.warning("a server is skipped: %s", error)
        if self._follows:
            loop = asyncio.get_running_loop()
            self._following = loop.create_task(self._follow(), context=Context())

    async def close(self) -> None:
        """Once begun, it goes on even when whoever asked for it is gone."""
        home = self._desk.home
        if home.loop is None:
            return
        if home.is_gone:
            self.abandon()
            return
        home.check()
        self._closes += 1
        self._desk.is_open = False
        if self._closing is None or self._closing.done():
            loop = asyncio.get_running_loop()
            self._closing = loop.create_task(self._close_in_turn(), context=Context())
        await asyncio.shield(self._closing)

    async def _close_in_turn(self) -> None:
        await self._desk.close_resources()
        if self._roster is not None:
            await self._roster.aclose()  # an opening that has its turn is undone by that
        async with self._turn:
            await self._close()

    async def _close(self) -> None:
        self._desk.is_open = False
        following, self._following = self._following, None
        if following is not None:
            following.cancel()
            await asyncio.wait((following,))
        await self._desk.close_resources()
        roster, self._roster = self._roster, None
        if roster is not None:
            await roster.aclose()
        await self._desk.reuse.settle()
        self._desk.home = new_home()

    def _be_at_home(self) -> None:
        if self._desk.home.is_gone and not self._desk.home.forked:
            self.abandon()
        if self._desk.home.loop is None:
            self._turn = asyncio.Lock()
        self._desk.home.check()

    def abandon(self) -> None:
        """Its loop is gone, or belongs to the parent process: there is nobody left to close."""
        for supplier in self._desk.suppliers.values():
            supplier.abandon()
        self._desk.clear()
        self._desk.reuse.abandon()
        self._desk.is_open, self._desk.home = False, new_home()
        self._roster = self._following = self._closing = None

    def _open_roster(self) -> Roster:
        self._desk.check_open()
        assert self._roster is not None
        return self._roster

    # -- what is true now -----------------------------------------------------------------------

    def status(self) -> tuple[ServerStatus, ...]:
        if self._roster is None:
            return ()
        members = {member.name: member for member in self._roster.group.members}
        names = [name for name in self._desk.suppliers if name in members]
        return tuple(status_of(members[name], self._desk.figures) for name in names)

    def summary(self) -> str:
        members = self._roster.group.members if self._roster else ()
        count = len(self._desk.catalogue)
        return f"{summary(members)}, {count} {'tool' if count == 1 else 'tools'}"

    # -- changes --------------------------------------------------------------------------------

    async def reconnect(self, *, failed_only: bool) -> None:
        await self._open_roster().group.reconnect(failed_only=failed_only)

    async def add(self, spec: ServerSpec) -> None:
        await self._open_roster().add(spec)

    async def remove(self, name: str) -> None:
        await self._open_roster().remove(name)

    async def forget(self, principal: str) -> None:
        self._desk.check_open()
        identity = identify(CallContext(principal=principal).principal, call={}, task={})
        if identity is None:
            return
        self._desk.forget(identity)
        suppliers = tuple(self._desk.suppliers.values())
        await asyncio.gather(*(supplier.forget(identity) for supplier in suppliers))

    def introduce(self, observation: Observation) -> None:
        """Observers that want to know where a server is are told."""
        for supplier in self._desk.suppliers.values():
            observation.know(supplier.spec)

    async def reload(self, config: object = None) -> Difference:
        self._open_roster()
        self._reloads += 1
        number = self._reloads
        wanted = await self._sources.read(config)
        async with self._turn:
            if number < self._reloaded:  # one that was asked for later is there already
                return difference(self.configuration, self.configuration)
            edit = difference(self.configuration, wanted)
            await self._apply(self._open_roster(), edit)
            self._reloaded = number
            return edit

    async def _apply(self, roster: Roster, edit: Difference) -> None:
        await roster.apply(edit)
        self.configuration = edit.configuration

    async def _follow(self) -> None:
        """Apply edits as they come, whatever goes wrong with one of them."""
        while True:
            try:
                return await self._follow_edits()
            except Exception as error:
                # Of a function of the user's that answers inputs, for example.
                told = ConfigError(f"it could not be read ({type(error).__name__})")
                self._refuse(told)
            await asyncio.sleep(_PAUSE)

    def _refuse(self, error: ConfigError) -> None:
        logger.warning("an edit of the configuration is not used: %s", error)
        self._desk.observers.tell(EditRefused(server="", error=error))

    async def _follow_edits(self) -> None:
        """One edit that cannot be read or applied changes nothing else."""
        roster, sources = self._open_roster(), self._sources
        source = cast("Path | str | None", sources.config)
        edits = watch(source, since=self.configuration, **sources.options)
        async with aclosing(edits):
            async for edit in edits:
                try:
                    if isinstance(edit, ConfigError):
                        raise edit
                    async with self._turn:
                        await self._apply(roster, edit)
                except ConfigError as error:
                    self._refuse(error)
                except ToolkeepError as error:
                    logger.warning("the edited configuration is used in part: %s", error)
