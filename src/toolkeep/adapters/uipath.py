"""UiPath: the MCP servers of an agent's definition, as LangChain tools.

A definition names a server by its folder and slug, and lists its tools. So tools can be made
without asking anybody; where the server is, and with which credentials it is reached, is looked up
at the first call, by UiPath's SDK; its token once more whenever it is refused. A resource that is
disabled gives nothing; one without a URL raises `ConfigError`.

- `create_mcp_tools_from_agent`: all MCP resources of a definition; its clients are to be closed.
- `create_mcp_tools_from_metadata_for_mcp_server`: one resource, with a client of one's own.
- `create_mcp_tools`: resources as their servers list them now, for as long as the block lasts.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Unpack, cast
from urllib.parse import quote

from toolkeep._catalogue.tool import Tool
from toolkeep._rules.naming import ILLEGAL, LONGEST, model_name
from toolkeep._runtime.options import Options
from toolkeep.adapters._uipath_client import McpClient
from toolkeep.adapters.langchain import tools as langchain_tools
from toolkeep.errors import ConfigError

if find_spec("uipath") is None:
    remedy = "Install toolkeep with its extra `uipath`"
    raise ConfigError("uipath is not installed", remedy=remedy)

if TYPE_CHECKING:
    from langchain_core.tools import BaseTool
    from uipath.agent.models.agent import (  # pyright: ignore[reportMissingTypeStubs]
        AgentDefinition,
        AgentMcpResourceConfig,
    )
    from uipath.platform import UiPath

__all__ = [
    "McpClient",
    "create_mcp_tools",
    "create_mcp_tools_from_agent",
    "create_mcp_tools_from_metadata_for_mcp_server",
]


# -- the factories ------------------------------------------------------------------------------


async def create_mcp_tools_from_agent(
    agent: AgentDefinition,
    *,
    sdk: Callable[[], UiPath] | None = None,
    errors: Any = "tell",
    interrupts: bool = False,
    **options: Unpack[Options],
) -> tuple[list[BaseTool], list[McpClient]]:
    """The tools of all MCP resources that are enabled, and the clients to close when done.

    `errors` and `interrupts` are those of `toolkeep.adapters.langchain.tools`.
    """
    from uipath.agent.models.agent import (  # pyright: ignore[reportMissingTypeStubs]
        AgentMcpResourceConfig,
    )

    found: list[BaseTool] = []
    clients: list[McpClient] = []
    try:
        for resource in agent.resources:
            if isinstance(resource, AgentMcpResourceConfig) and resource.is_enabled:
                clients.append(client := McpClient(resource, sdk=sdk, **options))
                found += await create_mcp_tools_from_metadata_for_mcp_server(
                    resource, client, errors=errors, interrupts=interrupts
                )
    except BaseException:
        await _close(clients)
        raise
    return _distinct(found), clients


async def create_mcp_tools_from_metadata_for_mcp_server(
    config: AgentMcpResourceConfig,
    client: McpClient,
    *,
    errors: Any = "tell",
    interrupts: bool = False,
) -> list[BaseTool]:
    """The tools of one resource: as the definition has them, or, if it says so, as the server
    lists them now."""
    if not config.is_enabled:
        return []
    mode = config.tools_configuration and config.tools_configuration.discovery_mode
    if mode is None or mode.type == "cached":
        listed = [_defined(client, one) for one in config.available_tools]
    else:
        listed = await client.list_tools()
        if not mode.allow_all:
            listed = _allowed(config, listed)
    return await _as_langchain(config, client, listed, errors=errors, interrupts=interrupts)


@asynccontextmanager
async def create_mcp_tools(
    config: AgentMcpResourceConfig | Sequence[AgentMcpResourceConfig],
    *,
    errors: Any = "tell",
    interrupts: bool = False,
    **options: Unpack[Options],
) -> AsyncGenerator[list[BaseTool]]:
    """The tools of these resources as their servers list them now, at UiPath's own address of
    each (`UIPATH_URL`). They can be called inside of the block."""
    given = config if isinstance(config, Sequence) else [config]
    enabled = [one for one in given if one.is_enabled]
    async with AsyncExitStack() as stack:
        found: list[BaseTool] = []
        for one in enabled:
            client = McpClient(one, url=_address(one), **options)
            await stack.enter_async_context(client)
            listed = _allowed(one, await client.list_tools())
            found += await _as_langchain(one, client, listed, errors=errors, interrupts=interrupts)
        yield _distinct(found)


def _address(config: AgentMcpResourceConfig) -> str:
    base = os.environ.get("UIPATH_URL", "").rstrip("/")
    if not base:
        remedy = "Set UIPATH_URL to the tenant's address"
        raise ConfigError("UIPATH_URL is not set", server=config.slug, remedy=remedy)
    return f"{base}/agenthub_/mcp/{quote(config.folder_path.strip('/'))}/{quote(config.slug)}"


def _defined(client: McpClient, one: Any) -> Tool:
    import mcp_types

    definition = mcp_types.Tool(
        name=one.name,
        description=one.description,
        input_schema=one.input_schema,
        output_schema=one.output_schema,
    )
    return Tool(client.server, definition, caller=client)


def _allowed(config: AgentMcpResourceConfig, listed: Iterable[Tool]) -> list[Tool]:
    names = {one.name for one in config.available_tools}
    return [tool for tool in listed if tool.tool in names]


async def _as_langchain(
    config: AgentMcpResourceConfig, client: McpClient, listed: Iterable[Tool], **terms: Any
) -> list[BaseTool]:
    about = {"folder_path": config.folder_path, "slug": config.slug}
    made: list[BaseTool] = []
    for tool in listed:
        named = {**about, "display_name": tool.tool}
        made += await langchain_tools([replace(tool, caller=client)], metadata=named, **terms)
    return _distinct(made)


def _distinct(found: list[BaseTool]) -> list[BaseTool]:
    """Under their own names, as definitions and guardrails know them; those that would share one
    keep the name with their server's before it, and a number if need be."""
    keys = [cast("dict[str, str]", tool.metadata) for tool in found]
    own = [ILLEGAL.sub("_", key["display_name"])[:LONGEST] for key in keys]
    shared, taken = Counter(own), Counter[str]()
    for tool, key, name in zip(found, keys, own, strict=True):
        if shared[name] > 1:
            name = model_name(ILLEGAL.sub("_", key["slug"]), key["display_name"])
        taken[name] += 1
        tool.name = f"{name[: LONGEST - 4]}_{taken[name]}" if taken[name] > 1 else name
    return found


async def _close(clients: Iterable[McpClient]) -> None:
    for client in clients:
        await client.aclose()
