"""`watch`: yield the difference after each edit of a configuration.

An edit that cannot be read is yielded as its `ConfigError`, and the last valid configuration
stays in use. An error in one server's entry keeps that server as it was and applies the rest.
Writes in quick succession count as one edit. `watchfiles` (extra `watch`) only wakes the loop;
file stamps decide whether something changed, so a write between reading and waiting is not
missed.
"""

from __future__ import annotations

import asyncio
import importlib
import os
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import Any

from toolkeep.config.approval import Approvals
from toolkeep.config.loader import DEFAULT_PATHS, load, read_configuration
from toolkeep.config.resolve import InputAnswers, Inputs
from toolkeep.config.spec import Configuration, Difference, difference
from toolkeep.errors import ConfigError

DEBOUNCE_MS = 200
"""Milliseconds of quiet that end an edit. Editors write, rename and write again in a few."""

MAX_WAIT_MS = 2000
"""Milliseconds until the files are checked without a notification: some drives send none."""

Ticks = AsyncGenerator[object, None]
FileWatcher = Callable[[frozenset[Path]], Ticks]
"""Takes files, and yields whenever one of them may have changed."""


async def watch(
    source: Path | str | None = None,
    *,
    since: Configuration | None = None,
    env: Mapping[str, str] | None = None,
    cwd: Path | str | None = None,
    inputs: Inputs | None = None,
    approvals: Approvals | None = None,
    strict: bool = False,
    notice: FileWatcher | None = None,
) -> AsyncGenerator[Difference | ConfigError, None]:
    """Yield a `Difference` or `ConfigError` after each edit, until the generator is closed.

    `since` is the configuration in use; without it, the source is loaded first, and an error in it
    is raised. `notice` replaces watchfiles.
    """
    notice = notice or _watchfiles_watcher()
    options: dict[str, Any] = {"env": env, "cwd": cwd, "approvals": approvals, "strict": strict}
    options["inputs"] = InputAnswers(inputs)
    current = since or await asyncio.to_thread(partial(load, source, **options))
    reload = partial(read_configuration, source, **options)
    files: frozenset[Path] = frozenset()
    ticks, seen = notice(files), None
    try:
        while True:
            if (wanted := _watched_files(current, source, cwd)) != files:
                await ticks.aclose()
                files, ticks, seen = wanted, notice(wanted), None
            stamps = await asyncio.to_thread(_file_stamps, files)
            if stamps == seen:
                if await anext(ticks, None) is None:
                    return
                continue
            seen, before = stamps, current
            result = await asyncio.to_thread(_compare, current, reload)
            if not isinstance(result, ConfigError):
                current = result.configuration
            if result or _others(current) != _others(before):
                yield result
            known = set(map(str, _errors(before)))
            for error in _errors(current):
                if str(error) not in known:
                    yield error
    finally:
        await ticks.aclose()


def _others(of: Configuration) -> tuple[object, ...]:
    """What else an edit can change, besides the servers."""
    return of.needs_approval, of.gateway


def _errors(of: Configuration) -> tuple[ConfigError, ...]:
    return of.invalid if of.gateway_error is None else (*of.invalid, of.gateway_error)


def _compare(old: Configuration, read: Callable[[], Configuration]) -> Difference | ConfigError:
    try:
        return difference(old, read())
    except ConfigError as error:
        return error


def _watched_files(
    current: Configuration, source: Path | str | None, cwd: Path | str | None
) -> frozenset[Path]:
    base = Path(os.path.abspath(cwd or os.getcwd()))
    sources = DEFAULT_PATHS if source is None else (source,)
    return frozenset({*current.files, *(base / os.path.expanduser(one) for one in sources)})


def _file_stamps(files: frozenset[Path]) -> dict[Path, tuple[int, int, int] | None]:
    return {path: _file_stamp(path) for path in files}


def _file_stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def require_watchfiles() -> Any:
    """Import watchfiles. Raises `ConfigError` if it is not installed."""
    try:
        return importlib.import_module("watchfiles")
    except ImportError:
        remedy = "Install toolkeep with its extra `watch`: toolkeep[watch]"
        raise ConfigError("watching needs the package watchfiles", remedy=remedy) from None


def _watchfiles_watcher() -> FileWatcher:
    watchfiles = require_watchfiles()

    async def ticks(files: frozenset[Path]) -> Ticks:
        # Watches folders, because an editor may replace a file by a new one. Without a filter,
        # because the folder of a symbolic link is reported under its real path.
        folders = {path.parent for path in files if path.parent.is_dir()}
        if not folders:
            return
        options = {
            "step": DEBOUNCE_MS,
            "debounce": MAX_WAIT_MS,
            "rust_timeout": MAX_WAIT_MS,
            "yield_on_timeout": True,
        }
        changes = watchfiles.awatch(*folders, watch_filter=None, recursive=False, **options)
        async with aclosing(changes):
            async for _ in changes:
                yield True

    return ticks
