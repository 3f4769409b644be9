"""A server that is a program: started, replaced after a crash, ended with its client."""

import asyncio
import os
import sys
from pathlib import Path

from toolkeep import CallOutcomeUnknown, Client, ServerUnavailable

HERE = Path(__file__).resolve().parent
os.environ["LEDGER_KEY"] = "ours, and none of the server's business"


async def main() -> None:
    notes = {
        "command": sys.executable,
        "args": ["notes_server.py"],
        "env": {"NOTES_KEY": "${NOTES_KEY:-n-123}"},
        "cwd": str(HERE),
    }
    async with Client(notes) as client:
        print((await client.call_tool("surroundings")).text)
        try:
            await client.call_tool("print_all")
        except CallOutcomeUnknown as error:
            print(f"exit code {error.exit_code}, last words: {error.stderr.strip()}")
        print((await client.call_tool("surroundings")).text)  # by another process

    hasty = {"command": sys.executable, "args": ["-c", "exit('no database')"]}
    try:
        await Client(hasty).connect()
    except ServerUnavailable as error:
        print(f"exit code {error.exit_code}, last words: {error.stderr.strip()}")


asyncio.run(main())
