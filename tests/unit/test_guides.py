"""Usage guides: which text goes to which tool."""

from dataclasses import dataclass

import pytest

from toolkeep._catalogue.listing import guides_for, prompts_in_guides


@dataclass(frozen=True)
class Tool:
    name: str


TOOLS = [Tool("search_web"), Tool("search_files"), Tool("Read"), Tool("a.b")]
PROMPTS = {"how": "Do it so.", "empty": "  "}


@pytest.mark.parametrize(
    ("guides", "found"),
    [
        ({}, {}),
        ({"Read": "how"}, {"Read": "Do it so."}),
        ({"read": "how"}, {}),
        ({"Read": "Read it first."}, {"Read": "Read it first."}),
        ({"Read": "one\nline"}, {"Read": "one\nline"}),
        ({"search_*": "how"}, {"search_web": "Do it so.", "search_files": "Do it so."}),
        ({"a.?": "how", "nobody": "how"}, {"a.b": "Do it so."}),
        ({"Read": "unknown"}, {}),
        ({"Read": "empty"}, {}),
        ({"Read": "*"}, {"Read": "one\n\ntwo"}),
        ({"R*": "how", "*d": "And so on."}, {"Read": "Do it so.\n\nAnd so on."}),
        ({"R*": "how", "*d": "how"}, {"Read": "Do it so."}),
    ],
)
def test_each_tool_has_what_fits_to_it(guides: dict[str, str], found: dict[str, str]):
    assert guides_for(TOOLS, guides, PROMPTS, ["one", "two"]) == found


def test_tools_with_the_same_guide_share_it():
    web, files = guides_for(TOOLS, {"search_*": "how"}, PROMPTS).values()
    assert web is files


def test_one_word_is_the_name_of_a_prompt():
    guides = {"a": "how", "b": "so and so", "c": "*", "d": "how", "e": "other"}
    assert prompts_in_guides(guides) == {"how", "other"}
