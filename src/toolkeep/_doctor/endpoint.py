"""Why an opening over HTTP failed: from what was seen on the wire to a cause and a remedy.

Evidence first: statuses, types and bodies that the client really got. Where they leave a question
open, the `Door` is asked.
"""

from __future__ import annotations

import re
from urllib.parse import urljoin, urlsplit

from toolkeep._doctor.case import Case
from toolkeep._doctor.door import Door, door_of
from toolkeep._doctor.faults import Fault, Step
from toolkeep._doctor.finding import Trouble
from toolkeep._doctor.network import Way, proxy_refused, way_to
from toolkeep._doctor.record import Record, media_type
from toolkeep._doctor.trust import second_thoughts, speaks_tls
from toolkeep._wire.tap import Move, Passing
from toolkeep.config import redact_url
from toolkeep.errors import ToolkeepError

_QUOTED = 200
"""Characters of a body that are shown."""


async def diagnose(case: Case, record: Record, error: ToolkeepError) -> Trouble | None:
    """None: HTTP did its part, and the fault lies in what was said over it."""
    last = record.answers[-1] if record.answers else None
    if case.spec.transport == "sse" and not record.welcomed:
        async with door_of(case, record.aside) as door:
            if (trouble := await _newer(case, door)) is not None:
                return trouble
    if last is None:
        return await _unanswered(case, record)
    if record.hung:
        return None
    status = error.status or last.status or 0
    if 300 <= (last.status or 0) < 400:
        return _redirected(case, last)
    if status < 400:
        return None if record.welcomed else await _foreign(case, record, last)
    if error.failure is not None and error.failure.code is not None:
        return None  # the server's own answer, in the protocol
    if case.spec.mode == "modern" and record.refused_in_protocol:
        return None  # a legacy server's, to a question that it does not know
    return await _refused(case, record, error, status)


# -- no answer ----------------------------------------------------------------------------------


async def _unanswered(case: Case, record: Record) -> Trouble | None:
    way = way_to(case)
    if not case.secure and not way.proxy and await speaks_tls(case, way):
        return _speaks_tls(case, way)
    if not record.hung and case.secure and (trouble := await second_thoughts(case, way)):
        return trouble
    if not record.hung:
        broke = record.of(Move.BROKE)
        cause = broke[-1].text if broke else "the connection ended without an answer"
        remedy = f"Look into the server's log, and see whether {case.place('url')} is its address"
        return Trouble(Fault.BROKEN, cause, remedy)
    async with door_of(case, record.aside) as door:
        behind = await door.get()
    if behind is not None:
        return None  # it answers, but for the handshake
    cause = f"{case.url} takes requests and answers none of them, not even a plain GET"
    return Trouble(
        Fault.NO_ANSWER, cause, "See whether the server hangs; restart it, or raise --timeout"
    )


def _speaks_tls(case: Case, way: Way) -> Trouble:
    cause = f"port {way.port} of {way.host} speaks TLS, and 'url' says http"
    return Trouble(Fault.PLAIN_TO_TLS, cause, f"Write https:// in {case.place('url')}")


# -- an answer that is none ---------------------------------------------------------------------


def _redirected(case: Case, answer: Passing) -> Trouble:
    target = urljoin(case.url, answer.headers.get("location", ""))
    cause = f"HTTP {answer.status}: the server has requests go to {redact_url(target)}"
    same = urlsplit(target)[:2] == urlsplit(case.url)[:2]
    why = "" if same else "; credentials are never sent to another origin unasked"
    remedy = f"If that is the right server, use it in {case.place('url')}{why}"
    return Trouble(Fault.REDIRECT, cause, remedy)


async def _foreign(case: Case, record: Record, answer: Passing) -> Trouble:
    """The client does not read a body of the wrong kind: it is asked for again, beside it."""
    async with door_of(case, record.aside) as door:
        await door.post()
        body = record.body_of(answer) or record.last_aside
        remedy = _endpoint(case, *await door.elsewhere())
    if media_type(answer) == "text/html" or body.lstrip()[:15].lower().startswith("<!doctype html"):
        title = re.search(r"<title[^>]*>(.*?)</title", body, re.IGNORECASE | re.DOTALL)
        named = f", {_short(title[1])!r}" if title else ""
        cause = f"a web page answers at {case.url}{named}: this is not an MCP endpoint"
        return Trouble(Fault.HTML, cause, remedy)
    kind = media_type(answer) or "no content type"
    cause = f"HTTP {answer.status} with {kind} is no answer of the protocol: {_short(body)!r}"
    return Trouble(Fault.NOT_MCP, cause, remedy)


def _endpoint(case: Case, path: str, transport: str) -> str:
    """What to write as the address, if another path answers."""
    place = case.place("url")
    if not path:
        return f"Give the address of the MCP endpoint in {place}; no usual path answers here"
    also = " and 'transport': 'sse'" if transport == "sse" else ""
    return f"{path} answers: set {place} to {urljoin(case.url, path)}{also}"


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _QUOTED else f"{text[:_QUOTED]}…"


# -- a refusal ----------------------------------------------------------------------------------


async def _refused(case: Case, record: Record, error: ToolkeepError, status: int) -> Trouble:
    if status == 401:
        return _unauthorized(case, error)
    if status == 403:
        return _forbidden(case, record)
    if status == 407:
        return proxy_refused(case, "HTTP 407", Step.HTTP)
    if status in (404, 405):
        async with door_of(case, record.aside) as door:
            return await _misplaced(case, door, status)
    return _unwell(case, record, error, status)


def _unauthorized(case: Case, error: ToolkeepError) -> Trouble:
    challenge = error.www_authenticate
    asked = f"; it asks for: {challenge}" if challenge else ", without saying what it wants"
    key = _credential(case)
    if key is None:
        cause = f"the server wants credentials, and none were sent{asked}"
        remedy = f"Give {case.place('api_key')}, or an Authorization header in 'headers'"
    else:
        cause = f"the server does not take the credentials that were sent ({key}){asked}"
        remedy = f"Renew or correct {case.place(key)}: it has expired, or is for another server"
    return Trouble(Fault.UNAUTHORIZED, cause, remedy)


def _credential(case: Case) -> str | None:
    """The key that the credentials come from."""
    if case.spec.api_key is not None:
        return "api_key"
    if urlsplit(case.spec.url).username is not None:
        return "url"
    named = [name for name in case.spec.headers if name.lower() == "authorization"]
    return f"headers.{named[0]}" if named else None


def _forbidden(case: Case, record: Record) -> Trouble:
    said = _short(record.body_of(record.answers[-1]))
    cause = "HTTP 403: the server does not allow it" + (f": {said!r}" if said else "")
    key = _credential(case)
    who = f"See what {case.place(key)} may do" if key else f"Give {case.place('api_key')}"
    remedy = f"{who}; a server may also refuse the host {case.host!r} or this network"
    return Trouble(Fault.FORBIDDEN, cause, remedy)


async def _misplaced(case: Case, door: Door, status: int) -> Trouble:
    if case.spec.transport != "sse" and (trouble := await _older(case, door)) is not None:
        return trouble
    remedy = _endpoint(case, *await door.elsewhere())
    shown = urlsplit(case.url).path or "/"
    what = f"there is nothing at {shown}" if status == 404 else f"what is at {shown} takes no POST"
    fault = Fault.NOT_FOUND if status == 404 else Fault.NOT_ALLOWED
    return Trouble(fault, f"HTTP {status}: {what}", remedy)


async def _older(case: Case, door: Door) -> Trouble | None:
    behind = await door.get()
    if behind is None or not behind.older:
        return None
    cause = f"{case.url} speaks HTTP+SSE of 2024-11-05, and 'transport' is {case.spec.transport!r}"
    remedy = f"Set {case.place('transport')} to 'sse', or leave it out"
    return Trouble(Fault.SSE_AS_STREAMABLE, cause, remedy)


async def _newer(case: Case, door: Door) -> Trouble | None:
    behind = await door.post()
    if behind is None or not behind.streamable:
        return None
    cause = f"{case.url} speaks streamable HTTP, and 'transport' is 'sse'"
    remedy = f"Set {case.place('transport')} to 'http', or leave it out"
    return Trouble(Fault.STREAMABLE_AS_SSE, cause, remedy)


def _unwell(case: Case, record: Record, error: ToolkeepError, status: int) -> Trouble:
    said = _short(record.body_of(record.answers[-1]))
    cause = f"the server answered HTTP {status}" + (f": {said!r}" if said else "")
    wait = error.retry_after
    later = f"Try again in {wait:g} s" if wait is not None else "Try again later"
    if status == 429:
        return Trouble(Fault.THROTTLED, cause, f"{later}: it gets too many requests")
    if status in (502, 503, 504):
        remedy = f"{later}; see whether the server runs behind its gateway at {case.url}"
        return Trouble(Fault.UNAVAILABLE, cause, remedy)
    if status >= 500:
        return Trouble(Fault.SERVER_ERROR, cause, f"Look into the log of {case.url}")
    remedy = f"See what it says; correct {case.place('url')} or 'headers'"
    return Trouble(Fault.REFUSED, cause, remedy, step=Step.HTTP)
