"""`likely_fault`: what an error of a server in use suggests, without asking the server.

It judges by the evidence that the error carries, so it may be less exact than `examine`, which goes
to the server. It does no I/O.
"""

from __future__ import annotations

from toolkeep._doctor.report import Fault
from toolkeep.errors import (
    AuthNeeded,
    ConfigError,
    Failure,
    FailureKind,
    ServerUnavailable,
    ToolkeepError,
)

_BY_STATUS = {
    401: Fault.UNAUTHORIZED,
    403: Fault.FORBIDDEN,
    404: Fault.NOT_FOUND,
    405: Fault.NOT_ALLOWED,
    429: Fault.THROTTLED,
    503: Fault.UNAVAILABLE,
}
_BY_KIND = {
    FailureKind.EXITED: Fault.PROGRAM_EXITS,
    FailureKind.UNREADABLE: Fault.NOT_MCP,
    FailureKind.REFUSED: Fault.REFUSED,
    FailureKind.VERSION_MISMATCH: Fault.VERSION,
    FailureKind.SESSION_LOST: Fault.SESSION_LOST,
    FailureKind.THROTTLED: Fault.THROTTLED,
    FailureKind.UNAUTHORIZED: Fault.UNAUTHORIZED,
    FailureKind.REJECTED: Fault.HANDSHAKE_REJECTED,
    FailureKind.BROKEN: Fault.BROKEN,
}
_UNREACHABLE = {
    "cannot be resolved": Fault.DNS_FAILURE,
    "Connection refused": Fault.PORT_CLOSED,
    "certificate does not verify": Fault.TLS_ISSUER,
    "TLS failed": Fault.TLS_FAILED,
    "proxy": Fault.PROXY_REFUSED,
}
"""Words of our own transports (`http_client`) and of the system."""


def likely_fault(error: BaseException | None, *, can_log_in: bool = False) -> Fault | None:
    """The fault behind an error; None: there is no error, or nothing is known of its cause."""
    match error:
        case ConfigError(key="command"):
            return Fault.COMMAND_MISSING
        case ConfigError():
            return Fault.BAD_CONFIGURATION
        case AuthNeeded() if can_log_in:
            return Fault.LOGIN_NEEDED
        case ToolkeepError(failure=Failure() as failure):
            return _fault_of(failure)
        case AuthNeeded():
            return Fault.UNAUTHORIZED
        case ServerUnavailable() | TimeoutError():
            return Fault.NO_ANSWER
        case _:
            return None


def _fault_of(failure: Failure) -> Fault | None:
    if failure.exit_code is not None:
        return Fault.PROGRAM_EXITS
    if failure.status in _BY_STATUS:
        return _BY_STATUS[failure.status]
    if failure.status is not None and failure.status >= 500:
        return Fault.SERVER_ERROR
    if failure.kind is FailureKind.UNREACHABLE:
        known = (fault for words, fault in _UNREACHABLE.items() if words in failure.message)
        return next(known, Fault.NO_CONNECTION)
    return _BY_KIND.get(failure.kind)
