"""The `toolkeep` command.

What a command needs is imported when it runs, so that `--help` and `--version` answer at once. The
library never imports this package; without typer and rich it says so and does nothing.
"""

from __future__ import annotations

import importlib.util
import sys

__all__ = ["main"]

_NEEDED = ("typer", "rich")
_HOW = "The command line needs typer and rich: install toolkeep with its extra `cli`"


def main() -> None:
    """Run the command line, and end the process with its exit code."""
    if any(importlib.util.find_spec(name) is None for name in _NEEDED):
        print(_HOW, file=sys.stderr)
        raise SystemExit(2)
    from toolkeep.cli.app import app
    from toolkeep.cli.ending import speak_plainly

    speak_plainly()
    app(prog_name="toolkeep")
