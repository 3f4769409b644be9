"""Results of calls are checked as the protocol's models would, and a plain one without them."""

import itertools
from typing import Any

import pytest
from mcp_types import CallToolResult
from pydantic import ValidationError

from toolkeep._client.session import BLOCKS_PER_SLICE, check_call_slice, content_slices

VERSIONS = ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25", "2026-07-28"]
BLOCKS: list[Any] = [
    {"type": "text", "text": "a"},
    {"type": "text", "text": 1},
    {"type": "text"},
    {"type": "text", "text": "a", "annotations": {"priority": "high"}},
    {"type": "text", "text": "a", "_meta": {}},
    {"type": "image", "text": "a"},
    {"type": "image", "data": "", "mimeType": "image/png"},
    "a",
]
CONTENTS = [[], *([block] for block in BLOCKS), [BLOCKS[0], BLOCKS[0]], [BLOCKS[0], BLOCKS[1]], "a"]
MORE: list[dict[str, Any]] = [
    {},
    {"isError": True},
    {"isError": "perhaps"},
    {"structuredContent": {}},
    {"_meta": 7},
    {"unheard": "of"},
]


@pytest.mark.parametrize("version", VERSIONS)
def test_what_is_refused_is_what_the_models_refuse(version: str) -> None:
    refused = 0
    for content, more in itertools.product(CONTENTS, MORE):
        result = {"content": content, **more, "resultType": "complete"}
        assert is_taken(result, version) == is_modelled(result), result
        refused += not is_taken(result, version)
    assert 0 < refused < len(CONTENTS) * len(MORE)


def is_taken(result: dict[str, Any], version: str) -> bool:
    try:
        check_call_slice(result, version)
    except ValidationError:
        return False
    return True


def is_modelled(result: dict[str, Any]) -> bool:
    try:
        CallToolResult.model_validate(result, by_name=False)
    except ValidationError:
        return False
    return True


def test_a_request_for_input_is_checked_as_one() -> None:
    asked = {"resultType": "input_required", "inputRequests": {}}
    assert is_taken(asked, VERSIONS[-1])
    assert not is_taken({**asked, "inputRequests": 7}, VERSIONS[-1])


def test_a_version_that_nobody_knows_has_no_models() -> None:
    assert is_taken({"content": 7}, "2031-01-01")


@pytest.mark.requirement("F5")
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("bad", [None, 0, BLOCKS_PER_SLICE, 5 * BLOCKS_PER_SLICE + 1])
def test_a_result_of_very_many_blocks_is_checked_whole_in_slices(
    version: str, bad: int | None
) -> None:
    content: list[Any] = [
        {"type": "text", "text": "a", "_meta": {}} for _ in range(6 * BLOCKS_PER_SLICE)
    ]
    if bad is not None:
        content[bad] = {"type": "text", "text": 1}
    result = {"content": content, "isError": False, "resultType": "complete"}
    parts = list(content_slices(result))
    assert [block for part in parts for block in part["content"]] == content
    assert max(len(part["content"]) for part in parts) == BLOCKS_PER_SLICE
    assert all(is_taken(part, version) for part in parts) == (bad is None)
