"""The page about clients in trouble is the one that its results would write."""

import importlib.util
from pathlib import Path
from types import ModuleType

from toolkeep.testing.scenarios import SCENARIOS, Report

ROOT = Path(__file__).resolve().parent.parent.parent


def script() -> ModuleType:
    path = ROOT / "benchmarks" / "peers" / "scenarios" / "run.py"
    spec = importlib.util.spec_from_file_location("scenarios_run", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_what_the_results_say():
    run = script()
    assert run.page(run.recorded()) == run.PAGE.read_text("utf-8")


def test_what_is_not_a_clients_default_is_said_of_each_ours_first():
    run = script()
    told = [" ".join(run.settings(name).split()) for name in run.PLACES]
    assert all(words.startswith("Not its default") for words in told)
    page = " ".join(run.PAGE.read_text("utf-8").split())
    places = [page.index(words) for words in told]
    assert places == sorted(places)
    assert "`neutral_headers`" in told[0]


def test_every_client_was_driven_through_every_scenario():
    run = script()
    reports = {name: Report.from_json(raw) for name, raw in run.recorded()["reports"].items()}
    assert list(reports) == list(run.PLACES)
    wanted = [each.name for each in SCENARIOS]
    for report in reports.values():
        assert [verdict.scenario for verdict in report.verdicts] == wanted


def test_ours_pass_them_all():
    run = script()
    for name in ("toolkeep_client", "toolkeep_runtime"):
        report = Report.from_json(run.recorded()["reports"][name])
        assert len(report.of("passed")) == len(SCENARIOS)
