"""Keeps the memory of large answers for the next ones.

glibc gives a large block back to the system as soon as it is free. The next answer then takes it
anew, page by page, and that takes three times as long as all that is done with the answer. It
learns from what a program frees how much to keep (`mallopt(3)`, dynamic mmap threshold): one free
block of this size, which is never touched, is enough. Other allocators take no notice.
"""

from __future__ import annotations

from functools import cache

LARGE = 128 * 1024
"""Bytes from which glibc asks the system for a block."""
_KEPT = 8 << 20


@cache
def make_room() -> None:
    """Once in a process that meets large answers."""
    bytes(_KEPT)
