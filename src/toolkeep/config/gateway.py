"""`GatewaySettings`: the table `[gateway]` of `toolkeep.toml`, checked and frozen.

A wrong table does not stop the servers from being used: `Configuration.gateway_error` holds what is
wrong with it, and only a gateway raises it.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, cast

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from toolkeep.config.auth import TEXTS_SCHEMA, Scopes
from toolkeep.config.expand import expand
from toolkeep.config.fields import (
    FrozenDict,
    FrozenModel,
    Number,
    Rate,
    Seconds,
    check_http_url,
    closest_match,
    field_error,
    freeze,
    type_name,
)
from toolkeep.errors import ConfigError

if TYPE_CHECKING:
    from toolkeep.config.dialects.draft import Draft
    from toolkeep.config.expand import References

ALGORITHMS = (
    *("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    *("ES256", "ES384", "ES512", "EdDSA"),
)
"""Signatures that are verified with a public key. HS256 and its like are left out: where they are
accepted, a public key can be misused as their secret."""

KEY_PREFIX = "tk_"
"""How API keys begin, so that tools that look for leaked secrets can find them."""

BUILTIN = "builtin"
"""The server of the user's Python functions, which no file configures."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_HASH = re.compile(r"sha256:[0-9a-f]{64}")
_WILDCARD = re.compile(r"[*?\[]")
_RATE_SCHEMA = {"type": "string", "pattern": "^[0-9]{1,9}/(s|min|h|day)$"}


def _as_list(given: Any) -> Any:
    return [given] if isinstance(given, str) else given


def _check_hash(given: str) -> str:
    if not _HASH.fullmatch(given):
        remedy = "Make a key with `toolkeep config new-key` and write its hash: sha256:…"
        raise field_error("it is not the hash of a key", remedy)
    return given


def _check_pattern(given: str) -> str:
    bare = given.removeprefix("!").removeprefix("#")
    if not bare or bare != bare.strip() or given.startswith("!!"):
        remedy = "Write a tool's name or a glob (`search`, `pay.*`), or a tag (`#billing`)"
        raise field_error(f"{given[:80]!r} is not a pattern", remedy)
    return given


def _check_exclusion(given: str) -> str:
    if given.startswith("!"):
        problem = f"{given[:80]!r} negates an exclusion"
        raise field_error(problem, "Write the pattern without `!`, or write it in 'include'")
    return _check_pattern(given)


def _check_server(given: str) -> str:
    if not given or given != given.strip() or "." in given:
        remedy = "Write the name of a server, or a glob over names"
        raise field_error(f"{given[:80]!r} is not the name of a server", remedy)
    return given


def _check_url(given: str) -> str:
    if given:
        check_http_url(given)
    return given


def _freeze_claims(given: Mapping[str, Any]) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", freeze(dict(given)))


Positive = Annotated[int, Field(ge=1), Number]
Text = Annotated[str, Field(min_length=1)]
Texts = Annotated[tuple[Text, ...], BeforeValidator(_as_list), WithJsonSchema(TEXTS_SCHEMA)]
Url = Annotated[str, AfterValidator(_check_url)]
ToolPatterns = tuple[Annotated[str, AfterValidator(_check_pattern)], ...]


def new_key() -> str:
    """A new API key, of 256 random bits. Give it to its user, and keep only `hash_key` of it."""
    return KEY_PREFIX + secrets.token_urlsafe(32)


def hash_key(key: str) -> str:
    """The hash of a key, as a configuration holds it. Plain SHA-256: a random key of 256 bits
    cannot be guessed from it, so a slow hash would protect nothing."""
    return f"sha256:{hashlib.sha256(key.encode()).hexdigest()}"


class ApiKey(FrozenModel):
    """The keys of one principal. Several, so that a new one can be given out before the old one
    ends."""

    hash: Annotated[
        tuple[Annotated[str, AfterValidator(_check_hash)], ...],
        BeforeValidator(_as_list),
        Field(min_length=1, repr=False),
        WithJsonSchema(TEXTS_SCHEMA),
    ]
    """The hash of the key, or of several, as `toolkeep config new-key` prints it."""
    claims: Annotated[Mapping[str, Any], AfterValidator(_freeze_claims)] = Field(
        default_factory=FrozenDict[Any], repr=False
    )
    """Facts about the principal for permissions and filters, as a token's claims."""


class Jwt(FrozenModel):
    """Which access tokens are accepted."""

    issuer: Text
    """The authorization server, exactly as `iss` names it. Clients are sent there to log in."""
    audience: Annotated[Texts, Field(min_length=1)]
    """What `aud` must name, or several: usually the public URL of the gateway."""
    jwks_url: Annotated[str, Field(min_length=1), AfterValidator(_check_url)]
    """The URL of the issuer's public keys."""
    algorithms: tuple[str, ...] = ("RS256", "ES256")
    """The signatures that are accepted."""
    scopes: Scopes = ()
    """Scopes that every token must have, in a list or separated by spaces."""
    principal_claim: Text = "sub"
    """The claim that names the principal."""
    leeway: Annotated[float, Field(ge=0, le=300), Number] = 30.0
    """Seconds by which the clocks of issuer and gateway may differ."""
    resource: Url = ""
    """The public URL of the gateway. Needed only if no audience is a URL."""

    @field_validator("algorithms")
    @classmethod
    def _check_algorithms(cls, given: tuple[str, ...]) -> tuple[str, ...]:
        unknown = next((one for one in given if one not in ALGORITHMS), None)
        if unknown is not None or not given:
            what = "there is none" if unknown is None else f"{unknown[:40]!r} is not accepted"
            raise field_error(what, f"Use some of: {', '.join(ALGORITHMS)}")
        return given

    @model_validator(mode="after")
    def _check_resource(self) -> Self:
        if not self.public_url:
            remedy = "Set 'resource' to the public URL of the gateway"
            raise field_error("no audience is a URL", remedy, "resource")
        return self

    @property
    def public_url(self) -> str:
        """The URL of the gateway: `resource`, or the audience that is a URL."""
        urls = (one for one in self.audience if one.startswith(("https://", "http://")))
        return self.resource or next(urls, "")


class ProfileSettings(FrozenModel):
    """A named choice of servers and tools: what clients see at `/mcp/{name}`.

    A profile is a view. What a principal may do is decided by permissions.
    """

    name: str
    servers: tuple[Annotated[str, AfterValidator(_check_server)], ...] = ()
    """Names of servers, or globs. Empty: all."""
    include: ToolPatterns = ()
    """Patterns of tools to offer: `search`, `pay.*`, `#billing`, or `!delete` to leave one out.
    Empty: all of the servers."""
    exclude: tuple[Annotated[str, AfterValidator(_check_exclusion)], ...] = ()
    """Patterns of tools to leave out. They win over `include`."""
    prefix: bool = True
    """Whether names are `server__tool`. False: the servers' own names, where they are unique."""
    mode: Literal["all", "search", "code"] = "all"
    """`all`: the tools themselves. `search`: two tools that search and call them. `code`: two tools
    that search them and run programs that call them."""
    allow: ToolPatterns = ()
    """In mode `code`: tools that programs may call although they are not marked read-only."""

    @field_validator("name")
    @classmethod
    def _check_name(cls, given: str) -> str:
        if not _NAME.fullmatch(given):
            remedy = "Use letters, digits, - and _: the name is a part of the URL"
            raise field_error(f"{given[:80]!r} is not the name of a profile", remedy)
        return given

    @model_validator(mode="after")
    def _check_allow(self) -> Self:
        if self.allow and self.mode != "code":
            raise field_error("it is for mode 'code' only", "Remove it", "allow")
        return self


class Limits(FrozenModel):
    """What one gateway process takes at most."""

    body_bytes: Positive = 4 * 1024 * 1024
    """Bytes of one request."""
    sessions: Positive = 10_000
    """Sessions whose notifications, questions and streams are kept at the same time."""
    streams: Positive = 1_000
    """Open response and notification streams."""
    requests: Positive = 1_000
    """Requests at the same time. Others are refused with 503 and Retry-After."""
    requests_per_principal: Positive = 100
    """Requests of one principal at the same time."""
    stream_bytes: Positive = 1024 * 1024
    """Bytes that wait for a slow reader, before its stream is cut."""
    drain: Seconds = 30.0
    """Seconds that running calls have to end after SIGTERM."""


class Audit(FrozenModel):
    """The audit stream: one JSON line for each request that was served or refused."""

    file: Text
    """The file that lines are appended to; `-` is standard error."""
    arguments: bool = False
    """Whether arguments of calls are recorded. They may hold secrets of users."""


def _to_rates(given: object) -> object:
    return {"principal": given} if isinstance(given, str) else given


def _check_rates(given: Mapping[str, str]) -> FrozenDict[str]:
    for scope, rate in given.items():
        if scope != "principal" and not (scope.startswith("tool:") and scope != "tool:"):
            remedy = "Use principal, or tool: and a glob over full names of tools (tool:pay.*)"
            raise field_error(f"{scope[:80]!r} is not a scope of a rate", remedy)
        try:
            Rate.parse(rate)
        except ValueError:
            remedy = "Write a number of calls and a unit: 10/s, 100/min, 1000/h or 5000/day"
            raise field_error(f"{rate[:80]!r} is not a rate", remedy) from None
    return FrozenDict(given)


def _to_keys(given: object) -> object:
    """A principal's hashes may be written without a table."""
    if not isinstance(given, Mapping):
        return given
    tables: dict[Any, Any] = {}
    for name, one in cast("Mapping[Any, Any]", given).items():
        tables[name] = one if isinstance(one, Mapping | ApiKey) else {"hash": one}
    return tables


def _check_principals(given: Mapping[str, ApiKey]) -> FrozenDict[ApiKey]:
    owners: dict[str, str] = {}
    for principal, key in given.items():
        if not principal or not principal.isprintable() or len(principal) > 256:
            remedy = "Give it a name of 1 to 256 printable characters"
            raise field_error("a principal has no usable name", remedy)
        for one in key.hash:
            if owners.setdefault(one, principal) != principal:
                remedy = "Make another key for one of them"
                problem = f"{principal[:80]!r} has the same key as {owners[one][:80]!r}"
                raise field_error(problem, remedy)
    return FrozenDict(given)


def _to_profiles(given: object) -> object:
    """A profile has the name of its entry."""
    if not isinstance(given, Mapping):
        return given
    return {
        name: {"name": name, **cast("Mapping[str, Any]", one)} if isinstance(one, Mapping) else one
        for name, one in cast("Mapping[Any, Any]", given).items()
    }


def _check_profiles(given: Mapping[str, ProfileSettings]) -> FrozenDict[ProfileSettings]:
    for name, profile in given.items():
        if profile.name != name:
            remedy = "Remove 'name': a profile has the name of its entry"
            raise field_error(f"the profile {name[:80]!r} has another name", remedy)
    return FrozenDict(given)


def _to_audit(given: object) -> object:
    return {"file": given} if isinstance(given, str) else given


class GatewaySettings(FrozenModel):
    """How `toolkeep serve` listens, who may call, and what they see."""

    host: Text = "127.0.0.1"
    """The address to listen at. One that is not loopback needs `keys` or `jwt`."""
    port: Annotated[int, Field(ge=0, le=65535), Number] = 8000
    """The port to listen at; 0: one that is free."""
    allowed_hosts: tuple[Text, ...] = ()
    """Names by which clients reach the gateway, as in the Host header. Loopback names are always
    allowed on loopback."""
    allowed_origins: tuple[Text, ...] = ()
    """Web pages that may call the gateway, as in the Origin header."""
    keys: Annotated[
        Mapping[str, ApiKey],
        BeforeValidator(_to_keys),
        AfterValidator(_check_principals),
    ] = Field(default_factory=FrozenDict[ApiKey], repr=False)
    """API keys, by principal."""
    jwt: Jwt | None = None
    """Access tokens of an authorization server."""
    profiles: Annotated[
        Mapping[str, ProfileSettings],
        BeforeValidator(_to_profiles),
        AfterValidator(_check_profiles),
    ] = Field(default_factory=FrozenDict[ProfileSettings])
    """What clients see at `/mcp/{name}`. `/mcp` is everything."""
    rate: Annotated[
        Mapping[str, str],
        BeforeValidator(_to_rates),
        AfterValidator(_check_rates),
        WithJsonSchema(
            {"anyOf": [_RATE_SCHEMA, {"type": "object", "additionalProperties": _RATE_SCHEMA}]}
        ),
    ] = Field(default_factory=FrozenDict[str])
    """How many calls each principal may make, of all tools (`principal`) or of some (`tool:pay.*`).
    Further calls are refused. Processes that share a store count together."""
    limits: Limits = Limits()
    audit: Annotated[
        Audit | None,
        BeforeValidator(_to_audit),
    ] = None
    """The audit stream, or only its file."""


def read_gateway(
    draft: Draft, references: References, servers: Iterable[str]
) -> GatewaySettings | None:
    """The settings of the draft's table; None if there is none, or if it is wrong. Errors are added
    to `draft.gateway_errors`."""
    given, errors = draft.gateway, draft.gateway_errors
    if given is None:
        return None

    def add(problem: str, remedy: str, key: str) -> None:
        origin = draft.document.origin(tuple(key.split(".")))
        errors.add(problem, remedy=remedy, origin=origin, key=key)

    if not isinstance(given, Mapping):
        add(f"it must be a table, not {type_name(given)}", "Write [gateway]", "gateway")
        return None
    try:
        expanded = expand(cast("Mapping[str, Any]", given), references, key="gateway")
    except ConfigError as error:
        add(error.problem, error.remedy, error.key or "gateway")
        return None
    found = GatewaySettings.validation_errors(expanded)
    for error in found:
        add(error.problem, error.remedy, f"gateway.{error.key}")
    if found:
        return None
    settings = GatewaySettings(**expanded)
    if settings.audit is not None and settings.audit.file != "-":
        file = str(draft.document.folder / os.path.expanduser(settings.audit.file))
        audit = settings.audit.model_copy(update={"file": file})
        settings = settings.model_copy(update={"audit": audit})
    _check_servers(settings, {*servers, BUILTIN}, add)
    return None if errors.found else settings


def _check_servers(settings: GatewaySettings, known: set[str], add: Any) -> None:
    for name, profile in settings.profiles.items():
        for server in profile.servers:
            if not _WILDCARD.search(server) and server not in known:
                meant = closest_match(server, known)
                hint = f", did you mean {meant!r}?" if meant else ""
                key = f"gateway.profiles.{name}.servers"
                add(f"there is no server {server!r}{hint}", "Name a configured server", key)
