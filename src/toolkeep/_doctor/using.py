"""The steps on a connection that stands: its session, its tools, one ping."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from toolkeep._doctor.case import Case
from toolkeep._doctor.faults import Fault, Step
from toolkeep._doctor.finding import Doubt, Seen, Trouble
from toolkeep._doctor.offering import GRAVE, judge
from toolkeep._engine.client import Client
from toolkeep.errors import (
    AuthNeeded,
    CallRejected,
    FailureKind,
    InvalidResult,
    ToolkeepError,
)

_MOST_PAGES = 200
_SHOWN = 5
_METHOD_NOT_FOUND = -32601


async def keep_session(case: Case, client: Client) -> Seen:
    """A second request: is the session that the first one opened still known?"""
    if client.era == "modern":
        return Seen("modern servers keep none", skipped=True)
    if client.session_id is None:
        return Seen("the server keeps none", skipped=True)
    try:
        await client.request("ping")
    except CallRejected:
        pass  # it answers in the session, and that is what was asked
    except ToolkeepError as error:
        raise _trouble(case, error, Step.SESSION) from None
    return Seen("a second request in it was taken")


async def list_tools(case: Case, client: Client) -> Seen:
    try:
        async with asyncio.timeout(case.wait):
            raw = await _all_tools(client)
            accepted = [tool.name for tool in await client.list_tools()] if raw else []
    except CallRejected as error:
        if error.code != _METHOD_NOT_FOUND:
            raise _trouble(case, error, Step.TOOLS) from None
        raw, accepted = [], []
    except (ToolkeepError, TimeoutError) as error:
        raise _trouble(case, error, Step.TOOLS) from None
    if not raw:
        remedy = "See whether that is meant: it may need options to offer any"
        return Seen("none", (Doubt(Fault.NO_TOOLS, "the server offers no tools", remedy),))
    doubts = judge(raw, accepted)
    grave = [doubt for doubt in doubts if doubt.fault in GRAVE]
    if grave:
        raise _malformed(grave, len(raw))
    return Seen(_count(len(raw)), tuple(doubts[:_SHOWN]))


def _count(number: int) -> str:
    return "1 tool" if number == 1 else f"{number} tools"


def _malformed(grave: list[Doubt], number: int) -> Trouble:
    first, more = grave[0], len(grave) - _SHOWN
    causes = "; ".join(doubt.cause for doubt in grave[:_SHOWN])
    cause = f"{causes}; and {more} more" if more > 0 else causes
    return Trouble(first.fault, cause, first.remedy, seen=_count(number))


async def _all_tools(client: Client) -> list[Any]:
    """As the server lists them: the client itself leaves out what is malformed."""
    found: list[Any] = []
    cursors: list[Any] = [None]
    while len(cursors) <= _MOST_PAGES:
        page = await _page(client, {"cursor": cursors[-1]} if cursors[-1] else {})
        tools: Any = page.get("tools")
        found += cast("list[Any]", tools) if isinstance(tools, list) else []
        cursor = page.get("nextCursor")
        if not cursor:
            return found
        if cursor in cursors:
            break
        cursors.append(cursor)
    cause = f"the list of tools has no end: page {len(cursors)} of it leads back to an earlier one"
    if len(cursors) > _MOST_PAGES:
        cause = f"the list of tools has more than {_MOST_PAGES} pages"
    remedy = "Correct the cursors in the server: the last page has no nextCursor"
    raise Trouble(Fault.ENDLESS_LIST, cause, remedy)


async def _page(client: Client, params: dict[str, Any]) -> dict[str, Any]:
    try:
        return await client.request("tools/list", params)
    except InvalidResult as error:
        found: Any = error.result
        if not isinstance(found, dict):
            raise
        return cast("dict[str, Any]", found)


async def ping(case: Case, client: Client) -> Seen:
    try:
        seconds = await client.ping()
    except ToolkeepError as error:
        raise _trouble(case, error, Step.PING) from None
    doubts = ()
    if seconds > case.slow:
        cause = f"the server took {seconds:.1f} s to answer a ping"
        doubts = (Doubt(Fault.SLOW, cause, "See what keeps it busy: every call waits as long"),)
    return Seen("answered", doubts, seconds=seconds)


_ABOUT_SESSION = (FailureKind.SESSION_LOST, FailureKind.SESSION_DOUBTED)


def _trouble(case: Case, error: ToolkeepError | TimeoutError, step: Step) -> Trouble:
    """What was agreed on, and then did not work."""
    failure = error.failure if isinstance(error, ToolkeepError) else None
    log = f"Look into the log of {case.spec.name}"
    if failure is not None and failure.kind in _ABOUT_SESSION:
        cause = "the server does not know the session that it has just opened"
        remedy = (
            f"If several instances answer at {case.url}, have the balancer keep a session at one "
            "of them, or have them share sessions"
        )
        return Trouble(Fault.SESSION_LOST, cause, remedy, step=step)
    if isinstance(error, TimeoutError):
        cause = f"after the handshake the server did not answer within {case.wait:g} s"
        return Trouble(Fault.SILENT, cause, f"{log}, or raise --timeout", step=step)
    if isinstance(error, AuthNeeded):
        remedy = f"See what {case.place('api_key')} or 'headers' may do there"
        return Trouble(Fault.UNAUTHORIZED, str(error), remedy, step=step)
    if isinstance(error, CallRejected):
        cause = f"the server says no: error {error.code}: {failure.message if failure else ''}"
        return Trouble(Fault.REJECTED, cause, log, step=step)
    cause = f"the connection failed: {failure.message if failure else error}"
    return Trouble(Fault.BROKEN, cause, log, step=step)
