"""Everything a client can ask a server that is not a tool call.

Reads and lists: they change nothing, so they may be sent again freely. Results are the SDK's types.
"""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar, cast

from pydantic import BaseModel, ValidationError

from mainstay._rules.recovery import Policy
from mainstay.config import ServerSpec
from mainstay.errors import InvalidResult, RemoteProtocolError

if TYPE_CHECKING:
    import mcp_types as types

logger = logging.getLogger("mainstay.client")

Model = TypeVar("Model", bound=BaseModel)

_MOST_PAGES = 1000
"""A server with more pages than this is not listing, it is counting."""


class Requests(ABC):
    """The part of `Client` that asks. Needs a way to send."""

    spec: ServerSpec
    log_level: str | None = None

    @property
    @abstractmethod
    def is_initialized(self) -> bool: ...

    @property
    @abstractmethod
    def era(self) -> str | None: ...

    @abstractmethod
    async def connect(self) -> None: ...

    @abstractmethod
    def checked_headers(
        self, headers: Mapping[str, str] | None, what: str
    ) -> dict[str, str] | None: ...

    @abstractmethod
    async def pursue(
        self,
        *,
        method: str,
        params: dict[str, Any] | None,
        timeout: float | None = None,
        **known: Any,
    ) -> dict[str, Any]: ...

    async def request(
        self,
        method: str,
        params: Mapping[str, Any] | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
        repeatable: bool = False,
    ) -> dict[str, Any]:
        """Any request, in wire shape. `repeatable`: sending it twice is harmless."""

        policy = Policy.ALWAYS if repeatable else Policy(self.spec.replay)
        return await self.pursue(
            method=method,
            params=dict(params) if params is not None else None,
            timeout=timeout,
            headers=self.checked_headers(headers, method),
            policy=policy,
            repeatable=repeatable,
        )

    async def list_prompts(self) -> list[types.Prompt]:
        from mcp_types import Prompt

        return self._each(Prompt, await self.all_pages("prompts/list", "prompts"))

    async def list_resources(self) -> list[types.Resource]:
        from mcp_types import Resource

        return self._each(Resource, await self.all_pages("resources/list", "resources"))

    async def list_resource_templates(self) -> list[types.ResourceTemplate]:
        from mcp_types import ResourceTemplate

        raw = await self.all_pages("resources/templates/list", "resourceTemplates")
        return self._each(ResourceTemplate, raw)

    async def get_prompt(
        self, name: str, arguments: Mapping[str, str] | None = None
    ) -> types.GetPromptResult:
        from mcp_types import GetPromptResult

        params = {"name": name, "arguments": dict(arguments or {})}
        raw = await self.pursue(method="prompts/get", params=params)
        return self._typed(GetPromptResult, raw)

    async def read_resource(self, uri: str) -> types.ReadResourceResult:
        from mcp_types import ReadResourceResult

        raw = await self.pursue(method="resources/read", params={"uri": uri})
        return self._typed(ReadResourceResult, raw)

    async def complete(
        self,
        ref: types.PromptReference | types.ResourceTemplateReference,
        argument: str,
        value: str,
        *,
        context: Mapping[str, str] | None = None,
    ) -> types.Completion:
        """Completions for one argument of a prompt or a resource template."""
        from mcp_types import CompleteResult

        params: dict[str, Any] = {
            "ref": ref.model_dump(by_alias=True, mode="json", exclude_none=True),
            "argument": {"name": argument, "value": value},
        }
        if context is not None:
            params["context"] = {"arguments": dict(context)}
        raw = await self.pursue(method="completion/complete", params=params)
        return self._typed(CompleteResult, raw).completion

    async def ping(self) -> float:
        """Ask for a sign of life on the connection there is; returns the seconds it took."""
        await self.connect()
        started = time.monotonic()
        modern = self.era == "modern"
        await self.pursue(method="server/discover" if modern else "ping", params=None)
        return time.monotonic() - started

    async def set_log_level(self, level: types.LoggingLevel) -> None:
        """Ask the server for log lines from this level on; later connections ask again."""
        self.log_level = level
        if self.is_initialized and self.era == "legacy":
            await self.pursue(method="logging/setLevel", params={"level": level})

    def _typed(self, model: type[Model], raw: Mapping[str, Any]) -> Model:
        try:
            return model.model_validate(raw, by_name=False)
        except ValidationError as error:
            place = ".".join(str(part) for part in error.errors(include_input=False)[0]["loc"])
        text = f"{self.spec.name}: the answer is not a {model.__name__} (at {place})"
        raise InvalidResult(text, server=self.spec.name, result=raw)

    def _each(self, model: type[Model], items: list[Any]) -> list[Model]:
        """The well-formed of them; the others are left out, and said so."""
        kept: list[Model] = []
        for item in items:
            try:
                kept.append(self._typed(model, item))
            except InvalidResult as error:
                logger.warning("%s: left out", error)
        return kept

    async def all_pages(self, method: str, key: str) -> list[Any]:
        """Everything from all pages, within one deadline."""
        deadline = time.monotonic() + self.spec.timeouts.call
        items: list[Any] = []
        cursors: set[str] = set()
        cursor: Any = None
        for _ in range(_MOST_PAGES):
            params = {} if cursor is None else {"cursor": cursor}
            left = max(deadline - time.monotonic(), 0.001)
            page = await self.pursue(method=method, params=params, timeout=left, lenient=True)
            found = page.get(key)
            if not isinstance(found, list):
                raise self._bad_list(method, f"holds no list {key!r}")
            items += cast("list[Any]", found)
            cursor = page.get("nextCursor")
            if not cursor:
                return items
            if not isinstance(cursor, str) or cursor in cursors:
                raise self._bad_list(method, "repeats a cursor: its pages have no end")
            cursors.add(cursor)
        raise self._bad_list(method, f"has more than {_MOST_PAGES} pages")

    def _bad_list(self, method: str, problem: str) -> RemoteProtocolError:
        text = f"{self.spec.name}: the answer to {method} {problem}. The server is at fault"
        return RemoteProtocolError(text, server=self.spec.name)
