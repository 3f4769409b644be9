"""Drives every client through the scenarios of `benchmarks.scenarios`, and writes it down.

    python -m benchmarks.scenarios.compare [NAME …]

Each client runs in the environment that can have it; without one, it keeps the report that it had.
Names choose among the adapters. The page in the docs is written from results.json.
"""

from __future__ import annotations

import argparse
import ast
import asyncio
import json
import platform
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.scenarios import SCENARIOS, Report, Scenario, Verdict, run, table

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
ADAPTERS = HERE / "adapters"
RESULTS = HERE / "results.json"
PAGE = ROOT / "docs" / "reference" / "scenarios.md"

PLACES = {
    "toolkeep_client": ".venv",
    "toolkeep_runtime": ".venv",
    "sdk_client": ".venv-peers",
    "fastmcp_client": ".venv-peers",
    "openai_agents_server": ".venv-peers",
    "adk_toolset": ".venv-peers",
    "pydantic_ai_toolset": ".venv-peers",
    "uipath_client": ".venv-peers",
    "langchain_adapters": ".venv-mcp1",
    "mcp_use_client": ".venv-mcp1",
}
"""Adapters, in the order of the page's columns, and their environments."""


def driven(adapter: str, jobs: int, scenarios: Sequence[Scenario] = SCENARIOS) -> Report:
    def tell(verdict: Verdict) -> None:
        print(f"  {verdict.result:<15}{verdict.scenario:<34}{verdict.evidence[:100]}", flush=True)

    print(f"== {adapter}, {len(scenarios)} scenarios", flush=True)
    where, python = f"{ADAPTERS / adapter}.py:Adapter", ROOT / PLACES[adapter] / "bin" / "python"
    playing = run(where, scenarios=scenarios, python=str(python), jobs=jobs, on_verdict=tell)
    return asyncio.run(playing)


def confirmed(adapter: str, first: Report) -> Report:
    """What failed is played once more, one at a time: a busy machine is no client's fault."""
    failed = {verdict.scenario for verdict in first.of("failed")}
    if not failed:
        return first
    second = driven(adapter, 1, [each for each in SCENARIOS if each.name in failed])
    verdicts = (
        second[each.scenario] if each in first.of("failed") else each for each in first.verdicts
    )
    return replace(second, verdicts=tuple(verdicts))


def renewed(adapter: str, before: Report, names: Sequence[str]) -> Report:
    """The report with these scenarios played anew."""
    chosen = [each for each in SCENARIOS if each.name in names]
    found = confirmed(adapter, driven(adapter, 1, chosen))
    played = {verdict.scenario: verdict for verdict in found.verdicts}
    verdicts = tuple(played.get(each.name) or before[each.name] for each in SCENARIOS)
    return replace(found, verdicts=verdicts)


def recorded() -> dict[str, Any]:
    return json.loads(RESULTS.read_text("utf-8")) if RESULTS.is_file() else {"reports": {}}


def page(results: dict[str, Any]) -> str:
    reports = [
        Report.from_json(results["reports"][name]) for name in PLACES if name in results["reports"]
    ]
    adapters = [name for name in PLACES if name in results["reports"]]
    about = "\n".join(
        f"| {each.name} | {each.trouble} | {each.wanted}{mark(each.choice)} |" for each in SCENARIOS
    )
    choices = "\n".join(f"- *{each.name}*: {each.choice}." for each in SCENARIOS if each.choice)
    return TEXT.format(
        date=results["date"],
        machine=results["machine"],
        table=table(reports),
        about=about,
        choices=choices,
        clients="\n\n".join(map(seen, adapters, reports)),
    )


def mark(choice: str | bool) -> str:
    return " (a choice)" if choice else ""


def settings(adapter: str) -> str:
    """What its adapter says that it sets: all that follows the first paragraph about itself."""
    about = ast.get_docstring(ast.parse((ADAPTERS / f"{adapter}.py").read_text("utf-8"))) or ""
    return about.partition("\n\n")[2]


def seen(adapter: str, report: Report) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in report.packages.items())
    rows = [
        f"| {each.scenario} | {each.result}{mark(each.choice)} | {cell(each.evidence)} |"
        for each in report.verdicts
        if each.result != "passed"
    ]
    head = f"### {report.client}\n\n{versions}, Python {report.python}.\n{settings(adapter)}"
    if not rows:
        return f"{head}\n\nPassed all."
    return "\n".join([head, "", "| scenario | | seen |", "|---|---|---|", *rows])


def cell(evidence: str) -> str:
    """As text of a table; ports differ from run to run, and mean nothing."""
    words = evidence.replace("|", "\\|").replace("<", "&lt;")
    return words if len(words) <= 160 else words[:160] + " …"


TEXT = """\
<!-- Written by benchmarks/scenarios/compare.py from results.json. Run `make scenarios` again. -->

# Fault scenarios: ten clients compared

Results of ten MCP clients in the scenarios of `benchmarks.scenarios`. `make scenarios` runs all of
them again. [To test another client](../how-to/fault-scenarios.md), write an adapter of twenty
lines, like [those of these clients](../../benchmarks/scenarios/adapters).

Last run: {date}, on {machine}, with other load on the machine. The servers are
[scripted](../how-to/test-your-agent.md): they speak the legacy era, which all clients support, over
streamable HTTP, and record what ran. Each verdict follows from that record. Every client is used as
its documentation says, with the same time limit of 8 s for a call (2 s in scenarios about time).
Other settings that are not defaults, also toolkeep's, are listed [below](#what-was-seen). If a
scenario fails, it is run once more, alone, and counts as failed only if it fails again.

{table}

"–": the client lacks the feature; the reason is below. "A choice": clients may differ. The
scenarios about logins, from *refresh-before-browser* on, were run with the first four clients only.
The last row counts the scenarios that apply to a client, without those that are a matter of choice.
A client that opens a session for every call cannot lose one; *one-session* shows what that costs.

## The scenarios

| | what happens | what a client should do |
|---|---|---|
{about}

These are a matter of choice:

{choices}

## What was seen

{clients}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare ten clients in all fault scenarios.")
    parser.add_argument("names", nargs="*", help="all, if none is named")
    parser.add_argument("--jobs", type=int, default=2, help="scenarios at once")
    parser.add_argument(
        "--only", nargs="+", help="play these scenarios; the others stay as they were"
    )
    parser.add_argument("--again", action="store_true", help="only what failed the last time")
    asked = parser.parse_args()
    for adapter in asked.names or PLACES:
        before = recorded()["reports"].get(adapter)
        if asked.only and before:
            report = renewed(adapter, Report.from_json(before), asked.only).to_json()
        else:
            again = Report.from_json(before) if asked.again and before else None
            report = confirmed(adapter, again or driven(adapter, asked.jobs)).to_json()
        results = recorded()  # another run may have added to it
        known = {**results["reports"], adapter: report}
        results["reports"] = {name: known[name] for name in PLACES if name in known}
        results |= {"date": time.strftime("%Y-%m-%d"), "machine": machine()}
        RESULTS.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n", "utf-8")
        PAGE.write_text(page(results), "utf-8")


def machine() -> str:
    return f"{platform.system()} {platform.machine()}"


if __name__ == "__main__":
    main()
