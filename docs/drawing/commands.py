"""The command line."""

from collections.abc import Callable

PAGES: dict[str, Callable[[], str]] = {}
