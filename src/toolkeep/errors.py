"""Everything toolkeep raises, and the words in which a failure is told.

    ToolkeepError
      ConfigError(ValueError)         before anything is opened; names file, server, key and remedy
      WrongLoop(RuntimeError)         used from another event loop or process than it was opened in
      UnknownServer(LookupError)      no such server in this group
      NotOffered(LookupError)         no server offers it; suggests the nearest
        UnknownTool                   no such tool
          AmbiguousTool               more than one goes by this name: `.candidates`
        UnknownPrompt                 no such prompt
        UnknownResource               no such resource
      NotPermitted                    this principal may not do this here
      ServerUnavailable               no connection to send the call on
      AuthNeeded                      the server wants credentials that we do not have
      InvalidArguments(ValueError)    ours, before anything was sent
      RemoteProtocolError             the server does not speak the protocol
      StoreUnavailable                the store did not answer in time, or refused
        SealBroken                    what is stored does not open with the configured keys
      CallError                       one call failed; `.delivery` says whether it ran
        CallNotDelivered              certainly did not run
          CallNotSentInTime(TimeoutError)
        CallOutcomeUnknown            may have run
          CallTimedOut(TimeoutError)
        CallRejected                  the server said no: `.code`, `.data`
        InvalidResult                 ran, but its answer breaks its schema: `.result`
          ResultTooLarge              ran, but its answer is over `result_limit`: `.result`
        InputNotGiven                 the server asked for input that nobody gave: `.requests`

Every error has a `delivery`, so that "did it run?" can be asked of any of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from toolkeep.failures import Delivery, Failure, FailureKind

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
    "ToolkeepError",
    "UnknownPrompt",
    "UnknownResource",
    "UnknownServer",
    "UnknownTool",
    "WrongLoop",
]


class ToolkeepError(Exception):
    """The root of what toolkeep raises."""

    delivery: Delivery = Delivery.NOT_SENT
    failure: Failure | None = None
    called: str = ""
    """The tool that was meant, where another one (`call_tool`) was asked to call it."""

    @property
    def status(self) -> int | None:
        """The HTTP status behind this error, if there was one."""
        return self.failure.status if self.failure else None

    @property
    def exit_code(self) -> int | None:
        """How the server's process ended, if it did and that is behind this error."""
        return self.failure.exit_code if self.failure else None

    @property
    def stderr(self) -> str:
        """The last words of the server's process, if it has ended."""
        return self.failure.stderr if self.failure else ""

    @property
    def retry_after(self) -> float | None:
        """Seconds that the server asked us to wait, if it did."""
        return self.failure.retry_after if self.failure else None

    @property
    def www_authenticate(self) -> str | None:
        """The server's WWW-Authenticate challenge, if it sent one."""
        return self.failure.headers.get("www-authenticate") if self.failure else None


class ConfigError(ToolkeepError, ValueError):
    """A configuration that cannot work, found before anything was opened."""

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
    """A client belongs to the event loop and the process that opened it."""


class NotOffered(ToolkeepError, LookupError):
    """No server offers what was named. `.suggestions` holds the nearest names."""

    def __init__(self, message: str, *, suggestions: tuple[str, ...] = ()) -> None:
        self.suggestions = suggestions
        super().__init__(message)


class UnknownTool(NotOffered):
    """No such tool."""


class AmbiguousTool(UnknownTool):
    """Several tools go by this name. `.candidates` holds their full names."""

    def __init__(self, message: str, *, candidates: tuple[str, ...]) -> None:
        self.candidates = candidates
        super().__init__(message, suggestions=candidates)


class UnknownPrompt(NotOffered):
    """No such prompt, or several of this short name."""


class UnknownResource(NotOffered):
    """No server lists this resource, or several do."""


class UnknownServer(ToolkeepError, LookupError):
    """The group has no server of this name."""


class NotPermitted(ToolkeepError):
    """Refused here, before anything was sent."""


class _AboutServer(ToolkeepError):
    def __init__(self, message: str, *, server: str, failure: Failure | None = None) -> None:
        self.server = server
        self.failure = failure
        if failure is not None:
            self.delivery = failure.delivery
        super().__init__(message)


class ServerUnavailable(_AboutServer):
    """No ready connection within the budget. Nothing was sent."""

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
        """When the trouble began (seconds since the epoch)."""

    @property
    def last_failure(self) -> Failure | None:
        return self.failure


class AuthNeeded(_AboutServer):
    """The server answered 401 or 403, and no authorizer could help. It did not run."""


class RemoteProtocolError(_AboutServer):
    """What answers at this address does not speak the protocol."""


class StoreUnavailable(ToolkeepError):
    """The store did not answer in time, or refused. What was asked of it may have happened.

    `.store` names the store without the secrets of its URL.
    """

    def __init__(self, problem: str, *, store: str, remedy: str = "") -> None:
        self.store, self.problem, self.remedy = store, problem, remedy
        super().__init__(f"{store}: {problem}. {remedy}" if remedy else f"{store}: {problem}")


class SealBroken(StoreUnavailable):
    """What is stored does not open with the configured keys, or is not where it was written."""


class InvalidArguments(ToolkeepError, ValueError):
    """The arguments break the tool's schema. Nothing was sent."""

    def __init__(
        self, message: str, *, server: str, tool: str, problems: tuple[str, ...] = ()
    ) -> None:
        self.server, self.tool, self.problems = server, tool, problems
        super().__init__(message)


class CallError(ToolkeepError):
    """One request failed. `.delivery` tells whether it ran, over all its attempts."""

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
    """It certainly did not run. Sending it again is safe."""


class CallNotSentInTime(CallNotDelivered, TimeoutError):
    """The deadline passed before anything was sent."""


class CallOutcomeUnknown(CallError):
    """It may have run. Find out before sending it again."""


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


class InvalidResult(CallError):
    """It ran, and its answer breaks the schema. `.result` holds the answer all the same."""

    def __init__(
        self, message: str, *, server: str, result: Any, tool: str | None = None, attempts: int = 1
    ) -> None:
        self.result = result
        super().__init__(
            message, server=server, tool=tool, attempts=attempts, delivery=Delivery.ANSWERED
        )


class ResultTooLarge(InvalidResult):
    """It ran, and its answer is larger than `result_limit`. `.result` holds it all the same."""


class InputNotGiven(CallError):
    """The server asked for something in the middle of the call, and nobody gave it.

    It went as far as its question. `.requests` is what it asked, in wire shape, by key.
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
