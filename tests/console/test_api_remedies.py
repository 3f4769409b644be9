"""The likely fault of a server in use, by the evidence of its error alone."""

from typing import Any

import pytest

from toolkeep import ConfigError
from toolkeep._doctor.judge import likely_fault
from toolkeep._doctor.report import Fault
from toolkeep.errors import AuthNeeded, Delivery, Failure, FailureKind, ServerUnavailable


def unavailable(kind: FailureKind, message: str = "", **facts: Any) -> ServerUnavailable:
    failure = Failure(kind, Delivery.NOT_SENT, message, **facts)
    return ServerUnavailable("down", server="s", last_failure=failure)


@pytest.mark.parametrize(
    ("error", "fault"),
    [
        (None, None),
        (ValueError("x"), None),
        (unavailable(FailureKind.UNREACHABLE, "the name 'x' cannot be resolved"), "DNS_FAILURE"),
        (unavailable(FailureKind.UNREACHABLE, "a:1: Connection refused"), "PORT_CLOSED"),
        (unavailable(FailureKind.UNREACHABLE, "TLS failed: alert"), "TLS_FAILED"),
        (unavailable(FailureKind.UNREACHABLE, "the proxy refused: HTTP 407"), "PROXY_REFUSED"),
        (unavailable(FailureKind.UNREACHABLE, "no route"), "NO_CONNECTION"),
        (unavailable(FailureKind.BROKEN, "cut", exit_code=3), "PROGRAM_EXITS"),
        (unavailable(FailureKind.REFUSED, status=404), "NOT_FOUND"),
        (unavailable(FailureKind.BROKEN, status=502), "SERVER_ERROR"),
        (unavailable(FailureKind.UNREADABLE, status=200), "NOT_MCP"),
        (unavailable(FailureKind.THROTTLED, status=429), "THROTTLED"),
        (unavailable(FailureKind.HEADER_MISMATCH), None),
        (ServerUnavailable("not ready within 10 s", server="s"), "NO_ANSWER"),
        (AuthNeeded("no key", server="s"), "UNAUTHORIZED"),
        (ConfigError("it cannot be started", key="command"), "COMMAND_MISSING"),
        (ConfigError("it is no URL", key="url"), "BAD_CONFIGURATION"),
    ],
)
def test_an_error_suggests_a_fault_with_its_remedy(error: Any, fault: str | None):
    assert likely_fault(error) is (None if fault is None else Fault[fault])


def test_a_server_with_logins_wants_one():
    error = AuthNeeded("log in", server="s")
    assert likely_fault(error, can_log_in=True) is Fault.LOGIN_NEEDED
