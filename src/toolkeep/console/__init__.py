"""The console: a page on a live runtime. It shows servers, calls with their verdict and its reason,
the wire, the catalogue and sessions, as this one process sees them.

    app.mount("/toolkeep", Console(runtime))     in your Starlette or FastAPI application
    await runtime.serve_console(8700)            on a port of its own, at loopback
    TOOLKEEP_CONSOLE=8700 python agent.py        the same without changing the program
    toolkeep console -c mcp.json                 from the command line

While no page is open, a call costs nothing more.
"""

from __future__ import annotations

try:
    from toolkeep.console.app import Action, Console
    from toolkeep.console.serve import ConsoleServer
except ModuleNotFoundError as missing:
    if (missing.name or "").startswith("toolkeep"):
        raise
    text = "the console needs the extra: pip install 'toolkeep[console]'"
    raise ModuleNotFoundError(text) from missing

__all__ = ["Action", "Console", "ConsoleServer"]
