"""`Offer`: what one profile offers, as its clients see it: names, pages of lists, and what a name
means.

Definitions pass through as the servers gave them, but for the name that is shown and the user's
guide after the description. A page is encoded once and kept as long as its catalogue is.
"""

from __future__ import annotations

import asyncio
import base64
import json
import re
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, cast
from weakref import WeakKeyDictionary

from pydantic_core import to_json

from toolkeep._catalogue.catalogue import Catalogue
from toolkeep._catalogue.listing import Prompt, Resource, Template
from toolkeep._catalogue.tool import Tool
from toolkeep._client.call import Call
from toolkeep._client.request import Emit
from toolkeep._rules.protocol_headers import annotated_paths, annotation_problem
from toolkeep.context import CallContext
from toolkeep.errors import NotOffered, UnknownResource
from toolkeep.gateway.errors import invalid_params
from toolkeep.gateway.profiles import Profile, ProfileRuntime, ProfileView, profile_tools
from toolkeep.results import CallResult
from toolkeep.runtime import Runtime

if TYPE_CHECKING:
    from pydantic import BaseModel

__all__ = ["Kind", "ListPage", "Offer"]

Kind = Literal["tools", "prompts", "resources", "resourceTemplates"]

PAGE_ITEMS, PAGE_BYTES = 1000, 2 * 1024 * 1024
"""Items and bytes of one page. Large, because many clients read the first page only."""
ITEMS_PER_SLICE = 200
"""Items that are encoded between two turns of the event loop."""
MAX_PAGES = 64
"""Pages that are kept of one view."""
MAX_CURSOR = 2000
MAX_URI = 8000
"""Characters of a URI that is compared with templates."""
MAX_INSTRUCTIONS = 100_000
"""Characters of what all servers together tell models."""

_EXPRESSION = re.compile(r"\{([+#./;?&]?)[^{}]*\}")


@dataclass(frozen=True, slots=True)
class ListPage:
    """One page of a list: its items as JSON, and where the next one begins."""

    items: bytes
    cursor: str | None
    unavailable: tuple[str, ...]
    """Servers whose items are missing, or from before they went out of reach."""


Ended = Callable[[CallResult | BaseException], None]
"""Called with the result of a call, or with what it raised."""
Begin = Callable[[Tool, Profile, CallContext | None], Awaitable[Ended]]
"""Called before a call that another tool makes. May refuse it."""


class NestedCalls(ProfileRuntime):
    """The runtime of tools that call others, in the modes `search` and `code`: each of these calls
    is subject to rates, and written down, as if the client had made it."""

    def __init__(self, runtime: Runtime, profile: Profile, begin: Begin) -> None:
        super().__init__(runtime, profile)
        self._begin = begin

    async def call(
        self,
        name: Any,
        arguments: Mapping[str, Any] | None = None,
        *,
        context: CallContext | None = None,
        **options: Any,
    ) -> CallResult:
        tool = await self._tool_of(name, context)
        call = super().call(tool, arguments, context=context, **options)
        return await self._run(tool, context, call)

    def stream(
        self,
        name: Any,
        arguments: Mapping[str, Any] | None = None,
        *,
        context: CallContext | None = None,
        **options: Any,
    ) -> Call:
        inner = super().stream

        async def run(emit: Emit) -> CallResult:
            tool = await self._tool_of(name, context)
            call = inner(tool, arguments, context=context, **options)
            return await self._run(tool, context, call.run(emit))

        return Call(run)

    async def _run(
        self, tool: Tool, context: CallContext | None, call: Awaitable[CallResult]
    ) -> CallResult:
        try:
            ended = await self._begin(tool, self._profile, context)
        except BaseException:
            if isinstance(call, Coroutine):
                call.close()
            raise
        try:
            result = await call
        except BaseException as error:
            ended(error)
            raise
        ended(result)
        return result


class Offer:
    """What one profile offers. Lives as long as the profile is configured."""

    def __init__(self, runtime: Runtime, profile: Profile, begin: Begin) -> None:
        """`begin`: called before the calls that tools of the modes `search` and `code` make."""
        self.profile = profile
        self._runtime, self._chosen = runtime, NestedCalls(runtime, profile, begin)
        self._own = {tool.model_name: tool for tool in profile_tools(self._chosen, profile)}
        """The tools that modes other than `all` show in place of those of the servers."""
        self._anonymous: tuple[Catalogue, ProfileView] | None = None
        self._pages: WeakKeyDictionary[ProfileView, dict[Any, ListPage]] = WeakKeyDictionary()

    async def view(self, context: CallContext | None) -> ProfileView:
        """What this caller is shown."""
        return await self._chosen.view_for(context)

    # -- names ----------------------------------------------------------------------------------

    async def tool(self, name: str, context: CallContext | None) -> Tool:
        """The tool that is shown under this name. What the caller may call is decided when it is
        called. Raises `NotOffered`."""
        if self.profile.mode != "all":
            if name in self._own:
                return self._own[name]
            raise NotOffered(
                f"there is no tool {name[:80]!r}; use {' or '.join(self._own)}",
                suggestions=tuple(self._own),
            )
        if self.profile.prefix or context is None:
            known = self._anonymous_view().tools.get(name)
            if known is not None:
                return known
        server, parting, rest = name.partition("__")
        if self.profile.prefix and parting and self.profile.covers(server):
            found = await self._at_server(f"{server}.{rest}", context)
            if found is not None and found.model_name == name:
                return found
        return (await self.view(context)).tool(name)

    async def _at_server(self, full_name: str, context: CallContext | None) -> Tool | None:
        """The tool at its own server: the others need not be asked."""
        try:
            return await self._chosen.find(full_name, context)
        except NotOffered:
            return None

    def _anonymous_view(self) -> ProfileView:
        whole = self._runtime.catalogue
        if self._anonymous is None or self._anonymous[0] is not whole:
            self._anonymous = whole, ProfileView(whole, self.profile)
        return self._anonymous[1]

    def is_own(self, tool: Tool) -> bool:
        """Whether it searches or runs others, and belongs to no server."""
        return self._own.get(tool.model_name) is tool

    async def prompt(self, name: str, context: CallContext | None) -> Prompt:
        return (await self.view(context)).prompt(name)

    async def resource(self, uri: str, context: CallContext | None) -> Resource:
        """The resource of this URI, at the one server that lists it, or has a template for it."""
        view = await self.view(context)
        found = [one for one in view.resources if one.uri == uri]
        if not found:
            owners = {one.server for one in view.templates if matches(one.uri_template, uri)}
            found = [_resource_at(server, uri) for server in sorted(owners)]
        if len(found) == 1:
            return found[0]
        servers = ", ".join(one.server for one in found[:10])
        problem = f"{len(found)} servers have it ({servers})" if found else "no server lists it"
        raise UnknownResource(f"there is no single resource {uri[:200]!r}: {problem}")

    async def template(self, uri_template: str, context: CallContext | None) -> Template:
        view = await self.view(context)
        found = [one for one in view.templates if one.uri_template == uri_template]
        if len(found) == 1:
            return found[0]
        problem = f"{len(found)} servers list it" if found else "no server lists it"
        raise UnknownResource(f"there is no single template {uri_template[:200]!r}: {problem}")

    # -- lists ----------------------------------------------------------------------------------

    async def page(
        self, kind: Kind, cursor: object, context: CallContext | None, *, modern: bool
    ) -> ListPage:
        """One page of a list. Raises `RpcError` for a cursor that leads nowhere."""
        view = await self.view(context)
        items = self._items(kind, view)
        start = _start_of(cursor, items)
        pages = self._pages.setdefault(view, {})
        key = kind, modern, start
        found = pages.get(key)
        if found is None:
            found = await self._encode(kind, items, start, view, modern=modern)
            is_next = any(one.cursor == cursor for one in pages.values())
            if len(pages) < MAX_PAGES and (start == 0 or is_next):  # a cursor can be made up
                pages[key] = found
        return found

    def _items(self, kind: Kind, view: ProfileView) -> list[tuple[str, Any]]:
        """All items of one kind, each with the name that is shown."""
        match kind:
            case "tools":
                return list((self._own if self.profile.mode != "all" else view.tools).items())
            case "prompts":
                return list(view.prompts.items())
            case "resources":
                return [(one.name, one) for one in view.resources]
            case "resourceTemplates":
                return [(one.name, one) for one in view.templates]

    async def _encode(
        self,
        kind: Kind,
        items: Sequence[tuple[str, Any]],
        start: int,
        view: ProfileView,
        *,
        modern: bool,
    ) -> ListPage:
        encode = _ENCODERS[kind]
        encoded: list[bytes] = []
        size, end = 0, start
        for name, item in items[start : start + PAGE_ITEMS]:
            one = encode(name, item, modern)
            if encoded and size + len(one) > PAGE_BYTES:
                break
            encoded.append(one)
            size, end = size + len(one), end + 1
            if len(encoded) % ITEMS_PER_SLICE == 0:
                await asyncio.sleep(0)
        cursor = _cursor(end, items[end - 1][0]) if end < len(items) else None
        return ListPage(b",".join(encoded), cursor, self._unavailable(view))

    def _unavailable(self, view: ProfileView) -> tuple[str, ...]:
        return tuple(
            one.server
            for one in view.catalogue.listings
            if (one.missing or one.stale) and self.profile.covers(one.server)
        )

    async def instructions(self, context: CallContext | None) -> str | None:
        """What the servers of the profile tell models, of those with something to offer."""
        view = await self.view(context)
        told = {
            one.server: one.instructions
            for one in view.catalogue.listings
            if one.instructions and (one.tools or one.prompts or one.resources)
        }
        whole = "\n\n".join(f"## {server}\n{text}" for server, text in told.items())
        if len(told) == 1:
            whole = next(iter(told.values()))
        return whole[:MAX_INSTRUCTIONS] or None


# -- definitions --------------------------------------------------------------------------------


def _dump(definition: BaseModel) -> dict[str, Any]:
    return definition.model_dump(mode="json", by_alias=True, exclude_unset=True)


def _tool_json(name: str, tool: Tool, modern: bool) -> bytes:
    given = _dump(tool.definition)
    given["name"] = name
    if tool.description:
        given["description"] = tool.description
    output = given.get("outputSchema")
    if not modern and isinstance(output, dict) and not is_object_schema(output):
        del given["outputSchema"]  # only 2026-07-28 has results of other types
    return to_json(given, inf_nan_mode="null")


def is_object_schema(schema: Any) -> bool:
    return cast("dict[str, Any]", schema).get("type") == "object"


def _prompt_json(name: str, prompt: Prompt, modern: bool) -> bytes:
    return to_json({**_dump(prompt.definition), "name": name}, inf_nan_mode="null")


def _plain_json(name: str, item: Resource | Template, modern: bool) -> bytes:
    return to_json(_dump(item.definition), inf_nan_mode="null")


_ENCODERS: Mapping[Kind, Callable[[str, Any, bool], bytes]] = {
    "tools": _tool_json,
    "prompts": _prompt_json,
    "resources": _plain_json,
    "resourceTemplates": _plain_json,
}


def declared_headers(tool: Tool) -> Mapping[tuple[str, ...], str]:
    """The arguments of a tool that a modern client repeats in headers."""
    schema = tool.definition.input_schema
    return {} if annotation_problem(schema) else annotated_paths(schema)


def _resource_at(server: str, uri: str) -> Resource:
    import mcp_types

    return Resource(server, mcp_types.Resource(uri=uri, name=uri))


def matches(uri_template: str, uri: str) -> bool:
    """Whether a URI could be an expansion of this template (RFC 6570).

    Not by one regular expression: a server's template with several expressions, and a client's URI
    that nearly fits, would make it backtrack for minutes.
    """
    literals = _EXPRESSION.split(uri_template)[::2]
    if len(uri) > MAX_URI or not uri.startswith(literals[0]):
        return False
    ends = {len(literals[0])}
    """Where the part of the URI may end that was matched so far."""
    for operator, literal in zip(_EXPRESSION.findall(uri_template), literals[1:], strict=True):
        ends = _after(literal, uri, _after_value(operator, uri, ends))
    return len(uri) in ends


def _after_value(operator: str, uri: str, starts: set[int]) -> set[int]:
    """Where a value may end that begins at one of these places."""
    # Reserved expansion may contain slashes; the query forms may be absent.
    excluded, least = {"": ("/?#", 1), "+": ("", 1), "#": ("", 0)}.get(operator, ("#", 0))
    found: set[int] = set()
    for start in sorted(starts):
        end = start
        if least == 0:
            found.add(start)
        while end < len(uri) and uri[end] not in excluded:
            end += 1
            if end in found:  # an earlier start came through here
                break
            found.add(end)
    return found


def _after(literal: str, uri: str, starts: set[int]) -> set[int]:
    return {one + len(literal) for one in starts if uri.startswith(literal, one)}


# -- cursors ------------------------------------------------------------------------------------


def _cursor(start: int, last: str) -> str:
    """Where a page begins, and the name of the item before it: any replica finds the place again,
    also after the list has changed."""
    return base64.urlsafe_b64encode(json.dumps([start, last[:500]]).encode()).decode()


def _start_of(cursor: object, items: Sequence[tuple[str, Any]]) -> int:
    if cursor is None:
        return 0
    try:
        if not isinstance(cursor, str) or len(cursor) > MAX_CURSOR:
            raise ValueError
        start, last = json.loads(base64.urlsafe_b64decode(cursor))
        if not isinstance(start, int) or not isinstance(last, str):
            raise TypeError
    except (ValueError, TypeError, RecursionError):
        raise invalid_params("the cursor is not one of this gateway") from None
    if 0 < start <= len(items) and items[start - 1][0][:500] == last:
        return start
    for number, (name, _) in enumerate(items, 1):
        if name[:500] == last:
            return number
    raise invalid_params("the list has changed since the cursor was made: list again without one")
