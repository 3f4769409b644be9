"""Servers in a few lines: programs of 2025-11-25, for what no well-behaved server does."""

import sys
from typing import Any

PRELUDE = """
import json, os, signal, sys, threading, time

def say(**message):
    os.write(1, json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\\n")

def done(asked, text="done"):
    say(id=asked["id"], result={"content": [{"type": "text", "text": text}]})

def ask(id, method="elicitation/create"):
    form = {"message": "Sure?", "requestedSchema": {"type": "object", "properties": {}}}
    words = [{"role": "user", "content": {"type": "text", "text": "?"}}]
    prompt = {"messages": words, "maxTokens": 9}
    say(id=id, method=method, params=form if method == "elicitation/create" else prompt)

def serve(on_call, on_answer=lambda answer: None):
    for line in sys.stdin:
        told = json.loads(line)
        if told.get("method") == "initialize":
            about = {"capabilities": {}, "serverInfo": {"name": "small", "version": "1"}}
            say(id=told["id"], result={"protocolVersion": "2025-11-25", **about})
        elif told.get("method") == "tools/call":
            on_call(told, told["params"]["name"])
        elif "method" not in told:
            on_answer(told)
"""
"""What a script finds: `say` and `serve`, `done` for a call, `ask` for a question."""


def program(script: str, *arguments: str, **settings: Any) -> dict[str, Any]:
    args = ["-I", "-S", "-c", PRELUDE + script, *arguments]
    return {
        "name": "small",
        "command": sys.executable,
        "args": args,
        "mode": "legacy",
        **settings,
    }
