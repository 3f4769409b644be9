"""Every link leads somewhere, to a heading that is there, and every page is reached by one."""

import re
from pathlib import Path

import pytest

from tests.docs.markdown import CODE, PAGES, PAPERS, ROOT, anchors, links

INDEX = ROOT / "docs" / "index.md"
ALL = [*PAGES, *PAPERS]


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("page", ALL, ids=name)
def test_the_links_of_a_page_lead_somewhere(page: Path):
    astray = [link.text for link in links(page) if not link.target.exists()]
    assert astray == []
    lost = [
        link.text
        for link in links(page)
        if link.place and link.target.suffix == ".md" and link.place not in anchors(link.target)
    ]
    assert lost == []


@pytest.mark.parametrize("page", ALL, ids=name)
def test_a_link_stays_in_the_repository(page: Path):
    assert [link.text for link in links(page) if not link.target.is_relative_to(ROOT)] == []


@pytest.mark.parametrize("page", ALL, ids=name)
def test_a_reference_is_defined_once_and_what_is_defined_is_used(page: Path):
    text = CODE.sub("``", page.read_text(encoding="utf-8"))
    defined = re.findall(r"^\[([\w-]+)\]: \S", text, re.MULTILINE)
    used = re.findall(r"\]\[([\w-]+)\]", text)
    assert len(defined) == len(set(defined))
    assert set(defined) == set(used)


def test_every_page_can_be_reached_from_the_index():
    reached, ahead = {INDEX}, [INDEX]
    while ahead:
        found = {link.target for link in links(ahead.pop()) if link.target in PAGES}
        ahead.extend(found - reached)
        reached |= found
    assert [name(page) for page in PAGES if page not in reached] == []
    assert len(reached) > 50


def test_the_readme_leads_to_the_index_and_the_papers():
    found = {link.target for link in links(ROOT / "README.md")}
    assert {INDEX, *PAPERS} <= found


def test_headings_are_named_as_code_hosts_name_them(tmp_path: Path):
    page = tmp_path / "page.md"
    page.write_text("# A `Runtime`, *now*\n## One\n```sh\n# no heading\n```\n## One\n")
    assert anchors(page) == {"a-runtime-now", "one", "one-1"}
