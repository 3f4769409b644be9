"""`make bench-gate`: fails when a call takes more instructions than it did.

Counted against a bare POST in the same run, so that another Python or another machine is no
regression. The room is generous: what trips here is a new layer, not a new line.
"""

import sys
from typing import Any

from benchmarks import instructions, stub

FLOOR = "bare_aiohttp"
ROOM = 1.15
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
    return rows


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
        text += f", {row['to_floor']:.2f} bare POSTs (at most {row['limit']:.2f}): {verdict}"
    return text


if __name__ == "__main__":
    main()
