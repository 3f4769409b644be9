"""What passes through the SDK's session: requests that are in wire shape already, and results as
they came. The session stamps the former and checks the latter; nothing is modelled a second time.

A tool's call is only stamped by it. Its result is checked here, against the same models: the
session would check it, copy it, and check a modern one against models that let anything pass.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any, cast

from mcp.client.session import ClientSession
from mcp.shared.dispatcher import CallOptions
from mcp_types import CallToolResult
from mcp_types.methods import SERVER_RESULTS
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import TypeAdapter, ValidationError

CALL = "tools/call"
SLICE = 200
"""Content blocks of a result that are checked at a time."""
_PLAIN = {"content", "isError", "resultType"}


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


def stamped_call(
    session: ClientSession, params: dict[str, Any] | None
) -> tuple[dict[str, Any], CallOptions]:
    """Parameters and options of a call, as the session's era wants them."""
    data = AnyRequest(CALL, params).model_dump()
    options: CallOptions = {}
    session._stamp(data, options)  # pyright: ignore[reportPrivateUsage]
    return data["params"], options


def slices(result: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A result with very many blocks, in parts that take about 5 ms to check."""
    content = cast("list[Any]", result["content"])
    rest = {"resultType": result["resultType"]} if "resultType" in result else {}
    yield {**result, "content": content[:SLICE]}
    for start in range(SLICE, len(content), SLICE):
        yield {**rest, "content": content[start : start + SLICE]}


def check_call_result(result: dict[str, Any], version: str) -> None:
    """Raises `ValidationError`."""
    if _is_plain(result):
        return
    if version in MODERN_PROTOCOL_VERSIONS and result.get("resultType") == "complete":
        # Not the version's own: that is a union, whose other member takes anything (2.3.0).
        CallToolResult.model_validate(result, by_name=False)
    elif (model := _model_of(version)) is not None:
        model.validate_python(result, by_name=False)


def _is_plain(result: dict[str, Any]) -> bool:
    """Whether it is what most are: some text, and nothing beside that could be wrong. To see that
    takes a tenth of what a model takes."""
    content = result.get("content")
    return (
        type(content) is list
        and result.keys() <= _PLAIN
        and result.get("resultType", "complete") == "complete"
        and type(result.get("isError", False)) is bool
        and all(
            type(block) is dict
            and len(block) == 2
            and block.get("type") == "text"
            and type(block.get("text")) is str
            for block in cast("list[Any]", content)
        )
    )


@cache
def _model_of(version: str) -> TypeAdapter[Any] | None:
    surface: Any = SERVER_RESULTS.get((CALL, version))
    return None if surface is None else TypeAdapter(surface)


def first_problem(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    return f"{'.'.join(str(part) for part in first['loc'])}: {first['msg']}"
