"""`ServerSpec` and `Configuration`: what the user configured, checked and frozen.

Everything here is decided before a connection is opened. A value that cannot work raises a
`ConfigError` that names server, key and remedy. A value that works but is unsafe (plain http to
another machine, a secret in a URL) emits a `ConfigWarning`. `difference` compares two
configurations.
"""

from __future__ import annotations

import inspect
import ipaddress
import os
import re
import shlex
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol, Self, TypeAlias, cast
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    SecretStr,
    field_serializer,
    field_validator,
    model_validator,
)
from pydantic_core import to_jsonable_python

from toolkeep.config.auth import Auth, to_auth
from toolkeep.config.expand import expand
from toolkeep.config.fields import (
    SERVER_NAME,
    CacheTimes,
    ContextHeaders,
    FrozenDict,
    FrozenModel,
    Guides,
    IncludedTools,
    Number,
    Patterns,
    Rates,
    Seconds,
    Tags,
    ToolHeaders,
    ToolTags,
    check_http_url,
    field_error,
    freeze,
    is_loopback,
    merge_urls,
    name_from_url,
    to_server_name,
    type_name,
    valid_server_names,
)
from toolkeep.config.functions import with_function_tags
from toolkeep.config.redact import (
    HIDDEN,
    misplaced_url_secrets,
    redact_args,
    redact_url,
    secrets_of_args,
)
from toolkeep.errors import ConfigError, unraised_copy

if TYPE_CHECKING:
    from toolkeep.config.gateway import GatewaySettings

PROGRAM_CONNECT_TIMEOUT = 60.0
"""Seconds until a program must be ready, as in other well-known clients."""

_SCRIPTS = (".py", ".js", ".mjs", ".cjs")
_CONFIGURATIONS = (".json", ".toml", ".env")
_ADDRESS = re.compile(
    r"(?:[^\s/@]+@)?((?:localhost|[\w-]+(?:\.[\w-]+)+|\[[0-9a-fA-F:.]+\])(?::\d+|(?=/))|localhost$)"
)
"""The beginning of a URL that lacks its scheme: `localhost:8000`, `example.com/mcp`."""

TRANSPORT_ALIASES = {
    "stdio": "stdio",
    "sse": "sse",
    "http": "http",
    "streamable-http": "http",
    "streamable_http": "http",
    "streamableHttp": "http",
}
"""Values of `type` in other products, with our transport."""

HTTP_FIELDS = (
    "headers",
    "tool_headers",
    "derived_headers",
    "api_key",
    "auth",
    "proxy",
    "routing_id",
)
PROGRAM_FIELDS = ("args", "env", "cwd")
_TRANSPORTS_BY_FIELD = {"url": ("http", "sse"), "command": ("stdio",), "server": ("local",)}

_DEFAULT_MAX_SESSIONS, _DEFAULT_MAX_PROCESSES = 128, 8
_API_KEY = re.compile(r"[\x21-\x7e]+")  # visible ASCII: more than RFC 6750 allows
_HOST = re.compile(r"(\*\.)?[^\s/\\@?#%,*:\[\]]+")
_SHELL_CHARACTERS = frozenset("$;&|<>()`\\\n")


class Timeouts(FrozenModel):
    """Time limits, in seconds."""

    connect: Seconds = 10.0
    """To become ready for calls: TCP, TLS, handshake. The default for a program is 60 s: `npx`,
    `uvx` and `docker` may have to download it first."""
    call: Seconds = 30.0
    """For a call with all its retries and waits, unless the call sets its own."""
    read: Seconds | None = None
    """Longest time without a byte while a response is awaited. None: only the deadline counts."""
    close: Seconds = 5.0
    """To close a session and its sockets, or a process and its children."""
    input: Seconds = 600.0
    """For the answer to a request that the server makes during a call. The call's own time is
    paused meanwhile."""
    extend_on_progress: bool = False
    """Whether each progress report gives the call its full time again, up to `max_call`."""
    max_call: Seconds = 3600.0
    """Limit for a call that progress extends."""


def with_program_timeout(given: Any, connect: float) -> Any:
    """A server's values with another default of `timeouts.connect` if it is a program."""
    if not isinstance(given, dict) or not cast("dict[str, Any]", given).get("command"):
        return cast("Any", given)
    found = cast("dict[str, Any]", given)
    match found.get("timeouts"):
        case None:
            timeouts: Any = {"connect": connect}
        case Timeouts() as made if "connect" not in made.model_fields_set:
            timeouts = made.model_copy(update={"connect": connect})
        case dict() if "connect" not in found["timeouts"]:
            timeouts = {**found["timeouts"], "connect": connect}
        case _:
            return found
    return {**found, "timeouts": timeouts}


class TLS(FrozenModel):
    """Trusted CAs and client certificates. The default is the system's store, or what
    SSL_CERT_FILE, SSL_CERT_DIR or REQUESTS_CA_BUNDLE name."""

    verify: bool = True
    ca_file: str | None = None
    client_cert: str | None = None
    client_key: str | None = None
    client_key_password: SecretStr | None = None

    def __hash__(self) -> int:  # pydantic adds one to frozen models; type checkers do not see it
        return hash(tuple(getattr(self, name) for name in type(self).model_fields))


def _is_host_or_network(text: str) -> bool:
    try:
        ipaddress.ip_network(text.strip("[]"), strict=False)
    except ValueError:
        return bool(_HOST.fullmatch(text))
    return True


class Egress(FrozenModel):
    """Where toolkeep may connect to for this server, beyond what is always permitted."""

    allow: tuple[str, ...] = ()
    """Host names, `*.suffixes`, addresses and networks, such as `10.0.0.0/8`. Without them, the
    server itself may have any public, private or loopback address; link-local and cloud metadata
    addresses are refused, and hosts that a server names must be public."""

    @field_validator("allow")
    @classmethod
    def _check_allow(cls, allow: tuple[str, ...]) -> tuple[str, ...]:
        for entry in allow:
            if not _is_host_or_network(entry):
                raise field_error(
                    f"{entry[:80]!r} is not a host, an address or a network",
                    'Write "auth.example.com", "*.example.com", "169.254.1.2" or "10.0.0.0/8"',
                )
        return allow


def normalize_type_key(given: dict[str, Any]) -> dict[str, Any]:
    """Replace the key `type` of other products by `transport`."""
    if "mcpServers" in given or "servers" in given:
        raise ConfigError(
            "this describes several servers, not one",
            remedy="Give the entry of one server, with its url or command",
        )
    kind = given.get("type")
    if not isinstance(kind, str) or kind not in TRANSPORT_ALIASES or "transport" in given:
        return given
    rest = {key: value for key, value in given.items() if key != "type"}
    return {**rest, "transport": TRANSPORT_ALIASES[kind]}


def check_transport(spec: ServerSpec) -> None:
    """Raise unless exactly one of url, command and server is given, and all other fields fit it."""
    given = [name for name in _TRANSPORTS_BY_FIELD if getattr(spec, name)]
    if len(given) != 1:
        problem = f"both {' and '.join(given)} are given" if given else "the server has no location"
        key = given[0] if given else "url"
        raise field_error(problem, "Give one of 'url', 'command' and 'server'", key)
    location = given[0]
    if spec.transport not in (None, *_TRANSPORTS_BY_FIELD[location]):
        fitting = " or ".join(repr(one) for one in _TRANSPORTS_BY_FIELD[location])
        raise field_error(
            f"the transport {spec.transport!r} does not fit {location!r}",
            f"Use {fitting}",
            "transport",
        )
    unused = PROGRAM_FIELDS if location == "url" else HTTP_FIELDS
    unused = (*HTTP_FIELDS, *PROGRAM_FIELDS) if location == "server" else unused
    for key in unused:
        if getattr(spec, key):
            remedy = (
                "Pass secrets to the program in 'env'"
                if location == "command"
                else f"Remove {key!r}"
            )
            raise field_error(f"{key!r} has no effect with {location!r}", remedy, key)
    _check_auth(spec)
    if spec.replicas == "owner":
        _check_owner(spec, location)
    if spec.transport == "sse" and spec.is_modern_only:
        raise field_error(
            f"the mode {spec.mode!r} does not support the transport 'sse'",
            "Use the mode 'legacy', or the transport 'http'",
            "transport",
        )


def _check_owner(spec: ServerSpec, location: str) -> None:
    if location != "command":
        problem = f"replicas 'owner' is for programs, not for {location!r}"
        raise field_error(problem, "Remove 'replicas'", "replicas")
    if spec.session == "call":
        problem = "a program that runs for one call alone has no owner"
        raise field_error(problem, "Remove 'replicas', or use another 'session'", "replicas")


def _check_auth(spec: ServerSpec) -> None:
    if spec.auth is None or spec.auth.type == "none":
        return
    if spec.api_key is not None or any(name.lower() == "authorization" for name in spec.headers):
        other = "headers.authorization" if spec.api_key is None else "api_key"
        raise field_error(f"'auth' and {other!r} are both given", "Keep one of them", "auth")
    if len(spec.urls) > 1:
        problem = "'auth' does not work with several addresses: a token is for one of them"
        raise field_error(problem, "Configure each address as a server", "auth")


_LOCAL_SERVER_ATTRIBUTES = ("create_initialization_options", "_lowlevel_server", "_mcp_server")
"""Each is of one kind: the SDK's low-level server, its `MCPServer`, and FastMCP's server."""


def is_local_server(value: object) -> bool:
    """Whether this can be a server in this process. The transport checks its actual type."""
    if isinstance(value, list | tuple):
        parts = cast("list[object]", value)
        return bool(parts) and all(callable(part) for part in parts)
    known = any(hasattr(value, name) for name in _LOCAL_SERVER_ATTRIBUTES)
    return not isinstance(value, str | Mapping | type) and (known or callable(value))


def local_server_name(server: object) -> str:
    """The server's own name; for functions, the name of the first."""
    listed = isinstance(server, list | tuple)
    first = next(iter(cast("list[object]", server)), None) if listed else server
    own = getattr(first, "name", None) or getattr(first, "__name__", None)
    return to_server_name(own) if isinstance(own, str) else "local"


def parse_command(text: str) -> dict[str, Any]:
    """The values of a server that is started with this command: a program and its arguments, or a
    script (`server.py`), which this Python starts, or `node`."""
    try:
        words = [text] if Path(text).expanduser().is_file() else shlex.split(text)
    except (ValueError, OSError) as error:
        raise ConfigError(
            f"the command cannot be split into words: {error}",
            remedy='Close the quotes, or write {"command": "…", "args": […]}',
        ) from None
    if not words:
        raise ConfigError("the command is empty", remedy="Give a program and its arguments")
    script = Path(words[0]).expanduser()
    if script.suffix not in _SCRIPTS:
        return {"command": words[0], "args": words[1:]}
    if not script.is_file():
        problem = f"there is no file {words[0][:200]!r} in {Path.cwd()}"
        raise ConfigError(problem, remedy="Correct the path, or give a URL or a command")
    interpreter = sys.executable if script.suffix == ".py" else "node"
    name = to_server_name(script.stem)
    return {"name": name, "command": interpreter, "args": [str(script), *words[1:]]}


def _parse_text(text: str) -> dict[str, Any]:
    """The values of a server given as a URL, a command or the path of a script."""
    if "://" in text:
        return {"url": text}
    address = _ADDRESS.match(text)
    if address and not Path(text).exists():
        problem = f"the address of {address[1][:200]!r} is not a URL: it has no scheme"
        raise ConfigError(problem, remedy="Write http://… or https://… in front of it")
    if Path(text).suffix in _CONFIGURATIONS:
        problem = f"{text[:200]!r} is a configuration file, not a server"
        raise ConfigError(problem, remedy="Open it with Runtime.open")
    return parse_command(text)


def to_mapping(value: object) -> dict[str, Any]:
    """The values of one server given as a URL, a command, a script, a mapping or a server in this
    process."""
    if isinstance(value, str):
        return _parse_text(value)
    if isinstance(value, Path):
        return _parse_text(str(value))
    if is_local_server(value):
        return {"server": value}
    if not isinstance(value, Mapping):
        remedy = 'Write it as {"url": "http://…"} or {"command": "…", "args": […]}'
        raise ConfigError(
            f"a server must be a URL, a command or a mapping, not {type_name(value)}", remedy=remedy
        )
    found = cast("Mapping[Any, Any]", value)
    for key in found:
        if not isinstance(key, str):
            raise ConfigError(
                f"a key must be a text, not {type_name(key)}", remedy="Correct the key"
            )
    return normalize_type_key(dict(found))


def default_server_name(given: Mapping[str, Any]) -> str:
    """The name of a server without a name of its own: from its function, command or host."""
    if given.get("server") is not None:
        return local_server_name(given["server"])
    command = given.get("command")
    if isinstance(command, str) and command:
        return to_server_name(re.split(r"[\\/]", command.split()[0])[-1] if command.strip() else "")
    return name_from_url(given.get("url") or next(iter(given.get("urls") or ()), None))


class ConfigWarning(UserWarning):
    """A configuration that works but is risky."""


def spec_warnings(spec: ServerSpec) -> tuple[str, ...]:
    """What is risky about the spec, without secrets."""
    urls = spec.urls or (spec.url,)
    found = dict.fromkeys(warning for url in urls for warning in _url_warnings(url, spec.tls))
    return tuple(f"{spec.name}: {warning}" for warning in found)


def _url_warnings(url: str, tls: TLS) -> Iterator[str]:
    parts = urlsplit(url)
    if parts.scheme == "http" and not is_loopback(parts.hostname or ""):
        yield f"plain http to another machine: {redact_url(url)}"
    if misplaced_url_secrets(url):
        yield "the URL contains a secret; use headers or api_key instead"
    if not tls.verify and parts.scheme == "https":
        yield "certificates are not verified; to trust a private CA, use tls.ca_file"


def warn(message: str) -> None:
    """Emit a `ConfigWarning` at the first stack frame outside of toolkeep and pydantic."""
    frame, level = inspect.currentframe(), 1
    while frame is not None and _is_internal(frame.f_globals.get("__name__", "")):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, ConfigWarning, stacklevel=level)


def _is_internal(module: str) -> bool:
    return module.partition(".")[0] in ("toolkeep", "pydantic")


NonNegativeInt = Annotated[int, Field(ge=0), Number]
PositiveInt = Annotated[int, Field(gt=0), Number]
Mode = Literal["auto", "legacy", "modern", "2026-07-28"]
RetryPolicy = Literal["safe", "never", "always"]
StringMap = Annotated[Mapping[str, str], AfterValidator(lambda given: FrozenDict(given))]
Arguments = Annotated[tuple[str, ...], Field()]
Urls = Annotated[tuple[str, ...], Field(max_length=64)]
RetryPolicies = Annotated[
    Mapping[str, RetryPolicy], AfterValidator(lambda given: FrozenDict(given))
]


_EXTENSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]*/[A-Za-z0-9][A-Za-z0-9._-]*")


def _check_extensions(given: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Mapping[str, Any]]:
    for identifier in given:
        if not _EXTENSION.fullmatch(identifier):
            remedy = "Write vendor.example/name, with its settings: {}"
            raise field_error(f"{identifier[:80]!r} is no identifier of an extension", remedy)
    return freeze(to_jsonable_python(given))


Extensions = Annotated[Mapping[str, Mapping[str, Any]], AfterValidator(_check_extensions)]


def _list_to_tuple(server: Any) -> Any:
    return tuple(cast("list[Any]", server)) if isinstance(server, list) else server


def _valid_server_name(name: Any) -> Any:
    """The name as a legal server name, with a warning if that differs."""
    if not isinstance(name, str) or not name:
        return name
    ours = valid_server_names([name])[name]
    if ours != name:
        warn(f"the server {name!r:.200} is renamed to {ours}")
    return ours


class ServerSpec(FrozenModel):
    """One server, as configured. Immutable; its JSON hides secrets."""

    name: str
    url: str = Field(default="", repr=False)
    """The server's address, for HTTP."""
    urls: Urls = Field(default=(), repr=False)
    """All addresses of a server that has several equivalent ones; `url` is then the first. Each
    has its own sockets, sessions, limits and breaker."""
    balance: Literal["session", "call"] = "session"
    """With several addresses, what is sent to the least busy one: each new `session`, whose calls
    then stay there, or each `call`, with a session for each address. Calls to servers without
    sessions are always balanced."""
    command: str = ""
    """The program to start, for a server that uses stdio."""
    args: Arguments = Field(default=(), repr=False)
    env: StringMap = Field(default=FrozenDict(), repr=False)
    """Environment variables of the program, in addition to the few that every program needs (PATH,
    HOME, …). It inherits nothing else from this process. Values are treated as secrets."""
    cwd: str | None = None
    server: Annotated[Any, AfterValidator(_list_to_tuple)] = Field(
        default=None, repr=False, exclude=True
    )
    """A server in this process: the SDK's `MCPServer` or `Server`, a function, or several."""
    transport: Literal["http", "sse", "stdio", "local"] | None = None
    """None: `stdio` for a command, `local` for a server in this process, and `http` for a URL,
    with `sse` (HTTP+SSE of 2024-11-05) if the server supports nothing newer."""
    headers: StringMap = Field(default=FrozenDict(), repr=False)
    """Sent with every request. Values are treated as secrets."""
    non_identity_headers: frozenset[str] = frozenset()
    """Per-call headers that do not identify the caller. Trace headers never do."""
    tool_headers: ToolHeaders = Field(default=FrozenDict(), repr=False)
    """Sent with the calls of single tools, by tool name. Values are treated as secrets."""
    derived_headers: ContextHeaders = FrozenDict()
    """Headers made from a call's context: a header name for `user`, `session`, `execution`, `trace`
    or `principal`. A list of these, or `true` for all, uses names such as `x-user-id`."""
    api_key: SecretStr | None = None
    """Sent as `Authorization: Bearer` with every request."""
    auth: Annotated[Auth | None, BeforeValidator(to_auth)] = None
    """How to log in with OAuth; `oauth` alone has the defaults. None: a server that asks for a
    login gets the one that `toolkeep login` made."""
    routing_id: Annotated[str, Field(pattern=r"^[!-~]+$", max_length=256)] | None = None
    """Sent as `Mcp-Session-Id` with requests that belong to no session, for gateways that choose an
    instance by that header: the probe of `mode="auto"`, and every request to a modern server."""
    mode: Mode = "auto"
    """`auto` asks the server for its protocol era; `legacy` and `modern` allow one alone. A version
    pins it: the server is adopted without a request, and its name, its instructions and its
    capabilities stay unknown."""
    timeouts: Timeouts = Timeouts()
    tls: TLS = TLS()
    egress: Egress = Egress()
    proxy: str | None = Field(default=None, repr=False)
    """URL of a proxy. None: HTTP_PROXY, HTTPS_PROXY and NO_PROXY decide. Empty: no proxy."""
    retry: RetryPolicy = "safe"
    """Whether a call with an unknown outcome may be sent again: `safe` if its tool is marked
    read-only or idempotent, `never`, or `always`."""
    retry_tools: RetryPolicies = FrozenDict()
    """The same for single tools, by name."""
    max_retries: NonNegativeInt = 3
    """How often one call may be sent again, for any reason."""
    retry_burst: NonNegativeInt = 100
    """How many retries the server may get at once during an outage."""
    retry_rate: Annotated[float, Field(ge=0, allow_inf_nan=False), Number] = 10.0
    """How many retries per second the server may get after `retry_burst` is used up."""
    breaker_threshold: NonNegativeInt = 10
    """Consecutive transport faults after which calls fail at once. 0: never."""
    breaker_cooldown: Seconds = 1.0
    """Seconds until one call may probe the server; doubled after each failed probe, up to 30."""
    max_in_flight: PositiveInt = 256
    serialize: bool = False
    """One request at a time."""
    max_result_bytes: PositiveInt = 32 * 1024 * 1024
    """A longer response is an error. It is not read further, so memory is bounded."""
    max_input_rounds: PositiveInt = 10
    """How often a modern server may respond to one call with requests for input."""
    max_result_chars: Annotated[int, Field(ge=1000), Number] | None = None
    """How many characters of a result a runtime returns. None: all."""
    oversized: Literal["error", "truncate", "spool"] = "error"
    """What happens to a result with more characters: `error` raises an error that contains it,
    `truncate` cuts it with a note, `spool` returns a handle to read the rest in parts."""
    rate: Rates = FrozenDict()
    """How many calls the server may get: `100/min`, or one rate for each scope: `server`,
    `principal` (each of them), `tool:` and a glob (each tool that matches). With a shared store
    the rate is that of all processes together. Calls wait for their turn, up to their deadline."""
    on_store_loss: Literal["open", "closed"] = "open"
    """What calls do while the shared store is down and the rate of all processes is unknown:
    `open` counts in each process alone, `closed` refuses them."""
    cache_results: CacheTimes = FrozenDict()
    """For how many seconds a runtime may reuse results: one number, or one for each glob over
    tool names. Only results of tools that are marked read-only are reused, and never errors."""
    keep_alive: Seconds = 4.0
    """Seconds until idle sockets are closed. uvicorn closes them after 5, and a call on a socket
    that is being closed would fail."""
    strip_none: bool = False
    """Remove optional arguments that are None before sending."""
    extensions: Extensions = FrozenDict()
    """MCP extensions that the client announces: identifiers (`vendor.example/name`) with their
    settings. You handle what they define; `ServerNotification` events bring their notifications."""
    listen: bool = False
    """Receive the server's notifications outside of calls even without an observer."""
    health_interval: Seconds | None = None
    """Seconds between two health checks. None: the interval of the group."""
    session: Literal["shared", "principal", "call"] | None = None
    """Which session a call uses. `shared`: one for all; a call with another identity is refused.
    `principal`: one for each principal. `call`: one for each call. None: a shared one for calls
    without identity, and one for each principal for the others."""
    max_sessions: PositiveInt | None = None
    """How many sessions of principals may be open at once; for a program, each is a process. When
    all are open, the one that is idle the longest is closed. A session in use is never closed, so
    further principals wait while all are busy. None: 128, and 8 for programs."""
    include_tools: IncludedTools = ()
    """Globs over the server's own tool names: only these tools are offered. Empty: all."""
    exclude_tools: Patterns = ()
    """Globs over tool names that are not offered, even if they are included."""
    tags: Tags = frozenset()
    """Tags of all its tools."""
    tool_tags: ToolTags = FrozenDict()
    """Further tags, by glob over tool names."""
    replicas: Literal["each", "owner"] = "each"
    """For a program, when several processes share a store: `each` of them runs its own, or one of
    them, the `owner`, runs it for all."""
    prompts_file: str | None = None
    """A file, or a folder of files, with your own prompts in addition to the server's."""
    guides: Guides = FrozenDict()
    """Text appended to the description of a tool, by glob over tool names. One word is the name of
    a prompt, `*` is the whole prompts file; a value with a space is the text itself."""

    @classmethod
    def parse(
        cls,
        value: object,
        *,
        name: str | None = None,
        env: Mapping[str, str] | None = None,
        file: str | None = None,
    ) -> ServerSpec:
        """Make a spec from a URL, a command line (`npx -y some-server`), the path of a script
        (`server.py`), a mapping, another spec, or a server in this process (an `MCPServer`, a
        function, several). Raises `ConfigError`."""
        if isinstance(value, ServerSpec):
            return value
        try:
            given = to_mapping(value)
            own = given.get("name")
            name = own if isinstance(own, str) else name
            given = expand(given, os.environ if env is None else env)
            given.setdefault("name", name or default_server_name(given))
            return cls(**{**given, "name": _valid_server_name(given["name"])})
        except ConfigError as error:
            raise ConfigError(
                error.problem,
                remedy=error.remedy,
                server=error.server or name,
                key=error.key,
                file=file,
            ) from None

    @property
    def pinned_version(self) -> str | None:
        """The protocol version that `mode` pins."""
        return None if self.mode in ("auto", "legacy", "modern") else self.mode

    @property
    def is_modern_only(self) -> bool:
        """Whether `mode` excludes legacy servers."""
        return self.mode not in ("auto", "legacy")

    def replace(self, **changes: Any) -> ServerSpec:
        """A copy with other values, checked again."""
        given: dict[str, Any] = {**dict(self), **changes}
        return ServerSpec(**given)

    @field_validator("name")
    @classmethod
    def _check_name(cls, name: str) -> str:
        if not SERVER_NAME.fullmatch(name):
            raise field_error(
                f"{name[:80]!r} is not a server name",
                "Use 1 to 64 letters, digits, '-' and '_', beginning with a letter or digit",
            )
        return name

    @field_validator("url")
    @classmethod
    def _check_url(cls, url: str) -> str:
        if url:
            check_http_url(url)
        return url

    @field_validator("urls")
    @classmethod
    def _check_urls(cls, urls: tuple[str, ...]) -> tuple[str, ...]:
        for url in urls:
            check_http_url(url)
        return urls

    @field_validator("command", "cwd", "prompts_file")
    @classmethod
    def _check_command(cls, text: str | None) -> str | None:
        if text is not None and "\0" in text:
            raise field_error("it contains a NUL character", "Remove it")
        return text

    @field_validator("proxy")
    @classmethod
    def _check_proxy(cls, proxy: str | None) -> str | None:
        if proxy:
            check_http_url(proxy)
        return proxy

    @field_validator("api_key")
    @classmethod
    def _check_key(cls, key: SecretStr | None) -> SecretStr | None:
        if key is not None and not _API_KEY.fullmatch(key.get_secret_value()):
            raise field_error(
                "the key is empty or contains characters that a header cannot carry",
                "Give the key alone, without quotes, spaces or line breaks",
            )
        return key

    @field_serializer("url", "proxy", when_used="json")
    def _redact_url_field(self, url: str | None) -> str | None:
        return redact_url(url) if url else url

    @field_serializer("urls", when_used="json")
    def _redact_urls(self, urls: tuple[str, ...]) -> list[str]:
        return [redact_url(url) for url in urls]

    @field_serializer("args", when_used="json")
    def _redact_args(self, args: tuple[str, ...]) -> list[str]:
        return redact_args(args)

    @field_serializer("headers", "env", when_used="json")
    def _redact_values(self, values: Mapping[str, str]) -> dict[str, str]:
        return dict.fromkeys(values, HIDDEN)

    @field_serializer("tool_headers", when_used="json")
    def _redact_tool_headers(self, given: Mapping[str, Mapping[str, str]]) -> dict[str, Any]:
        return {tool: dict.fromkeys(values, HIDDEN) for tool, values in given.items()}

    def __repr_args__(self) -> Iterable[tuple[str, Any]]:
        """What was set, without secrets."""
        given = self.model_dump(mode="json", exclude_unset=True)
        return [(key, value) for key, value in given.items() if value not in ("", [], {}, None)]

    @property
    def secrets(self) -> tuple[str, ...]:
        """The secrets that the program receives in its environment and arguments."""
        return (*self.env.values(), *secrets_of_args(self.args))

    @property
    def endpoint_specs(self) -> tuple[ServerSpec, ...]:
        """One for each address of the server, in the order of `urls`."""
        if not self.urls:
            return (self,)
        return tuple(self.model_copy(update={"url": url, "urls": ()}) for url in self.urls)

    @property
    def session_limit(self) -> int:
        """`max_sessions`, or its default."""
        return self.max_sessions or (
            _DEFAULT_MAX_PROCESSES if self.command else _DEFAULT_MAX_SESSIONS
        )

    @model_validator(mode="before")
    @classmethod
    def _extend_program_timeout(cls, given: Any) -> Any:
        """Programs get more time to connect: they may have to be downloaded first."""
        return with_program_timeout(given, PROGRAM_CONNECT_TIMEOUT)

    @model_validator(mode="before")
    @classmethod
    def _merge_urls(cls, given: Any) -> Any:
        return merge_urls(given)

    @model_validator(mode="before")
    @classmethod
    def _merge_tags(cls, given: Any) -> Any:
        return with_function_tags(given)

    @model_validator(mode="after")
    def _check_transport(self) -> Self:
        check_transport(self)
        return self

    @model_validator(mode="after")
    def _emit_warnings(self) -> Self:
        for warning in spec_warnings(self):
            warn(warning)
        return self


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a value came from: `mcp.json:12`, `environment MCP_SERVER_X_URL`."""

    file: str | None = None
    line: int | None = None
    detail: str = ""

    @property
    def location(self) -> str:
        return f"{self.file}:{self.line}" if self.file and self.line else self.file or ""

    def __str__(self) -> str:
        if self.detail.startswith("default of "):
            return self.detail
        return " ".join(part for part in (self.location, self.detail) if part) or "given in Python"


@dataclass(frozen=True, slots=True)
class PendingApproval:
    """A program that is not approved yet."""

    spec: ServerSpec = field(repr=False)
    digest: str
    """Digest of the command, its arguments, its directory and its environment."""
    origin: Origin
    raw_command: tuple[str, ...] = field(default=(), repr=False)
    """The command and its arguments as written in the file, not expanded."""

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def command_line(self) -> str:
        """The command line for the person who decides, after the names of its variables.

        It is not expanded, so it contains no variable's value. A literal that looks secret is
        hidden, unless a shell could execute it: `key=1; rm -rf ~` is not a key. Characters that a
        terminal would interpret or reorder are escaped.
        """
        variables = [f"{name}={HIDDEN}" for name in self.spec.env]
        hidden = zip(self.raw_command, redact_args(self.raw_command), strict=True)
        parts = [part if _SHELL_CHARACTERS & set(part) else shown for part, shown in hidden]
        return " ".join(_quote(part) for part in (*variables, *parts))


def _quote(text: str) -> str:
    if not text.isprintable():
        return ascii(text)
    return text if text and " " not in text else repr(text)


Origins = Mapping[str, Mapping[str, Origin]]


@dataclass(frozen=True, slots=True, repr=False)
class Configuration:
    """The result of one `load`. Immutable; an edit of the source makes a new one."""

    servers: tuple[ServerSpec, ...] = ()
    """The servers that may be opened, in the order of the source."""
    disabled: Mapping[str, str] = field(default_factory=FrozenDict[str])
    """Names of disabled servers, each with the reason."""
    needs_approval: tuple[PendingApproval, ...] = ()
    """Programs of a discovered file that are not approved. They are not among `servers`."""
    invalid: tuple[ConfigError, ...] = ()
    """One error for each server that is skipped because its entry is wrong."""
    origins: Origins = field(default_factory=FrozenDict[Mapping[str, Origin]], repr=False)
    """The origin of each value: by server, then by our key."""
    warnings: tuple[str, ...] = ()
    files: tuple[Path, ...] = ()
    """All files that were read, or looked for because a server names them."""
    order: tuple[str, ...] = field(default=(), repr=False)
    """The names of all servers in the source, also of disabled and invalid ones."""
    state: str | None = field(default=None, repr=False)
    """The URL of the store that processes share, from the source or TOOLKEEP_STATE."""
    state_keys: tuple[str, ...] | None = field(default=None, repr=False)
    """The keys that encrypt it, from the source or TOOLKEEP_STATE_KEYS."""
    gateway: GatewaySettings | None = field(default=None, repr=False)
    """The table `[gateway]`; None if there is none, or if it is wrong."""
    gateway_error: ConfigError | None = None
    """What is wrong with the table `[gateway]`."""

    def __repr__(self) -> str:
        parts = [f"servers: {', '.join(spec.name for spec in self.servers) or 'none'}"]
        if self.needs_approval:
            parts.append(f"need approval: {', '.join(one.name for one in self.needs_approval)}")
        if self.disabled:
            parts.append(f"disabled: {', '.join(self.disabled)}")
        if self.invalid:
            parts.append(f"invalid: {', '.join(one.server or '?' for one in self.invalid)}")
        return f"<Configuration, {'; '.join(parts)}>"

    def __contains__(self, name: object) -> bool:
        return any(spec.name == name for spec in self.servers)

    def __getitem__(self, name: str) -> ServerSpec:
        for spec in self.servers:
            if spec.name == name:
                return spec
        raise KeyError(name)

    def gateway_settings(self) -> GatewaySettings:
        """The table `[gateway]`, or the defaults. Raises `ConfigError` if it is wrong."""
        from toolkeep.config.gateway import GatewaySettings

        if self.gateway_error is not None:
            raise unraised_copy(self.gateway_error)
        return self.gateway or GatewaySettings()

    def sort_servers(self, specs: Iterable[ServerSpec]) -> tuple[ServerSpec, ...]:
        """Sort specs into the order of the source."""
        positions = {name: position for position, name in enumerate(self.order)}
        return tuple(sorted(specs, key=lambda spec: positions.get(spec.name, len(positions))))


class LocalServerObject(Protocol):
    """A server in this process that has a name: an `MCPServer`, the SDK's low-level `Server`, or a
    server of FastMCP."""

    @property
    def name(self) -> str: ...
    @property
    def run(self) -> Any: ...


ConfigInput: TypeAlias = (
    str
    | Path
    | Mapping[str, Any]
    | Sequence[Any]
    | ServerSpec
    | Configuration
    | Callable[..., Any]
    | LocalServerObject
    | None
)
"""What a runtime is opened with: a path, a URL, servers as a mapping or a list, a `Configuration`,
one server, or None to look in the usual places."""

_CONFIG_TYPES = (str, Path, Mapping, list, tuple, ServerSpec, Configuration, type(None))


def check_config_input(value: object) -> None:
    """Raise `TypeError` for what cannot be a configuration."""
    if not isinstance(value, _CONFIG_TYPES) and not is_local_server(value):
        raise TypeError(
            "a runtime is opened with the path of a configuration file, a URL, a mapping or list of"
            f" servers, or a Configuration, not {type_name(value)}"
        )


@dataclass(frozen=True, slots=True)
class Difference:
    """How a new configuration differs from the old one. False if the servers are the same."""

    configuration: Configuration
    """The new one."""
    added: tuple[ServerSpec, ...] = ()
    removed: tuple[str, ...] = ()
    changed: tuple[ServerSpec, ...] = ()
    """The new specs."""
    unchanged: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.changed)


def difference(old: Configuration, new: Configuration) -> Difference:
    """Compare two configurations. A server is unchanged if its specs are equal.

    A server whose new entry is invalid keeps its old spec.
    """
    new = _keep_invalid(old, new)
    before = {spec.name: spec for spec in old.servers}
    after = {spec.name for spec in new.servers}
    return Difference(
        configuration=new,
        added=tuple(spec for spec in new.servers if spec.name not in before),
        removed=tuple(name for name in before if name not in after),
        changed=tuple(s for s in new.servers if s.name in before and before[s.name] != s),
        unchanged=tuple(s.name for s in new.servers if before.get(s.name) == s),
    )


def _keep_invalid(old: Configuration, new: Configuration) -> Configuration:
    invalid = {error.server for error in new.invalid}
    kept = tuple(spec for spec in old.servers if spec.name in invalid and spec.name not in new)
    if not kept:
        return new
    order = (*new.order, *(spec.name for spec in kept if spec.name not in new.order))
    reordered = replace(new, order=order)
    return replace(reordered, servers=reordered.sort_servers((*new.servers, *kept)))
