"""`watch`: each edit of a configuration, as the difference from what was there.

An edit that cannot be read is yielded as its `ConfigError`, and the last good configuration stays:
the next good one is compared with that. So is the mistake in a single server's entry: that server
stays as it was, and the rest of the edit counts. Several writes in a row are one edit. The package
`watchfiles` does the waiting and is needed only here; whether something has changed is decided
here, by what the disk says about the files, so that nothing written between a reading and the next
look goes unseen.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import Any

from anyio.to_thread import run_sync

from toolkeep.config.approval import Approvals
from toolkeep.config.configuration import Configuration, Difference, difference
from toolkeep.config.inputs import Answers, Inputs
from toolkeep.config.loading import USUAL_PLACES, load, read
from toolkeep.errors import ConfigError

DEBOUNCE = 200
"""Milliseconds of quiet that end an edit. Editors write, rename and write again within a few."""

LONGEST_WAIT = 2000
"""Milliseconds until the files are looked at whatever the system says: some drives say nothing."""

Ticks = AsyncGenerator[object, None]
Notice = Callable[[frozenset[Path]], Ticks]
"""From the files that matter to what yields whenever one of them may have changed."""


async def watch(
    source: Path | str | None = None,
    *,
    since: Configuration | None = None,
    env: Mapping[str, str] | None = None,
    cwd: Path | str | None = None,
    inputs: Inputs | None = None,
    approvals: Approvals | None = None,
    strict: bool = False,
    notice: Notice | None = None,
) -> AsyncGenerator[Difference | ConfigError, None]:
    """Yields whenever the servers are others than before, until it is closed.

    `since`: what is in use now; without it, what the source says at the start, and a mistake in
    that is raised. `notice` stands in for watchfiles.
    """
    notice = notice or _watchfiles()
    how: dict[str, Any] = {"env": env, "cwd": cwd, "approvals": approvals, "strict": strict}
    how["inputs"] = Answers(inputs)
    now = since or await run_sync(partial(load, source, **how))
    again = partial(read, source, **how)
    files: frozenset[Path] = frozenset()
    ticks, seen = notice(files), None
    try:
        while True:
            if (wanted := _that_matter(now, source, cwd)) != files:
                await ticks.aclose()
                files, ticks, seen = wanted, notice(wanted), None
            stamps = await run_sync(_stamps, files)
            if stamps == seen:
                if await anext(ticks, None) is None:
                    return
                continue
            seen, before = stamps, now
            said = await run_sync(_compared, now, again)
            if not isinstance(said, ConfigError):
                now = said.configuration
            if said or now.needs_approval != before.needs_approval:
                yield said
            known = set(map(str, before.set_aside))
            for error in now.set_aside:
                if str(error) not in known:
                    yield error
    finally:
        await ticks.aclose()


def _compared(old: Configuration, read: Callable[[], Configuration]) -> Difference | ConfigError:
    try:
        return difference(old, read())
    except ConfigError as error:
        return error


def _that_matter(
    now: Configuration, source: Path | str | None, cwd: Path | str | None
) -> frozenset[Path]:
    here = Path(os.path.abspath(cwd or os.getcwd()))
    looked_for = USUAL_PLACES if source is None else (source,)
    return frozenset({*now.files, *(here / os.path.expanduser(one) for one in looked_for)})


def _stamps(files: frozenset[Path]) -> dict[Path, tuple[int, int, int] | None]:
    return {path: _stamp(path) for path in files}


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def check_can_watch() -> Any:
    """The package that waits for edits. Raises `ConfigError` where it is missing."""
    try:
        return importlib.import_module("watchfiles")
    except ImportError:
        remedy = "Install toolkeep with its extra `watch`: toolkeep[watch]"
        raise ConfigError("watching needs the package watchfiles", remedy=remedy) from None


def _watchfiles() -> Notice:
    watchfiles = check_can_watch()

    async def ticks(files: frozenset[Path]) -> Ticks:
        # Their folders, because a file that an editor puts in the place of another is a new one;
        # and without a filter, because a link's folder is reported under its real name.
        folders = {path.parent for path in files if path.parent.is_dir()}
        if not folders:
            return
        options = {
            "step": DEBOUNCE,
            "debounce": LONGEST_WAIT,
            "rust_timeout": LONGEST_WAIT,
            "yield_on_timeout": True,
        }
        changes = watchfiles.awatch(*folders, watch_filter=None, recursive=False, **options)
        async with aclosing(changes):
            async for _ in changes:
                yield True

    return ticks
