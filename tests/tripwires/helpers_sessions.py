"""Our session and the SDK's, each over a transport with ready answers, behind one interface.

Each method plays one message or exchange and returns its outcome as text. Nothing here asserts.
"""

import asyncio
import contextlib
import copy
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

import anyio
import anyio.abc
import mcp_types as types
from mcp.client._probe import negotiate_auto
from mcp.client.session import ClientSession
from mcp.client.subscriptions import SubscriptionLost, listen
from mcp.shared.dispatcher import run_notify_intercept
from mcp.shared.exceptions import MCPError
from mcp_types.methods import MONOLITH_REQUESTS, MONOLITH_RESULTS
from pydantic import TypeAdapter, ValidationError

from toolkeep._client.server_requests import ServerRequestHandlers
from toolkeep._client.session import ProtocolSession
from toolkeep._tasks import BackgroundTasks
from toolkeep._transport.base import NO_HEADERS, Attempt, ErrorReply, RequestFault
from toolkeep._transport.jsonrpc import RpcExchange, parse_result

MODERN = "2026-07-28"
PATIENCE = 10.0
ROUNDS = 20
"""Rounds of the event loop after which all that a step causes has happened."""
INFO = {"name": "kit", "version": "1"}
CLIENT = types.Implementation(name="tests", version="1")
DISCOVERED = {
    "supportedVersions": [MODERN],
    "capabilities": {},
    "resultType": "complete",
    "ttlMs": 0,
    "cacheScope": "public",
}
URI = "kit://a"


@dataclass(frozen=True)
class Error:
    """A JSON-RPC error as an answer."""

    code: int
    data: Any = None


Answers = Mapping[str, list[Any]]
"""For each method: the answers, in order; the last one is repeated. None: no answer yet."""


def initialized(version: str) -> dict[str, Any]:
    return {"protocolVersion": version, "capabilities": {}, "serverInfo": INFO}


def shown(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def dumped(model: Any) -> str:
    return shown(model.model_dump(by_alias=True, mode="json", exclude_none=True))


def model_of(method: str) -> TypeAdapter[Any]:
    model: Any = MONOLITH_RESULTS[method]
    return TypeAdapter(model)


def parsed(method: str, raw: dict[str, Any]) -> str:
    """What a user gets: the model that is the same for all versions."""
    return f"ok {dumped(model_of(method).validate_python(raw, by_name=False))}"


class Wire:
    """Ready answers, and what was sent."""

    def __init__(self, answers: Answers) -> None:
        self._answers = {method: list(given) for method, given in answers.items()}
        self.sent: list[tuple[str, Any, dict[str, str], bool]] = []
        self.ids: list[Any] = []
        self.ending: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def record(self, method: str, params: Any, headers: Mapping[str, str], last: bool) -> None:
        self.sent.append((method, copy.deepcopy(params), dict(headers), last))

    async def answer(self, method: str) -> Any:
        known = self._answers.get(method, [None])
        found = known.pop(0) if len(known) > 1 else known[0]
        return copy.deepcopy(await self.ending if found is None else found)

    @property
    def methods(self) -> str:
        return ", ".join(
            f"{method} {headers.get('mcp-protocol-version', '')}".strip()
            for method, _, headers, _ in self.sent
        )

    def first(self) -> str:
        _, params, headers, cancellable = self.sent[0]
        return shown([params, {key.lower(): text for key, text in headers.items()}, cancellable])


class CannedTransport(Wire):
    """A transport of ours with ready answers. Reads responses as the real ones do."""

    session_id, stray_output = None, ""

    def __init__(self, answers: Answers) -> None:
        super().__init__(answers)
        self.background_tasks = BackgroundTasks()

    async def open(self, handler: Any) -> None: ...

    async def request(
        self,
        method: str,
        params: Mapping[str, Any] | None,
        attempt: Attempt,
        *,
        headers: Mapping[str, str] = NO_HEADERS,
        request_id: Any = None,
        cancellable: bool = True,
    ) -> dict[str, Any]:
        self.ids.append(request_id)
        self.record(method, params, headers, cancellable)
        found = await self.answer(method)
        exchange = RpcExchange(request_id or 1, method, attempt, headers, cancellable)
        message: dict[str, Any] = {"jsonrpc": "2.0", "id": exchange.request_id}
        if isinstance(found, Error):
            message["error"] = {"code": found.code, "message": "no", "data": found.data}
        else:
            message["result"] = found
        return parse_result(message, exchange, session=False)

    async def notify(
        self, method: str, params: Any = None, *, headers: Mapping[str, str] = NO_HEADERS
    ) -> None:
        self.record(method, params, headers, True)

    def resume(self, session_id: str, version: str) -> None: ...

    async def listen(self, on_open: Any) -> None: ...

    def stop_replying(self) -> None: ...

    async def terminate(self) -> None: ...

    async def close(self) -> None: ...


class CannedDispatcher(Wire):
    """A dispatcher of the SDK with ready answers."""

    async def run(
        self,
        on_request: Any,
        on_notify: Any,
        on_notify_intercept: Any = None,
        *,
        task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
    ) -> None:
        self.on_request, self._on_notify = on_request, on_notify
        self._intercept = on_notify_intercept
        task_status.started()
        await anyio.sleep_forever()

    async def send_raw_request(self, method: str, params: Any, opts: Any = None) -> Any:
        opts = opts or {}
        self.ids.append(opts.get("request_id"))
        self.record(method, params, opts.get("headers", {}), opts.get("cancel_on_abandon", True))
        found = await self.answer(method)
        if isinstance(found, Error):
            raise MCPError(code=found.code, message="no", data=found.data)
        return found

    async def notify(self, method: str, params: Any, opts: Any = None) -> None:
        self.record(method, params, (opts or {}).get("headers", {}), True)

    async def receive(self, method: str, params: Any) -> None:
        if not run_notify_intercept(self._intercept, method, params):
            await self._on_notify(None, method, params)


# -- ours ---------------------------------------------------------------------------------------


class Ours:
    """Outcomes of our session."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def session(
        self, wire: CannedTransport, version: str | None = None, **handlers: Any
    ) -> ProtocolSession:
        session = ProtocolSession(
            wire,
            client_info=CLIENT,
            handlers=ServerRequestHandlers("kit", PATIENCE, **handlers),
            extensions={},
            on_notification=lambda method, params: self.heard.append(f"{method} {shown(params)}"),
        )
        if version is not None and version != MODERN:
            session.resume(initialized(version))
        return session

    async def negotiated(self, wire: CannedTransport, version: str, **handlers: Any) -> Any:
        session = self.session(wire, version, **handlers)
        if version == MODERN:
            found = types.DiscoverResult.model_validate(DISCOVERED)
            await session.negotiate(
                mode="auto", known_era=None, discovered=found, probe_within=PATIENCE
            )
        return session

    async def negotiate(self, mode: str, answers: Answers) -> str:
        wire = CannedTransport(answers)
        session = self.session(wire)
        try:
            await session.negotiate(mode=mode, known_era=None, probe_within=PATIENCE)
        except (RequestFault, ValidationError):
            return f"refused after {wire.methods}"
        assert session.protocol is not None
        agreed = f"{session.protocol.version} {dumped(session.protocol.result)}"
        return f"{agreed} after {wire.methods}"

    async def result(self, version: str, method: str, raw: dict[str, Any]) -> str:
        session = await self.negotiated(CannedTransport({method: [raw]}), version)
        try:
            found = await session.request(method, {}, Attempt())
        except RequestFault:
            return "refused"
        try:
            return parsed(method, found)
        except ValidationError:
            return f"returned {shown(found)}"

    async def notification(self, version: str, method: str, params: Any) -> str:
        session = await self.negotiated(CannedTransport({}), version)
        await session.on_notification(method, params)
        return "passed on" if self.heard else "dropped"

    async def request(self, version: str, method: str, params: Any, answer: Any) -> str:
        handlers = {} if answer is None else dict.fromkeys(HANDLERS, lambda needed: answer)
        session = await self.negotiated(CannedTransport({}), version, **handlers)
        try:
            return f"ok {shown(await session.on_request(method, params, Attempt()))}"
        except ErrorReply as error:
            return f"error {error.code}"

    async def sent(self, version: str, method: str, params: Any) -> str:
        wire = CannedTransport({method: [{}]})
        session = await self.negotiated(wire, version)
        with contextlib.suppress(RequestFault):
            await session.request(method, params, Attempt())
        return wire.first()

    async def subscription(self, steps: list[tuple[Any, ...]]) -> str:
        wire = CannedTransport({})
        session = await self.negotiated(wire, MODERN)

        def on_open(covered: Any) -> None:
            self.heard.append(f"open {sorted(covered)}")

        async def run() -> None:
            try:
                await session.listen([URI], on_open, within=PATIENCE)
            except RequestFault:
                self.heard.append("refused")
            else:
                self.heard.append("ended")

        return await play(wire, run(), steps, session.on_notification, self.heard)


HANDLERS = ("sampling", "elicitation", "roots")


# -- the SDK's ----------------------------------------------------------------------------------


class Sdk:
    """Outcomes of the SDK's session."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    @asynccontextmanager
    async def session(
        self, wire: CannedDispatcher, version: str | None = None, answer: Any = None
    ) -> AsyncIterator[ClientSession]:
        async def on_message(message: Any) -> None:
            self.heard.append(message.method)

        async def callback(*_: Any) -> Any:
            return answer

        callbacks: dict[str, Any] = {}
        if answer is not None:
            names = ("sampling_callback", "elicitation_callback", "list_roots_callback")
            callbacks = dict.fromkeys(names, callback)
        session = ClientSession(
            dispatcher=cast("Any", wire),
            message_handler=on_message,
            client_info=CLIENT,
            **callbacks,
        )
        async with session:
            if version == MODERN:
                session.adopt(types.DiscoverResult.model_validate(DISCOVERED))
            elif version is not None:
                session.adopt(types.InitializeResult.model_validate(initialized(version)))
            yield session

    async def negotiate(self, mode: str, answers: Answers) -> str:
        wire = CannedDispatcher(answers)
        async with self.session(wire) as session:
            ways = {"legacy": session.initialize, "modern": session.discover}
            try:
                await (negotiate_auto(session) if mode == "auto" else ways[mode]())
            except (MCPError, ValidationError, RuntimeError):
                return f"refused after {wire.methods}"
            agreed = dumped(session.initialize_result or session.discover_result)
            return f"{session.protocol_version} {agreed} after {wire.methods}"

    async def result(self, version: str, method: str, raw: dict[str, Any]) -> str:
        async with self.session(CannedDispatcher({method: [raw]}), version) as session:
            try:
                found = await session.send_request(_request(method), model_of(method))
            except ValidationError:
                return "refused"
            return f"ok {dumped(found)}"

    async def notification(self, version: str, method: str, params: Any) -> str:
        wire = CannedDispatcher({})
        async with self.session(wire, version):
            await wire.receive(method, params)
        return "passed on" if self.heard else "dropped"

    async def request(self, version: str, method: str, params: Any, answer: Any) -> str:
        wire = CannedDispatcher({})
        async with self.session(wire, version, answer):
            context = SimpleNamespace(request_id=1)
            try:
                return f"ok {shown(await wire.on_request(context, method, params))}"
            except MCPError as error:
                return f"error {error.code}"
            except ValidationError:  # as its dispatcher translates it
                return f"error {types.INVALID_PARAMS}"

    async def sent(self, version: str, method: str, params: Any) -> str:
        wire = CannedDispatcher({method: [{}]})
        async with self.session(wire, version) as session:
            with contextlib.suppress(ValidationError):
                await session.send_request(_request(method, params), model_of(method))
        return wire.first()

    async def subscription(self, steps: list[tuple[Any, ...]]) -> str:
        wire = CannedDispatcher({})
        async with self.session(wire, MODERN) as session:

            async def run() -> None:
                changes = dict.fromkeys(
                    ("tools_list_changed", "prompts_list_changed", "resources_list_changed"), True
                )
                try:
                    async with listen(session, resource_subscriptions=[URI], **changes) as events:
                        covered = events.honored.resource_subscriptions or ()
                        self.heard.append(f"open {sorted(covered)}")
                        with contextlib.suppress(SubscriptionLost):
                            async for _ in events:
                                pass
                except (MCPError, SubscriptionLost):
                    self.heard.append("refused")
                else:
                    self.heard.append("ended")

            return await play(wire, run(), steps, wire.receive, self.heard)


def _request(method: str, params: Any = None) -> Any:
    """A request as the SDK's own methods build it; unchecked, because only the answer counts."""
    model: Any = MONOLITH_REQUESTS[method]
    if params is None:
        return model.model_construct(method=method)
    return model.model_validate({"method": method, "params": params}, by_name=False)


async def play(
    wire: Wire, run: Any, steps: list[tuple[Any, ...]], receive: Any, heard: list[str]
) -> str:
    """Run a subscription through these steps of its server. `ID` stands for its id."""
    task = asyncio.ensure_future(run)
    await _settle()
    for step in steps:
        if step[0] == "end":
            wire.ending.set_result(step[1])
        else:
            text = json.dumps(step[1]).replace('"ID"', json.dumps(wire.ids[-1]))
            await receive(step[0], json.loads(text))
        await _settle()
    task.cancel()
    await asyncio.wait((task,), timeout=PATIENCE)
    return "; ".join(line.split(" {")[0] for line in heard) or "silence"


async def _settle() -> None:
    for _ in range(ROUNDS):
        await asyncio.sleep(0)
