"""`CallResult`: the result of a tool call.

It keeps the JSON-RPC result as received and offers views of it. Nothing is copied or dropped;
content blocks become typed objects on first access.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast

from toolkeep.errors import InputNotGiven, InvalidResult, ToolError

if TYPE_CHECKING:
    from mcp_types import ContentBlock
    from pydantic import TypeAdapter, ValidationError

__all__ = ["CallResult"]

T = TypeVar("T")

MAX_ERROR_TEXT = 1000
"""Characters of a tool's own error text in a `ToolError`."""
MAX_PROBLEMS = 5
"""Problems of a result that an `InvalidResult` names."""


@dataclass(frozen=True, repr=False)
class CallResult:
    """The result of one call. A tool's own error (`is_error`) is a result too, not an exception:
    see `raise_for_error`."""

    raw: Mapping[str, Any]
    """The JSON-RPC result as the server sent it."""
    server: str
    tool: str
    attempts: int = 1
    duration: float = 0.0
    """Seconds from the call to its result, including retries and waits."""
    cached: bool = False
    """Whether it is the result of an earlier equal call, and nothing was sent."""

    @property
    def is_error(self) -> bool:
        return bool(self.raw.get("isError", False))

    @property
    def needs_input(self) -> bool:
        """Whether the server asks for input before it goes on. Only with `input="return"`."""
        return self.raw.get("resultType") == "input_required"

    @property
    def input_requests(self) -> Mapping[str, Any]:
        """The questions of the server by key, as JSON objects."""
        return cast("Mapping[str, Any]", self.raw.get("inputRequests") or {})

    @property
    def request_state(self) -> str | None:
        """Opaque state of the server, to be sent back with the answers."""
        return self.raw.get("requestState")

    @property
    def success(self) -> bool:
        return not self.is_error and not self.needs_input

    @cached_property
    def text(self) -> str:
        """The text blocks, joined by newlines."""
        blocks = cast("list[Mapping[str, Any]]", self.raw.get("content") or [])
        return "\n".join(block["text"] for block in blocks if block.get("type") == "text")

    @property
    def data(self) -> Any:
        """The structured content, or None."""
        return self.raw.get("structuredContent")

    @property
    def meta(self) -> Mapping[str, Any]:
        return cast("Mapping[str, Any]", self.raw.get("_meta") or {})

    @cached_property
    def content(self) -> list[ContentBlock]:
        """Every block, typed: text, image, audio, resource link, embedded resource."""
        from mcp_types import CallToolResult  # takes 0.3 s, so imported on first use

        return CallToolResult.model_validate(
            {"content": self.raw.get("content") or []}, by_name=False
        ).content

    def __repr__(self) -> str:
        """Says what kind of result it is. Its contents stay out of logs."""
        state = "error" if self.is_error else "input needed" if self.needs_input else "ok"
        blocks = len(cast("list[Any]", self.raw.get("content") or []))
        parts = [f"{self.server}.{self.tool}", state, f"{blocks} block{'' if blocks == 1 else 's'}"]
        parts += ["structured"] if self.data is not None else []
        parts += [f"{self.attempts} attempts"] if self.attempts != 1 else []
        parts += ["cached"] if self.cached else []
        return f"<CallResult {', '.join(parts)}>"

    def raise_for_error(self) -> Self:
        """This result; raises `ToolError` if the tool reported an error."""
        if not self.is_error:
            return self
        said = self.text if len(self.text) <= MAX_ERROR_TEXT else f"{self.text[:MAX_ERROR_TEXT]}…"
        raise ToolError(
            f"{self.server}: {self.tool} reported an error: {said or 'without a text'}",
            server=self.server,
            tool=self.tool,
            result=self,
            attempts=self.attempts,
        )

    def parse(self, kind: type[T]) -> T:
        """The value of the result as a pydantic model, or any other type that pydantic validates.

        The value is the structured content; without one, the text, which must be JSON unless
        `kind` is `str`. Servers wrap a value that is no object as `{"result": value}`: both forms
        are accepted. Raises `ToolError`, `InputNotGiven` or `InvalidResult`.
        """
        from pydantic import ValidationError

        adapter = adapter_for(kind)
        self.raise_for_error()
        if self.needs_input:
            raise InputNotGiven(
                f"{self.server}: {self.tool} asks for input, so it has no value yet",
                server=self.server,
                tool=self.tool,
                requests=self.input_requests,
                attempts=self.attempts,
            )
        if kind is str and self.data is None and self.text:
            return cast("T", self.text)
        problem = "it has neither structured content nor text"
        for value in self._json_values(kind):
            try:
                return adapter.validate_json(value)
            except ValidationError as error:
                problem = _describe_problems(error)
        raise InvalidResult(
            f"{self.server}: {self.tool} ran, but its result is not {_name_of(kind)}: {problem}",
            server=self.server,
            tool=self.tool,
            result=self,
            attempts=self.attempts,
        )

    def _json_values(self, kind: object) -> list[str]:
        """The forms in which the value may be meant, as JSON."""
        if self.data is None:
            return [self.text] if self.text else []
        data = cast("object", self.data)
        whole = json.dumps(data)
        if not isinstance(data, dict) or list(cast("dict[str, Any]", data)) != ["result"]:
            return [whole]
        inner = json.dumps(data["result"])
        fields = getattr(kind, "model_fields", None)
        # A model without such a field might take the wrapped form for one with defaults alone.
        return [whole, inner] if fields is None or "result" in fields else [inner]


def adapter_for(kind: type[T]) -> TypeAdapter[T]:
    """Raises `TypeError` for a type that pydantic cannot validate."""
    from pydantic import PydanticSchemaGenerationError, PydanticUserError, TypeAdapter

    try:
        if isinstance(kind, str):
            raise TypeError
        return TypeAdapter(kind)
    except (PydanticSchemaGenerationError, PydanticUserError, TypeError, NameError):
        text = f"result_type must be a type that pydantic validates, not {_name_of(kind)}"
        raise TypeError(text) from None


def _name_of(kind: object) -> str:
    return kind.__name__ if isinstance(kind, type) else repr(kind)[:80]


def _describe_problems(error: ValidationError) -> str:
    """Where and why, without the values: they may be private."""
    problems = error.errors(include_input=False, include_url=False, include_context=False)
    said = [
        f"{'.'.join(map(str, one['loc']))}: {one['msg']}" if one["loc"] else one["msg"]
        for one in problems[:MAX_PROBLEMS]
    ]
    more = len(problems) - MAX_PROBLEMS
    return "; ".join(said) + (f"; and {more} more" if more > 0 else "")
