"""The tutorial is followed from top to bottom, word for word, by somebody with an empty folder."""

import sys
from pathlib import Path

import pytest

from tests.docs.markdown import PAGES, ROOT, blocks
from tests.docs.terminal import fits, reader

TUTORIAL = ROOT / "docs" / "tutorial" / "ten-minutes.md"

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="the pages are written for a shell"),
    pytest.mark.timeout(300),
]


@pytest.mark.requirement("O2")
@pytest.mark.requirement("O3")
async def test_the_tutorial_can_be_followed_word_for_word(tmp_path: Path):
    async with reader(tmp_path) as somebody:
        await somebody.follow(TUTORIAL)
    assert somebody.answered > 20


OTHERS = [
    page
    for page in PAGES
    if page != TUTORIAL and any(b.language == "console" for b in blocks(page))
]


@pytest.mark.parametrize("page", OTHERS, ids=lambda page: page.name)
async def test_a_page_with_commands_can_be_followed_word_for_word(page: Path, tmp_path: Path):
    async with reader(tmp_path) as somebody:
        await somebody.follow(page)
    assert somebody.answered


@pytest.mark.parametrize(
    ("printed", "shown", "whether"),
    [
        ("add   3 ms  2\n", "add  11.5 s 2", True),
        ("add   3 ms  2\n", "add  11.5 s 3", False),
        ("INFO: one\nINFO: two\nUp at 8\n", "…\nUp at 8", True),
        ("INFO: one\nDown\n", "…\nUp at 8", False),
        ("stdio /a/b, mcp.json:5\nmore", "stdio …, mcp.json:5", False),
        ("", "5", False),
    ],
)
def test_the_one_who_follows_is_no_yes_man(printed: str, shown: str, whether: bool):
    assert fits(printed, shown) is whether
