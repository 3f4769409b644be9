"""What an answer, or a silence, means."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkeep._rules.classify import (
    SESSION_LOST_HINTS,
    SESSION_LOST_RULES,
    Evidence,
    FaultKind,
    RpcError,
    SessionLostRule,
    classify,
    handshake_survives,
    parse_retry_after,
)
from toolkeep._transport.jsonrpc import decode_messages, parse_error
from toolkeep.errors import ConfigError, Delivery, Failure, FailureKind
from toolkeep.testing import ALL_LOSSES

RECORDED = json.loads(Path(__file__).with_name("session_answers.json").read_text(encoding="utf-8"))
REQUEST_ID = 7
KEPT = ("retry-after", "www-authenticate")


def answered(
    status: int,
    body: str = "",
    headers: dict[str, str] | None = None,
    *,
    session: bool = True,
) -> Evidence:
    """The evidence that an HTTP answer with this body is."""
    try:
        error = parse_error(decode_messages(body)[0], REQUEST_ID)
    except ValueError:
        error = None
    return Evidence(
        kind=FaultKind.ERROR if status < 300 else FaultKind.STATUS,
        sent=True,
        detail=f"HTTP {status}",
        status=status,
        headers={name: value for name, value in (headers or {}).items() if name in KEPT},
        error=error,
        text=body[:500],
        carried_session=session,
    )


def rpc(code: int, message: str = "no", request_id: object = REQUEST_ID, data: Any = None) -> str:
    error = {"code": code, "message": message, "data": data}
    return json.dumps({"jsonrpc": "2.0", "id": request_id, "error": error})


def kind_and_delivery(failure: Failure) -> tuple[FailureKind, Delivery]:
    return failure.kind, failure.delivery


LOST = (FailureKind.SESSION_LOST, Delivery.REFUSED)

# --- the table of lost sessions --------------------------------------------------------------


@pytest.mark.requirement("S5")
def test_every_row_has_its_recorded_answer_and_every_answer_its_row():
    rows = [row.source for row in (*SESSION_LOST_RULES, *SESSION_LOST_HINTS[:2])]
    assert sorted(rows) == sorted(answer["row"] for answer in RECORDED)
    assert len(set(rows)) == len(rows)


@pytest.mark.requirement("S5")
def test_a_row_of_a_known_server_matches_its_whole_text_alone():
    for row in SESSION_LOST_RULES:
        assert row.pattern is not None
        assert row.pattern.startswith(r"\A"), row
        assert row.pattern.endswith(r"\Z"), row


@pytest.mark.requirement("S5")
@pytest.mark.parametrize("answer", RECORDED, ids=lambda answer: answer["row"])
def test_a_recorded_answer_is_recognised_by_its_own_row(answer: dict[str, Any]):
    failure = classify(answered(answer["status"], answer["body"], answer["headers"]))
    assert kind_and_delivery(failure) == LOST
    assert (failure.rule, failure.status) == (answer["row"], answer["status"])
    assert failure.code == answer["code"]
    assert answer["source"]


@pytest.mark.parametrize("answer", RECORDED, ids=lambda answer: answer["row"])
def test_the_same_answer_to_a_request_without_a_session_loses_none(answer: dict[str, Any]):
    evidence = answered(answer["status"], answer["body"], answer["headers"], session=False)
    assert classify(evidence).kind is not FailureKind.SESSION_LOST


@pytest.mark.parametrize("answer", RECORDED, ids=lambda answer: answer["row"])
def test_the_same_answer_with_a_challenge_is_about_credentials(answer: dict[str, Any]):
    headers = {**answer["headers"], "www-authenticate": "Bearer"}
    failure = classify(answered(answer["status"], answer["body"], headers))
    assert failure.kind is not FailureKind.SESSION_LOST
    assert failure.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize("name", ALL_LOSSES)
def test_every_loss_that_the_test_kit_can_play_is_recognised(name: str):
    loss = ALL_LOSSES[name]
    body = loss.text("the-session", REQUEST_ID)
    assert kind_and_delivery(classify(answered(loss.status, body, dict(loss.headers)))) == LOST


def test_a_missing_method_that_answers_this_request_is_no_lost_session():
    failure = classify(answered(404, rpc(-32601)))
    assert kind_and_delivery(failure) == (FailureKind.REJECTED, Delivery.ANSWERED)
    assert kind_and_delivery(classify(answered(404, rpc(-32601, request_id=None)))) == LOST


@pytest.mark.parametrize(
    "evidence",
    [
        answered(400, rpc(-32602, "Invalid params: no such city")),
        answered(400, "obsessions are none of our business"),
        answered(400, "card declined after checkout session cs_12 was charged"),
        answered(400, rpc(-32000, "Bad Request: Unsupported protocol version")),
        answered(401, "please log in"),
        answered(409, "your session is fine"),
        answered(409, rpc(-32000, "your session is fine")),
        answered(500, rpc(-32603, "no session")),
        answered(200, rpc(-32600, "session")),
        answered(200, rpc(-32000, "Session not found: cs_12")),
        answered(200, rpc(32600, "obsession")),
    ],
)
def test_what_only_resembles_a_lost_session_is_none(evidence: Evidence):
    about_sessions = (FailureKind.SESSION_LOST, FailureKind.SESSION_UNCERTAIN)
    assert classify(evidence).kind not in about_sessions


# --- strong and weak evidence ----------------------------------------------------------------

CHARGED = "card declined after checkout session cs_12 was charged"
IN_OTHER_WORDS = [
    (400, -32000, CHARGED),
    (400, -32602, CHARGED),
    (400, 0, CHARGED),
    (400, 32600, CHARGED),
    (400, -32000, "Bad Request: No valid session ID provided, and the card was charged"),
    (400, -32000, "No valid session"),
    (400, -32600, "Server not initialized"),
    (404, -32000, "no such order"),
    (404, -32602, "Unknown tool"),
    (404, -32001, "Session not found in the booking system"),
    (404, -32600, "the Session not found"),
    (200, 32600, "the session of the buyer has ended"),
    (200, 32600, "Session terminated after the payment"),
    (500, 32600, "Session terminated\nafter the payment"),
]


@pytest.mark.requirement("S5", "P2")
@pytest.mark.parametrize(("status", "code", "text"), IN_OTHER_WORDS)
def test_our_id_answered_in_other_words_leaves_the_session_in_doubt_and_the_call_answered(
    status: int, code: int, text: str
):
    failure = classify(answered(status, rpc(code, text)))
    assert kind_and_delivery(failure) == (FailureKind.SESSION_UNCERTAIN, Delivery.ANSWERED)
    assert (failure.code, failure.message, failure.status) == (code, text, status)


@pytest.mark.requirement("S5")
@pytest.mark.parametrize("request_id", [None, 8, "server-error", True, 7.5])
@pytest.mark.parametrize(
    ("status", "code", "text"),
    [
        (404, -32000, "no such order"),
        (400, -32000, "No valid session"),
        (400, -32000, "Invalid or missing session ID"),
        (400, -32000, "Session 12 has expired"),
        (400, -32000, "Bad Request: Mcp-Session-Id header is required"),
        (400, -32600, "Server not initialized"),
    ],
)
def test_a_refusal_that_does_not_answer_our_id_is_proof(
    status: int, code: int, text: str, request_id: object
):
    assert kind_and_delivery(classify(answered(status, rpc(code, text, request_id)))) == LOST


@pytest.mark.requirement("S5", "P2")
@pytest.mark.parametrize(
    ("status", "code", "text"),
    [(400, -32000, CHARGED), (200, 32600, CHARGED), (200, 32600, "Session expired")],
)
def test_an_error_without_an_id_that_only_mentions_a_session_is_no_proof(status, code, text):
    failure = classify(answered(status, rpc(code, text, None)))
    assert kind_and_delivery(failure) == (FailureKind.SESSION_UNCERTAIN, Delivery.ANSWERED)


@pytest.mark.requirement("S5")
@pytest.mark.parametrize("status", [200, 400, 404, 500])
@pytest.mark.parametrize("code", [32600, -32600])
def test_a_terminated_session_is_recognised_with_our_id_and_on_any_status(status: int, code: int):
    assert kind_and_delivery(classify(answered(status, rpc(code, "Session terminated")))) == LOST


@pytest.mark.requirement("S5")
def test_a_users_row_is_proof_even_if_our_id_is_answered():
    row = SessionLostRule("ours", status=400, pattern="checkout session")
    assert kind_and_delivery(classify(answered(400, rpc(-1, CHARGED)), rules=[row])) == LOST


@pytest.mark.requirement("P2")
@pytest.mark.parametrize("code", [-32020, -32022])
@pytest.mark.parametrize("status", [200, 400, 500])
@pytest.mark.parametrize("data", [None, "no", {"supported": []}, {"supported": ["v2"]}])
def test_a_legacy_servers_own_use_of_a_modern_code_is_its_answer(code, status, data):
    failure = classify(answered(status, rpc(code, data=data)))
    assert kind_and_delivery(failure) == (FailureKind.REJECTED, Delivery.ANSWERED)


@pytest.mark.requirement("S12")
@pytest.mark.parametrize("request_id", [REQUEST_ID, None])
def test_a_legacy_server_that_became_modern_says_so_with_its_versions(request_id: object):
    told = rpc(-32022, request_id=request_id, data={"supported": ["2026-07-28"]})
    assert classify(answered(400, told)).kind is FailureKind.VERSION_MISMATCH
    assert classify(answered(200, told)).kind is FailureKind.REJECTED


@pytest.mark.requirement("S5")
@pytest.mark.parametrize(
    "row",
    [
        SessionLostRule("ours", status=410),
        SessionLostRule("ours", status=410, code=-1),
        SessionLostRule("ours", code=-1),
        SessionLostRule("ours", pattern="WHO are|never met"),
        SessionLostRule("ours", status=410, code=-1, pattern="^who"),
    ],
)
def test_users_add_rows_for_servers_with_a_way_of_their_own(row: SessionLostRule):
    evidence = answered(410, rpc(-1, "Who are you?"))
    assert classify(evidence).kind is not FailureKind.SESSION_LOST
    failure = classify(evidence, rules=(row, *SESSION_LOST_RULES))
    assert (failure.kind, failure.rule) == (FailureKind.SESSION_LOST, "ours")


@pytest.mark.parametrize(
    "row",
    [
        SessionLostRule("another status", status=409),
        SessionLostRule("another code", code=-2),
        SessionLostRule("another text", pattern="elsewhere"),
        SessionLostRule("right text, wrong code", code=-2, pattern="Who"),
        SessionLostRule("right code, wrong text", code=-1, pattern="elsewhere"),
    ],
)
def test_a_row_matches_only_when_all_of_it_does(row: SessionLostRule):
    evidence = answered(410, rpc(-1, "Who are you?"))
    assert classify(evidence, rules=[row]).kind is not FailureKind.SESSION_LOST


def test_a_row_with_a_code_matches_no_answer_without_one():
    row = SessionLostRule("coded", code=-32000)
    assert classify(answered(410, "gone"), rules=[row]).kind is not FailureKind.SESSION_LOST


@pytest.mark.parametrize("row", [{"pattern": "("}, {"pattern": "*"}, {}])
def test_a_row_that_cannot_work_is_refused_when_it_is_written(row: dict[str, str]):
    with pytest.raises(ConfigError):
        SessionLostRule("a slip of the pen", **row)  # pyright: ignore[reportArgumentType]


# --- the general rules -----------------------------------------------------------------------

REFUSED, ANSWERED, UNKNOWN = Delivery.REFUSED, Delivery.ANSWERED, Delivery.UNKNOWN
WAIT = {"retry-after": "5"}

GENERAL = [
    (answered(401), FailureKind.UNAUTHORIZED, REFUSED),
    (answered(403), FailureKind.UNAUTHORIZED, REFUSED),
    (answered(401, rpc(-32001)), FailureKind.UNAUTHORIZED, REFUSED),
    (answered(403, "", {"www-authenticate": "Bearer"}), FailureKind.UNAUTHORIZED, REFUSED),
    (answered(429), FailureKind.THROTTLED, REFUSED),
    (answered(429, rpc(-32000)), FailureKind.THROTTLED, REFUSED),
    (answered(503, "", WAIT), FailureKind.THROTTLED, REFUSED),
    (answered(503), FailureKind.BROKEN, UNKNOWN),
    (answered(503, "", {"retry-after": "soon"}), FailureKind.BROKEN, UNKNOWN),
    (answered(400), FailureKind.REFUSED, REFUSED),
    (answered(404, session=False), FailureKind.REFUSED, REFUSED),
    (answered(405), FailureKind.REFUSED, REFUSED),
    (answered(406), FailureKind.REFUSED, REFUSED),
    (answered(413, "<html>"), FailureKind.REFUSED, REFUSED),
    (answered(408), FailureKind.BROKEN, UNKNOWN),
    (answered(409), FailureKind.BROKEN, UNKNOWN),
    (answered(499), FailureKind.BROKEN, UNKNOWN),
    (answered(500), FailureKind.BROKEN, UNKNOWN),
    (answered(502, "<html>"), FailureKind.BROKEN, UNKNOWN),
    (answered(504, "", WAIT), FailureKind.BROKEN, UNKNOWN),
    (answered(500, rpc(-32603)), FailureKind.REJECTED, ANSWERED),
    (answered(500, rpc(-32603, request_id=None)), FailureKind.BROKEN, UNKNOWN),
    (answered(500, rpc(-32603, request_id=8)), FailureKind.BROKEN, UNKNOWN),
    (answered(500, rpc(-32022, request_id=None)), FailureKind.BROKEN, UNKNOWN),
    (answered(400, rpc(-32602)), FailureKind.REJECTED, ANSWERED),
    (answered(400, rpc(-32602, request_id=None)), FailureKind.REJECTED, ANSWERED),
    (answered(200, rpc(-32601)), FailureKind.REJECTED, ANSWERED),
    (answered(200, rpc(-32602, request_id=None)), FailureKind.REJECTED, ANSWERED),
    (answered(404, rpc(-32601), session=False), FailureKind.REJECTED, ANSWERED),
    (answered(400, rpc(-32020)), FailureKind.REJECTED, ANSWERED),
    (
        replace(answered(400, rpc(-32020)), standard_codes=True),
        FailureKind.HEADER_MISMATCH,
        ANSWERED,
    ),
    (answered(200, rpc(-32020)), FailureKind.REJECTED, ANSWERED),
    (
        replace(answered(200, rpc(-32020)), standard_codes=True),
        FailureKind.HEADER_MISMATCH,
        ANSWERED,
    ),
    (answered(400, rpc(-32022)), FailureKind.REJECTED, ANSWERED),
    (
        replace(answered(400, rpc(-32022)), standard_codes=True),
        FailureKind.VERSION_MISMATCH,
        ANSWERED,
    ),
    (answered(200, rpc(-32022)), FailureKind.REJECTED, ANSWERED),
    (
        replace(answered(200, rpc(-32022)), standard_codes=True),
        FailureKind.VERSION_MISMATCH,
        ANSWERED,
    ),
    (Evidence(FaultKind.UNREADABLE, True, "html", status=200), FailureKind.UNREADABLE, UNKNOWN),
    (
        Evidence(FaultKind.UNREADABLE, True, "a redirect", status=302),
        FailureKind.UNREADABLE,
        UNKNOWN,
    ),
    (Evidence(FaultKind.UNREADABLE, True, "no status"), FailureKind.UNREADABLE, UNKNOWN),
    (Evidence(FaultKind.BROKEN, True, "reset"), FailureKind.BROKEN, UNKNOWN),
    (Evidence(FaultKind.BROKEN, True, "cut", status=200), FailureKind.BROKEN, UNKNOWN),
    (Evidence(FaultKind.CONNECT, False, "refused"), FailureKind.UNREACHABLE, Delivery.NOT_SENT),
    (Evidence(FaultKind.BROKEN, False, "reset"), FailureKind.UNREACHABLE, Delivery.NOT_SENT),
    (Evidence(FaultKind.CONNECT, True, "odd"), FailureKind.BROKEN, UNKNOWN),
    (Evidence(FaultKind.EXITED, False, "code 3"), FailureKind.EXITED, Delivery.NOT_SENT),
    (Evidence(FaultKind.EXITED, True, "odd"), FailureKind.BROKEN, UNKNOWN),
]


@pytest.mark.parametrize(("evidence", "kind", "delivery"), GENERAL)
def test_an_answer_means_what_its_rule_says(evidence, kind, delivery):
    assert kind_and_delivery(classify(evidence)) == (kind, delivery)


def test_every_kind_is_somewhere_recognised():
    sessions = {FailureKind.SESSION_LOST, FailureKind.SESSION_UNCERTAIN}
    assert {kind for _, kind, _ in GENERAL} | sessions == set(FailureKind)


def test_a_failure_keeps_what_the_server_said():
    headers = {"retry-after": "2.5", "www-authenticate": 'Bearer realm="x"'}
    failure = classify(answered(403, rpc(-32042, "not you", data={"scope": "admin"}), headers))
    assert (failure.status, failure.code, failure.message) == (403, -32042, "not you")
    assert failure.data == {"scope": "admin"}
    assert failure.retry_after == 2.5
    assert failure.headers == headers
    assert failure.rule


def test_without_an_error_in_the_body_the_wire_tells_what_happened():
    failure = classify(Evidence(FaultKind.BROKEN, True, "the answer broke off"))
    assert failure.message == "the answer broke off"
    assert (failure.status, failure.code, failure.data) == (None, None, None)


# --- laws ------------------------------------------------------------------------------------

errors = st.builds(
    RpcError,
    code=st.integers() | st.sampled_from([-32600, -32000, -32001, 32600, -32601, -32020, -32022]),
    message=st.text() | st.sampled_from(["Session not found", "Server not initialized"]),
    data=st.none() | st.text(),
    answers_request=st.booleans(),
)
evidences = st.builds(
    Evidence,
    kind=st.sampled_from(FaultKind),
    sent=st.booleans(),
    detail=st.text(),
    status=st.none() | st.integers(100, 599) | st.sampled_from([400, 401, 404, 429, 503]),
    headers=st.dictionaries(st.sampled_from(KEPT), st.text() | st.sampled_from(["5", "0"])),
    error=st.none() | errors,
    text=st.text() | st.just("session not found"),
    carried_session=st.booleans(),
)


@given(evidences)
def test_everything_means_something(evidence: Evidence):
    failure = classify(evidence)
    assert failure.kind in FailureKind
    assert failure.rule
    assert failure.headers == evidence.headers


@given(evidences)
def test_what_was_not_sent_is_not_sent_and_nothing_else_is(evidence: Evidence):
    failure = classify(evidence)
    assert (failure.delivery is Delivery.NOT_SENT) is (not evidence.sent)


@given(evidences)
def test_a_challenge_is_never_a_lost_session(evidence: Evidence):
    if "www-authenticate" in evidence.headers or not evidence.carried_session:
        assert classify(evidence).kind is not FailureKind.SESSION_LOST


@given(evidences)
def test_our_id_is_answered_unless_the_whole_text_is_known_or_the_status_decides(evidence):
    """[S5] No word in an error with our id proves that the call did not run."""
    error, failure = evidence.error, classify(evidence)
    if evidence.sent and error is not None and error.answers_request:
        known = failure.rule in {row.source for row in SESSION_LOST_RULES}
        assert known or failure.kind is not FailureKind.SESSION_LOST


@given(evidences)
def test_a_response_of_which_a_part_is_missing_proves_nothing(evidence: Evidence):
    """[P2] Except for the statuses that no tool's answer has."""
    if evidence.sent and evidence.kind in (FaultKind.BROKEN, FaultKind.UNREADABLE):
        asked_to_wait = evidence.status == 503 and evidence.retry_after is not None
        if evidence.error is None and evidence.status not in (401, 403, 429) and not asked_to_wait:
            assert classify(evidence).delivery is UNKNOWN


@given(evidences)
def test_an_outage_is_never_told_as_certain(evidence: Evidence):
    """After a 5xx, only the server's word about this request or its wish to wait is certain."""
    failure = classify(evidence)
    if evidence.sent and (evidence.status or 0) >= 500 and failure.delivery is not UNKNOWN:
        about_this = evidence.error is not None and evidence.error.answers_request
        asked_to_wait = evidence.status == 503 and evidence.retry_after is not None
        assert about_this or asked_to_wait or failure.kind is FailureKind.SESSION_LOST


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        (None, None),
        ("5", 5.0),
        ("0", 0.0),
        (" 2.5 ", 2.5),
        ("-1", None),
        ("inf", None),
        ("nan", None),
        ("", None),
        ("soon", None),
        ("Wed, 21 Oct 2026 07:28:00 GMT", None),
    ],
)
def test_retry_after_is_a_number_of_seconds_or_nothing(header, seconds):
    assert parse_retry_after(header) == seconds


@given(st.text())
def test_no_retry_after_can_spoil_a_wait(header: str):
    seconds = parse_retry_after(header)
    assert seconds is None or (seconds >= 0 and math.isfinite(seconds))


@pytest.mark.parametrize("status", [None, 200, 400, 404, 500, 503])
def test_only_a_5xx_to_the_initialized_notification_leaves_the_handshake_standing(
    status: int | None,
):
    tolerated = status is not None and status >= 500
    assert handshake_survives("notifications/initialized", status) is tolerated
    assert not handshake_survives("initialize", status)


def test_a_tool_that_the_sdk_cuts_off_at_its_shutdown_may_have_run():
    failure = classify(answered(200, rpc(-32000, "Connection closed")))
    assert (failure.kind, failure.delivery) == (FailureKind.BROKEN, Delivery.UNKNOWN)
