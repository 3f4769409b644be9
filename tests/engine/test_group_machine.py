"""Whatever is asked of a group, in any order, cancelled at any moment: it stays in order."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.engine.helpers_group import LONG, Broken, Entry, Fake, ImpatientLoop
from toolkeep._rules.backoff import Backoff
from toolkeep.errors import ServerUnavailable
from toolkeep.group import ServerGroup

MANNERS = st.sampled_from(["fine", "fine", "fails", "hangs", "astray"])
PARTINGS = st.sampled_from(["fine", "fine", "fails", "hangs", "astray"])
MOST = 6


class GroupInUse(RuleBasedStateMachine):
    """A group of fakes in an event loop with a virtual clock, which only runs while a rule does."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner(loop_factory=ImpatientLoop)
        self.journal: list[Entry] = []
        self.made: list[Fake] = []

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        async def bounded() -> Any:
            async with asyncio.timeout(100 * LONG):
                return await work

        return self.runner.run(bounded())

    @initialize(
        manners=st.lists(MANNERS, min_size=1, max_size=4),
        strict=st.booleans(),
        parallel=st.booleans(),
        returns=st.booleans(),
    )
    def build(self, manners: list[Any], strict: bool, parallel: bool, returns: bool) -> None:
        async def built() -> ServerGroup[Fake]:
            return ServerGroup(
                [self.fake(manner) for manner in manners],
                strict=strict,
                parallel=parallel,
                connect_timeout=10.0,
                cleanup_timeout=10.0,
                backoff=Backoff() if returns else None,
            )

        self.group = self.run(built())
        self.strict, self.returns = strict, returns

    def fake(self, manner: Any) -> Fake:
        fake = Fake(f"s{len(self.made)}", manner, self.journal)
        self.made.append(fake)
        return fake

    async def attempt(self, work: Awaitable[Any]) -> None:
        """Only a strict group raises, and only what its servers met."""
        try:
            await work
        except (Broken, ServerUnavailable):
            assert self.strict

    # -- what can happen ------------------------------------------------------------------------

    @rule(data=st.data(), manner=MANNERS, parting=PARTINGS)
    def a_server_changes_its_manners(self, data: Any, manner: Any, parting: Any) -> None:
        fake = data.draw(st.sampled_from(self.made))
        fake.manner, fake.parting = manner, parting

    @rule()
    def connect_all(self) -> None:
        self.run(self.attempt(self.group.connect_all()))

    @rule(failed_only=st.booleans())
    def reconnect(self, failed_only: bool) -> None:
        self.settle()
        healthy = self.group.connected
        before = {fake: fake.did("cleanup") for fake in healthy}
        self.run(self.attempt(self.group.reconnect(failed_only=failed_only)))
        if failed_only:
            assert {fake: fake.did("cleanup") for fake in healthy} == before

    @rule(seconds=st.sampled_from([0.1, 1.0, 10.0, 100.0]))
    def time_passes(self, seconds: float) -> None:
        self.run(asyncio.sleep(seconds))

    @precondition(lambda self: len(self.group.configured) < MOST)
    @rule(manner=MANNERS)
    def add(self, manner: Any) -> None:
        self.run(self.attempt(self.group.add(self.fake(manner))))

    @precondition(lambda self: self.group.configured)
    @rule(data=st.data())
    def remove(self, data: Any) -> None:
        self.settle()
        fake = data.draw(st.sampled_from(self.group.configured))
        others = {each: each.did("cleanup") for each in self.group.connected if each is not fake}
        self.run(self.group.remove(fake.name))
        assert fake not in self.group.configured
        assert not fake.is_open
        assert {each: each.did("cleanup") for each in others} == others

    @precondition(lambda self: self.group.configured)
    @rule(data=st.data(), manner=MANNERS)
    def replace(self, data: Any, manner: Any) -> None:
        fake = data.draw(st.sampled_from(self.group.configured))
        place = self.group.configured.index(fake)
        new = self.fake(manner)
        self.run(self.attempt(self.group.replace(fake.name, new)))
        assert self.group.configured[place] in ((fake, new) if self.strict else (new,))

    @rule()
    def cleanup_all(self) -> None:
        self.settle()
        began, connected = len(self.journal), {fake.name for fake in self.group.connected}
        self.run(self.group.cleanup_all())
        assert not any(fake.is_open for fake in self.made)
        assert (self.group.connected, self.group.failed, self.group.errors) == ([], [], {})
        cleaned = [e.name for e in self.journal[began:] if e.did == "cleanup"]
        backwards = [fake.name for fake in reversed(self.group.configured)]
        orderly = [name for name in cleaned if name in connected]
        assert orderly == [name for name in backwards if name in orderly]
        self.run(self.nothing_runs())

    def settle(self) -> None:
        """Let end what still goes on after a caller was cancelled, before anything is measured."""
        tasks = asyncio.all_tasks(self.runner.get_loop())
        if any(not task.get_name().startswith("toolkeep ") for task in tasks):
            self.run(asyncio.sleep(10 * LONG))

    async def nothing_runs(self) -> None:
        assert asyncio.all_tasks() == {asyncio.current_task()}

    @rule(data=st.data(), steps=st.integers(0, 12), twice=st.booleans())
    def cancel(self, data: Any, steps: int, twice: bool) -> None:
        work = data.draw(st.sampled_from(self.operations()))
        self.settle()
        before, failed = self.group.connected, self.group.failed
        finished = self.run(self.cancelled(work, steps, twice))
        if work == self.group.connect_all and not finished and not self.returns:
            self.settle()
            now = self.group.connected
            assert before == [fake for fake in now if fake not in failed or fake in before]

    async def cancelled(
        self, work: Callable[[], Coroutine[Any, Any, Any]], steps: int, twice: bool
    ) -> bool:
        """Whether it came too late."""
        task = asyncio.ensure_future(work())
        for _ in range(steps):
            await asyncio.sleep(0)
        if not task.cancel():
            await self.attempt(task)
            return True
        if twice:
            await asyncio.sleep(0)
            task.cancel()
        await asyncio.wait((task,))
        assert task.cancelled()
        return False

    @rule(data=st.data(), steps=st.integers(0, 6))
    def at_once(self, data: Any, steps: int) -> None:
        first, second = (data.draw(st.sampled_from(self.operations())) for _ in range(2))

        async def both() -> None:
            task = asyncio.ensure_future(self.attempt(first()))
            for _ in range(steps):
                await asyncio.sleep(0)
            await self.attempt(second())
            await task

        self.run(both())

    def operations(self) -> list[Callable[[], Coroutine[Any, Any, Any]]]:
        group = self.group
        return [
            group.connect_all,
            group.cleanup_all,
            group.reconnect,
            lambda: group.reconnect(failed_only=False),
        ]

    # -- what is always so ----------------------------------------------------------------------

    @invariant()
    def the_views_agree(self) -> None:
        group = self.group
        configured, connected, failed = group.configured, group.connected, group.failed
        assert connected == [fake for fake in configured if fake in connected]
        assert failed == [fake for fake in configured if fake in failed]
        assert not set(connected) & set(failed)
        assert list(group.errors) == failed
        assert group.active == connected
        assert group.summary().startswith(f"{len(connected)}/{len(configured)} ")

    @invariant()
    def who_is_connected_is_open_and_in_the_hands_of_one_task(self) -> None:
        assert all(fake.is_open for fake in self.group.connected)
        assert [fake.misused for fake in self.made if fake.misused] == []
        assert not any(fake.is_open for fake in self.made if fake not in self.group.configured)

    def teardown(self) -> None:
        try:
            if hasattr(self, "group"):
                self.cleanup_all()
        finally:
            self.runner.close()


TestGroupInUse = GroupInUse.TestCase
TestGroupInUse.settings = settings(max_examples=60, stateful_step_count=25)
