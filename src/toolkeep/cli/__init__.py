"""The `toolkeep` command: one module for each command, joined in `app`.

A command imports pydantic, rich and the runtime when it runs, so that `--help` and completion
answer at once. The library never imports this package.
"""

from __future__ import annotations

import gc
import importlib.util
import sys

__all__ = ["main"]

REQUIRED = ("typer", "rich")


def main() -> None:
    """Run the command line, and end the process with its exit code."""
    if any(importlib.util.find_spec(name) is None for name in REQUIRED):
        missing = "The command line needs typer and rich: install toolkeep with its extra `cli`"
        print(missing, file=sys.stderr)
        raise SystemExit(2)
    # Imports make hundreds of thousands of objects and no garbage: a tenth of a call's CPU time.
    gc.set_threshold(200_000)
    from toolkeep.cli.app import app
    from toolkeep.cli.output import replace_unencodable

    replace_unencodable()
    app(prog_name="toolkeep")
