"""One MCP server of a UiPath agent: where it is, who we are to it, and its tools' calls.

UiPath's SDK is imported and made when it is first needed, in a thread: it reads the environment,
opens certificates, and asks the platform without awaiting.

The platform's token goes to the platform, and to the server's address: the one that the platform
gave, or the `url` that the client was made with. Redirects, and the endpoint that an SSE stream
names, are not followed out of that address's origin.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, Unpack

from toolkeep._catalogue.tool import Tool
from toolkeep._engine.call import Call, Emit
from toolkeep._rules.naming import ILLEGAL
from toolkeep._runtime.options import Options
from toolkeep.context import CallContext
from toolkeep.errors import AuthNeeded, ConfigError, ServerUnavailable
from toolkeep.results import CallResult
from toolkeep.runtime import Runtime

if TYPE_CHECKING:
    from uipath.agent.models.agent import (  # pyright: ignore[reportMissingTypeStubs]
        AgentMcpResourceConfig,
    )
    from uipath.platform import UiPath


class McpClient:
    """One server of an agent's. Opens at the first call; may be used by any number of tasks until
    it is closed. The options are those of `Runtime`; `sdk` makes UiPath's SDK where its usual
    environment does not do."""

    def __init__(
        self,
        config: AgentMcpResourceConfig,
        *,
        url: str | None = None,
        sdk: Callable[[], UiPath] | None = None,
        **options: Unpack[Options],
    ) -> None:
        self.config = config
        self.server = ILLEGAL.sub("_", config.slug)
        self._url, self._options = url, options
        self._platform = Platform(self.server, sdk)
        self._opening, self._runtime, self._closed = asyncio.Lock(), None, False

    def __repr__(self) -> str:
        return f"<McpClient {self.server!r}>"

    # -- what tools call ------------------------------------------------------------------------

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

    async def list_tools(self) -> list[Tool]:
        """What the server lists now. Raises, when it cannot be asked."""
        runtime = await self.connect()
        return list(await runtime.refresh(self.server))

    # -- opening and closing --------------------------------------------------------------------

    async def connect(self) -> Runtime:
        """Look the server up, and open it. Opening twice is opening once."""
        async with self._opening:
            if self._closed:
                raise ServerUnavailable(f"{self.server}: the client is closed", server=self.server)
            if self._runtime is None:
                url = self._url or await self._platform.url_of(self.config)
                spec = {self.server: {"url": url}}
                runtime = Runtime(spec, **{"auth": self._platform, **self._options})
                await runtime.connect()
                self._runtime = runtime
            return self._runtime

    async def aclose(self) -> None:
        async with self._opening:
            self._closed, runtime, self._runtime = True, self._runtime, None
            if runtime is not None:
                await runtime.aclose()

    dispose = aclose  # as UiPath's runtime calls it

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()


class Platform:
    """UiPath's SDK, made when it is first needed: where servers are, and the token for them. It is
    made anew when a token was refused: the environment may hold another one by then."""

    def __init__(self, server: str, make: Callable[[], UiPath] | None) -> None:
        self._server, self._make = server, make
        self._token: Mapping[str, str] = {}

    async def headers(
        self, server: str, principal: str | None, method: str, url: str
    ) -> Mapping[str, str]:
        if not self._token:
            self._token = await asyncio.to_thread(lambda: self._sdk().mcp.auth_headers)
        return self._token

    async def challenged(self, status: int, headers: Mapping[str, str]) -> bool:
        refused, self._token = self._token, {}
        return await self.headers("", None, "", "") != refused

    async def url_of(self, config: AgentMcpResourceConfig) -> str:
        def retrieve() -> Any:
            mcp = self._sdk().mcp
            return mcp.retrieve(slug=config.slug, folder_path=config.folder_path)

        try:
            # In a thread: the SDK's own coroutine looks for the folder without awaiting (0.2.41).
            found = await asyncio.to_thread(retrieve)
        except ConfigError:
            raise
        except Exception as error:
            raise self._unknown(error) from error
        if not found.mcp_url:
            remedy = "Give it one in UiPath Orchestrator"
            raise ConfigError("it has no URL", server=config.slug, key="mcpUrl", remedy=remedy)
        return found.mcp_url

    def _sdk(self) -> UiPath:
        from uipath.platform import UiPath
        from uipath.platform.errors import BaseUrlMissingError, SecretMissingError

        try:
            return (self._make or UiPath)()
        except (BaseUrlMissingError, SecretMissingError) as error:
            remedy = "Set UIPATH_URL and UIPATH_ACCESS_TOKEN, or give `sdk`"
            raise ConfigError(
                "UiPath's address or token is not known", server=self._server, remedy=remedy
            ) from error

    def _unknown(self, error: Exception) -> Exception:
        status = getattr(error, "status_code", None)
        text = f"{self._server}: UiPath did not say where it is ({type(error).__name__})"
        kind = AuthNeeded if status in (401, 403) else ServerUnavailable
        return kind(f"{text}. Nothing was sent", server=self._server)
