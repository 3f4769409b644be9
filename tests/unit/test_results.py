"""A result keeps everything, in the shape it had on the wire."""

import copy
import dataclasses
import json
import subprocess
import sys

import pytest

from toolkeep.results import CallResult

RAW = {
    "content": [
        {"type": "text", "text": "one", "annotations": {"priority": 0.5}},
        {"type": "image", "data": "aGk=", "mimeType": "image/png"},
        {"type": "text", "text": "two\nlines", "_meta": {"k": 1}},
        {"type": "audio", "data": "aGk=", "mimeType": "audio/wav"},
        {"type": "resource_link", "uri": "file:///a", "name": "a"},
        {"type": "resource", "resource": {"uri": "file:///b", "text": "hello"}},
        {"type": "resource", "resource": {"uri": "file:///c", "blob": "aGk="}},
    ],
    "structuredContent": {"answer": 42, "none": None},
    "_meta": {"trace": "abc"},
    "isError": False,
    "unheardOf": {"kept": True},
}


def result(**raw: object) -> CallResult:
    return CallResult(raw, "research", "search")


def test_the_text_is_all_text_blocks_joined_by_newlines():
    assert CallResult(RAW, "s", "t").text == "one\ntwo\nlines"


def test_the_data_is_the_structured_content_whatever_it_is():
    assert CallResult(RAW, "s", "t").data == {"answer": 42, "none": None}
    assert result(structuredContent=[1, 2]).data == [1, 2]
    assert result(content=[]).data is None


def test_every_kind_of_content_becomes_a_typed_block_in_order():
    blocks = CallResult(RAW, "s", "t").content
    assert [block.type for block in blocks] == [block["type"] for block in RAW["content"]]
    shapes = [json.loads(b.model_dump_json(by_alias=True, exclude_none=True)) for b in blocks]
    assert shapes == RAW["content"]


@pytest.mark.parametrize("raw", [{}, {"content": []}, {"content": None}])
def test_a_result_without_content_is_empty(raw):
    empty = result(**raw)
    assert (empty.text, empty.content, empty.data, dict(empty.meta)) == ("", [], None, {})


def test_meta_is_what_the_server_attached():
    assert CallResult(RAW, "s", "t").meta == {"trace": "abc"}


@pytest.mark.parametrize(
    ("raw", "is_error"), [({}, False), ({"isError": False}, False), ({"isError": True}, True)]
)
def test_the_error_of_a_tool_is_a_result(raw, is_error):
    assert (result(**raw).is_error, result(**raw).success) == (is_error, not is_error)


def test_looking_at_a_result_changes_nothing_and_copies_nothing():
    raw = copy.deepcopy(RAW)
    seen = CallResult(raw, "s", "t")
    assert seen.content is seen.content
    _ = (seen.text, seen.data, seen.meta, seen.is_error)
    assert raw == RAW
    assert seen.raw is raw
    assert seen.data is raw["structuredContent"]


def test_a_result_knows_where_it_came_from_and_cannot_be_changed():
    seen = CallResult(RAW, "research", "search", attempts=2, duration=0.5)
    assert (seen.server, seen.tool, seen.attempts, seen.duration) == ("research", "search", 2, 0.5)
    assert (result().attempts, result().duration) == (1, 0.0)
    with pytest.raises(dataclasses.FrozenInstanceError):
        seen.raw = {}  # pyright: ignore[reportAttributeAccessIssue]


def test_reading_text_and_data_loads_no_protocol_types():
    program = (
        "import sys; from toolkeep.results import CallResult\n"
        "r = CallResult({'content': [{'type': 'text', 'text': 'x'}]}, 's', 't')\n"
        "r.text, r.data, r.meta\n"
        "sys.exit('mcp_types' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], timeout=30).returncode == 0
