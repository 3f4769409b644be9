"""The page about clients in trouble is the one that its results would write."""

from benchmarks.scenarios import SCENARIOS, Report, _logins, compare


def test_the_page_is_what_the_results_say():
    assert compare.page(compare.recorded()) == compare.PAGE.read_text("utf-8")


def test_what_is_not_a_clients_default_is_said_of_each_ours_first():
    told = [" ".join(compare.settings(name).split()) for name in compare.PLACES]
    assert all(words.startswith("Not its default") for words in told)
    page = " ".join(compare.PAGE.read_text("utf-8").split())
    places = [page.index(words) for words in told]
    assert places == sorted(places)
    assert "`non_identity_headers`" in told[0]


def test_every_client_was_driven_through_every_scenario_that_its_adapter_can_play():
    reports = {name: Report.from_json(raw) for name, raw in compare.recorded()["reports"].items()}
    assert list(reports) == list(compare.PLACES)
    logins = {each.name for each in _logins.ALL}
    for name, report in reports.items():
        logs_in = "def log_in(" in (compare.ADAPTERS / f"{name}.py").read_text("utf-8")
        wanted = [each.name for each in SCENARIOS if logs_in or each.name not in logins]
        assert [verdict.scenario for verdict in report.verdicts] == wanted


def test_ours_pass_them_all():
    for name in ("toolkeep_client", "toolkeep_runtime"):
        report = Report.from_json(compare.recorded()["reports"][name])
        assert len(report.of("passed")) == len(SCENARIOS)
