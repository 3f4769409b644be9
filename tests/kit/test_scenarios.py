"""Clients are driven through the scenarios, and the kit can tell good ones from bad ones."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.scenarios import (
    SCENARIOS,
    Broken,
    Report,
    Scenario,
    Stage,
    Verdict,
    run,
    scenario,
    table,
)

ROOT = Path(__file__).resolve().parent.parent.parent
ADAPTERS = ROOT / "benchmarks" / "scenarios" / "adapters"
JOBS = 4
pytestmark = pytest.mark.timeout(300)


def adapter(name: str) -> str:
    return f"{ADAPTERS / name}.py:Adapter"


def named(*names: str) -> list[Scenario]:
    return [each for each in SCENARIOS if each.name in names]


@pytest.mark.parametrize(
    ("client", "era"),
    [("toolkeep_client", "legacy"), ("toolkeep_client", "modern"), ("toolkeep_runtime", "legacy")],
)
@pytest.mark.requirement("S4", "S14", "P1", "P2", "P5", "L2", "T1", "H3")
async def test_our_clients_pass_every_scenario_of_the_era(client: str, era: Any):
    report = await run(adapter(client), era=era, jobs=JOBS)
    assert not report.of("failed"), str(report)
    lost = {each.scenario for each in report.of("not applicable")}
    assert lost == {each.name for each in SCENARIOS if era not in each.eras}


async def test_what_the_sdk_client_loses_is_seen():
    names = ("lost-session", "answer-lost", "siblings-of-a-fault", "tool-error", "timeout")
    report = await run(adapter("sdk_client"), scenarios=named(*names), jobs=JOBS)
    results = {each.scenario: each.result for each in report.verdicts}
    assert results == {
        "lost-session": "failed",
        "answer-lost": "failed",
        "siblings-of-a-fault": "failed",
        "tool-error": "passed",
        "timeout": "passed",
    }
    assert "the caller's own task was cancelled" in report["answer-lost"].evidence
    assert report.packages.keys() == {"mcp"}


class Sayer:
    """A client that calls nobody, and says whatever comes to its mind."""

    name = "sayer"

    async def open(self, url: str, timeout: float) -> None:
        self.timeout = timeout

    async def list_tools(self) -> list[str]:
        return ["record"]

    async def call(self, name: str, arguments: dict[str, Any], **more: Any) -> tuple[str, bool]:
        return "done", False

    async def close(self) -> None:
        pass


class Hanger(Sayer):
    """Answers the first call of its life, and then hangs, whoever cancels it."""

    calls = 0

    async def call(self, name: str, arguments: dict[str, Any], **more: Any) -> tuple[str, bool]:
        Hanger.calls += 1
        while Hanger.calls > 2:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                continue
        return "done", False


class Quitter(Sayer):
    """Takes its whole process with it."""

    async def call(self, name: str, arguments: dict[str, Any], **more: Any) -> tuple[str, bool]:
        if name == "record":
            raise SystemExit(3)
        return "done", False


class Lacking(Sayer):
    async def call(self, name: str, arguments: dict[str, Any], **more: Any) -> tuple[str, bool]:
        if more["headers"]:
            raise NotImplementedError("no headers here")
        return "done", False


async def test_success_that_the_ledger_does_not_know_is_no_success():
    report = await run(Sayer, scenarios=named("lost-session", "restart"))
    assert [each.result for each in report.verdicts] == ["failed", "failed"]
    assert "ran 0 times" in report["restart"].evidence


async def test_a_client_that_hangs_spoils_its_own_verdict_only():
    @scenario("nothing happens", "the second call answers")
    async def second_call(stage: Stage) -> None:
        stage.timeout = 1.0
        await stage.open(timeout=0.5)
        for number in range(2):
            await stage.answered("record", key=str(number))

    @scenario("nothing happens", "all is well")
    async def nothing(stage: Stage) -> None:
        opened = await stage.open()
        stage.require(opened.what == "answer", str(opened))

    report = await run(Hanger, scenarios=[second_call, nothing])
    assert [each.result for each in report.verdicts] == ["failed", "passed"]
    assert "nothing within" in report["second-call"].evidence


async def test_a_client_that_ends_its_process_spoils_its_own_verdict_only():
    report = await run(Quitter, scenarios=named("restart", "repeated-cursor"))
    assert report["restart"].result == "failed"
    assert "the process ended" in report["restart"].evidence
    assert report["repeated-cursor"].result == "passed"


async def test_what_a_client_does_not_have_is_not_held_against_it():
    report = await run(Lacking, scenarios=named("headers-of-each-call"))
    verdict = report["headers-of-each-call"]
    assert (verdict.result, verdict.evidence) == ("not applicable", "no headers here")


async def test_an_adapter_that_cannot_be_loaded_is_named():
    with pytest.raises(RuntimeError, match="no_such_module"):
        await run("no_such_module:Adapter")


async def test_a_class_that_no_other_process_can_find_is_refused():
    class Local(Sayer):
        pass

    with pytest.raises(ValueError, match="define it in a module"):
        await run(Local)


async def test_a_broken_scenario_of_ones_own_has_its_evidence():
    @scenario("a question", "an answer")
    async def mine(stage: Stage) -> None:
        raise Broken("what was seen")

    verdict = (await run(Sayer, scenarios=[mine]))["mine"]
    assert (verdict.result, verdict.evidence) == ("failed", "what was seen")


def test_a_report_survives_json_and_is_a_table_whose_total_is_of_what_applies():
    verdicts = (
        Verdict("a", "passed", "", 0.1),
        Verdict("b", "failed", "ran twice", 0.2),
        Verdict("c", "not applicable", "has none", 0.0),
        Verdict("d", "failed", "another way", 0.1, choice=True),
        Verdict("e", "passed", "", 0.1, choice=True),
    )
    report = Report("client", "legacy", "3.11", {"mcp": "2.3.0"}, verdicts)
    assert Report.from_json(json.loads(json.dumps(report.to_json()))) == report
    lines = ["| | client |", "|---|---|", "| a | yes |", "| b | **no** |", "| c | – |"]
    lines += ["| d | no (a choice) |", "| e | yes |"]
    assert table([report]).splitlines() == [*lines, "| passed | 1/2 |"]


def test_the_program_exits_with_1_for_a_client_that_fails():
    command = [sys.executable, "-m", "benchmarks.scenarios", f"{__file__}:Sayer", "restart"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=ROOT)
    assert done.returncode == 1
    assert done.stdout.splitlines()[-1] == "sayer: 0 passed, 1 failed"
