"""A server that is a program, for `run_a_program.py`: MCP over its standard streams."""

import os
import sys
from pathlib import Path

from mcp.server.mcpserver import MCPServer

server = MCPServer("notes")


@server.tool()
def surroundings() -> str:
    """What this program was given."""
    names = [name for name in ("NOTES_KEY", "LEDGER_KEY") if name in os.environ]
    return f"in {Path.cwd().name}, with {', '.join(names)}"


@server.tool()
def print_all() -> str:
    """Print all notes."""
    print("out of paper", file=sys.stderr, flush=True)
    os._exit(3)


if __name__ == "__main__":
    server.run("stdio")
