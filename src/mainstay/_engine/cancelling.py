"""Telling a cancellation that was asked for from one that a library made by itself."""

from __future__ import annotations

import asyncio


def is_cancelled() -> bool:
    """Whether somebody asked this task to stop, rather than a library losing its way."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0
