"""The short form of `make conformance`: some scenarios of the protocol's own suite, one at a time.

All of them, with their checks, are on the page, which must be what the recorded results say.
"""

import asyncio
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
QUICK = [
    ("tools_call", "2025-06-18"),
    ("tools_call", "2026-07-28"),
    ("sse-retry", "2025-11-25"),
    ("sep-2322-client-request-state", "2026-07-28"),
    ("http-custom-headers", "2026-07-28"),
    ("auth/scope-step-up", "2026-07-28"),
    ("auth/client-credentials-jwt", ""),
]
QUICK_SERVER = [
    ("tools-call-elicitation", "2025-11-25"),
    ("tools-call-with-progress", "2026-07-28"),
    ("input-required-result-multi-round", "2026-07-28"),
    ("http-header-validation", "2026-07-28"),
]


def suite() -> ModuleType:
    spec = importlib.util.spec_from_file_location("conformance_run", ROOT / "conformance/run.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(("name", "version"), QUICK)
@pytest.mark.timeout(200)
async def test_the_suite_has_nothing_to_say_against_the_client(name: str, version: str):
    run = suite()
    outcome = await asyncio.to_thread(run.run, run.Scenario(name, version))
    assert outcome.fine, outcome.said


@pytest.mark.timeout(200)
async def test_the_suite_has_nothing_to_say_against_the_gateway():
    run = suite()

    def score() -> list[Any]:
        with run.servers() as urls:
            return [run.run(run.Scenario(*one), urls[run.GATEWAY]) for one in QUICK_SERVER]

    outcomes = await asyncio.to_thread(score)
    assert [one.said for one in outcomes if not one.fine] == []


def test_the_page_is_what_the_results_say():
    run = suite()
    assert run.page(run.recorded()) == run.PAGE.read_text("utf-8")


def test_all_scenarios_but_those_of_what_is_not_built_yet_passed_in_the_last_run():
    run = suite()
    outcomes = [run.Outcome(**raw) for raw in run.recorded()["outcomes"]]
    assert sum(each.name.startswith(run.NEEDS_OAUTH) for each in outcomes) > len(run.NOT_YET)
    assert {each.name for each in outcomes if not each.fine} <= set(run.NOT_YET)


def test_the_gateway_passed_all_that_its_server_passed_in_the_last_run():
    run = suite()
    scored = run.recorded()["server"]
    found = {way: [run.Outcome(**raw) for raw in outcomes] for way, outcomes in scored.items()}
    assert len(found[run.DIRECT]) > 100
    assert run.lost_on_the_way(found) == []
