"""`console`: the servers of a configuration on a page in the browser.

The page and its link stay on this machine. `show_console` also serves `toolkeep serve --console`.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import webbrowser
from typing import TYPE_CHECKING, Annotated, Any

import typer

from toolkeep.cli.errors import OK, UsageError
from toolkeep.cli.output import Output
from toolkeep.cli.source import ServerSource, note_unavailable

if TYPE_CHECKING:
    from toolkeep import Runtime
    from toolkeep.console import ConsoleServer


async def console(
    output: Output,
    source: ServerSource,
    port: Annotated[
        int, typer.Option(metavar="PORT", min=0, max=65535, help="Listen here; 0: any free port.")
    ] = 0,
    allow_calls: Annotated[
        bool,
        typer.Option(
            "--allow-calls",
            help="Let the page call tools, reconnect servers, end sessions and log in, and show "
            "arguments and results.",
        ),
    ] = False,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Only print the link.")] = False,
) -> int:
    """Show the servers and their calls on a page in the browser.

    The page shows health, tools, calls and the wire of this process, until Ctrl-C. It is served at
    127.0.0.1 only, and opens with the link that is printed, which holds a new token for each start.

    To see the calls of your own program, start the program with TOOLKEEP_CONSOLE=8700.
    """
    from toolkeep.group import Backoff

    options: dict[str, Any] = {"listen": True, "backoff": Backoff()}
    if allow_calls:
        options |= {"elicitation": "caller", "sampling": "caller"}  # answered on the page
    async with source.open(output, **options) as runtime:
        note_unavailable(runtime, output)
        server = await show_console(runtime, output, port=port, allow_calls=allow_calls)
        output.print_json({"url": server.url})
        if not no_browser:
            # Some browsers are programs that run until they are closed.
            threading.Thread(target=webbrowser.open, args=(server.url,), daemon=True).start()
        with contextlib.suppress(asyncio.CancelledError):  # Ctrl-C is the usual end
            await server.wait_closed()
    return OK


async def show_console(
    runtime: Runtime, output: Output, *, port: int = 0, allow_calls: bool = False
) -> ConsoleServer:
    """Serve the console of a runtime, which ends with it, and print the link."""
    try:
        server = await runtime.serve_console(port, allow_calls=allow_calls)
    except ModuleNotFoundError as missing:
        raise UsageError(str(missing)) from None
    output.note(f"console: {server.url}")
    if not allow_calls:
        output.note("The page only shows. --allow-calls lets it call tools and show their values")
    return server
