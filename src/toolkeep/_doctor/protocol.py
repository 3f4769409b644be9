"""The steps of the MCP connection: process, HTTP answer, handshake, session, tools and ping.

They use the client that calls use. It connects once, and the recorded traffic tells its steps
apart.
"""

from __future__ import annotations

import asyncio
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from time import monotonic
from typing import Any, cast

from mcp_types import Tool
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

from toolkeep._client.options import ClientOptions
from toolkeep._doctor.http import describe_response, diagnose_http
from toolkeep._doctor.oauth import examine_login
from toolkeep._doctor.program import command_line, exited, stray_output
from toolkeep._doctor.report import Fault, Problem, StepFailed, StepResult
from toolkeep._doctor.target import Target, Traffic
from toolkeep._rules.json_schema import compile_schema
from toolkeep._transport.trace import TraceKind
from toolkeep.auth import Authorizer
from toolkeep.auth.configured import ServerAuth
from toolkeep.client import Client
from toolkeep.errors import (
    AuthNeeded,
    CallRejected,
    ConfigError,
    FailureKind,
    InvalidResult,
    ToolkeepError,
)
from toolkeep.events import Disconnected

SUPPORTED_VERSIONS = (*HANDSHAKE_PROTOCOL_VERSIONS, *MODERN_PROTOCOL_VERSIONS)
UNSUPPORTED_VERSION, METHOD_NOT_FOUND = -32022, -32601
SLOW_PING = 1.0
"""Seconds: a ping that takes longer is worth a warning."""
PING_INTERVAL = 1.0
"""Seconds between two pings while a server is watched."""
MAX_PAGES = 200
"""Pages of a tool list."""
SHOWN_TOOL_PROBLEMS = 5
VALID_TOOL_NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")
"""MCP since 2025-11-25."""
SESSION_FAILURES = (FailureKind.SESSION_LOST, FailureKind.SESSION_UNCERTAIN)


class CheckedClient:
    """A real client of one target and the traffic on it. One for each examination; close it.

    It differs from the client that calls use in its patience: it sends nothing twice.
    """

    def __init__(self, target: Target) -> None:
        self._target, self._traffic = target, Traffic(target.tap)
        self._opening: asyncio.Task[None] | None = None
        self._auth = ServerAuth(target.spec)
        self._authorizer: Authorizer | None = None
        """The login of a server whose configuration does not mention one."""
        self._started = self._ended = 0.0
        """When the opening began and ended, by the clock of the traffic."""

    @cached_property
    def _client(self) -> Client:
        """Built by the first step that needs it: by then the configuration is known to be valid."""
        wait = self._target.wait
        spec = self._target.spec
        timeouts = spec.timeouts.model_copy(update={"connect": wait, "call": wait})
        impatient = {"max_retries": 0, "breaker_threshold": 0, "listen": False}
        spec = spec.model_copy(update={"timeouts": timeouts, **impatient})
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the configuration step has reported them
            options = ClientOptions(
                tracer=self._traffic, server_auth=self._auth, auth=self._authorizer
            )
            return Client.with_options(spec, options, {})

    async def aclose(self) -> None:
        if self._opening is not None:
            await self._client.aclose()
            await asyncio.gather(self._opening, return_exceptions=True)
        await self._auth.aclose()

    # -- connecting -----------------------------------------------------------------------------

    async def _open_until(self, ready: Callable[[], bool]) -> ToolkeepError | None:
        """Wait until the client is open or `ready`. Returns the error if opening failed."""
        if self._opening is None:
            client = self._client
            self._started = monotonic()
            self._opening = asyncio.ensure_future(client.connect())
            self._opening.add_done_callback(self._note_end)
        while not (self._opening.done() or ready()):
            self._traffic.changed.clear()
            await self._traffic.changed.wait()
        error = self._opening.exception() if self._opening.done() else None
        if error is not None and not isinstance(error, ToolkeepError):
            raise error
        return error

    def _note_end(self, _: asyncio.Task[None]) -> None:
        self._ended = monotonic()
        self._traffic.changed.set()

    async def process(self) -> StepResult:
        """The program runs: it has sent a message, or has at least not exited."""
        traffic = self._traffic
        error = await self._open_until(lambda: bool(traffic.select(TraceKind.RECEIVED)))
        if isinstance(error, ConfigError):
            raise StepFailed(Problem.of_config_error(error))
        if (
            error is not None
            and error.exit_code is not None
            and not traffic.select(TraceKind.RECEIVED)
        ):
            raise StepFailed(exited(self._target, error))
        seconds = traffic.opened.at - self._started if traffic.opened else None
        return StepResult("the program runs", seconds=seconds)

    async def http(self) -> StepResult:
        """An HTTP response came that can carry an MCP message."""
        error = await self._open_until(lambda: self._traffic.has_mcp_response)
        if error is not None and await self._log_in(error):
            error = await self._open_until(lambda: self._traffic.has_mcp_response)
            if error is not None:
                await examine_login(self._target, self._traffic, error, self._auth, again=True)
        if error is not None:
            problem = await diagnose_http(self._target, self._traffic, error)
            if problem is not None:
                raise StepFailed(problem)
        return describe_response(self._target, self._traffic, self._started)

    async def _log_in(self, error: ToolkeepError) -> bool:
        """Whether there is a login to open the server with, once more."""
        authorizer = await examine_login(self._target, self._traffic, error, self._auth)
        if authorizer is None:
            return False
        await self._client.aclose()
        del self._client
        self._authorizer, self._opening = authorizer, None
        return True

    async def handshake(self) -> StepResult:
        """Both sides agreed on a protocol version."""
        error = await self._open_until(lambda: False)
        opened = self._traffic.opened
        seconds = (self._ended or monotonic()) - (opened.at if opened else self._started)
        if error is not None:
            await self._client.aclose()  # afterwards all output of the program is known
            raise StepFailed(_no_handshake(self._target, self._traffic, error), seconds=seconds)
        stray = stray_output(self._target, self._traffic)
        return StepResult(self._agreement(), (stray,) if stray else (), seconds=seconds)

    def _agreement(self) -> str:
        client = self._client
        # A modern server need not say who it is.
        info = getattr(client.handshake, "server_info", None)
        name = " ".join(part for part in (info.name, info.version) if part)[:120] if info else ""
        is_sse = any(one.text.startswith("GET") for one in self._traffic.select(TraceKind.REQUEST))
        agreed = f"protocol {client.protocol_version} ({client.era})"
        agreed += ", over HTTP+SSE of 2024-11-05" if is_sse else ""
        return f"{name}, {agreed}" if name else agreed

    # -- an open connection ---------------------------------------------------------------------

    async def session(self) -> StepResult:
        """The server knows the session that it opened: a second request in it succeeds."""
        if self._client.era == "modern":
            return StepResult("modern servers have no sessions", skipped=True)
        if self._client.session_id is None:
            return StepResult("the server has no sessions", skipped=True)
        try:
            await self._client.request("ping")
        except CallRejected:
            pass  # an answer in the session, even if it is an error
        except ToolkeepError as error:
            raise StepFailed(_request_failed(self._target, error)) from None
        return StepResult("a second request in the session succeeded")

    async def tools(self) -> StepResult:
        """All pages of the tool list come, and every tool and its schemas are valid."""
        accepted: set[str] = set()
        try:
            async with asyncio.timeout(self._target.wait):
                listed = await _all_tools(self._client)
                if listed:
                    accepted = {tool.name for tool in await self._client.list_tools()}
        except (ToolkeepError, TimeoutError) as error:
            if not isinstance(error, CallRejected) or error.code != METHOD_NOT_FOUND:
                raise StepFailed(_request_failed(self._target, error)) from None
            listed = []
        count = "1 tool" if len(listed) == 1 else f"{len(listed)} tools"
        if not listed:
            remedy = "Check whether this is intended: some servers need options to offer tools"
            empty = Problem(Fault.NO_TOOLS, "the server offers no tools", remedy)
            return StepResult(count, (empty,))
        problems = tool_problems(listed, accepted)
        malformed = [one for one in problems if one.fault in (Fault.BAD_TOOL, Fault.BAD_SCHEMA)]
        if malformed:
            raise StepFailed(_summary(malformed), seen=count)
        return StepResult(count, tuple(problems[:SHOWN_TOOL_PROBLEMS]))

    async def ping(self) -> StepResult:
        try:
            seconds = await self._client.ping()
        except ToolkeepError as error:
            raise StepFailed(_request_failed(self._target, error)) from None
        if seconds <= SLOW_PING:
            return StepResult("answered", seconds=seconds)
        cause = f"the server took {seconds:.1f} s to answer a ping"
        remedy = "Check what keeps the server busy: every call waits as long"
        return StepResult("answered", (Problem(Fault.SLOW, cause, remedy),), seconds=seconds)

    async def watch(self, seconds: float) -> StepResult:
        """Ping again and again; a connection that ends is opened anew by the next ping."""
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        lost: list[Disconnected] = []
        observation = self._client.observe(
            lambda event: lost.append(event) if isinstance(event, Disconnected) else None
        )
        times: list[float] = []
        failures: list[ToolkeepError] = []
        try:
            while (left := until - loop.time()) > 0:
                try:
                    times.append(await self._client.ping())
                except ToolkeepError as error:
                    failures.append(error)
                await asyncio.sleep(min(PING_INTERVAL, left))
        finally:
            observation.close()
        seen = f"{len(times)} pings answered in {seconds:g} s"
        if times:
            middle = sorted(times)[len(times) // 2]
            seen += f", median {middle * 1000:.0f} ms, longest {max(times) * 1000:.0f} ms"
        if not lost and not failures:
            return StepResult(seen)
        counts = [f"the connection ended {_times(len(lost))} ({lost[0].reason})"] if lost else []
        counts += (
            [f"{len(failures)} pings failed ({failures[0].failure or failures[0]})"]
            if failures
            else []
        )
        remedy = "Check the server's log at that time, and what may end idle connections on the way"
        raise StepFailed(Problem(Fault.UNSTABLE, "; ".join(counts), remedy), seen=seen)


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number} times"


# -- a handshake that failed --------------------------------------------------------------------


def _no_handshake(target: Target, traffic: Traffic, error: ToolkeepError) -> Problem:
    failure = error.failure
    if error.exit_code is not None:
        return exited(target, error)
    if (mismatch := _version_mismatch(target, traffic, error)) is not None:
        return mismatch
    if (stray := stray_output(target, traffic)) is not None:
        return Problem(stray.fault, f"the handshake failed, and {stray.cause}", stray.remedy)
    if failure is not None and failure.code is not None:
        cause = f"the server answered the handshake with error {failure.code}: {failure.message}"
        remedy = "Fix what the error reports; check the server's log"
        return Problem(Fault.HANDSHAKE_REJECTED, cause, remedy)
    no_reply = traffic.select(TraceKind.SENT) and not traffic.select(
        TraceKind.RECEIVED, TraceKind.CLOSED
    )
    if traffic.timed_out or no_reply:
        return _handshake_hang(target)
    detail = failure.message if failure is not None else str(error)
    key = target.key("url" if target.spec.url else "command")
    remedy = f"Check that {key} is an MCP server"
    return Problem(Fault.NOT_MCP, f"the handshake failed: {detail}", remedy)


def _handshake_hang(target: Target) -> Problem:
    cause = f"the server received the handshake but did not answer within {target.wait:g} s"
    if target.spec.command:
        remedy = (
            f"Run it by hand ({command_line(target)}): it may wait for input, download something, "
            "or speak another protocol; if it is only slow, raise --timeout"
        )
    else:
        remedy = f"Check the log of {target.url}; if the server is only slow, raise --timeout"
    return Problem(Fault.HANDSHAKE_HANG, cause, remedy)


def _version_mismatch(target: Target, traffic: Traffic, error: ToolkeepError) -> Problem | None:
    failure = error.failure
    reported = failure is not None and (
        failure.kind is FailureKind.VERSION_MISMATCH or failure.code == UNSUPPORTED_VERSION
    )
    chosen = [one["protocolVersion"] for one in traffic.results() if "protocolVersion" in one]
    unknown = [str(one) for one in chosen if one not in SUPPORTED_VERSIONS]
    if not (reported or unknown or _lacks_discovery(target, traffic, error)):
        return None
    theirs = ", ".join(unknown or _versions_of(error))[:200] or "no modern protocol version"
    cause = f"the server supports {theirs}; toolkeep supports {', '.join(SUPPORTED_VERSIONS)}"
    mode = target.key("mode")
    if target.spec.mode != "auto":
        cause += f", and {mode} is {target.spec.mode!r}"
        return Problem(Fault.VERSION, cause, f"Set {mode} to 'auto'")
    is_newer = any(one > max(SUPPORTED_VERSIONS) for one in unknown)
    older = "toolkeep" if is_newer else f"the server ({target.spec.name})"
    return Problem(Fault.VERSION, cause, f"Update {older}")


def _lacks_discovery(target: Target, traffic: Traffic, error: ToolkeepError) -> bool:
    """Whether `mode` requires a modern server and this is a legacy one."""
    failure = error.failure
    if not target.spec.is_modern_only or failure is None:
        return False
    unknown = failure.kind is FailureKind.UNREADABLE or failure.code == METHOD_NOT_FOUND
    return unknown or traffic.rejected_by_mcp_server


def _versions_of(error: ToolkeepError) -> list[str]:
    """The versions that a modern server names when it rejects ours."""
    data: Any = error.failure.data if error.failure is not None else None
    named: Any = cast("dict[str, Any]", data).get("supported") if isinstance(data, dict) else None
    return [str(one) for one in cast("list[Any]", named)] if isinstance(named, list) else []


# -- a request that failed after the handshake --------------------------------------------------


def _request_failed(target: Target, error: ToolkeepError | TimeoutError) -> Problem:
    log = f"Check the log of {target.spec.name}"
    failure = error.failure if isinstance(error, ToolkeepError) else None
    if failure is not None and failure.kind in SESSION_FAILURES:
        cause = "the server does not know the session that it has just opened"
        remedy = (
            f"If several instances answer at {target.url}, configure the load balancer to route "
            "each session to one of them, or share sessions between them"
        )
        return Problem(Fault.SESSION_LOST, cause, remedy)
    if isinstance(error, TimeoutError):
        cause = f"after the handshake the server did not answer within {target.wait:g} s"
        return Problem(Fault.SILENT, cause, f"{log}, or raise --timeout")
    if isinstance(error, AuthNeeded):
        remedy = f"Check what {target.key('api_key')} or 'headers' permits"
        return Problem(Fault.UNAUTHORIZED, str(error), remedy)
    message = failure.message if failure is not None else ""
    if isinstance(error, CallRejected):
        cause = f"the server answered with error {error.code}: {message}"
        return Problem(Fault.REJECTED, cause, log)
    return Problem(Fault.BROKEN, f"the connection failed: {message or error}", log)


# -- tools --------------------------------------------------------------------------------------


async def _all_tools(client: Client) -> list[Any]:
    """The tools as the server lists them: the client itself leaves out malformed ones."""
    tools: list[Any] = []
    cursors: list[Any] = [None]
    while len(cursors) <= MAX_PAGES:
        page = await _page(client, {"cursor": cursors[-1]} if cursors[-1] else {})
        listed: Any = page.get("tools")
        tools += cast("list[Any]", listed) if isinstance(listed, list) else []
        cursor = page.get("nextCursor")
        if not cursor:
            return tools
        if cursor in cursors:
            cause = f"the tool list does not end: page {len(cursors)} leads back to an earlier one"
            break
        cursors.append(cursor)
    else:
        cause = f"the tool list has more than {MAX_PAGES} pages"
    remedy = "Correct the cursors in the server: the last page has no nextCursor"
    raise StepFailed(Problem(Fault.ENDLESS_LIST, cause, remedy))


async def _page(client: Client, params: dict[str, Any]) -> dict[str, Any]:
    try:
        return await client.request("tools/list", params)
    except InvalidResult as error:
        result: Any = error.result
        if not isinstance(result, dict):
            raise
        return cast("dict[str, Any]", result)


def tool_problems(listed: Iterable[Any], accepted: set[str]) -> list[Problem]:
    """What is wrong with the listed tools. `accepted` are the names that the client kept."""
    found: list[Problem] = []
    names: set[str] = set()
    for number, raw in enumerate(listed, 1):
        name = _tool_name(raw, number)
        problems = list(_problems_of(name, raw))
        if not problems and name not in accepted:
            why = "its x-mcp-header annotations are invalid, so clients must leave it out"
            problems = [_tool_problem(Fault.BAD_TOOL, name, why)]
        if name in names:
            why = "another tool has the same name"
            problems.append(_tool_problem(Fault.DUPLICATE_TOOL, name, why))
        names.add(name)
        found += problems
    return found


def _tool_name(raw: Any, number: int) -> str:
    name: Any = cast("Mapping[str, Any]", raw).get("name") if isinstance(raw, Mapping) else None
    return name if isinstance(name, str) else f"number {number}"


def _problems_of(name: str, raw: Any) -> Iterator[Problem]:
    try:
        tool = Tool.model_validate(raw, by_name=False)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"])) or "the entry"
        fault = Fault.BAD_SCHEMA if "Schema" in place else Fault.BAD_TOOL
        yield _tool_problem(fault, name, f"{place}: {first['msg']}; clients leave the tool out")
        return
    kind = tool.input_schema.get("type", "object")
    if kind != "object":
        why = f"inputSchema.type must be 'object', not {kind!r}"
        yield _tool_problem(Fault.BAD_SCHEMA, name, why)
    for key, found in (("inputSchema", tool.input_schema), ("outputSchema", tool.output_schema)):
        checker = compile_schema(found, what=key) if found is not None else None
        if checker is not None and not checker.usable:
            yield _tool_problem(Fault.BAD_SCHEMA, name, checker.reason)
    if not VALID_TOOL_NAME.fullmatch(tool.name):
        why = "the name must have 1 to 128 letters, digits, '_', '-' and '.'"
        yield _tool_problem(Fault.TOOL_NAME, name, why)


def _tool_problem(fault: Fault, name: str, why: str) -> Problem:
    shown = name if len(name) <= 80 else f"{name[:80]}…"
    verb = "Rename" if fault in (Fault.DUPLICATE_TOOL, Fault.TOOL_NAME) else "Correct"
    return Problem(fault, f"tool {shown!r}: {why}", f"{verb} it in the server")


def _summary(malformed: list[Problem]) -> Problem:
    first, more = malformed[0], len(malformed) - SHOWN_TOOL_PROBLEMS
    causes = "; ".join(one.cause for one in malformed[:SHOWN_TOOL_PROBLEMS])
    return Problem(first.fault, f"{causes}; and {more} more" if more > 0 else causes, first.remedy)
