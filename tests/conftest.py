"""What every test stands on: asyncio, a clean environment, and nothing left behind.

Async tests need no mark (`anyio_mode = "auto"`). Each is checked for what it leaves behind: a task
that still runs, or a file or socket that is still open, fails the test. A test that leaves
something on purpose says why: `@pytest.mark.leaks_ok("the server outlives the test")`.
"""

import asyncio
import inspect
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import settings

# `make check` gives the same verdict for the same code. To look for new examples:
# `make test ARGS=--hypothesis-profile=explore`.
settings.register_profile("check", deadline=None, derandomize=True, database=None)
settings.register_profile("explore", deadline=None, max_examples=2000)
settings.load_profile("check")

OPEN_FILES = Path("/proc/self/fd")
"""Linux only; elsewhere tasks alone are checked."""

CLOSING_STEPS, CLOSING_STEP = 200, 0.01
"""What a test closes may need a few rounds of the event loop: two seconds at most."""

SURROUNDINGS = (
    *("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"),
    *("http_proxy", "https_proxy", "all_proxy", "no_proxy"),
    *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE"),
)
"""Variables that toolkeep obeys; a test that wants one sets it."""


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session", autouse=True)
def clean_surroundings() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name in SURROUNDINGS:
            patch.delenv(name, raising=False)
        yield


@pytest.fixture(scope="session")
def sandbox() -> None:
    """For tests of code mode: pydantic-monty opens files once for the whole process, and keeps
    them. They are opened here, so that no test has left them behind."""
    import pydantic_monty

    async def use() -> None:
        async with pydantic_monty.AsyncMonty() as pool, pool.checkout() as session:
            await session.feed_run("1")

    asyncio.run(use())


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makeitem(collector: Any, name: str, obj: object) -> None:
    """Ask for `leaks` in async tests only: a sync test should not pay for an event loop.

    As a used fixture it is set up before, and torn down after, all that the test asks for itself.
    """
    if not collector.istestfunction(obj, name):
        return
    function = getattr(getattr(obj, "hypothesis", None), "inner_test", obj)
    if inspect.iscoroutinefunction(function):
        pytest.mark.usefixtures("leaks")(obj)


@pytest.fixture
async def leaks(anyio_backend: Any, request: pytest.FixtureRequest) -> AsyncIterator[None]:
    """Fail a test that leaves tasks or open files behind."""
    excuse = request.node.get_closest_marker("leaks_ok")
    if excuse is not None:
        if not excuse.args:
            pytest.fail("leaks_ok needs a reason")
        yield
        return
    tasks, files = running_tasks(), open_files()
    yield
    for _ in range(CLOSING_STEPS):
        if running_tasks() <= tasks and len(open_files()) <= len(files):
            return
        await anyio.sleep(CLOSING_STEP)
    left = [f"task {task!r}" for task in running_tasks() - tasks]
    left += [f"open file {describe(fd)}" for fd in open_files() - files]
    pytest.fail("left behind:\n" + "\n".join(left), pytrace=False)


def running_tasks() -> set["asyncio.Task[Any]"]:
    try:
        tasks = asyncio.all_tasks()
    except RuntimeError:  # a test on trio
        return set()
    return {task for task in tasks if not belongs_to_pytest(task)}


def belongs_to_pytest(task: "asyncio.Task[Any]") -> bool:
    """anyio 4.16 drives tests and fixtures from one task, and waits for each in one more."""
    return getattr(task.get_coro(), "__qualname__", "").startswith("TestRunner.")


def open_files() -> set[str]:
    return set(os.listdir(OPEN_FILES)) if OPEN_FILES.is_dir() else set()


def describe(fd: str) -> str:
    try:
        return f"{fd} -> {(OPEN_FILES / fd).readlink()}"
    except OSError:
        return fd
