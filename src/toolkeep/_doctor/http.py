"""The HTTP step: what answers at the URL, and why the answer is not an MCP message.

The evidence comes first: statuses, types and bodies that the client received. Where they leave a
question open, `HttpProbe` sends requests of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import warnings
from contextlib import aclosing
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from time import time
from urllib.parse import urljoin, urlsplit

from toolkeep._client.auth import (
    CredentialRefresher,
    basic_auth_headers,
    credentials_for,
    server_headers,
)
from toolkeep._client.options import ClientOptions
from toolkeep._doctor.network import PROBE_WAIT, proxy_refused, rejected_after_tls, tls_required
from toolkeep._doctor.report import Fault, Problem, StepResult
from toolkeep._doctor.target import EVENT_STREAM, Target, Traffic, media_type
from toolkeep._transport import jsonrpc
from toolkeep._transport.base import Attempt, Tap, WireFault
from toolkeep._transport.http_client import HttpClient, HttpResponse
from toolkeep._transport.streamable_http import RequestHeaders
from toolkeep._transport.trace import TraceEvent, TraceKind
from toolkeep.auth.configured import ServerAuth
from toolkeep.config import redact_url
from toolkeep.errors import ToolkeepError

MAX_SKEW = 300.0
"""Seconds between two clocks. Tokens and certificates allow for less."""
SHOWN_BODY = 200
"""Characters."""
PROBE_BODY_WAIT, PROBE_BODY_BYTES = 0.5, 4096
"""A stream does not end, so its beginning must do."""
USUAL_PATHS = ("/mcp", "/sse", "/", "/mcp/", "/api/mcp", "/v1/mcp")
"""Where servers have their endpoint: the paths of the SDKs first."""
SSE_ENDPOINT_EVENT = "event: endpoint"


# -- a response that can be MCP -----------------------------------------------------------------


def describe_response(target: Target, traffic: Traffic, started: float) -> StepResult:
    """The result of the step. `started` is when the client began to connect."""
    responses = traffic.responses
    if not responses:  # only the GET of a probe was answered
        at = {event.kind: event.at for event in traffic.probes}
        seconds = max(0.0, at[TraceKind.RESPONSE] - at[TraceKind.REQUEST])
        return StepResult("a plain GET is answered", seconds=seconds)
    software = responses[-1].headers.get("server", "")[:80]
    seen = f"HTTP {responses[-1].status}" + (f" from {software}" if software else "")
    problems = (*_redirects(target, responses), *clock_skew(responses))
    return StepResult(seen, problems, seconds=responses[0].at - started)


def _redirects(target: Target, responses: list[TraceEvent]) -> list[Problem]:
    redirects = [one for one in responses if _is_redirect(one)]
    if not redirects:
        return []
    cause = f"HTTP {redirects[0].status}: the server redirects every request to "
    cause += redact_url(_location(target, redirects[0]))
    return [Problem(Fault.REDIRECT, cause, f"Use that address in {target.key('url')}")]


def _is_redirect(response: TraceEvent) -> bool:
    return 300 <= (response.status or 0) < 400


def _location(target: Target, response: TraceEvent) -> str:
    return urljoin(target.url, response.headers.get("location", ""))


def clock_skew(responses: list[TraceEvent]) -> list[Problem]:
    dates = [one.headers["date"] for one in responses if "date" in one.headers]
    try:
        skew = parsedate_to_datetime(dates[-1]).timestamp() - time()
    except (ValueError, IndexError, OverflowError):
        return []
    if abs(skew) <= MAX_SKEW:
        return []
    which = "ahead of" if skew > 0 else "behind"
    cause = f"the server's clock is {abs(skew) / 60:.0f} minutes {which} this machine's"
    return [Problem(Fault.CLOCK, cause, "Correct the clock that is wrong")]


# -- why there is none --------------------------------------------------------------------------


async def diagnose_http(target: Target, traffic: Traffic, error: ToolkeepError) -> Problem | None:
    """Why the connection failed in HTTP; None if the fault lies in the MCP messages."""
    if target.spec.transport == "sse" and not traffic.has_mcp_response:
        async with aclosing(HttpProbe(target, traffic)) as probe:
            if (problem := await _is_streamable(target, probe)) is not None:
                return problem
    if not traffic.responses:
        return await _no_response(target, traffic)
    if traffic.timed_out:
        return None
    last = traffic.responses[-1]
    status = error.status or last.status or 0
    if _is_redirect(last):
        return _redirected(target, last)
    if status < 400:
        return None if traffic.has_mcp_response else await _not_mcp(target, traffic, last)
    if error.failure is not None and error.failure.code is not None:
        return None  # a JSON-RPC error of the server
    if target.spec.is_modern_only and traffic.rejected_by_mcp_server:
        return None  # a legacy server that does not know server/discover
    return await _refused(target, traffic, error, status)


async def _no_response(target: Target, traffic: Traffic) -> Problem | None:
    if (problem := await tls_required(target)) is not None:
        return problem
    if traffic.timed_out:
        return await _hanging(target, traffic)
    if target.is_https and (problem := await rejected_after_tls(target)) is not None:
        return problem
    broken = traffic.select(TraceKind.FAILED)
    cause = broken[-1].text if broken else "the connection ended without an answer"
    remedy = f"Check the server's log, and that {target.key('url')} is its address"
    return Problem(Fault.BROKEN, cause, remedy)


async def _hanging(target: Target, traffic: Traffic) -> Problem | None:
    async with aclosing(HttpProbe(target, traffic)) as probe:
        if await probe.get() is not None:
            return None  # only the handshake is not answered
    cause = f"{target.url} accepts requests but answers none, not even a plain GET"
    remedy = "Check whether the server hangs; restart it, or raise --timeout"
    return Problem(Fault.NO_ANSWER, cause, remedy)


# -- a response that is not MCP -----------------------------------------------------------------


def _redirected(target: Target, response: TraceEvent) -> Problem:
    location = _location(target, response)
    cause = f"HTTP {response.status}: the server redirects to {redact_url(location)}"
    remedy = f"If that is the right server, use that address in {target.key('url')}"
    if urlsplit(location)[:2] != urlsplit(target.url)[:2]:
        remedy += "; toolkeep does not send credentials to another origin by itself"
    return Problem(Fault.REDIRECT, cause, remedy)


async def _not_mcp(target: Target, traffic: Traffic, response: TraceEvent) -> Problem:
    """The client does not read a body of the wrong type, so a probe asks for it again."""
    async with aclosing(HttpProbe(target, traffic)) as probe:
        await probe.post()
        body = traffic.body_of(response) or traffic.last_probe_body
        remedy = _endpoint_remedy(target, *await probe.find_endpoint())
    if _is_page(response, body):
        return _web_page(target, response, body, remedy)
    kind = media_type(response) or "no content type"
    cause = f"HTTP {response.status} with {kind} is not an MCP answer: {_short(body)!r}"
    return Problem(Fault.NOT_MCP, cause, remedy)


def _is_page(response: TraceEvent, body: str) -> bool:
    begins = body.lstrip()[:15].lower()
    return begins.startswith(("<!doctype html", "<html")) or media_type(response) == "text/html"


def _web_page(target: Target, response: TraceEvent, body: str, remedy: str) -> Problem:
    title = re.search(r"<title[^>]*>(.*?)</title", body, re.IGNORECASE | re.DOTALL)
    named = f" ({_short(title[1])!r})" if title else ""
    status = f"HTTP {response.status} with " if response.status != 200 else ""
    cause = f"{target.url} is not an MCP endpoint: it answers {status or 'with '}a web page{named}"
    return Problem(Fault.NOT_MCP, cause, remedy)


def _endpoint_remedy(target: Target, path: str, transport: str) -> str:
    """What to write into `url`, if a probe found an endpoint at another path."""
    key = target.key("url")
    if not path:
        return f"Set {key} to the address of the MCP endpoint; no usual path answers here"
    also = " and 'transport' to 'sse'" if transport == "sse" else ""
    return f"Set {key} to {urljoin(target.url, path)}{also}: an MCP server answers there"


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= SHOWN_BODY else f"{text[:SHOWN_BODY]}…"


# -- an error status ----------------------------------------------------------------------------


async def _refused(target: Target, traffic: Traffic, error: ToolkeepError, status: int) -> Problem:
    response = traffic.responses[-1]
    body = _short(traffic.body_of(response))
    # The first answer is the POST's: clients that fall back ask for more.
    page = next((one for one in traffic.responses if _is_page(one, traffic.body_of(one))), None)
    said = f": {body!r}" if body else ""
    if status == 401:
        return _unauthorized(target, error, said)
    if status == 407:
        return proxy_refused(target, "HTTP 407")
    if status in (404, 405):
        async with aclosing(HttpProbe(target, traffic)) as probe:
            if target.spec.transport != "sse" and (found := await _is_sse(target, probe)):
                return found
            remedy = _endpoint_remedy(target, *await probe.find_endpoint())
            if page is not None:
                return _web_page(target, page, traffic.body_of(page), remedy)
            return _wrong_path(target, status, remedy)
    # A gateway says in a page of its own that the server behind it is busy or down.
    if page is not None and status not in (429, 502, 503, 504):
        async with aclosing(HttpProbe(target, traffic)) as probe:
            remedy = _endpoint_remedy(target, *await probe.find_endpoint())
        return _web_page(target, page, traffic.body_of(page), remedy)
    if status == 403:
        return _forbidden(target, f"HTTP 403: the server refuses this client{said}")
    return _unsuccessful(target, error, status, f"the server answered HTTP {status}{said}")


def _unauthorized(target: Target, error: ToolkeepError, said: str) -> Problem:
    challenge = error.www_authenticate
    asked = f"; it asks for: {challenge}" if challenge else "; it does not say which"
    asked += f". Its answer{said}" if said else ""
    key = _credentials_key(target)
    if key is None:
        cause = f"the server requires credentials, but none were sent{asked}"
        remedy = f"Set {target.key('api_key')}, or an Authorization header in 'headers'"
    else:
        cause = f"the server rejected the credentials that were sent ({key}){asked}"
        remedy = f"Renew or correct {target.key(key)}: it has expired, or is for another server"
    return Problem(Fault.UNAUTHORIZED, cause, remedy)


def _credentials_key(target: Target) -> str | None:
    """The key that the credentials come from."""
    if target.spec.api_key is not None:
        return "api_key"
    if urlsplit(target.spec.url).username is not None:
        return "url"
    headers = [name for name in target.spec.headers if name.lower() == "authorization"]
    return f"headers.{headers[0]}" if headers else None


def _forbidden(target: Target, cause: str) -> Problem:
    key = _credentials_key(target)
    first = f"Check what {target.key(key)} permits" if key else f"Set {target.key('api_key')}"
    remedy = f"{first}; the server may also refuse the host {target.host!r} or this network"
    return Problem(Fault.FORBIDDEN, cause, remedy)


def _wrong_path(target: Target, status: int, remedy: str) -> Problem:
    path = urlsplit(target.url).path or "/"
    if status == 404:
        return Problem(Fault.NOT_FOUND, f"HTTP 404: the server has nothing at {path}", remedy)
    return Problem(Fault.NOT_ALLOWED, f"HTTP 405: {path} does not accept POST", remedy)


async def _is_sse(target: Target, probe: HttpProbe) -> Problem | None:
    answer = await probe.get()
    if answer is None or not answer.is_sse:
        return None
    transport = target.spec.transport
    cause = f"{target.url} speaks HTTP+SSE of 2024-11-05, but 'transport' is {transport!r}"
    remedy = f"Set {target.key('transport')} to 'sse', or remove it"
    return Problem(Fault.SSE_AS_STREAMABLE, cause, remedy)


async def _is_streamable(target: Target, probe: HttpProbe) -> Problem | None:
    answer = await probe.post()
    if answer is None or not answer.is_streamable:
        return None
    cause = f"{target.url} speaks streamable HTTP, but 'transport' is 'sse'"
    remedy = f"Set {target.key('transport')} to 'http', or remove it"
    return Problem(Fault.STREAMABLE_AS_SSE, cause, remedy)


def _unsuccessful(target: Target, error: ToolkeepError, status: int, cause: str) -> Problem:
    wait = error.retry_after
    later = f"Try again in {wait:g} s" if wait is not None else "Try again later"
    if status == 429:
        return Problem(Fault.THROTTLED, cause, f"{later}: the server gets too many requests")
    if status in (502, 503, 504):
        remedy = f"{later}; check that the server behind the gateway at {target.url} runs"
        return Problem(Fault.UNAVAILABLE, cause, remedy)
    if status >= 500:
        return Problem(Fault.SERVER_ERROR, cause, f"Check the log of {target.url}")
    remedy = f"Read what the server answered; correct {target.key('url')} or 'headers'"
    return Problem(Fault.REFUSED, cause, remedy)


# -- probes -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ProbeAnswer:
    content_type: str
    body: str
    """The beginning of it."""

    @property
    def is_streamable(self) -> bool:
        """Whether a POST is answered with an MCP message."""
        return '"jsonrpc"' in self.body and self.content_type in ("application/json", EVENT_STREAM)

    @property
    def is_sse(self) -> bool:
        """Whether a GET begins a stream of HTTP+SSE."""
        return self.content_type == EVENT_STREAM and SSE_ENDPOINT_EVENT in self.body


class HttpProbe:
    """Sends single HTTP requests beside the client's, to find out what answers at an address.

    They use the client's own HTTP layer (sockets, trust, proxy, headers, credentials), go to the
    same origin, and change nothing there: a GET, or a POST of `ping`. Some servers, those of the
    Python SDK among them, open a session for such a request; the probe deletes it.
    """

    def __init__(self, target: Target, traffic: Traffic) -> None:
        self._target = target
        self._link = HttpClient(target.spec, Tap(traffic.record_probe))
        refresher = CredentialRefresher(None, ServerAuth(target.spec))
        auth = credentials_for(target.spec, ClientOptions(), refresher)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the configuration step has reported them
            headers = {**basic_auth_headers(target.spec.url), **server_headers(target.spec)}
        self._heading = RequestHeaders(headers, auth, self._link.secrets)

    async def aclose(self) -> None:
        await self._link.aclose()

    async def get(self, path: str | None = None) -> ProbeAnswer | None:
        """None if no answer came."""
        headers = await self._heading.build("GET", {"accept": EVENT_STREAM})
        del headers["content-type"]
        return await self._request("GET", headers, None, path)

    async def post(self, path: str | None = None) -> ProbeAnswer | None:
        """None if no answer came."""
        headers = await self._heading.build("POST", {})
        return await self._request(
            "POST", headers, jsonrpc.encode_request("check", "ping", None), path
        )

    async def find_endpoint(self) -> tuple[str, str]:
        """The usual path at which an MCP server answers, and its transport; empty if none does."""
        own = urlsplit(self._target.spec.url).path or "/"
        for path in dict.fromkeys((*USUAL_PATHS, own.rstrip("/") + "/mcp")):
            if path == own:
                continue
            answer = await self.get(path) if path.endswith("sse") else await self.post(path)
            if answer is not None and (answer.is_streamable or answer.is_sse):
                return path, "sse" if answer.is_sse else "http"
        return "", ""

    async def _request(
        self, method: str, headers: dict[str, str], body: bytes | None, path: str | None
    ) -> ProbeAnswer | None:
        url = None if path is None else self._link.resolve_url(path)
        with contextlib.suppress(WireFault, TimeoutError):
            async with asyncio.timeout(self._wait):
                reply = await self._link.send(method, headers, body, Attempt(), to=url)
            try:
                answer = ProbeAnswer(reply.content_type, await _beginning(reply))
            finally:
                reply.discard()
            await self._delete_session(reply.headers.get("mcp-session-id"), url)
            return answer
        return None

    @property
    def _wait(self) -> float:
        return min(PROBE_WAIT, self._target.wait)

    async def _delete_session(self, session: str | None, url: str | None) -> None:
        if session is None:
            return
        headers = await self._heading.build("DELETE", {"mcp-session-id": session})
        del headers["content-type"]
        with contextlib.suppress(WireFault, TimeoutError):
            async with asyncio.timeout(self._wait):
                (await self._link.send("DELETE", headers, None, Attempt(), to=url)).discard()


async def _beginning(reply: HttpResponse) -> str:
    body = b""
    with contextlib.suppress(WireFault, TimeoutError):
        async with asyncio.timeout(PROBE_BODY_WAIT):
            while len(body) < PROBE_BODY_BYTES and (chunk := await reply.read_chunk()):
                body += chunk
                if SSE_ENDPOINT_EVENT.encode() in body:
                    break
    return body[:PROBE_BODY_BYTES].decode("utf-8", "replace")
