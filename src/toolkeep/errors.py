"""All exceptions that toolkeep raises, and the classification of a failed attempt.

    ToolkeepError
      ConfigError(ValueError)         before anything is opened; names file, server, key and remedy
      WrongLoop(RuntimeError)         used from another event loop or process than it was opened in
      UnknownServer(LookupError)      no such server
      NotOffered(LookupError)         no server offers it; suggests the nearest
        UnknownTool                   no such tool
          AmbiguousTool               several tools have this name: `.candidates`
        UnknownPrompt                 no such prompt
        UnknownResource               no such resource
      NotPermitted                    this principal may not do this here
      ServerUnavailable               no connection to send the call on
      AuthNeeded                      the server wants credentials that are missing
      InvalidArguments(ValueError)    found before anything was sent
      RemoteProtocolError             the server does not speak the protocol
      StoreUnavailable                the store refused or did not answer in time
        SealBroken                    stored data does not open with the configured keys
      CallError                       one call failed; `.delivery` says whether it ran
        CallNotDelivered              did not run
          CallNotSentInTime(TimeoutError)
        CallOutcomeUnknown            may have run
          CallTimedOut(TimeoutError)
        CallRejected                  the server answered with an error: `.code`, `.data`
        ToolError                     the tool reported an error: `.result`; see `raise_for_error`
        InvalidResult                 ran, but its result breaks its schema: `.result`
          ResultTooLarge              ran, but its result is over `max_result_chars`: `.result`
        InputNotGiven                 the server asked for input and got none: `.requests`

`Delivery` says how far a request got, `FailureKind` what went wrong, `Failure` holds the
evidence of one attempt. Every error has a `delivery`, so "did it run?" can be asked of any of
them. This module imports nothing else of toolkeep.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, TypeVar

__all__ = [
    "AmbiguousTool",
    "AuthNeeded",
    "CallError",
    "CallNotDelivered",
    "CallNotSentInTime",
    "CallOutcomeUnknown",
    "CallRejected",
    "CallTimedOut",
    "ConfigError",
    "Delivery",
    "Failure",
    "FailureKind",
    "InputNotGiven",
    "InvalidArguments",
    "InvalidResult",
    "NotOffered",
    "NotPermitted",
    "RemoteProtocolError",
    "ResultTooLarge",
    "SealBroken",
    "ServerUnavailable",
    "StoreUnavailable",
    "ToolError",
    "ToolkeepError",
    "UnknownPrompt",
    "UnknownResource",
    "UnknownServer",
    "UnknownTool",
    "WrongLoop",
]


class Delivery(enum.Enum):
    """How far a request got, from the best to the worst case for sending it again: see `worst`."""

    NOT_SENT = "not sent"
    """No byte of it was written."""
    REFUSED = "refused"
    """It arrived, and was refused before it could run."""
    ANSWERED = "answered"
    """The server answered this request."""
    UNKNOWN = "unknown"
    """It may have run."""

    @staticmethod
    def worst(first: Delivery, second: Delivery) -> Delivery:
        """The delivery of a call after two attempts: a later refusal does not undo an earlier
        doubt."""
        return max(first, second, key=_SEVERITY.index)


_SEVERITY = (Delivery.NOT_SENT, Delivery.REFUSED, Delivery.ANSWERED, Delivery.UNKNOWN)


class FailureKind(enum.Enum):
    """What went wrong: the rows of the recovery table (`toolkeep._rules.recovery`)."""

    UNREACHABLE = "unreachable"
    """Name lookup, connection or TLS failed: nothing was written."""
    EXITED = "exited"
    """The server's process ended before it was ready. Starting it again would end the same way."""
    SESSION_LOST = "session lost"
    """The server does not know the session that the request carried."""
    SESSION_UNCERTAIN = "session uncertain"
    """A JSON-RPC error whose text may mean a lost session. The call was answered; the session is
    checked, and replaced if it is gone."""
    UNAUTHORIZED = "unauthorized"
    """401 or 403."""
    THROTTLED = "throttled"
    """429, or 503 with Retry-After."""
    REFUSED = "refused"
    """A 4xx that precedes any execution (400, 404, 413, 422 …), without a JSON-RPC body."""
    UNREADABLE = "unreadable"
    """Not a valid answer: foreign redirect, wrong content type, broken or oversized body."""
    BROKEN = "broken"
    """The connection or a gateway failed after the request may have been read."""
    REJECTED = "rejected"
    """A JSON-RPC error answered the request."""
    HEADER_MISMATCH = "header mismatch"
    """-32020: the tool's header annotations changed. List again and send again."""
    VERSION_MISMATCH = "version mismatch"
    """-32022: negotiate again."""


_NO_HEADERS: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Failure:
    """One failed attempt, classified. Immutable: safe to keep, log and compare."""

    kind: FailureKind
    delivery: Delivery
    message: str
    status: int | None = None
    code: int | None = None
    data: Any = None
    retry_after: float | None = None
    headers: Mapping[str, str] = field(default_factory=lambda: _NO_HEADERS, repr=False)
    """Retry-After and WWW-Authenticate, as the server sent them."""
    exit_code: int | None = None
    """The exit code of the server's process; negative: the signal that ended it."""
    stderr: str = field(default="", repr=False)
    """The last lines that the server's process wrote to stderr."""
    rule: str = ""
    """The rule of the classification table that matched, with its source."""

    def __str__(self) -> str:
        facts = [self.kind.value]
        if self.status is not None:
            facts.append(f"HTTP {self.status}")
        if self.code is not None:
            facts.append(f"code {self.code}")
        if self.exit_code is not None:
            facts.append(f"exit code {self.exit_code}")
        # Only the last line: all of it would fill logs and model contexts.
        last = self.stderr.strip().rpartition("\n")[2][-300:]
        stderr = f"; last line of stderr: {last}" if last else ""
        return f"{', '.join(facts)}: {self.message}{stderr}"


Raised = TypeVar("Raised", bound="ToolkeepError")


class ToolkeepError(Exception):
    """The base of all exceptions that toolkeep raises."""

    delivery: Delivery = Delivery.NOT_SENT
    failure: Failure | None = None
    called: str = ""
    """The name of the tool that `call_tool` was asked to call, if the call came from there."""
    no_retry_reason: str = ""
    """Why the call was not sent again after its last attempt, if that was decided."""

    @property
    def status(self) -> int | None:
        """The HTTP status behind this error, if there was one."""
        return self.failure.status if self.failure else None

    @property
    def exit_code(self) -> int | None:
        """The exit code of the server's process, if its end is behind this error."""
        return self.failure.exit_code if self.failure else None

    @property
    def stderr(self) -> str:
        """The last lines that the server's process wrote to stderr, if it has ended."""
        return self.failure.stderr if self.failure else ""

    @property
    def retry_after(self) -> float | None:
        """Seconds that the server asked to wait, if it did."""
        return self.failure.retry_after if self.failure else None

    @property
    def www_authenticate(self) -> str | None:
        """The server's WWW-Authenticate challenge, if it sent one."""
        return self.failure.headers.get("www-authenticate") if self.failure else None


def unraised_copy(error: Raised) -> Raised:
    """A copy to raise: one exception raised by several tasks would collect all tracebacks."""
    made = type(error).__new__(type(error), *error.args)
    made.__dict__.update(error.__dict__)
    return made


class ConfigError(ToolkeepError, ValueError):
    """A configuration that cannot work. Raised before anything is opened."""

    def __init__(
        self,
        problem: str,
        *,
        remedy: str = "",
        server: str | None = None,
        key: str | None = None,
        file: str | None = None,
    ) -> None:
        self.problem, self.remedy = problem, remedy
        self.server, self.key, self.file = server, key, file
        place = [file or "", f"server {server!r}" if server else "", f"key {key!r}" if key else ""]
        where = ", ".join(part for part in place if part)
        text = f"{where}: {problem}" if where else problem
        end = "" if text.endswith("?") else "."
        super().__init__(f"{text}{end} {remedy}" if remedy else text)


class WrongLoop(ToolkeepError, RuntimeError):
    """Used from another event loop or process than the one that opened it."""


class NotOffered(ToolkeepError, LookupError):
    """No server offers this name. `.suggestions` holds the nearest names."""

    def __init__(self, message: str, *, suggestions: tuple[str, ...] = ()) -> None:
        self.suggestions = suggestions
        super().__init__(message)


class UnknownTool(NotOffered):
    """No such tool."""


class AmbiguousTool(UnknownTool):
    """Several tools have this name. `.candidates` holds their full names."""

    def __init__(self, message: str, *, candidates: tuple[str, ...]) -> None:
        self.candidates = candidates
        super().__init__(message, suggestions=candidates)


class UnknownPrompt(NotOffered):
    """No such prompt, or several of this short name."""


class UnknownResource(NotOffered):
    """No server lists this resource, or several do."""


class UnknownServer(ToolkeepError, LookupError):
    """No server of this name."""


class NotPermitted(ToolkeepError):
    """Refused by permissions or a filter, before anything was sent."""


class _ServerError(ToolkeepError):
    def __init__(self, message: str, *, server: str, failure: Failure | None = None) -> None:
        self.server = server
        self.failure = failure
        if failure is not None:
            self.delivery = failure.delivery
        super().__init__(message)


class ServerUnavailable(_ServerError):
    """No connection was ready in time. Nothing was sent."""

    def __init__(
        self,
        message: str,
        *,
        server: str,
        since: float | None = None,
        last_failure: Failure | None = None,
    ) -> None:
        super().__init__(message, server=server, failure=last_failure)
        self.delivery = Delivery.NOT_SENT
        self.since = since
        """When the outage began (seconds since the epoch)."""

    @property
    def last_failure(self) -> Failure | None:
        return self.failure


class AuthNeeded(_ServerError):
    """The server wants credentials that are missing or no longer valid. The call did not run."""

    def __init__(
        self,
        message: str,
        *,
        server: str,
        failure: Failure | None = None,
        principal: str | None = None,
        reason: str = "",
        scopes: tuple[str, ...] = (),
        login_url: str = "",
    ) -> None:
        super().__init__(message, server=server, failure=failure)
        self.principal = principal
        """Who must log in; None: the user who runs this process."""
        self.reason = reason
        """What the server's challenge, or the authorization server, gives as the reason."""
        self.scopes = scopes
        """The scopes that the server asks for."""
        self.login_url = login_url
        """The URL to open in the user's browser, if a login was begun."""


class RemoteProtocolError(_ServerError):
    """The server at this address does not speak the protocol."""


class StoreUnavailable(ToolkeepError):
    """The store refused or did not answer in time. The operation may have been done.

    `.store` names the store without the secrets of its URL.
    """

    def __init__(self, problem: str, *, store: str, remedy: str = "") -> None:
        self.store, self.problem, self.remedy = store, problem, remedy
        super().__init__(f"{store}: {problem}. {remedy}" if remedy else f"{store}: {problem}")


class SealBroken(StoreUnavailable):
    """Stored data does not open with the configured keys, or was moved from where it was
    written."""


class InvalidArguments(ToolkeepError, ValueError):
    """The arguments break the tool's schema. Nothing was sent."""

    def __init__(
        self, message: str, *, server: str, tool: str, problems: tuple[str, ...] = ()
    ) -> None:
        self.server, self.tool, self.problems = server, tool, problems
        super().__init__(message)


class CallError(ToolkeepError):
    """One call failed. `.delivery` says whether it ran, over all attempts."""

    def __init__(
        self,
        message: str,
        *,
        server: str,
        tool: str | None = None,
        attempts: int = 0,
        delivery: Delivery,
        failure: Failure | None = None,
    ) -> None:
        self.server, self.tool, self.attempts = server, tool, attempts
        self.delivery, self.failure = delivery, failure
        super().__init__(message)


class CallNotDelivered(CallError):
    """The call did not run. Sending it again is safe."""


class CallNotSentInTime(CallNotDelivered, TimeoutError):
    """The deadline passed before anything was sent."""


class CallOutcomeUnknown(CallError):
    """The call may have run. Check before sending it again."""


class CallTimedOut(CallOutcomeUnknown, TimeoutError):
    """The deadline passed while the server had the request."""


class CallRejected(CallError):
    """The server answered with a JSON-RPC error."""

    @property
    def code(self) -> int | None:
        return self.failure.code if self.failure else None

    @property
    def data(self) -> Any:
        return self.failure.data if self.failure else None


class ToolError(CallError):
    """The tool itself reported an error: `result.is_error`. `.result` holds the result.

    Raised by `CallResult.raise_for_error` and by calls with a `result_type`.
    """

    def __init__(self, message: str, *, server: str, tool: str, result: Any, attempts: int) -> None:
        self.result = result
        super().__init__(
            message, server=server, tool=tool, attempts=attempts, delivery=Delivery.ANSWERED
        )


class InvalidResult(CallError):
    """The call ran, but its result breaks the schema, or is not of the `result_type` that was
    asked for. `.result` holds the result."""

    def __init__(
        self, message: str, *, server: str, result: Any, tool: str | None = None, attempts: int = 1
    ) -> None:
        self.result = result
        super().__init__(
            message, server=server, tool=tool, attempts=attempts, delivery=Delivery.ANSWERED
        )


class ResultTooLarge(InvalidResult):
    """The call ran, but its result is larger than `max_result_chars`. `.result` holds the
    result."""


class InputNotGiven(CallError):
    """The server asked for input during the call, and got none.

    The call ran up to that question. `.requests` holds the questions by key, as JSON objects.
    """

    def __init__(
        self,
        message: str,
        *,
        server: str,
        requests: Mapping[str, Any],
        tool: str | None = None,
        attempts: int = 1,
    ) -> None:
        self.requests = requests
        super().__init__(
            message, server=server, tool=tool, attempts=attempts, delivery=Delivery.ANSWERED
        )
