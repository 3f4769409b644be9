"""Telling a cancellation that was asked for from one that a library made by itself."""

from __future__ import annotations

import asyncio


def cancellations() -> int:
    """How often this task was asked to stop, and has not said that it was."""
    task = asyncio.current_task()
    return task.cancelling() if task else 0


def is_cancelled(before: int = 0) -> bool:
    """Whether somebody asked this task to stop, rather than a library losing its way.

    `before`: its cancellations when that began. A task that swallowed one has it for ever.
    """
    return asyncio.current_task() is None or cancellations() > before
