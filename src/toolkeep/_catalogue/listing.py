"""`Listing`: what one server told one identity, with the user's overrides applied.

Immutable: the next listing makes the next object. `fetch_tools` and
`fetch_prompts_and_resources` ask a server through a client that the caller gives.
"""

from __future__ import annotations

import asyncio
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar

from toolkeep._catalogue.prompts import LocalPrompt, split_shadowed
from toolkeep._catalogue.tool import MAX_NAME_SHOWN, Tool, safe_equal
from toolkeep._rules.access import ToolSelection
from toolkeep._rules.names import full_name
from toolkeep.config import ServerSpec
from toolkeep.config.fields import ALL_PROMPTS
from toolkeep.errors import (
    CallRejected,
    CallTimedOut,
    InvalidResult,
    RemoteProtocolError,
    ToolkeepError,
)

if TYPE_CHECKING:
    import mcp_types

    from toolkeep._client.tool_list import ToolList
    from toolkeep.client import Client

logger = logging.getLogger("toolkeep.catalogue")

TOOLS, PROMPTS, RESOURCES = "tools", "prompts", "resources"
LISTING_KINDS = frozenset({TOOLS, PROMPTS, RESOURCES})
"""What can be listed, in the words of `Changed`."""
MIN_REFRESH_INTERVAL = 5.0
"""Seconds between two listings, also where a server gives a shorter time to live."""
METHOD_NOT_FOUND = -32601
_PROMPT_LISTS = ("prompts/list",)
_RESOURCE_LISTS = ("resources/list", "resources/templates/list")
_TOOLS_PER_SLICE = 500
"""Tools that are made between two turns of the event loop: about 3 ms."""
_NO_HEADERS: Mapping[str, str] = MappingProxyType({})

Definition = TypeVar("Definition")


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class CatalogueItem(ABC, Generic[Definition]):
    """One item that a server has listed. Its identity is the pair `key`."""

    server: str
    definition: Definition
    """As the server listed it. Do not modify it."""

    @property
    @abstractmethod
    def key(self) -> tuple[str, str]: ...

    @property
    def name(self) -> str:
        """The key in one string: unique among its kind in a catalogue."""
        return full_name(*self.key)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, type(self)):
            return NotImplemented
        return self.server == other.server and safe_equal(self.definition, other.definition)

    def __hash__(self) -> int:
        return hash(self.key)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name[:MAX_NAME_SHOWN]!r})"


class Prompt(CatalogueItem["mcp_types.Prompt"]):
    """One prompt of one server; its name is `server.prompt`."""

    __slots__ = ()

    @property
    def key(self) -> tuple[str, str]:
        return self.server, self.definition.name

    @property
    def prompt(self) -> str:
        """Its name at the server."""
        return self.definition.name


class Resource(CatalogueItem["mcp_types.Resource"]):
    """One resource of one server; its name is `server.uri`."""

    __slots__ = ()

    @property
    def key(self) -> tuple[str, str]:
        return self.server, self.definition.uri

    @property
    def uri(self) -> str:
        return self.definition.uri


class Template(CatalogueItem["mcp_types.ResourceTemplate"]):
    """One resource template of one server; its name is `server.uri_template`."""

    __slots__ = ()

    @property
    def key(self) -> tuple[str, str]:
        return self.server, self.definition.uri_template

    @property
    def uri_template(self) -> str:
        return self.definition.uri_template


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ListingContent:
    """The items of a listing, for a catalogue. Compared by identity: equal content is the same
    object."""

    server: str
    tools: tuple[Tool, ...] = ()
    prompts: tuple[mcp_types.Prompt, ...] = ()
    resources: tuple[mcp_types.Resource, ...] = ()
    templates: tuple[mcp_types.ResourceTemplate, ...] = ()
    stale: bool = False
    """Whether the server is out of reach, and this is from its last listing."""
    instructions: str | None = None
    """The text for models that the server gives in its handshake."""
    missing: bool = False
    """Whether listing failed, so that it is unknown what this caller is offered."""

    def __repr__(self) -> str:
        counts: dict[str, Any] = {
            "tools": len(self.tools),
            "prompts": len(self.prompts),
            "resources": len(self.resources),
            "templates": len(self.templates),
        }
        content = "".join(f", {count} {what}" for what, count in counts.items() if count)
        return f"ListingContent({self.server!r}{content}{', stale' if self.stale else ''})"


class HasName(Protocol):
    """Anything with a name, such as a tool of the SDK."""

    @property
    def name(self) -> str: ...


def prompts_in_guides(guides: Mapping[str, str]) -> frozenset[str]:
    """The prompts that the guides name."""
    return frozenset(
        guide for guide in guides.values() if guide != ALL_PROMPTS and not _is_inline_text(guide)
    )


def guides_for(
    tools: Iterable[HasName],
    guides: Mapping[str, str],
    prompts: Mapping[str, str],
    file: Sequence[str] = (),
) -> dict[str, str]:
    """The guide of each tool that has one. `prompts` are the texts of prompts by name, `file` those
    of the prompts file in its order.

    Where several patterns match, their guides are joined in the order of the configuration, without
    repeats. A prompt that does not exist adds nothing.
    """
    whole_file = "\n\n".join(file)
    texts = {pattern: _guide_text(guide, prompts, whole_file) for pattern, guide in guides.items()}
    found: dict[str, str] = {}
    for tool in tools:
        matching = [texts[pattern] for pattern in texts if fnmatchcase(tool.name, pattern)]
        guide = "\n\n".join(dict.fromkeys(text for text in matching if text))
        if guide:
            found[tool.name] = guide
    return found


def _guide_text(guide: str, prompts: Mapping[str, str], whole_file: str) -> str:
    if guide == ALL_PROMPTS:
        return whole_file
    return (guide if _is_inline_text(guide) else prompts.get(guide, "")).strip()


def _is_inline_text(guide: str) -> bool:
    """Whether it is the guide itself, and not the name of a prompt."""
    return any(one.isspace() for one in guide)


@dataclass(frozen=True, slots=True)
class PromptsAndResources:
    """What one server offers besides tools."""

    prompts: tuple[mcp_types.Prompt, ...] = ()
    resources: tuple[mcp_types.Resource, ...] = ()
    templates: tuple[mcp_types.ResourceTemplate, ...] = ()
    instructions: str | None = None
    prompt_texts: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    """Texts of the prompts that guides name."""
    is_public: bool = True
    """Whether the server declares these lists public: the same for every caller."""


async def fetch_tools(client: Client, *, since: int | None = None) -> ToolList:
    """List the tools again, or take what another process has listed `since` a time of the store. A
    server that does not know `tools/list` has none."""
    try:
        return await client.fetch_tool_list(since=since)
    except CallRejected as error:
        if error.code != METHOD_NOT_FOUND:
            raise
    from toolkeep._client.tool_list import ToolList

    return ToolList(client.name, (), modern=False)


async def fetch_prompts_and_resources(
    client: Client,
    kinds: frozenset[str],
    before: PromptsAndResources,
    named: frozenset[str] = frozenset(),
) -> PromptsAndResources:
    """List the given kinds again, as far as the server has them; the rest is taken from `before`.
    `named` are the prompts whose texts are needed."""
    handshake = client.handshake
    offered = handshake.capabilities if handshake else None
    prompts, texts = before.prompts, before.prompt_texts
    resources, templates = before.resources, before.templates
    if offered and "prompts" in kinds and offered.prompts is not None:
        prompts = await _fetch_list(client, "list_prompts", prompts)
        texts = await _fetch_prompt_texts(client, prompts, named)
    if offered and "resources" in kinds and offered.resources is not None:
        resources = await _fetch_list(client, "list_resources", resources)
        templates = await _fetch_list(client, "list_resource_templates", templates)
    methods = [
        *(_PROMPT_LISTS if prompts else ()),
        *(_RESOURCE_LISTS if resources or templates else ()),
    ]
    public = all(client.declares_public(method) for method in methods)
    instructions = handshake.instructions if handshake else None
    return PromptsAndResources(prompts, resources, templates, instructions, texts, public)


async def _fetch_list(client: Client, method: str, before: tuple[Any, ...]) -> tuple[Any, ...]:
    try:
        return tuple(await getattr(client, method)(refresh=True))
    except CallRejected as error:
        if error.code == METHOD_NOT_FOUND:
            return ()
        failed: ToolkeepError = error
    except (CallTimedOut, InvalidResult, RemoteProtocolError) as error:
        failed = error
    logger.warning("%s: %s failed: %s", client.name, method, failed)
    return before


async def _fetch_prompt_texts(
    client: Client, prompts: tuple[mcp_types.Prompt, ...], named: frozenset[str]
) -> dict[str, str]:
    """The texts of the named prompts that need no arguments."""
    texts: dict[str, str] = {}
    for prompt in prompts:
        if prompt.name in named and not any(one.required for one in prompt.arguments or ()):
            try:
                answer = await client.get_prompt(prompt.name)
            except ToolkeepError as error:
                logger.warning(
                    "%s: the prompt %r of a guide could not be read: %s",
                    client.name,
                    prompt.name,
                    error,
                )
                continue
            contents = [one.content for one in answer.messages]
            texts[prompt.name] = "\n\n".join(one.text for one in contents if one.type == "text")
    return texts


class StaleTools(NamedTuple):
    """The tools of a listing, marked as stale."""

    full: tuple[Tool, ...]
    visible: tuple[Tool, ...]
    by_name: Mapping[str, Tool]


@dataclass(frozen=True, slots=True)
class Listing:
    """What one server told one identity. Immutable: listing again makes a new one."""

    tool_list: ToolList
    full: ListingContent
    """Everything that the server listed."""
    visible: ListingContent
    """Without the tools that the configuration excludes."""
    tools: Mapping[str, Tool] = field(repr=False)
    """The visible tools by their names at the server."""
    other: PromptsAndResources = field(repr=False)
    kinds: frozenset[str] = frozenset({TOOLS})
    """The kinds that were listed; the others are unknown."""

    @property
    def is_expired(self) -> bool:
        """Whether the server gave a time to live, and it is over."""
        if not self.tool_list.ttl:
            return False
        extension = max(0.0, MIN_REFRESH_INTERVAL - self.tool_list.ttl)
        return time.time() >= (self.tool_list.expires_at or 0) + extension

    @property
    def is_public(self) -> bool:
        """Whether the server declares everything public: the same for every caller."""
        return self.tool_list.public and self.other.is_public

    def with_stale(self, *, stale: bool) -> Listing:
        """The same listing, marked as stale or as current."""
        if self.visible.stale == stale:
            return self
        tools = tuple(replace(tool, stale=stale) for tool in self.full.tools)
        shown = tuple(tool for tool in tools if tool.tool in self.tools)
        by_name = {tool.tool: tool for tool in shown}
        return self._with_tools(StaleTools(tools, shown, by_name), stale=stale)

    def as_stale(self, known: dict[int, StaleTools]) -> Listing:
        """The same listing, marked as stale. `known` collects marked tools by the id of the
        originals, so that listings which share tools keep sharing them."""
        if self.visible.stale:
            return self
        found = known.get(id(self.full.tools))
        if found is not None:
            return self._with_tools(found, stale=True)
        listing = self.with_stale(stale=True)
        known[id(self.full.tools)] = StaleTools(
            listing.full.tools, listing.visible.tools, listing.tools
        )
        return listing

    def _with_tools(self, stale_tools: StaleTools, *, stale: bool) -> Listing:
        return replace(
            self,
            full=replace(self.full, stale=stale, tools=stale_tools.full),
            visible=replace(self.visible, stale=stale, tools=stale_tools.visible),
            tools=stale_tools.by_name,
        )


@dataclass(frozen=True, slots=True)
class ToolOverrides:
    """Applies the user's configuration to what one server lists: selection, tags, headers, guides,
    prompts."""

    spec: ServerSpec
    prompts: tuple[LocalPrompt, ...] = ()
    """Prompts from the user's files, added to the server's."""
    tools_with_progress: Container[tuple[str, str]] = frozenset[tuple[str, str]]()

    async def make_listing(
        self,
        tool_list: ToolList,
        other: PromptsAndResources,
        kinds: frozenset[str],
        like: Listing | None = None,
    ) -> Listing:
        """Make a listing in slices, so that a long list does not block the event loop. `like` is
        another listing, whose tools are reused if they are the same."""
        if (
            like is not None
            and like.tool_list is tool_list
            and like.other.prompt_texts == other.prompt_texts
        ):
            offered = self._make_content(other, like.full.tools)
            shown = replace(offered, tools=like.visible.tools)
            return replace(like, full=offered, visible=shown, other=other, kinds=kinds)
        tools: list[Tool] = []
        for tool in self._all_tools(tool_list, other):
            tools.append(tool)
            if len(tools) % _TOOLS_PER_SLICE == 0:
                await asyncio.sleep(0)
        return self._make_listing(tool_list, other, kinds, tuple(tools))

    def make_listing_now(
        self, tool_list: ToolList, other: PromptsAndResources, kinds: frozenset[str]
    ) -> Listing:
        """The same at once, without giving way to other tasks."""
        return self._make_listing(tool_list, other, kinds, tuple(self._all_tools(tool_list, other)))

    def _all_tools(self, tool_list: ToolList, other: PromptsAndResources) -> Iterator[Tool]:
        texts = {**{one.name: one.text for one in self.prompts}, **other.prompt_texts}
        file = [one.text for one in self.prompts]
        given = self.spec.guides
        guides = guides_for(tool_list.tools, given, texts, file) if given else {}
        return (self._make_tool(one, guides.get(one.name, "")) for one in tool_list.tools)

    def _make_listing(
        self,
        tool_list: ToolList,
        other: PromptsAndResources,
        kinds: frozenset[str],
        tools: tuple[Tool, ...],
    ) -> Listing:
        spec = self.spec
        selection = ToolSelection.parse(spec.include_tools, spec.exclude_tools, server=spec.name)
        shown = tuple(tool for tool in tools if selection.includes(tool.tool))
        whole = self._make_content(other, tools)
        return Listing(
            tool_list,
            whole,
            visible=replace(whole, tools=shown),
            tools={tool.tool: tool for tool in shown},
            other=other,
            kinds=kinds,
        )

    def _make_content(self, other: PromptsAndResources, tools: tuple[Tool, ...]) -> ListingContent:
        return ListingContent(
            server=self.spec.name,
            tools=tools,
            prompts=(*other.prompts, *self._own_prompts(other)),
            resources=other.resources,
            templates=other.templates,
            instructions=other.instructions,
        )

    def local_prompt(self, name: str, other: PromptsAndResources) -> LocalPrompt | None:
        """The user's own prompt of this name, unless the server has one."""
        if any(prompt.name == name for prompt in other.prompts):
            return None
        return next((prompt for prompt in self.prompts if prompt.name == name), None)

    def _make_tool(self, definition: mcp_types.Tool, guide: str) -> Tool:
        spec, name = self.spec, definition.name
        tags = spec.tags
        for pattern, more in spec.tool_tags.items():
            if fnmatchcase(name, pattern):
                tags |= frozenset(more)
        return Tool(
            spec.name,
            definition,
            tags=tags,
            headers=spec.tool_headers.get(name, _NO_HEADERS),
            guide=guide,
            tools_with_progress=self.tools_with_progress,
        )

    def _own_prompts(self, other: PromptsAndResources) -> tuple[mcp_types.Prompt, ...]:
        added, shadowed = split_shadowed(self.prompts, {prompt.name for prompt in other.prompts})
        for name in shadowed:
            logger.warning(
                "%s: the prompt %r of the prompts file is not used: the server has its own",
                self.spec.name,
                name,
            )
        return tuple(prompt.definition for prompt in added)
