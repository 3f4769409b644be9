"""UiPath: the MCP servers of an agent's definition, as LangChain tools.

A definition names a server, and lists its tools, so that tools can be made without a request.
UiPath's SDK looks up the server's address and credentials at the first call, and the token again
whenever it is refused. A disabled resource has no tools; one without a URL raises `ConfigError`.

- `create_mcp_tools_and_clients`: those of several resources. The caller closes the clients.
- `open_mcp_tools`: the same for the duration of a block.
- `create_mcp_tools(config, client)`: those of one resource, with a client of the caller.

These are today's names, and their tools have today's names: `mcp-{resource}-tool-{tool}`. With the
names of UiPath's guide, tools have the names of the definition:

- `create_mcp_tools_from_agent`: all MCP resources of a definition. The caller closes the clients.
- `create_mcp_tools_from_metadata_for_mcp_server`: one resource, with a client of the caller.
- `create_mcp_tools(config)`: resources as their servers list them now, for the duration of a block.

The platform's token is sent to the platform, and to the server's address: the one that the platform
returned, or the `url` of the client. Redirects, and the endpoint that an SSE stream names, are
followed only within the origin of that address.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import os
import re
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, Unpack, cast, overload
from urllib.parse import quote
from uuid import uuid4

from toolkeep._catalogue.tool import Tool, ToolCaller
from toolkeep._client.call import Call
from toolkeep._client.request import Emit
from toolkeep._rules.names import ILLEGAL_CHARACTERS, MAX_LENGTH, model_name
from toolkeep._runtime.options import RuntimeOptions, check_options
from toolkeep._tasks import cancellation_count, was_cancelled
from toolkeep.adapters._common import server_instructions
from toolkeep.adapters._uipath_arguments import (
    ArgumentSetter,
    SetArgument,
    hide_arguments,
    set_arguments,
)
from toolkeep.adapters.langchain import tools as langchain_tools
from toolkeep.auth import AuthRequest, Challenge
from toolkeep.config import TLS
from toolkeep.context import CallContext
from toolkeep.errors import AuthNeeded, ConfigError, ServerUnavailable
from toolkeep.events import Connected, Event
from toolkeep.results import CallResult
from toolkeep.runtime import Runtime

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
    "ClientOptions",
    "McpClient",
    "create_mcp_tools",
    "create_mcp_tools_and_clients",
    "create_mcp_tools_from_agent",
    "create_mcp_tools_from_metadata_for_mcp_server",
    "open_mcp_tools",
]

logger = logging.getLogger("toolkeep.adapters")

DEFAULT_TIMEOUT = 600.0
"""Seconds, as in UiPath's own client: a server of the platform may start at its first request."""
_MIN_RESOURCE_LENGTH = 8
"""Characters of a resource in a tool's name that is cut."""


class ClientOptions(RuntimeOptions, total=False):
    """The options of `McpClient`: its own, and those of `Runtime`."""

    url: str | None
    """The server's address. None: the platform is asked."""
    sdk: Callable[[], UiPath] | None
    """Makes UiPath's SDK. None: the SDK configures itself from the environment."""
    timeout: float
    """Seconds for the handshake, and for each call. By default 600, as in UiPath."""
    max_retries: int
    """How often one call may be sent again, where nothing can run twice."""
    headers: Mapping[str, str]
    """Sent with every request to the server."""
    mode: Literal["auto", "legacy", "modern"]
    """Which era of the protocol. UiPath calls it `protocol_mode`."""
    tls: TLS | Mapping[str, Any] | None
    """None: as the environment says; `UIPATH_DISABLE_SSL_VERIFY` turns verification off."""
    routing_id: str | None
    """Sent as `mcp-session-id` where the server gives no session, because UiPath's gateway routes
    by it. None: a new one for each opening."""


# -- one server --------------------------------------------------------------------------------


class McpClient:
    """One MCP server of an agent. Opens at the first call; any number of tasks may use it. After
    closing it can be used again: it is then looked up anew."""

    def __init__(self, config: AgentMcpResourceConfig, **options: Unpack[ClientOptions]) -> None:
        self.config = config
        self.server = _server_name(config)
        own = {key: options.get(key) for key in _OWN_OPTIONS if key in options}
        rest: Any = {key: value for key, value in options.items() if key not in own}
        self._own, self._options = own, check_options(rest)
        self._opening: asyncio.Task[Runtime] | None = None
        """Opens the runtime, once for all callers, and then holds it."""
        self._connected: Connected | None = None
        self._routing_id = ""

    def __repr__(self) -> str:
        return f"<McpClient {self.server!r}>"

    @property
    def server_slug(self) -> str:
        return self.config.slug

    @property
    def is_client_initialized(self) -> bool:
        """Whether it is open and has reached its server."""
        return self._connected is not None

    @property
    def session_id(self) -> str | None:
        """The `mcp-session-id` that calls go out with: the server's, or for a server without
        sessions our own. None before the first connection, and after closing."""
        if self._connected is None:
            return None
        if self._connected.era == "modern":
            return self._routing_id
        return self._connected.session_id

    async def get_session_id(self) -> str | None:
        return self.session_id

    # -- calls of tools -------------------------------------------------------------------------

    async def call_tool(
        self, name: str, arguments: Mapping[str, Any] | None = None, **options: Any
    ) -> CallResult:
        """Call a tool by its own name. Options as those of `Runtime.call`."""
        runtime = await self.connect()
        return await runtime.call(f"{self.server}.{name}", arguments, **options)

    async def call(
        self,
        name: Tool,
        arguments: Mapping[str, Any] | None = None,
        *,
        context: CallContext | None = None,
        **options: Any,
    ) -> CallResult:
        runtime = await self.connect()
        return await runtime.call(name, arguments, context=context, **options)

    def stream(
        self,
        name: Tool,
        arguments: Mapping[str, Any] | None = None,
        *,
        context: CallContext | None = None,
        **options: Any,
    ) -> Call:
        async def run(emit: Emit) -> CallResult:
            runtime = await self.connect()
            async with runtime.stream(name, arguments, context=context, **options) as call:
                async for event in call:
                    emit(event)
                return await call.result()

        return Call(run)

    async def list_tools(self, *, force_refresh: bool = False) -> list[Tool]:
        """The server's tools, as they are known; asked again with `force_refresh`, and when the
        server says that they changed. Raises if the server cannot be reached."""
        runtime = await self.connect()
        view = runtime.catalogue
        if force_refresh or not view.listings or any(one.stale for one in view.listings):
            view = await runtime.refresh(self.server)
        return list(view)

    async def instructions(self) -> str:
        """What the server says to models about its tools, marked as its words; empty if it says
        nothing. For the system prompt of an agent."""
        return await server_instructions(await self.connect())

    # -- opening and closing --------------------------------------------------------------------

    async def connect(self) -> Runtime:
        """Look the server up and open it, unless it is open."""
        if self._opening is None or (self._opening.done() and not _has_opened(self._opening)):
            self._opening = asyncio.create_task(self._open())
        opening, before = self._opening, cancellation_count()
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            if was_cancelled(before) or not opening.cancelled():
                raise
        text = f"{self.server}: the client was closed while it opened. Nothing was sent"
        raise ServerUnavailable(text, server=self.server)

    async def _open(self) -> Runtime:
        own, platform = self._own, _Platform(self.server, self._own.get("sdk"))
        self._routing_id = own.get("routing_id") or uuid4().hex
        timeout = own.get("timeout", DEFAULT_TIMEOUT)
        spec: dict[str, Any] = {
            "url": own.get("url") or await platform.url_of(self.config),
            "timeouts": {"connect": timeout, "call": timeout},
            "tls": own.get("tls") or await asyncio.to_thread(_tls_of_environment),
            "routing_id": self._routing_id,
            **{key: own[key] for key in ("headers", "max_retries", "mode") if key in own},
        }
        options: Any = {"auth": platform, "connect_timeout": timeout, **self._options}
        runtime = Runtime({self.server: spec}, **options)
        runtime.observe(self._on_event)
        try:
            await runtime.connect()
        except BaseException:
            await runtime.aclose()
            raise
        return runtime

    def _on_event(self, event: Event) -> None:
        if isinstance(event, Connected):
            self._connected = event

    async def aclose(self) -> None:
        """Close the server's session and sockets. The next call opens them again."""
        opening, self._opening = self._opening, None
        if opening is None:
            return
        opening.cancel()
        await asyncio.wait((opening,))
        if _has_opened(opening):
            await opening.result().aclose()
        if self._opening is None:  # nothing has opened it again meanwhile
            self._connected = None

    close = aclose
    dispose = aclose  # UiPath's runtime calls it

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()


_OWN_OPTIONS = tuple(
    key for key in ClientOptions.__annotations__ if key not in RuntimeOptions.__annotations__
)


def _has_opened(opening: asyncio.Task[Runtime]) -> bool:
    return not opening.cancelled() and opening.exception() is None


def _tls_of_environment() -> TLS:
    from uipath.platform.common import get_httpx_client_kwargs

    return TLS(verify=get_httpx_client_kwargs()["verify"] is not False)


class _Platform:
    """UiPath's SDK: the addresses of servers, and the token for them.

    The SDK is imported and made at its first use, in a thread: it reads the environment, opens
    certificates, and sends requests without awaiting. It is made again when a token is refused: the
    environment may hold another one by then.
    """

    def __init__(self, server: str, make: Callable[[], UiPath] | None) -> None:
        self._server, self._make = server, make
        self._token: Mapping[str, str] = {}

    async def headers(self, request: AuthRequest) -> Mapping[str, str]:
        if not self._token:
            self._token = await asyncio.to_thread(self._read_headers)
        return self._token

    def _read_headers(self) -> Mapping[str, str]:
        """The token, and the header by which UiPath knows who pays."""
        from uipath.platform.common import get_httpx_client_kwargs

        return get_httpx_client_kwargs(headers=self._sdk().mcp.auth_headers)["headers"]

    async def challenged(self, request: AuthRequest, challenge: Challenge) -> bool:
        refused, self._token = self._token, {}
        return await self.headers(request) != refused

    async def url_of(self, config: AgentMcpResourceConfig) -> str:
        def retrieve() -> Any:
            mcp = self._sdk().mcp
            return mcp.retrieve(name=config.name, folder_path=_execution_folder(config))

        try:
            # In a thread: the SDK's own coroutine looks the folder up without awaiting (0.2.41).
            found = await asyncio.to_thread(retrieve)
        except ConfigError:
            raise
        except Exception as error:
            raise self._lookup_error(error) from error
        if not found.mcp_url:
            remedy = "Give it one in UiPath Orchestrator"
            what = "the server has no URL configured"
            raise ConfigError(what, server=config.slug, key="mcpUrl", remedy=remedy)
        return found.mcp_url

    def _sdk(self) -> UiPath:
        from uipath.platform import UiPath
        from uipath.platform.errors import BaseUrlMissingError, SecretMissingError

        try:
            return (self._make or UiPath)()
        except (BaseUrlMissingError, SecretMissingError) as error:
            remedy = "Set UIPATH_URL and UIPATH_ACCESS_TOKEN, or give `sdk`"
            raise ConfigError(
                "UiPath's address or token is not set", server=self._server, remedy=remedy
            ) from error

    def _lookup_error(self, error: Exception) -> Exception:
        status = getattr(error, "status_code", None)
        text = f"{self._server}: UiPath did not return its address ({type(error).__name__})"
        kind = AuthNeeded if status in (401, 403) else ServerUnavailable
        return kind(f"{text}. Nothing was sent", server=self._server)


def _execution_folder(config: AgentMcpResourceConfig) -> str | None:
    """The folder in which the agent runs, which may differ from the one that it was made in. None:
    the SDK takes `UIPATH_FOLDER_KEY`."""
    found = os.environ.get("UIPATH_FOLDER_PATH")
    return found or (None if os.environ.get("UIPATH_FOLDER_KEY") else config.folder_path)


# -- the factories ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _ToolOptions:
    """How the tools of one factory are made."""

    errors: Any
    interrupts: bool
    agent_input: Mapping[str, Any] | None
    qualified: bool = False
    """Whether tools have today's names in UiPath, with their resource's."""


async def create_mcp_tools_and_clients(
    resources: Iterable[AgentMcpResourceConfig],
    *,
    errors: Any = "tell",
    interrupts: bool = False,
    agent_input: Mapping[str, Any] | None = None,
    **options: Unpack[ClientOptions],
) -> tuple[list[BaseTool], list[McpClient]]:
    """The tools of all enabled resources, and the clients that the caller has to close.

    `errors` and `interrupts` are those of `toolkeep.adapters.langchain.tools`. `agent_input` is the
    agent's input, for arguments that the definition takes from it.
    """
    how = _ToolOptions(errors, interrupts, agent_input, qualified=True)
    return await _tools_and_clients(resources, how, options)


async def create_mcp_tools_from_agent(
    agent: AgentDefinition,
    *,
    errors: Any = "tell",
    interrupts: bool = False,
    agent_input: Mapping[str, Any] | None = None,
    **options: Unpack[ClientOptions],
) -> tuple[list[BaseTool], list[McpClient]]:
    """The tools of all enabled MCP resources of a definition, and the clients that the caller has
    to close. Options as those of `create_mcp_tools_and_clients`."""
    from uipath.agent.models.agent import (  # pyright: ignore[reportMissingTypeStubs]
        AgentMcpResourceConfig,
    )

    found = [one for one in agent.resources if isinstance(one, AgentMcpResourceConfig)]
    return await _tools_and_clients(found, _ToolOptions(errors, interrupts, agent_input), options)


async def _tools_and_clients(
    resources: Iterable[AgentMcpResourceConfig], how: _ToolOptions, options: ClientOptions
) -> tuple[list[BaseTool], list[McpClient]]:
    found: list[BaseTool] = []
    clients: list[McpClient] = []
    try:
        for resource in resources:
            if resource.is_enabled:
                clients.append(client := McpClient(resource, **options))
                found += await _tools_of(resource, client, how)
    except BaseException:
        await _close(clients)
        raise
    return _with_distinct_names(found), clients


async def create_mcp_tools_from_metadata_for_mcp_server(
    config: AgentMcpResourceConfig,
    client: McpClient,
    *,
    errors: Any = "tell",
    interrupts: bool = False,
    agent_input: Mapping[str, Any] | None = None,
) -> list[BaseTool]:
    """The tools of one resource: those of the definition or, if its discovery mode says so, those
    that the server lists now."""
    return await _tools_of(config, client, _ToolOptions(errors, interrupts, agent_input))


@overload
def create_mcp_tools(
    config: AgentMcpResourceConfig,
    mcpClient: McpClient,
    *,
    errors: Any = "tell",
    interrupts: bool = False,
    agent_input: Mapping[str, Any] | None = None,
) -> Coroutine[Any, Any, list[BaseTool]]: ...


@overload
def create_mcp_tools(
    config: AgentMcpResourceConfig | Sequence[AgentMcpResourceConfig],
    mcpClient: None = None,
    *,
    errors: Any = "tell",
    interrupts: bool = False,
    agent_input: Mapping[str, Any] | None = None,
    **options: Unpack[ClientOptions],
) -> AbstractAsyncContextManager[list[BaseTool]]: ...


def create_mcp_tools(
    config: AgentMcpResourceConfig | Sequence[AgentMcpResourceConfig],
    mcpClient: McpClient | None = None,
    *,
    errors: Any = "tell",
    interrupts: bool = False,
    agent_input: Mapping[str, Any] | None = None,
    **options: Unpack[ClientOptions],
) -> Coroutine[Any, Any, list[BaseTool]] | AbstractAsyncContextManager[list[BaseTool]]:
    """With a client: to be awaited, the tools of one resource. Without: a block, the tools of these
    resources as their servers list them now, at the addresses below `UIPATH_URL`."""
    how = _ToolOptions(errors, interrupts, agent_input, qualified=mcpClient is not None)
    if mcpClient is not None:
        if options:
            remedy = "Give them to the client"
            raise ConfigError("these options are the client's", key=min(options), remedy=remedy)
        return _tools_of(cast("AgentMcpResourceConfig", config), mcpClient, how)
    given = config if isinstance(config, Sequence) else [config]
    return _listed_tools(given, how, options)


@asynccontextmanager
async def _listed_tools(
    resources: Iterable[AgentMcpResourceConfig], how: _ToolOptions, options: ClientOptions
) -> AsyncGenerator[list[BaseTool]]:
    enabled = [one for one in resources if one.is_enabled]
    async with AsyncExitStack() as stack:
        found: list[BaseTool] = []
        for one in enabled:
            client = McpClient(one, **{"url": _address(one), **options})
            await stack.enter_async_context(client)
            found += await _as_langchain(one, client, _allowed(one, await client.list_tools()), how)
        yield _with_distinct_names(found)


@asynccontextmanager
async def open_mcp_tools(
    config: AgentMcpResourceConfig | Sequence[AgentMcpResourceConfig],
    *,
    errors: Any = "tell",
    interrupts: bool = False,
    agent_input: Mapping[str, Any] | None = None,
    **options: Unpack[ClientOptions],
) -> AsyncGenerator[list[BaseTool]]:
    """The tools of these resources, which can be called inside the block."""
    given = config if isinstance(config, Sequence) else [config]
    how = _ToolOptions(errors, interrupts, agent_input, qualified=True)
    found, clients = await _tools_and_clients(given, how, options)
    try:
        yield found
    finally:
        await _close(clients)


def _address(config: AgentMcpResourceConfig) -> str:
    base = os.environ.get("UIPATH_URL", "").rstrip("/")
    if not base:
        remedy = "Set UIPATH_URL to the tenant's address"
        raise ConfigError("UIPATH_URL is not set", server=config.slug, remedy=remedy)
    return f"{base}/agenthub_/mcp/{quote(config.folder_path.strip('/'))}/{quote(config.slug)}"


# -- tools --------------------------------------------------------------------------------------


async def _tools_of(
    config: AgentMcpResourceConfig, client: McpClient, how: _ToolOptions
) -> list[BaseTool]:
    if not config.is_enabled:
        return []
    mode = config.tools_configuration and config.tools_configuration.discovery_mode
    if mode is None or mode.type == "cached":
        listed = [_defined_tool(config, one) for one in config.available_tools]
    else:
        listed = await client.list_tools()
        if not mode.allow_all:
            listed = _allowed(config, listed)
    return await _as_langchain(config, client, listed, how)


def _defined_tool(config: AgentMcpResourceConfig, one: Any) -> Tool:
    import mcp_types

    definition = mcp_types.Tool(
        name=one.name,
        description=one.description,
        input_schema=one.input_schema,
        output_schema=one.output_schema,
    )
    return Tool(_server_name(config), definition)


def _allowed(config: AgentMcpResourceConfig, listed: Iterable[Tool]) -> list[Tool]:
    """The listed tools that the definition names."""
    known = {tool.tool: tool for tool in listed}
    for one in config.available_tools:
        if one.name not in known:
            logger.warning("%s: the server does not have the tool %r", config.slug, one.name)
    return [known[one.name] for one in config.available_tools if one.name in known]


async def _as_langchain(
    config: AgentMcpResourceConfig, client: McpClient, listed: Iterable[Tool], how: _ToolOptions
) -> list[BaseTool]:
    shared = {
        "folder_path": config.folder_path,
        "slug": config.slug,
        "resource_name": config.name,
    }
    properties = {one.name: one.argument_properties for one in config.available_tools}
    made: list[BaseTool] = []
    for tool in listed:
        given = set_arguments(properties.get(tool.tool, {}), how.agent_input, config.slug)
        bound = _with_set_arguments(tool, client, given)
        bound = replace(bound, caller=cast("ToolCaller", _Simulated(bound)))
        metadata = {**shared, "display_name": tool.tool}
        [one] = await langchain_tools(
            [bound], metadata=metadata, errors=how.errors, interrupts=how.interrupts
        )
        own = _sanitized(tool.tool) or one.name
        one.name = _tool_name(config.name, tool.tool) if how.qualified else own
        made.append(one)
    return _with_distinct_names(made)


class _Simulated:
    """Calls one tool, unless an evaluation of UiPath simulates it: then the simulated value is the
    result, and nothing is sent. A `ToolCaller`; lives as long as the tool."""

    def __init__(self, tool: Tool) -> None:
        assert tool.caller is not None
        self._caller = tool.caller
        self._about: dict[str, Any] = {
            "name": tool.tool,
            "description": tool.description,
            "input_schema": tool.input_schema,
            "output_schema": tool.output_schema or {"type": "object", "properties": {}},
        }

    async def call(
        self, name: Tool, arguments: Mapping[str, Any] | None = None, **options: Any
    ) -> CallResult:
        from uipath.eval import mocks

        # The decorator reads the coroutine's arguments: those that the model gave.
        async def send(**_: Any) -> Any:
            return await self._caller.call(name, arguments, **options)

        decorate = cast("Any", mocks).mockable(**self._about)
        found = await decorate(send)(**(arguments or {}))
        return found if isinstance(found, CallResult) else _simulated_result(found, name)

    def stream(
        self, name: Tool, arguments: Mapping[str, Any] | None = None, **options: Any
    ) -> Call:
        return self._caller.stream(name, arguments, **options)


def _simulated_result(value: object, tool: Tool) -> CallResult:
    text = value if isinstance(value, str) else json.dumps(value)
    raw: dict[str, Any] = {"content": [{"type": "text", "text": text}]}
    if isinstance(value, dict):
        raw["structuredContent"] = value
    return CallResult(raw, tool.server, tool.tool)


def _with_set_arguments(tool: Tool, client: McpClient, given: tuple[SetArgument, ...]) -> Tool:
    """The tool, without the arguments that the definition sets. Its calls have them."""
    if not given:
        return replace(tool, caller=cast("ToolCaller", client))
    schema = hide_arguments(tool.input_schema, given)
    definition = tool.definition.model_copy(update={"input_schema": schema})
    setter = ArgumentSetter(client, tool.server, given, tool.input_schema)
    return replace(tool, definition=definition, caller=cast("ToolCaller", setter))


def _server_name(config: AgentMcpResourceConfig) -> str:
    return ILLEGAL_CHARACTERS.sub("_", config.slug)


def _sanitized(name: str) -> str:
    """As UiPath does it: white space becomes `_`, and what models do not take is left out."""
    return re.sub(r"[^A-Za-z0-9_-]", "", "_".join(name.split()))[:MAX_LENGTH]


def _tool_name(resource: str, tool: str) -> str:
    """The name that UiPath (0.18) gives a tool: a run that is resumed by either has the same."""
    server, own = _sanitized(resource).lower(), _sanitized(tool).lower()
    whole = f"mcp-{server}-tool-{own}"
    if len(whole) <= MAX_LENGTH:
        return whole
    digest = hashlib.blake2s(f"{resource}\0{tool}".encode(), digest_size=4).hexdigest()
    room = MAX_LENGTH - len(f"mcp--tool--{digest}")
    own = own[: room - min(len(server), _MIN_RESOURCE_LENGTH)]
    return f"mcp-{server[: room - len(own)]}-tool-{own}-{digest}"


def _with_distinct_names(found: list[BaseTool]) -> list[BaseTool]:
    """Rename tools that share a name: they get their server's name as a prefix, and a number if
    that is not enough."""
    shared, taken = Counter(tool.name for tool in found), set[str]()
    for tool in found:
        about, name = cast("dict[str, str]", tool.metadata), tool.name
        if shared[name] > 1:
            name = model_name(ILLEGAL_CHARACTERS.sub("_", about["slug"]), about["display_name"])
        wanted, number = name, 1
        while name in taken:
            number += 1
            name = f"{wanted[: MAX_LENGTH - 1 - len(str(number))]}_{number}"
        taken.add(name)
        tool.name = name
    return found


async def _close(clients: Iterable[McpClient]) -> None:
    for client in clients:
        await client.aclose()
