"""Discovery: which authorization server protects an MCP server, and what it supports.

Parses WWW-Authenticate (RFC 9110), protected resource metadata (RFC 9728) and authorization server
metadata (RFC 8414, OpenID Connect Discovery). `discover` requests them in the order of the MCP
specification. A document must name the issuer whose URL was requested; otherwise it is rejected.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, cast
from urllib.parse import urlsplit, urlunsplit

from toolkeep._rules.egress import EgressPolicy, NamedBy, check_host
from toolkeep._transport.egress import EgressRefused, FetchFailed, FetchResponse, is_configured
from toolkeep.auth.authorizer import OAuthError
from toolkeep.config import redact_url

MAX_CHALLENGE = 8192
"""Characters of a WWW-Authenticate header that are parsed."""
MAX_SCOPES = 100
RESOURCE, SERVER, ISSUER = "resource metadata", "authorization server metadata", "issuer"
"""The steps of discovery, as error messages name them."""

_WELL_KNOWN_RESOURCE = "/.well-known/oauth-protected-resource"
_WELL_KNOWN_SERVER = "/.well-known/oauth-authorization-server"
_WELL_KNOWN_OPENID = "/.well-known/openid-configuration"


class Fetch(Protocol):
    """`toolkeep._transport.egress.fetch`, with TLS trust and proxy already bound."""

    async def __call__(
        self,
        method: str,
        url: str,
        *,
        policy: EgressPolicy,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
    ) -> FetchResponse: ...


# -- challenges ---------------------------------------------------------------------------------

_TOKEN = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_PART = re.compile(
    rf"[\s,]*(?:(?P<name>{_TOKEN})\s*=\s*(?:\"(?P<quoted>(?:[^\"\\]|\\.)*)\"|(?P<plain>{_TOKEN}))"
    rf"|(?P<scheme>{_TOKEN}+)(?!\s*=)(?:\s+[A-Za-z0-9._~+/-]+=*(?=\s*(?:,|$)))?)"
)


@dataclass(frozen=True, slots=True)
class BearerChallenge:
    """The parameters of a Bearer challenge: which token the server requires."""

    error: str = ""
    description: str = ""
    scopes: tuple[str, ...] = ()
    resource_metadata: str = ""


def challenges(header: str) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield each scheme of a WWW-Authenticate header, in lower case, with its parameters."""
    scheme, parameters, position = "", dict[str, str](), 0
    text = header[:MAX_CHALLENGE]
    while (part := _PART.match(text, position)) is not None:
        position = part.end()
        if part["scheme"] is not None:
            if scheme:
                yield scheme, parameters
            scheme, parameters = part["scheme"].lower(), {}
        else:
            quoted = part["quoted"]
            value = part["plain"] if quoted is None else re.sub(r"\\(.)", r"\1", quoted)
            parameters.setdefault(part["name"].lower(), value)
    if scheme:
        yield scheme, parameters


def bearer_challenge(header: str) -> BearerChallenge:
    """The most detailed Bearer challenge of the header; an empty one if there is none."""
    found = [given for scheme, given in challenges(header) if scheme in ("bearer", "dpop")]
    given = next((one for one in found if "resource_metadata" in one or "error" in one), None)
    given = given or (found[0] if found else {})
    return BearerChallenge(
        error=shown(given.get("error", "")),
        description=shown(given.get("error_description", "")),
        scopes=scopes_of(given.get("scope", "")),
        resource_metadata=given.get("resource_metadata", ""),
    )


def scopes_of(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(text.split()))[:MAX_SCOPES]


def shown(text: str) -> str:
    """Text from a server, shortened and without control characters, for an error message."""
    return "".join(c for c in text[:200] if c.isprintable())


# -- protected resource metadata ------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ResourceMetadata:
    resource: str
    authorization_servers: tuple[str, ...]
    scopes: tuple[str, ...]


def canonical_resource(url: str) -> str:
    """The MCP server's URL as a resource indicator: no query, fragment, user or lone slash."""
    parts = urlsplit(url)
    path = "" if parts.path == "/" else parts.path
    return urlunsplit((parts.scheme.lower(), _authority(url), path, "", ""))


def resource_metadata_urls(url: str, named: str = "") -> list[str]:
    """The URLs to try, in order: the one that the challenge names, by path, at the root."""
    base, path = _base(url), urlsplit(url).path.rstrip("/")
    found = [named, f"{base}{_WELL_KNOWN_RESOURCE}{path}", f"{base}{_WELL_KNOWN_RESOURCE}"]
    return [one for one in dict.fromkeys(found) if one]


def read_resource_metadata(
    document: Mapping[str, Any], url: str, resource: str = ""
) -> ResourceMetadata:
    """Check that the document is about `url`, or about the `resource` that the user configured."""
    named = _text(document, "resource")
    if named and named != resource and not _covers(named, url):
        raise OAuthError(
            RESOURCE,
            f"the document describes {shown(redact_url(named))}, not {redact_url(url)}",
            remedy="Use the URL that it names, or set 'resource' to that URL if it is right",
        )
    return ResourceMetadata(
        resource=named,
        authorization_servers=_texts(document, "authorization_servers"),
        scopes=_texts(document, "scopes_supported"),
    )


def _covers(resource: str, url: str) -> bool:
    """Whether both have the same origin, and the path of `resource` contains that of `url`."""
    try:
        parent, path = urlsplit(resource).path.rstrip("/"), urlsplit(url).path.rstrip("/")
        same = _base(resource) == _base(url)
    except ValueError:
        return False
    return same and (path == parent or path.startswith(f"{parent}/"))


# -- authorization server metadata ----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ServerMetadata:
    """The metadata of an authorization server, after `read_server_metadata` has checked it."""

    issuer: str
    authorization_endpoint: str
    token_endpoint: str
    registration_endpoint: str = ""
    revocation_endpoint: str = ""
    device_authorization_endpoint: str = ""
    scopes: tuple[str, ...] = ()
    challenge_methods: tuple[str, ...] = ()
    auth_methods: tuple[str, ...] = ()
    grant_types: tuple[str, ...] = ()
    sends_iss: bool = False
    takes_metadata_document: bool = False


def server_metadata_urls(issuer: str) -> list[str]:
    base, path = _base(issuer), urlsplit(issuer).path.rstrip("/")
    if not path:
        return [f"{base}{_WELL_KNOWN_SERVER}", f"{base}{_WELL_KNOWN_OPENID}"]
    return [
        f"{base}{_WELL_KNOWN_SERVER}{path}",
        f"{base}{_WELL_KNOWN_OPENID}{path}",
        f"{base}{path}{_WELL_KNOWN_OPENID}",
    ]


def read_server_metadata(
    document: Mapping[str, Any], issuer: str, *, slash_is_optional: bool = False
) -> ServerMetadata:
    """Check the issuer and the endpoints. `slash_is_optional`: ignore a trailing slash."""
    named = _text(document, "issuer")
    same = named == issuer or (slash_is_optional and named.rstrip("/") == issuer.rstrip("/"))
    if not same:
        raise OAuthError(
            ISSUER,
            f"the document of {redact_url(issuer)} names the issuer {shown(named)!r}",
            remedy="If that issuer is right, set 'issuer' to it; otherwise do not log in",
        )
    metadata = ServerMetadata(
        issuer=named,
        authorization_endpoint=_endpoint(document, "authorization_endpoint"),
        token_endpoint=_endpoint(document, "token_endpoint"),
        registration_endpoint=_endpoint(document, "registration_endpoint"),
        revocation_endpoint=_endpoint(document, "revocation_endpoint"),
        device_authorization_endpoint=_endpoint(document, "device_authorization_endpoint"),
        scopes=_texts(document, "scopes_supported"),
        challenge_methods=_texts(document, "code_challenge_methods_supported"),
        auth_methods=_texts(document, "token_endpoint_auth_methods_supported"),
        grant_types=_texts(document, "grant_types_supported"),
        sends_iss=document.get("authorization_response_iss_parameter_supported") is True,
        takes_metadata_document=document.get("client_id_metadata_document_supported") is True,
    )
    if not metadata.token_endpoint:
        raise OAuthError(SERVER, f"{shown(named)} names no token endpoint")
    return metadata


def require_pkce(metadata: ServerMetadata) -> None:
    if "S256" not in metadata.challenge_methods:
        raise OAuthError(
            SERVER,
            f"{shown(metadata.issuer)} does not offer PKCE with S256, which MCP requires",
            remedy="Its operator must list S256 in code_challenge_methods_supported",
        )


def default_endpoints(url: str) -> ServerMetadata:
    """The endpoints that MCP 2025-03-26 prescribes for a server without metadata."""
    base = _base(url)
    return ServerMetadata(
        issuer=base,
        authorization_endpoint=f"{base}/authorize",
        token_endpoint=f"{base}/token",
        registration_endpoint=f"{base}/register",
        challenge_methods=("S256",),
    )


# -- requests -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Discovered:
    resource: ResourceMetadata | None
    server: ServerMetadata
    policy: EgressPolicy
    """Also allows the address range at which the MCP server itself was reached."""


async def discover(
    url: str,
    *,
    fetch: Fetch,
    policy: EgressPolicy,
    challenge: BearerChallenge | None = None,
    issuer: str = "",
    resource: str = "",
) -> Discovered:
    """Find the authorization server of the MCP server at `url`. Raises `OAuthError`.

    `issuer` and `resource` come from the user's configuration: only that issuer is trusted, and
    the server's metadata may name that resource.
    """
    named = challenge.resource_metadata if challenge else ""
    document, policy = await _first(
        RESOURCE, resource_metadata_urls(url, named), fetch, policy, inherit=True
    )
    found = None if document is None else read_resource_metadata(document, url, resource)
    if found is None and not issuer:
        return Discovered(None, await _legacy(url, fetch, policy), policy)
    wanted = issuer or next(iter(found.authorization_servers), "") if found else issuer
    if not wanted:
        raise OAuthError(
            RESOURCE, "the document names no authorization server", remedy="Set 'issuer'"
        )
    return Discovered(found, await server_metadata(wanted, fetch, policy), policy)


async def server_metadata(issuer: str, fetch: Fetch, policy: EgressPolicy) -> ServerMetadata:
    check_url(issuer, "issuer")
    document, _ = await _first(SERVER, server_metadata_urls(issuer), fetch, policy)
    if document is None:
        raise OAuthError(SERVER, f"{shown(redact_url(issuer))} publishes no metadata")
    return read_server_metadata(document, issuer)


async def _legacy(url: str, fetch: Fetch, policy: EgressPolicy) -> ServerMetadata:
    base = _base(url)
    document, _ = await _first(SERVER, [f"{base}{_WELL_KNOWN_SERVER}"], fetch, policy)
    if document is None:
        return default_endpoints(url)
    return read_server_metadata(document, base, slash_is_optional=True)


async def _first(
    step: str, urls: list[str], fetch: Fetch, policy: EgressPolicy, *, inherit: bool = False
) -> tuple[Mapping[str, Any] | None, EgressPolicy]:
    """The first document found. A failed request raises only if no URL has a document."""
    from mcp_types.version import LATEST_PROTOCOL_VERSION  # slow import, not needed for a refresh

    fault: OAuthError | None = None
    headers = {"accept": "application/json", "mcp-protocol-version": LATEST_PROTOCOL_VERSION}
    for url in urls:
        try:
            response = await fetch("GET", url, policy=policy, headers=headers)
        except EgressRefused as refused:
            raise OAuthError(step, str(refused)) from None
        except FetchFailed as failed:
            fault = OAuthError(step, str(failed), transient=True)
            continue
        if inherit and url == response.url and is_configured(url, policy):
            policy = policy.reached(response.peer)
        if response.status >= 500 or response.status == 429:
            problem = f"{redact_url(url)} answered {response.status}"
            fault = OAuthError(step, problem, transient=True)
        elif response.status == 200 and (document := json_object(response.body)) is not None:
            return document, policy
    if fault is not None:
        raise fault
    return None, policy


def json_object(body: bytes) -> dict[str, Any] | None:
    try:
        found: Any = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return cast("dict[str, Any]", found) if isinstance(found, dict) else None


# -- URLs and fields ----------------------------------------------------------------------------


def _authority(url: str) -> str:
    parts = urlsplit(url)
    host = (parts.hostname or "").lower()
    host = f"[{host}]" if ":" in host else host
    default = {"http": 80, "https": 443}.get(parts.scheme.lower())
    return host if parts.port in (None, default) else f"{host}:{parts.port}"


def _base(url: str) -> str:
    return f"{urlsplit(url).scheme.lower()}://{_authority(url)}"


def _text(document: Mapping[str, Any], key: str) -> str:
    value = document.get(key)
    return value if isinstance(value, str) else ""


def _texts(document: Mapping[str, Any], key: str) -> tuple[str, ...]:
    value = document.get(key)
    listed = cast("list[Any]", value) if isinstance(value, list) else []
    return tuple(one for one in listed if isinstance(one, str))[:MAX_SCOPES]


def _endpoint(document: Mapping[str, Any], key: str) -> str:
    value = _text(document, key)
    if value:
        check_url(value, key)
    return value


def check_url(url: str, key: str) -> None:
    """Accept only a plain http(s) URL: a browser opens the authorization endpoint."""
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        usable = usable and not parts.fragment and parts.username is None and url.isprintable()
    except ValueError:
        usable = False
    if not usable or any(c in url for c in " \\\"'<>`"):
        raise OAuthError(SERVER, f"the {key} is not an http(s) URL: {shown(redact_url(url))!r}")


def check_browser_url(url: str, policy: EgressPolicy, what: str) -> None:
    """Check the host, by its name, before a browser is sent to it."""
    parts = urlsplit(url)
    try:
        configured = is_configured(url, policy)
    except EgressRefused as refused:
        raise OAuthError(SERVER, f"{what} is refused: {refused.reason}") from None
    named_by = NamedBy.CONFIGURATION if configured else NamedBy.SERVER
    reason = check_host(parts.scheme, parts.hostname or "", policy, named_by)
    may_be_plain = configured or policy.ranges or policy.allow
    if not reason and parts.scheme == "http" and not may_be_plain:
        reason = "a public host must use https"
    if reason:
        raise OAuthError(SERVER, f"{what} is refused: {reason}")
