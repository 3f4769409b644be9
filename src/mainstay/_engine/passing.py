"""What passes through the SDK's session: requests that are in wire shape already, and results as
they came. The session stamps the former and checks the latter; nothing is modelled a second time.
"""

from __future__ import annotations

from typing import Any

from mcp_types import CallToolResult
from pydantic import ValidationError


class RawResult:
    """A result as it came; the SDK has checked it against the protocol, nothing was dropped."""

    @staticmethod
    def model_validate(raw: dict[str, Any], **_: Any) -> dict[str, Any]:
        return raw


class AnyRequest:
    """A request whose parameters are already in wire shape.

    No model, but what the SDK's session (2.3.0) asks of one: a call has been checked by now, and
    copying it through two models takes as long as sending it.
    """

    __slots__ = ("_method", "_params")
    name_param = None

    def __init__(self, method: str, params: dict[str, Any] | None) -> None:
        self._method, self._params = method, params

    def model_dump(self, **_: Any) -> dict[str, Any]:
        if self._params is None:
            return {"method": self._method}
        # The session stamps what it is given, and a replay may be for another era.
        params = dict(self._params)
        if "_meta" in params:
            params["_meta"] = dict(params["_meta"])
        return {"method": self._method, "params": params}


def check_modern_result(result: dict[str, Any]) -> None:
    """The SDK (2.3.0) takes anything with a result type for a request for input."""
    if result.get("resultType") == "complete":
        CallToolResult.model_validate(result, by_name=False)


def first_problem(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    return f"{'.'.join(str(part) for part in first['loc'])}: {first['msg']}"
