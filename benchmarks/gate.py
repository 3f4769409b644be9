"""`make bench-gate`: fails when a call takes more instructions than it did.

Counted against a bare POST in the same run, so that another Python or another machine is no
regression. The room is generous: what trips here is a new layer, not a new line.
"""

import sys
from collections.abc import Iterator
from typing import Any

from benchmarks import instructions, stub

FLOOR = "bare_aiohttp"
ROOM = 1.15
STORE_ROOM = 1.03
"""A warm call with a shared store asks it nothing: it may take this much of a call without."""
LOGIN_ROOM = 1.03
"""A call with a valid token of a login may take this much of a call with a key."""
MEASURED = {
    ("client", "legacy", "json"): 1.12,
    ("client", "modern", "json"): 1.19,
    ("client", "legacy", "sse"): 1.22,
    ("client", "modern", "sse"): 1.29,
    ("runtime", "legacy", "json"): 1.24,
}
"""In bare POSTs, on 2026-11-18, Python 3.11.7, mcp 2.3.0 and aiohttp 3.14.5."""


def counted(server: stub.Stub) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    floors: dict[tuple[str, str], float] = {}
    for (name, era, answer), before in MEASURED.items():
        if (era, answer) not in floors:
            floors[era, answer] = instructions.instructions(server, FLOOR, era=era, answer=answer)
            floor = {"contestant": FLOOR, "era": era, "answer": answer}
            rows.append({**floor, "instructions": floors[era, answer]})
        found = instructions.instructions(server, name, era=era, answer=answer)
        row = {"contestant": name, "era": era, "answer": answer, "instructions": found}
        rows.append({**row, "to_floor": found / floors[era, answer], "limit": before * ROOM})
    return [*rows, with_store(server, rows[-1]), *with_login(server)]


def with_login(server: stub.Stub) -> Iterator[dict[str, Any]]:
    """Beside a key, in both eras."""
    for era in ("legacy", "modern"):
        key = instructions.instructions(server, "client_key", era=era)
        found = instructions.instructions(server, "client_oauth", era=era)
        row = {"contestant": "client_oauth", "era": era, "answer": "json", "instructions": found}
        yield {**row, "to_floor": found / key, "limit": LOGIN_ROOM}


def with_store(server: stub.Stub, without: dict[str, Any]) -> dict[str, Any]:
    """The lesser of two counts each: one of them may have a look at the store's log in it."""
    plain = min(without["instructions"], instructions.instructions(server, "runtime"))
    found = min(instructions.instructions(server, "stored") for _ in range(2))
    share = without["to_floor"] / without["instructions"]
    row = {"contestant": "stored", "era": "legacy", "answer": "json", "instructions": found}
    return {**row, "to_floor": found * share, "limit": plain * share * STORE_ROOM}


def main() -> None:
    if not instructions.available():
        print("Not measured: valgrind is not here.")
        return
    with stub.running() as server:
        rows = counted(server)
    for row in rows:
        print(line(row), flush=True)
    sys.exit(any(row.get("to_floor", 0.0) > row.get("limit", 1.0) for row in rows))


def line(row: dict[str, Any]) -> str:
    text = f"{row['contestant']:<13} {row['era']:<7} {row['answer']:<5}"
    text += f" {row['instructions']:>12,.0f} instructions for one call"
    if "limit" in row:
        verdict = "holds" if row["to_floor"] <= row["limit"] else "MISSED"
        floor = "calls with a key" if row["contestant"] == "client_oauth" else "bare POSTs"
        text += f", {row['to_floor']:.2f} {floor} (at most {row['limit']:.2f}): {verdict}"
    return text


if __name__ == "__main__":
    main()
