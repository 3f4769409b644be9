"""A server that has forgotten every session: what the next call takes, or that it fails."""

import statistics
from typing import Any

from benchmarks.cells import Cell
from benchmarks.roster import ROSTER
from benchmarks.stub import Stub
from benchmarks.workers import Remote, WorkerFailed, worker

TIMES = 5
WHO = (
    *("client", "runtime", "our_langchain", "our_adk", "our_openai_agents", "our_pydantic_ai"),
    *("sdk", "fastmcp", "openai_agents", "google_adk", "pydantic_ai"),
    *("uipath_langchain", "mcp_use", "langchain_mcp_session", "langchain_mcp_adapters"),
)
CELL = Cell("json", "legacy", 100, 1, WHO)


def measure(stub: Stub, times: int = TIMES) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for name in WHO:
        if ROSTER[name].is_here:
            with worker(name, ROSTER[name].environment) as remote:
                try:
                    found[name] = one(stub, remote, times)
                    remote.tell(close=True)
                except WorkerFailed as failure:
                    print(f"{name} failed: {failure}", flush=True)
    return found


def one(stub: Stub, remote: Remote, times: int) -> dict[str, Any]:
    """Requests beyond the call, however often that is sent: who has no session to lose sends it
    once. TCP connections; the time; how it fails, if so."""
    taken: list[dict[str, Any]] = []
    for _ in range(times):
        if not taken or taken[-1]["error"]:
            remote.tell(open=stub.url(*CELL.place), era=CELL.era)
        remote.tell(turn=4, in_flight=1)
        stub.forget()
        stub.counts()
        found = remote.tell(once=True)
        seen = stub.counts()
        sent = seen.methods.get("tools/call", 0)
        more = {"requests": seen.requests - sent, "connections": seen.connections}
        handshakes = seen.methods.get("initialize", 0)
        taken.append({**found, **more, "handshakes": handshakes})
    error = next((one["error"] for one in taken if one["error"]), None)
    return {
        "error": error,
        **{
            key: statistics.median(one[key] for one in taken)
            for key in ("cpu_ms", "wall_ms", "requests", "connections", "handshakes")
        },
    }
