"""`Runtime`: many servers, one catalogue, calls for every principal.

Making one does no I/O. A server that cannot be opened is retried in the background; the others work
meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterable, Mapping
from contextlib import asynccontextmanager
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar, Unpack, cast, overload

from toolkeep._catalogue.catalogue import Catalogue
from toolkeep._catalogue.listing import LISTING_KINDS, Prompt, Resource, Template
from toolkeep._catalogue.prompts import LocalPrompt
from toolkeep._catalogue.tool import Tool
from toolkeep._client.call import Call
from toolkeep._client.observers import Observation
from toolkeep._client.options import ClientOptions
from toolkeep._client.request import (
    CallOptions,
    CallRequest,
    Emit,
    OnProgress,
    prompt_arguments,
)
from toolkeep._client.server_requests import ServerRequestHandlers
from toolkeep._client.stats import Stats
from toolkeep._runtime.access_policy import AccessPolicy, is_normal_uri
from toolkeep._runtime.call import RuntimeCall
from toolkeep._runtime.caller import USER_FUNCTION_TIMEOUT
from toolkeep._runtime.large_results import PART_LENGTH, ResultPart, result_reader
from toolkeep._runtime.options import (
    CLIENT_OPTIONS,
    CONFIG_OPTIONS,
    GROUP_OPTIONS,
    HANDLER_OPTIONS,
    RuntimeOptions,
    check_functions,
    check_options,
    select_options,
)
from toolkeep._runtime.registry import ConfigSource, ServerRegistry, ServerStatus
from toolkeep._runtime.resolve import RuntimeResource, ToolName, ToolResolver, display_name
from toolkeep._runtime.session_pool import AcquiredClient, PoolClosed, SessionStatus
from toolkeep._runtime.tool_search import tool_search
from toolkeep.auth import ANY_PRINCIPAL, AnyPrincipal, Login, LoginRequest
from toolkeep.client import Client
from toolkeep.config import Configuration, Difference, ServerSpec
from toolkeep.config.spec import ConfigInput, check_config_input
from toolkeep.context import CallContext
from toolkeep.errors import ConfigError, NotPermitted, UnknownResource
from toolkeep.events import Observer
from toolkeep.results import CallResult, adapter_for
from toolkeep.state.shared import SharedState, StateStatus

if TYPE_CHECKING:
    import mcp_types as types

    from toolkeep._transport.trace import OnTrace
    from toolkeep.console import Action, ConsoleServer

__all__ = [
    "Catalogue",
    "Prompt",
    "Resource",
    "ResultPart",
    "Runtime",
    "ServerStatus",
    "SessionStatus",
    "Template",
    "result_reader",
    "tool_search",
]

logger = logging.getLogger("toolkeep.runtime")

_MAX_SERVER_SWAPS = 5
"""How often a server may be replaced while one client is acquired."""

T = TypeVar("T")
Owned = TypeVar("Owned", bound=RuntimeResource)


class Runtime:
    """Many servers behind one catalogue. Used from any task of one event loop; once closed, it may
    be opened again, also in another loop.

    `config` is a path, a URL, a mapping, a list or a `Configuration`; None looks in the usual
    places. The options are described at `RuntimeOptions`.
    """

    def __init__(self, config: ConfigInput = None, **options: Unpack[RuntimeOptions]) -> None:
        check_config_input(config)
        given = check_options(options)
        handlers = select_options(given, HANDLER_OPTIONS)
        ServerRequestHandlers("runtime", USER_FUNCTION_TIMEOUT, **handlers)  # validates them
        self._resolver = ToolResolver(
            AccessPolicy(given.get("permissions"), given.get("filter")),
            given.get("header_provider"),
            self,
            SharedState(given.get("state"), given.get("keys")),
            authorized=given.get("auth") is not None,
        )
        self._registry = ServerRegistry(
            self._resolver,
            ConfigSource(config, select_options(given, CONFIG_OPTIONS), check_functions(given)),
            ClientOptions(
                **select_options(given, CLIENT_OPTIONS),
                observers=self._resolver.observers,
                state=self._resolver.state,
            ),
            handlers,
            select_options(given, GROUP_OPTIONS),
            listen=given.get("listen", True),
            watch_config=given.get("auto_reload", False),
        )

    @classmethod
    def open(cls, config: ConfigInput = None, **options: Unpack[RuntimeOptions]) -> Self:
        """A runtime that is open inside of the block: `async with Runtime.open("mcp.json") as
        runtime`. The options are those of `Runtime`."""
        return cls(config, **options)

    def __del__(self) -> None:
        registry: ServerRegistry | None = getattr(self, "_registry", None)
        if registry is not None and registry.is_open:
            self._resolver.loop_guard.close_unclosed(self, registry.close, registry.detach)

    def __repr__(self) -> str:
        return f"<Runtime {self.summary()}>" if self._resolver.is_open else "<Runtime, not open>"

    # -- opening and closing --------------------------------------------------------------------

    async def connect(self) -> None:
        """Read the configuration and open all servers. Does nothing if the runtime is open."""
        await self._registry.open()
        logger.info("%s", self.summary())
        if os.environ.get("TOOLKEEP_CONSOLE"):
            await self._serve_console_from_environment()

    async def aclose(self) -> None:
        """Close everything, also running calls. May be called twice, from any task."""
        await self._registry.close()

    async def __aenter__(self) -> Self:
        await self.connect()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    def component(self, kind: type[Owned]) -> Owned:
        """The one `kind()` of this runtime. Made on first use; closed (`aclose`) with the runtime,
        before its servers."""
        self._resolver.check_open()
        resources = self._resolver.resources
        if kind not in resources:
            resources.setdefault(kind, kind())
        return cast("Owned", resources[kind])

    # -- status ---------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        return self._resolver.is_open

    @property
    def configuration(self) -> Configuration:
        """The configuration that was read, with the origin of each value and the servers that need
        approval."""
        return self._registry.configuration

    @property
    def catalogue(self) -> Catalogue:
        """Everything that is offered to callers without identity, before filters and
        permissions."""
        return self._resolver.catalogue

    @property
    def servers(self) -> tuple[ServerStatus, ...]:
        """The state of all servers, in the order of the configuration."""
        return self._registry.status()

    @property
    def stats(self) -> Stats:
        """Counts and durations of the calls of every server and every tool."""
        return self._resolver.stats

    @property
    def state(self) -> StateStatus | None:
        """Whether the store that processes share can be used; None: there is none."""
        return self._resolver.state.status

    @property
    def shared_state(self) -> SharedState:
        """For a gateway: the store that processes share, and its keys."""
        return self._resolver.state

    def summary(self) -> str:
        """`"2/3 servers healthy, 41 tools"`, and the store, if it is down."""
        return self._registry.summary()

    @property
    def sessions(self) -> tuple[SessionStatus, ...]:
        """The clients of all servers: the servers' own, and those of principals."""
        return self._registry.sessions()

    def observe(self, observer: Observer) -> Observation:
        """Call `observer` with every event of calls, connections, servers and the catalogue, until
        the returned handle is closed."""
        observation = self._resolver.observers.add(observer, listen=False)
        self._registry.describe_servers(observation)
        return observation

    def redact(self, server: str, value: Any) -> Any:
        """A copy of a JSON value of a server without the secrets that the server was given: keys,
        header values, environment variables. For what is shown to others than the caller."""
        found = self._resolver.servers.get(server)
        return value if found is None else found.redact(value)

    def trace(self, server: str, on_trace: OnTrace | None) -> None:
        """Call `on_trace` with what passes over the connections of one server from now on, without
        secrets. None: stop. Streams that are open already are not traced."""
        self._resolver.server(server).trace(on_trace)

    async def serve_console(
        self,
        port: int = 0,
        *,
        allow_calls: bool | Callable[[Action], bool | Awaitable[bool]] = False,
        token: str | None = None,
    ) -> ConsoleServer:
        """Serve the console of this runtime at loopback, until the runtime closes: open the `url`
        of the result. Port 0: any free one. The options are those of `toolkeep.console.Console`.
        """
        from toolkeep.console import ConsoleServer

        server = self.component(ConsoleServer)
        await server.start(self, port, allow_calls=allow_calls, token=token)
        return server

    # -- calling tools --------------------------------------------------------------------------

    @overload
    async def call(
        self,
        name: ToolName,
        arguments: Mapping[str, Any] | None = None,
        *,
        context: CallContext | None = None,
        result_type: None = None,
        **options: Unpack[CallOptions],
    ) -> CallResult: ...

    @overload
    async def call(
        self,
        name: ToolName,
        arguments: Mapping[str, Any] | None = None,
        *,
        context: CallContext | None = None,
        result_type: type[T],
        **options: Unpack[CallOptions],
    ) -> T: ...

    async def call(
        self,
        name: ToolName,
        arguments: Mapping[str, Any] | None = None,
        *,
        context: CallContext | None = None,
        result_type: type[Any] | None = None,
        headers: Mapping[str, str] | None = None,
        meta: Mapping[str, Any] | None = None,
        timeout: float | None = None,
        on_progress: OnProgress | None = None,
        input: Literal["answer", "return"] = "answer",
        input_responses: Mapping[str, Any] | None = None,
        request_state: str | None = None,
    ) -> Any:
        """Call a tool by its name: `server.tool`, or a short name that is unique. `context` says
        for whom. Raises a `ToolkeepError`, whose `delivery` says whether the tool ran.

        `result_type`: return the value of the result as this pydantic model, or as another type
        that pydantic validates; a tool's own error then raises `ToolError`. See
        `CallResult.parse`.
        """
        request = CallRequest(
            display_name(name),
            arguments,
            headers,
            meta,
            timeout,
            on_progress,
            input,
            input_responses,
            request_state,
        )
        if result_type is None:
            return await RuntimeCall(self._resolver, name, request, context).run()
        adapter_for(result_type)  # an unusable type is found before the tool runs
        result = await RuntimeCall(self._resolver, name, request, context).run()
        return result.parse(result_type)

    def stream(
        self,
        name: ToolName,
        arguments: Mapping[str, Any] | None = None,
        *,
        context: CallContext | None = None,
        headers: Mapping[str, str] | None = None,
        meta: Mapping[str, Any] | None = None,
        timeout: float | None = None,
        on_progress: OnProgress | None = None,
        input: Literal["answer", "return"] = "answer",
        input_responses: Mapping[str, Any] | None = None,
        request_state: str | None = None,
    ) -> Call:
        """Call a tool and watch it: `async with runtime.stream(…) as call`, then iterate over
        `call` for its events. See `Call`."""
        request = CallRequest(
            display_name(name),
            arguments,
            headers,
            meta,
            timeout,
            on_progress,
            input,
            input_responses,
            request_state,
        )
        runtime_call = RuntimeCall(self._resolver, name, request, context)

        # Holds the runtime, so that it is not collected while the call runs.
        def run(emit: Emit, _: Runtime = self) -> Awaitable[CallResult]:
            return runtime_call.run(emit)

        return Call(run)

    async def read_result(
        self,
        handle: str,
        start: int = 0,
        length: int = PART_LENGTH,
        *,
        context: CallContext | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> ResultPart:
        """A part of a result that was spooled (`oversized="spool"`), for the caller that made the
        call. To all others the handle is unknown."""
        self._resolver.check_open()
        return await self._resolver.read_result(handle, start, length, context, headers)

    # -- finding tools --------------------------------------------------------------------------

    async def catalogue_for(self, context: CallContext | None = None) -> Catalogue:
        """What this context may see: listed with its identity, then filtered by permissions and
        filter."""
        self._resolver.check_open()
        return await self._resolver.catalogue_for(context)

    async def search(
        self,
        query: str,
        limit: int = 10,
        *,
        context: CallContext | None = None,
        tags: Collection[str] | None = None,
    ) -> list[Tool]:
        """The tools that match the query best, the best first, of those that this context may
        see."""
        self._resolver.check_open()
        return await self._resolver.search(query, limit, context, tags)

    async def resolve(
        self, names: Iterable[ToolName], context: CallContext | None = None
    ) -> list[Tool]:
        """The tools of these names, in their order: all of them, or an error that names all that
        are missing. Their `call` acts for the same context."""
        return await self._resolver.resolve(names, context)

    # -- prompts, resources and other requests --------------------------------------------------

    async def get_prompt(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        context: CallContext | None = None,
    ) -> types.GetPromptResult:
        """A prompt of a server, or one of the user's own files. Arguments that are not texts are
        given as their JSON."""
        self._resolver.check_open()
        whole = await self._resolver.full_catalogue(context, kinds=LISTING_KINDS)
        prompt = await self._resolver.find_visible(whole, lambda view: view.prompt(name), context)
        await self._check_access(prompt, context)
        own = await self._find_local_prompt(prompt, context)
        if own is not None:
            texts = prompt_arguments(arguments, server=prompt.server, prompt=prompt.prompt)
            return own.render(texts)
        async with self._client(prompt.server, context) as (client, sent):
            return await client.get_prompt(prompt.prompt, arguments, headers=sent)

    async def read_resource(
        self, uri: str, *, server: str | None = None, context: CallContext | None = None
    ) -> types.ReadResourceResult:
        """Read a resource from the server that lists it. `server` says which, if several list it or
        none."""
        self._resolver.check_open()
        owner = server or await self._owning_server(uri, context)
        self._check_normal_uri(owner, uri)
        await self._check_access(_make_resource(owner, uri), context)
        async with self._client(owner, context) as (client, sent):
            return await client.read_resource(uri, headers=sent)

    async def complete(
        self,
        of: str,
        argument: str,
        value: str,
        *,
        context: CallContext | None = None,
        arguments: Mapping[str, str] | None = None,
    ) -> types.Completion:
        """Completions for one argument of a prompt, given by name, or of a resource template, given
        by URI template (`file:///{path}`). `arguments` are those that are filled in already."""
        import mcp_types

        self._resolver.check_open()
        whole = await self._resolver.full_catalogue(context, kinds=LISTING_KINDS)
        found = await self._resolver.find_visible(
            whole, lambda view: _find_completable(view, of), context
        )
        await self._check_access(found, context)
        ref: types.PromptReference | types.ResourceTemplateReference
        if isinstance(found, Template):
            ref = mcp_types.ResourceTemplateReference(type="ref/resource", uri=found.uri_template)
        elif await self._find_local_prompt(found, context):
            return mcp_types.Completion(values=[])  # a local prompt: its server does not know it
        else:
            ref = mcp_types.PromptReference(type="ref/prompt", name=found.prompt)
        async with self._client(found.server, context) as (client, sent):
            return await client.complete(ref, argument, value, context=arguments, headers=sent)

    async def subscribe(self, uri: str, *, server: str, context: CallContext | None = None) -> None:
        """Emit `Changed` to observers when this resource changes, as the server tells its own
        client. `context` is checked for permission."""
        self._resolver.check_open()
        self._check_normal_uri(server, uri)
        await self._check_access(_make_resource(server, uri), context)
        await self._resolver.server(server).subscribe(uri)

    async def unsubscribe(
        self, uri: str, *, server: str, context: CallContext | None = None
    ) -> None:
        self._resolver.check_open()
        await self._check_access(_make_resource(server, uri), context)
        await self._resolver.server(server).unsubscribe(uri)

    async def request(
        self,
        server: str,
        method: str,
        params: Mapping[str, Any] | None = None,
        *,
        context: CallContext | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
        repeatable: bool = False,
    ) -> dict[str, Any]:
        """Send any request to one server, and return the JSON result. Filters and permissions are
        not applied: do not pass on untrusted methods."""
        began = monotonic()
        async with self._client(server, context, headers, timeout) as (client, sent):
            left = None if timeout is None else max(timeout - (monotonic() - began), 0.001)
            return await client.request(
                method, params, headers=sent, timeout=left, repeatable=repeatable
            )

    async def forward(
        self,
        what: Prompt | Resource | Template,
        method: str,
        params: Mapping[str, Any],
        *,
        context: CallContext | None = None,
    ) -> dict[str, Any]:
        """For a gateway: send a request about something that the catalogue of this context has, and
        return the JSON result. Checks that the context may use it; asks the client nothing."""
        self._resolver.check_open()
        if isinstance(what, Resource):
            self._check_normal_uri(what.server, what.uri)
        await self._check_access(what, context)
        if isinstance(what, Prompt) and (own := await self._find_local_prompt(what, context)):
            if method != "prompts/get":
                return {"completion": {"values": []}}  # its server does not know it
            given = params.get("arguments")
            texts = prompt_arguments(given, server=what.server, prompt=what.prompt)
            return own.render(texts).model_dump(mode="json", by_alias=True, exclude_none=True)
        async with self._client(what.server, context) as (client, sent):
            return await client.request(method, params, headers=sent, repeatable=True)

    # -- changing the servers -------------------------------------------------------------------

    async def add(self, server: object) -> None:
        """Add a server and open it. Takes whatever describes one."""
        await self._registry.add(ServerSpec.parse(server))

    async def remove(self, name: str) -> None:
        """Remove a server. Its running calls finish; this method does not wait for them."""
        await self._registry.remove(name)

    async def reload(self, config: ConfigInput = None) -> Difference:
        """Read the configuration again, or another one, and apply the difference. Servers that did
        not change are not touched; running calls finish where they began."""
        return await self._registry.reload(config)

    async def reconnect(self, server: str | None = None, *, failed_only: bool = True) -> None:
        """Try the failed servers now, or close and open all; with `server`, this one alone."""
        await self._registry.reconnect(server, failed_only=failed_only)

    async def hand_over(self, within: float = 30.0) -> None:
        """Before this process ends: let another one run the programs that this one runs for all
        (`replicas="owner"`), as soon as their requests have ended, or after so many seconds."""
        await self._registry.hand_over(within)

    async def refresh(self, server: str | None = None) -> Catalogue:
        """List again what one server offers, or all. All are listed even if one fails; then the
        first failure is raised."""
        self._resolver.check_open()
        chosen = list(self._resolver.servers.values())
        if server is not None:
            chosen = [self._resolver.server(server)]
        refreshing = (one.refresh() for one in chosen)
        ended = await asyncio.gather(*refreshing, return_exceptions=True)
        for failure in ended:
            if failure is not None:
                raise failure
        return self.catalogue

    async def forget(self, principal: str) -> None:
        """End the sessions of this principal, also those in a store, and drop its listings and
        results. Results of its running calls are neither cached nor spooled."""
        await self._registry.forget_principal(principal)

    async def end_session(self, session: SessionStatus) -> bool:
        """End one session of `sessions`, and drop what was listed and kept for its caller. False:
        it is gone already, or it is the server's own."""
        return await self._registry.end_session(session.server, session.id)

    # -- logging in to servers ------------------------------------------------------------------

    async def begin_login(
        self,
        server: str,
        principal: str | None = None,
        *,
        redirect_uri: str = "",
        scopes: Iterable[str] = (),
    ) -> LoginRequest:
        """Begin a login of this principal: open its `url` in the user's browser, which comes back
        to `redirect_uri` (default: the configured one). `scopes` are requested in addition.

        Raises `OAuthError`.
        """
        from toolkeep.auth.login import begin_login

        login = self._registry.login_at(server)
        where = redirect_uri or login.settings.redirect_uri
        if not where:
            problem = "the login needs a URL that the browser comes back to"
            remedy = "Give redirect_uri, or set it in 'auth' of the server"
            raise ConfigError(problem, server=server, key="auth.redirect_uri", remedy=remedy)
        return await begin_login(login, principal, redirect_uri=where, scopes=tuple(scopes))

    async def complete_login(
        self, callback_url: str, *, principal: str | AnyPrincipal | None = ANY_PRINCIPAL
    ) -> Login:
        """Complete a login with the URL that the browser came back to, in any process that shares
        the `state`. Raises `OAuthError`.

        In a web application, give the `principal` of the web session that received the callback:
        otherwise an attacker could log a user in to the attacker's account.
        """
        from toolkeep.auth.login import complete_login

        oauth = await self._registry.login_of(callback_url)
        login = (await complete_login(oauth, callback_url, principal=principal)).login
        if login.principal is None:
            await self._registry.reopen(login.server)
        return login

    async def logout(self, server: str, principal: str | None = None) -> bool:
        """Forget a login, revoke its tokens and end the sessions of the principal. False: the
        tokens could not be revoked."""
        from toolkeep.auth.login import logout

        revoked = await logout(self._registry.login_at(server), principal)
        if principal is not None:
            await self._registry.forget_at(server, principal)
        return revoked

    # -- private --------------------------------------------------------------------------------

    async def _serve_console_from_environment(self) -> None:
        try:
            from toolkeep.console.serve import serve_from_environment
        except ImportError as error:
            logger.warning("TOOLKEEP_CONSOLE is set, but %s", error)
        else:
            await serve_from_environment(self)

    async def _find_local_prompt(
        self, prompt: Prompt, context: CallContext | None
    ) -> LocalPrompt | None:
        """The user's own prompt, if this is one and not the server's."""
        server = self._resolver.server(prompt.server)
        caller = await self._resolver.identify(server, context, None)
        within = server.spec.timeouts.call
        listing = await server.listing_for(caller.identity, within, LISTING_KINDS)
        return server.overrides.local_prompt(prompt.prompt, listing.other)

    async def _owning_server(self, uri: str, context: CallContext | None) -> str:
        whole = await self._resolver.full_catalogue(context, kinds=LISTING_KINDS)
        found = await self._resolver.find_visible(
            whole, lambda view: _find_resource(view, uri), context
        )
        return found.server

    def _check_normal_uri(self, server: str, uri: str) -> None:
        """Refuse a URI that permission patterns cannot judge, because it is not in its normal
        form."""
        if self._resolver.access.allows_all or is_normal_uri(uri):
            return
        listing = self._resolver.server(server).listing
        if listing is None or uri not in {str(one.uri) for one in listing.full.resources}:
            text = f"{uri[:200]!r} is not in its normal form, so permissions cannot judge it"
            raise NotPermitted(text)

    async def _check_access(
        self, what: Prompt | Resource | Template, context: CallContext | None
    ) -> None:
        if not await self._resolver.access.allows("call", what, context):
            raise NotPermitted(f"{what.name[:200]} may not be used in this context")

    @asynccontextmanager
    async def _client(
        self,
        server: str,
        context: CallContext | None,
        headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> AsyncGenerator[tuple[Client, dict[str, str] | None]]:
        acquired, sent = await self._acquire(server, context, headers, timeout)
        try:
            yield acquired.client, sent
        finally:
            acquired.release()

    async def _acquire(
        self,
        name: str,
        context: CallContext | None,
        headers: Mapping[str, str] | None,
        timeout: float | None,
        tries: int = _MAX_SERVER_SWAPS,
    ) -> tuple[AcquiredClient, dict[str, str] | None]:
        """A client, and the headers to send. Tries again if the server is replaced meanwhile."""
        self._resolver.check_open()
        server = self._resolver.server(name)
        caller = await self._resolver.identify(
            server, context, headers, USER_FUNCTION_TIMEOUT if timeout is None else timeout
        )
        within = server.spec.timeouts.call if timeout is None else timeout
        try:
            acquired = await server.pool.acquire(caller.identity, within)
        except PoolClosed:
            if not tries:
                raise
            return await self._acquire(name, context, headers, timeout, tries - 1)
        return acquired, caller.headers(server.spec, {})


def _find_completable(view: Catalogue, of: str) -> Prompt | Template:
    """By full name first, then by what is unique, so that no argument reaches a wrong server."""
    for item in (*view.prompts, *view.templates):
        if item.name == of:
            return item
    found = [template for template in view.templates if template.uri_template == of]
    if len(found) > 1:
        names = tuple(template.name for template in found)
        text = f"{len(found)} servers list {of[:200]!r}; name one of: {', '.join(names)}"
        raise UnknownResource(text, suggestions=names)
    return found[0] if found else view.prompt(of)


def _find_resource(view: Catalogue, uri: str) -> Resource:
    found = [resource for resource in view.resources if resource.uri == uri]
    if len(found) == 1:
        return found[0]
    problem = f"{len(found)} servers list it" if found else "no server lists it"
    raise UnknownResource(f"{uri[:200]!r}: {problem}; name one with `server`")


def _make_resource(server: str, uri: str) -> Resource:
    import mcp_types

    return Resource(server, mcp_types.Resource(uri=uri, name=uri))
