"""Profiles: named choices of servers and tools, each shown at a path of its own.

A profile is a view. It decides what clients see and under which names; what a principal may do is
decided by permissions, for every profile alike.

Names that clients see: `server__tool`, the name for models, where the profile has prefixes.
Without prefixes it is the server's own name, unless two servers of the profile use it, or it
begins with the name of another server: then each of these tools has its prefix, and the bare name
means none of them. So a server that comes later cannot take over the name of a tool.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, Self, TypeVar
from weakref import WeakKeyDictionary

from toolkeep._catalogue.catalogue import (
    Catalogue,
    Named,
    ambiguous_error,
    by_short_name,
    claiming_server,
    unknown_error,
)
from toolkeep._catalogue.listing import Prompt, Resource, Template
from toolkeep._catalogue.tool import Tool
from toolkeep._client.call import Call
from toolkeep._client.request import Emit
from toolkeep._rules.access import PatternSet, compile_glob, split_patterns
from toolkeep._rules.names import model_names
from toolkeep._runtime.resolve import RuntimeResource
from toolkeep.config.gateway import ProfileSettings
from toolkeep.context import CallContext
from toolkeep.errors import ConfigError, NotOffered, UnknownTool
from toolkeep.results import CallResult
from toolkeep.runtime import Runtime, tool_search

__all__ = ["Profile", "ProfileRuntime", "ProfileView", "profile_tools", "shown_names"]

Item = TypeVar("Item", bound=Named)
Owned = TypeVar("Owned", bound=RuntimeResource)

_SEARCH_STEP = 4
"""How many times more hits are requested while too few belong to the profile."""


@dataclass(frozen=True)
class Profile:
    """What clients see at `/mcp/{name}`. The default is everything, as at `/mcp`.

    The fields are those of `ProfileSettings`.
    """

    name: str = ""
    servers: tuple[str, ...] = ()
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    prefix: bool = True
    mode: Literal["all", "search", "code"] = "all"
    allow: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _ = self._selection  # finds patterns that are wrong

    @classmethod
    def of(cls, settings: ProfileSettings) -> Self:
        given: dict[str, Any] = settings.model_dump()
        return cls(**given)

    @classmethod
    def from_mapping(cls, config: Mapping[str, Any], name: str | None = None) -> Self:
        """The profile that a table describes. `name`: the key of the table, if it has one. Raises
        `ConfigError`, which names the key and the remedy."""
        given: dict[str, Any] = {**config} if name is None else {**config, "name": name}
        key = f"gateway.profiles.{given.get('name', '')}".rstrip(".")
        try:
            settings = ProfileSettings(**given)
        except ConfigError as error:
            key = f"{key}.{error.key}" if error.key else key
            raise ConfigError(error.problem, key=key, remedy=error.remedy) from None
        return cls.of(settings)

    def covers(self, server: str) -> bool:
        """Whether it has this server. Prompts and resources are chosen by this alone."""
        return not self.servers or any(compile_glob(one).match(server) for one in self.servers)

    def shows(self, server: str, tool: str, tags: Collection[str] = ()) -> bool:
        """Whether it has this tool."""
        included, excluded = self._selection
        subject = server, tool, frozenset(tags)
        return self.covers(server) and included.match(*subject) and not excluded.match(*subject)

    @cached_property
    def _selection(self) -> tuple[PatternSet, PatternSet]:
        key = f"gateway.profiles.{self.name}"
        included, denied = split_patterns(self.include, f"{key}.include")
        excluded, _ = split_patterns(self.exclude, f"{key}.exclude")
        return PatternSet.of(included or ("*",)), PatternSet.of(denied + excluded)


def shown_names(
    items: Iterable[Item], *, prefix: bool, servers: Collection[str] = ()
) -> dict[str, Item]:
    """The names that clients see, with their items, in the order of the items. `servers`: names
    that no item of another server may begin with."""
    by_key = {item.key: item for item in items}
    prefixed = model_names(by_key)
    if prefix:
        return {prefixed[key]: item for key, item in by_key.items()}
    own = by_short_name(by_key.values())
    reserved = {*prefixed.values()}

    def name_of(key: tuple[str, str]) -> str:
        server, bare = key
        owner = claiming_server(bare, servers)
        is_free = len(own[bare]) == 1 and bare not in reserved and owner in (None, server)
        return bare if bare and is_free else prefixed[key]

    return {name_of(key): item for key, item in by_key.items()}


class ProfileView:
    """One profile over one catalogue: what is shown, and what a shown name means. Immutable."""

    def __init__(self, catalogue: Catalogue, profile: Profile) -> None:
        self.catalogue, self.profile = _chosen(catalogue, profile), profile

    @cached_property
    def tools(self) -> dict[str, Tool]:
        """By the names that clients see."""
        return self._named(self.catalogue.tools)

    @cached_property
    def prompts(self) -> dict[str, Prompt]:
        """By the names that clients see."""
        return self._named(self.catalogue.prompts)

    @property
    def resources(self) -> tuple[Resource, ...]:
        return self.catalogue.resources

    @property
    def templates(self) -> tuple[Template, ...]:
        return self.catalogue.templates

    def tool(self, name: str) -> Tool:
        """The tool that is shown under this name. Raises `UnknownTool`, or `AmbiguousTool` for a
        bare name of several."""
        return self._find(name, "tool", self.tools)

    def prompt(self, name: str) -> Prompt:
        """The prompt that is shown under this name. Raises `UnknownPrompt`."""
        return self._find(name, "prompt", self.prompts)

    def _named(self, items: Iterable[Item]) -> dict[str, Item]:
        servers = [one for one in self.catalogue.servers if self.profile.covers(one)]
        return shown_names(items, prefix=self.profile.prefix, servers=servers)

    def _find(self, name: str, what: str, shown: Mapping[str, Item]) -> Item:
        found = shown.get(name)
        if found is not None:
            return found
        meant = tuple(one for one, item in shown.items() if item.key[1] == name)
        if len(meant) > 1:
            raise ambiguous_error(name, what, meant)
        raise unknown_error(name, what, shown.keys())


def _chosen(catalogue: Catalogue, profile: Profile) -> Catalogue:
    """The part of a catalogue that a profile has."""
    return catalogue.filtered(
        lambda tool: profile.shows(tool.server, tool.tool, tool.tags),
        keep_other=lambda item: profile.covers(item.server),
    )


# -- the modes search and code --------------------------------------------------------------------


def profile_tools(
    runtime: Runtime | ProfileRuntime, profile: Profile, context: CallContext | None = None
) -> list[Tool]:
    """The two tools that a profile of mode `search` or `code` shows in place of its tools, by their
    names for models; empty for mode `all`. They act for `context`, unless a call gives another."""
    if profile.mode == "all":
        return []
    chosen = ProfileRuntime(runtime, profile) if isinstance(runtime, Runtime) else runtime
    if profile.mode == "search":
        return tool_search(chosen, context)
    from toolkeep.code_mode import code_tools  # an extra

    return code_tools(chosen, context, allow=profile.allow)


class ProfileRuntime:
    """A runtime with the tools of one profile alone, for what searches and calls tools by itself.

    Names are full names, `server.tool`, as searches give them, and those that clients see.
    """

    def __init__(self, runtime: Runtime, profile: Profile) -> None:
        self._runtime, self._profile = runtime, profile
        # Callers share catalogues, and a catalogue never changes.
        self._views: WeakKeyDictionary[Catalogue, ProfileView] = WeakKeyDictionary()

    async def view_for(self, context: CallContext | None = None) -> ProfileView:
        """What this context may see of the profile."""
        whole = await self._runtime.catalogue_for(context)
        view = self._views.get(whole)
        if view is None:
            view = self._views[whole] = ProfileView(whole, self._profile)
        return view

    async def catalogue_for(self, context: CallContext | None = None) -> Catalogue:
        return (await self.view_for(context)).catalogue

    async def find(self, name: str, context: CallContext | None = None) -> Tool:
        """The tool that this name means in the profile. Raises `UnknownTool`."""
        with contextlib.suppress(NotOffered):
            (found,) = await self._runtime.resolve([name], context)
            if self._has(found):
                return found
        # The name is unique in the profile only, or there is none: the error suggests others.
        view = await self.view_for(context)
        return view.tools[name] if name in view.tools else view.catalogue.tool(name)

    async def search(
        self,
        query: str,
        limit: int = 10,
        *,
        context: CallContext | None = None,
        tags: Collection[str] | None = None,
    ) -> list[Tool]:
        wide = limit
        while True:
            hits = await self._runtime.search(query, wide, context=context, tags=tags)
            found = [tool for tool in hits if self._has(tool)]
            if len(found) >= limit or len(hits) < wide:
                return found[:limit]
            wide *= _SEARCH_STEP

    async def call(
        self,
        name: Any,
        arguments: Mapping[str, Any] | None = None,
        *,
        context: CallContext | None = None,
        **options: Any,
    ) -> CallResult:
        tool = await self._tool_of(name, context)
        return await self._runtime.call(tool, arguments, context=context, **options)

    def stream(
        self,
        name: Any,
        arguments: Mapping[str, Any] | None = None,
        *,
        context: CallContext | None = None,
        **options: Any,
    ) -> Call:
        async def run(emit: Emit) -> CallResult:
            tool = await self._tool_of(name, context)
            call = self._runtime.stream(tool, arguments, context=context, **options)
            async with call as running:
                async for event in running:
                    emit(event)
                return await running.result()

        return Call(run)

    def component(self, kind: type[Owned]) -> Owned:
        return self._runtime.component(kind)

    async def _tool_of(self, name: Any, context: CallContext | None) -> Tool:
        """The runtime checks what the context may call."""
        if not isinstance(name, Tool):
            return await self.find(name, context)
        if self._has(name):
            return name
        raise UnknownTool(f"the profile {self._profile.name} has no tool {name.name[:200]!r}")

    def _has(self, tool: Tool) -> bool:
        return self._profile.shows(tool.server, tool.tool, tool.tags)
