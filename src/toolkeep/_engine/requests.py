"""Everything a client can ask a server that is not a tool call.

Reads and lists: they change nothing, so they may be sent again freely. Results are the SDK's types.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel, ValidationError

from toolkeep._engine import following
from toolkeep._engine.core import Core
from toolkeep._engine.group_health import check_within
from toolkeep._rules.classify import METHOD_NOT_FOUND
from toolkeep._rules.recovery import Policy
from toolkeep.errors import (
    CallError,
    CallNotSentInTime,
    CallRejected,
    CallTimedOut,
    FailureKind,
    InvalidResult,
)

if TYPE_CHECKING:
    import mcp_types as types

logger = logging.getLogger("toolkeep.client")

_ODD = (FailureKind.REFUSED, FailureKind.UNREADABLE)
_SLICE = 100
"""Items of a list that are made into models at a time: about 2 ms."""
_SIGNS_OF_LIFE = (*range(200, 300), 400, 405, 406)

Model = TypeVar("Model", bound=BaseModel)


class Requests:
    """The part of `Client` that asks."""

    _core: Core

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

        policy = Policy.ALWAYS if repeatable else Policy(self._core.spec.replay)
        return await self._core.pursue(
            method,
            dict(params) if params is not None else None,
            timeout=timeout,
            headers=self._core.checked_headers(headers, method),
            policy=policy,
            repeatable=repeatable,
        )

    async def list_prompts(self, *, refresh: bool = False) -> list[types.Prompt]:
        from mcp_types import Prompt

        return await self._each(Prompt, await self._listed("prompts/list", "prompts", refresh))

    async def list_resources(self, *, refresh: bool = False) -> list[types.Resource]:
        from mcp_types import Resource

        return await self._each(
            Resource, await self._listed("resources/list", "resources", refresh)
        )

    async def list_resource_templates(
        self, *, refresh: bool = False
    ) -> list[types.ResourceTemplate]:
        from mcp_types import ResourceTemplate

        method = "resources/templates/list"
        return await self._each(
            ResourceTemplate, await self._listed(method, "resourceTemplates", refresh)
        )

    async def _listed(self, method: str, key: str, refresh: bool) -> list[Any]:
        """All items; none, and no request, from a server that says that it has no such thing."""
        capability = method.partition("/")[0]
        if self._core.lacks(capability):
            return []
        try:
            return (await self._core.shelf.all_pages(method, key, refresh=refresh)).items
        except CallRejected as error:
            if error.code != METHOD_NOT_FOUND or not self._core.lacks(capability):
                raise
        return []

    async def get_prompt(
        self,
        name: str,
        arguments: Mapping[str, str] | None = None,
        *,
        headers: Mapping[str, str] | None = None,
    ) -> types.GetPromptResult:
        from mcp_types import GetPromptResult

        params = {"name": name, "arguments": dict(arguments or {})}
        checked = self._core.checked_headers(headers, "prompts/get")
        raw, _ = await self._core.converse("prompts/get", params, checked)
        return self._typed(GetPromptResult, raw)

    async def read_resource(
        self, uri: str, *, headers: Mapping[str, str] | None = None, refresh: bool = False
    ) -> types.ReadResourceResult:
        """A resource. What a modern server lets its clients keep (`ttlMs`) is kept, and not asked
        for again, unless `refresh`, or with headers of its own."""
        from mcp_types import ReadResourceResult

        checked = self._core.checked_headers(headers, "resources/read")
        return self._typed(ReadResourceResult, await self._core.read(uri, checked, refresh=refresh))

    async def subscribe(self, uri: str) -> None:
        """Have observers told (`Changed`) when this resource changes, on this connection and on
        all that follow. Raises `CallRejected` where the server offers no such thing."""
        await following.subscribe(self._core, uri)

    async def unsubscribe(self, uri: str) -> None:
        await following.unsubscribe(self._core, uri)

    async def notify_roots_changed(self) -> None:
        """Tell a legacy server that its client's roots are others now. Modern ones ask anew."""
        await self._core.notify("notifications/roots/list_changed")

    async def complete(
        self,
        ref: types.PromptReference | types.ResourceTemplateReference,
        argument: str,
        value: str,
        *,
        context: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> types.Completion:
        """Completions for one argument of a prompt or a resource template."""
        from mcp_types import CompleteResult

        params: dict[str, Any] = {
            "ref": ref.model_dump(by_alias=True, mode="json", exclude_none=True),
            "argument": {"name": argument, "value": value},
        }
        if context is not None:
            params["context"] = {"arguments": dict(context)}
        checked = self._core.checked_headers(headers, "completion/complete")
        raw = await self._core.pursue("completion/complete", params, headers=checked)
        return self._typed(CompleteResult, raw).completion

    async def ping(self) -> float:
        """Ask for a sign of life on the connection there is; returns the seconds it took.

        An odd server that refuses to be asked is alive if it has anything to say to a plain GET. A
        session in which none comes is given up: the next request opens a new one.
        """
        await self._core.connect()
        keeper, started = self._core.keeper(), time.monotonic()
        connection, modern = keeper.connection, self._core.era == "modern"
        method = "server/discover" if modern else "ping"
        try:
            await self._core.pursue(method, None, timeout=check_within.get())
        except CallError as error:
            odd = error.failure is not None and error.failure.kind in _ODD
            if not odd or await keeper.knock() not in _SIGNS_OF_LIFE:
                if not isinstance(error, CallNotSentInTime):
                    silent = isinstance(error, CallTimedOut)
                    keeper.doubt(connection, None if silent else error.failure)
                raise
        return time.monotonic() - started

    async def set_log_level(self, level: types.LoggingLevel) -> None:
        """Ask the server for log lines from this level on; later connections ask again."""
        self._core.log_level = level
        if self._core.era == "legacy":
            await self._core.pursue("logging/setLevel", {"level": level})

    def _typed(self, model: type[Model], raw: Mapping[str, Any]) -> Model:
        try:
            return model.model_validate(raw, by_name=False)
        except ValidationError as error:
            place = ".".join(str(part) for part in error.errors(include_input=False)[0]["loc"])
        text = f"{self._core.spec.name}: the answer is not a {model.__name__} (at {place})"
        raise InvalidResult(text, server=self._core.spec.name, result=raw)

    async def _each(self, model: type[Model], items: list[Any]) -> list[Model]:
        """The well-formed of them; the others are left out, and said so. Made in slices: the loop
        does not stand still for a long list."""
        kept: list[Model] = []
        for number, item in enumerate(items, 1):
            if number % _SLICE == 0:
                await asyncio.sleep(0)
            try:
                kept.append(self._typed(model, item))
            except InvalidResult as error:
                logger.warning("%s: left out", error)
        return kept
