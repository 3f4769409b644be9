"""JSON-RPC messages: what we write, and how warily we read."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkeep._rules.classify import RpcError
from toolkeep._transport.jsonrpc import (
    decode_messages,
    encode_error,
    encode_notification,
    encode_request,
    encode_response,
    is_error_without_id,
    is_response_to,
    is_rpc_message,
    parse_error,
)

plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)


@given(plain)
def test_a_request_is_read_as_it_was_written(value: Any) -> None:
    body = encode_request(3, "tools/call", {"arguments": value})
    assert decode_messages(body) == [
        {"jsonrpc": "2.0", "id": 3, "method": "tools/call", "params": {"arguments": value}}
    ]


def test_parameters_that_are_none_are_left_out() -> None:
    assert "params" not in json.loads(encode_request(1, "ping", None))
    assert json.loads(encode_notification("notifications/initialized", {})) == {
        "jsonrpc": "2.0",
        "method": "notifications/initialized",
        "params": {},
    }


def test_answers_to_the_server() -> None:
    assert json.loads(encode_response("a", {"roots": []})) == {
        "jsonrpc": "2.0",
        "id": "a",
        "result": {"roots": []},
    }
    assert json.loads(encode_error(1, -32601, "no", {"why": 1}))["error"] == {
        "code": -32601,
        "message": "no",
        "data": {"why": 1},
    }
    assert "data" not in json.loads(encode_error(1, -32601, "no"))["error"]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_json_cannot_say_is_not_written(value: float) -> None:
    with pytest.raises(ValueError):
        encode_request(1, "tools/call", {"n": value})


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"   ",
        b"<html>",
        b'{"jsonrpc":"2.0","id":1',
        b'"text"',
        b"17",
        b"null",
        b"[]",
        b'[{"id":1},2]',
        b'{"a":"\xff"}',
        b"[" * 100_000,
        b'{"id":1} {"id":2}',
    ],
)
def test_a_body_without_json_objects_is_refused(body: bytes) -> None:
    with pytest.raises(ValueError):
        decode_messages(body)


def test_a_batch_is_several_messages() -> None:
    assert decode_messages(b'[{"id":1},{"id":2}]') == [{"id": 1}, {"id": 2}]


@pytest.mark.parametrize(
    ("written", "read"),
    [
        (r"ok \ud83d", "ok \ufffd"),
        (r"\uDE00 ok", "\ufffd ok"),
        (r"\ud83d\ud83d\ude00", "\ufffd\U0001f600"),
        (r"\ud83d\ude00", "\U0001f600"),
        (r"\\ud83d \udabc", r"\ud83d" + " \ufffd"),
        (r"\\\ud83dx", "\\\ufffdx"),
    ],
)
@pytest.mark.parametrize("kind", [bytes, str])
def test_half_a_character_does_not_spoil_a_message(written: str, read: str, kind: type) -> None:
    body = f'{{"text": "{written}"}}'
    assert decode_messages(body if kind is str else body.encode()) == [{"text": read}]


def test_a_byte_order_mark_is_no_part_of_a_message() -> None:
    assert decode_messages("\ufeff{}".encode()) == decode_messages("\ufeff{}") == [{}]


@pytest.mark.parametrize(
    ("found", "is_one"),
    [
        ({"jsonrpc": "2.0"}, True),
        ({"id": 1, "result": {}}, True),
        ({"id": None, "error": {}}, True),
        ({"level": 30, "msg": "listening"}, False),
        ({"level": "error", "error": "oh no"}, False),
        ({"method": "GET", "id": 7}, False),
        ({"jsonrpc": "1.0"}, False),
        ({}, False),
    ],
    ids=str,
)
def test_a_line_of_a_log_in_json_is_no_message(found: dict[str, Any], is_one: bool) -> None:
    assert is_rpc_message(found) is is_one


@pytest.mark.parametrize(
    ("message", "answers"),
    [
        ({"id": 1, "result": {}}, True),
        ({"id": "1", "result": {}}, True),
        ({"id": 1, "error": {}}, True),
        ({"id": None, "error": {}}, False),
        ({"error": {}}, False),
        ({"id": None, "result": {}}, False),
        ({"result": {}}, False),
        ({"id": 2, "result": {}}, False),
        ({"id": True, "result": {}}, False),
        ({"id": 1.0, "result": {}}, False),
        ({"id": [1], "result": {}}, False),
        ({"id": 1, "method": "roots/list"}, False),
        ({"method": "notifications/message"}, False),
    ],
)
def test_which_message_answers_request_one(message: dict[str, Any], answers: bool) -> None:
    assert is_response_to(message, 1) is answers


@pytest.mark.parametrize(
    ("message", "unaddressed"),
    [
        *(({"id": id, "error": {}}, True) for id in (None, True, 1.0, 1.5, {}, [1])),
        ({"error": {"code": -32601}}, True),
        ({"id": 1, "error": {}}, False),
        ({"id": "", "error": {}}, False),
        ({"id": None, "result": {}, "error": None}, False),
        ({"id": None, "error": "no"}, False),
        ({"method": "error", "error": {}}, False),
    ],
)
def test_which_error_names_no_request(message: dict[str, Any], unaddressed: bool) -> None:
    assert is_error_without_id(message) is unaddressed


@pytest.mark.parametrize(
    ("error", "read"),
    [
        ({"code": -32000, "message": "no", "data": 1}, RpcError(-32000, "no", 1)),
        ({"code": "-32000", "message": None}, RpcError(0, "an error without a message")),
        ({"code": True}, RpcError(0, "an error without a message")),
    ],
)
def test_an_error_is_read_however_carelessly_written(error: Any, read: RpcError) -> None:
    assert parse_error({"id": 1, "error": error}, 1) == read


@pytest.mark.parametrize("error", [None, "no", []])
def test_an_error_that_is_no_object_is_none(error: Any) -> None:
    assert parse_error({"id": 1, "error": error}, 1) is None


@pytest.mark.parametrize(("shown", "answers"), [(1, True), ("1", True), (None, False), (2, False)])
def test_an_error_says_whether_it_names_our_request(shown: Any, answers: bool) -> None:
    found = parse_error({"id": shown, "error": {"code": 1, "message": ""}}, 1)
    assert found is not None
    assert found.answers_request is answers
