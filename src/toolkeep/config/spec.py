"""`ServerSpec`: what a user says about one server, checked and frozen.

Everything here is decided before anything is opened. A value that cannot work is a `ConfigError`
that names the server, the key and the remedy; a value that works but is unwise (plain http beyond
this machine, a secret in a URL) is a warning.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self, cast

from pydantic import (
    AfterValidator,
    Field,
    SecretStr,
    field_validator,
    model_validator,
)

from toolkeep.config.doubts import ConfigWarning as ConfigWarning
from toolkeep.config.doubts import doubts_about, warn
from toolkeep.config.expand import expand
from toolkeep.config.frozen import FrozenDict
from toolkeep.config.functions import with_tags
from toolkeep.config.parts import PROGRAM_START, TLS, Number, Seconds, Timeouts, with_patience
from toolkeep.config.redact import secrets_of_args
from toolkeep.config.showing import Shown
from toolkeep.config.tools import (
    DerivedHeaders,
    Guides,
    Kept,
    Offered,
    Patterns,
    Tags,
    ToolHeaders,
    ToolTags,
)
from toolkeep.config.transports import as_mapping, check_transport, name_for
from toolkeep.config.urls import NAME, check_http_url, our_names, problem, with_addresses
from toolkeep.errors import ConfigError

Count = Annotated[int, Field(ge=0), Number]
Positive = Annotated[int, Field(gt=0), Number]
ReplayPolicy = Literal["safe", "never", "always"]
Texts = Annotated[Mapping[str, str], AfterValidator(lambda given: FrozenDict(given))]
Arguments = Annotated[tuple[str, ...], Field()]
Addresses = Annotated[tuple[str, ...], Field(max_length=64)]
Policies = Annotated[Mapping[str, ReplayPolicy], AfterValidator(lambda given: FrozenDict(given))]


def _settled(server: Any) -> Any:
    return tuple(cast("list[Any]", server)) if isinstance(server, list) else server


def _renamed(name: Any) -> Any:
    """A name that another product gave, as it is here."""
    if not isinstance(name, str) or not name:
        return name
    ours = our_names([name])[name]
    if ours != name:
        warn(f"the server {name!r:.200} is called {ours} here")
    return ours


_MOST_SESSIONS, _MOST_PROCESSES = 128, 8
_KEY = re.compile(r"[\x21-\x7e]+")  # visible ASCII: RFC 6750 allows less, servers take more


class ServerSpec(Shown):
    """One server, as configured."""

    name: str
    url: str = Field(default="", repr=False)
    """Where the server is, over HTTP."""
    urls: Addresses = Field(default=(), repr=False)
    """All addresses of a server that has several, each as good as the others; `url` is then the
    first of them. Each has sockets, sessions, limits and a breaker of its own."""
    balance: Literal["session", "call"] = "session"
    """With several addresses, what goes to the one that has the least to do: each new `session`,
    whose calls then stay there, or each `call`, in a session for each address. Calls of servers
    without sessions are spread in any case."""
    command: str = ""
    """The program to start, for a server that speaks over its standard streams."""
    args: Arguments = Field(default=(), repr=False)
    env: Texts = Field(default=FrozenDict(), repr=False)
    """Set for the program, beside the few variables that every program needs (PATH, HOME, …).
    Nothing else of this process's environment reaches it. Values are treated as secrets."""
    cwd: str | None = None
    server: Annotated[Any, AfterValidator(_settled)] = Field(default=None, repr=False, exclude=True)
    """A server in this process: the SDK's `MCPServer` or `Server`, a function, or several."""
    transport: Literal["http", "sse", "stdio", "local"] | None = None
    """None: `stdio` for a command, `local` for a server in this process, and `http` for a URL,
    with `sse` (HTTP+SSE of 2024-11-05) where the server turns out to know nothing newer."""
    headers: Texts = Field(default=FrozenDict(), repr=False)
    """Sent with every request. Values are treated as secrets."""
    neutral_headers: frozenset[str] = frozenset()
    """Per-call headers that say nothing about who is calling (trace headers never do)."""
    tool_headers: ToolHeaders = Field(default=FrozenDict(), repr=False)
    """Sent with calls of single tools, by name. Values are treated as secrets."""
    derived_headers: DerivedHeaders = FrozenDict()
    """Headers made from a call's context: a name for `user`, `session`, `execution`, `trace` or
    `principal`. A list of these, or `true` for all, has names such as `x-user-id`."""
    api_key: SecretStr | None = None
    """Sent as `Authorization: Bearer` with every request."""
    mode: Literal["auto", "legacy", "modern"] = "auto"
    timeouts: Timeouts = Timeouts()
    tls: TLS = TLS()
    proxy: str | None = Field(default=None, repr=False)
    """A proxy's URL. None: HTTP_PROXY, HTTPS_PROXY and NO_PROXY decide. Empty: no proxy."""
    replay: ReplayPolicy = "safe"
    """Whether a call with an unknown outcome may be sent again: `safe` if its tool is marked
    read-only or idempotent, `never`, or `always`."""
    replay_tools: Policies = FrozenDict()
    """The same for single tools, by name."""
    max_replays: Count = 3
    """How often one call may be sent again, for whatever reason."""
    replay_burst: Count = 100
    """How many replays the server may see at once during an outage …"""
    replay_rate: Annotated[float, Field(ge=0, allow_inf_nan=False), Number] = 10.0
    """… and how many a second after that."""
    breaker_threshold: Count = 10
    """Consecutive transport faults after which calls fail at once. 0: never."""
    breaker_cooldown: Seconds = 1.0
    """Seconds until one call may probe; doubled while probes fail, up to 30."""
    max_in_flight: Positive = 256
    serialize: bool = False
    """One request at a time."""
    max_result_bytes: Positive = 32 * 1024 * 1024
    """No answer is read beyond this: it ends as an error, in bounded memory."""
    max_input_rounds: Positive = 10
    """How often a modern server may answer one call with questions."""
    result_limit: Annotated[int, Field(ge=1000), Number] | None = None
    """How many characters of a result a runtime hands on. None: all."""
    oversized: Literal["error", "truncate", "spill"] = "error"
    """What becomes of a result beyond that: an error that holds it; as much of it as fits, which
    says so; or a handle, by which the rest is read in parts."""
    cache_results: Kept = FrozenDict()
    """For how many seconds a runtime may use results again: one number, or one for each glob over
    the names of tools. Only of tools that are marked read-only, and never an error."""
    keep_alive: Seconds = 4.0
    """Idle sockets are dropped after this; uvicorn drops them after 5, and a call must not be
    spent on a dying one."""
    strip_none: bool = False
    """Drop None-valued optional arguments before sending."""
    listen: bool = False
    """Hear what the server says outside of calls even when nobody observes."""
    health_interval: Seconds | None = None
    """Seconds between two looks at whether it is alive. None: as often as its group does."""
    session: Literal["shared", "principal", "call"] | None = None
    """Whose session a call uses. `shared`: one for all, and a call with another identity is
    refused. `principal`: each principal's own. `call`: one for each call. None: the server's own
    for calls without identity, and for the others each principal's."""
    max_sessions: Positive | None = None
    """How many sessions of principals may be open at once; each is a process, if the server is a
    program. The one that has been idle the longest gives way; one in use never does, so as many
    busy principals keep all others waiting. None: 128, and 8 for programs."""
    include_tools: Offered = ()
    """Globs over the server's own names of tools: only these are offered. Empty: all."""
    exclude_tools: Patterns = ()
    """These are not offered, even if they are included."""
    tags: Tags = frozenset()
    """Of all its tools."""
    tool_tags: ToolTags = FrozenDict()
    """Further ones, by glob over the names of tools."""
    prompts_file: str | None = None
    """A file, or a folder of files, with prompts of your own beside the server's."""
    guides: Guides = FrozenDict()
    """What is appended to the description of a tool, by glob over their names. One word is the name
    of a prompt, `*` is the whole prompts file; what has a blank in it is the text itself."""

    @classmethod
    def parse(
        cls,
        value: object,
        *,
        name: str | None = None,
        env: Mapping[str, str] | None = None,
        file: str | None = None,
    ) -> ServerSpec:
        """A spec from a URL, a mapping, another spec, or a server in this process (an `MCPServer`,
        a function, several); anything wrong is a `ConfigError`."""
        if isinstance(value, ServerSpec):
            return value
        try:
            given = as_mapping(value)
            own = given.get("name")
            name = own if isinstance(own, str) else name
            given = expand(given, os.environ if env is None else env)
            given.setdefault("name", name or name_for(given))
            return cls(**{**given, "name": _renamed(given["name"])})
        except ConfigError as error:
            raise ConfigError(
                error.problem,
                remedy=error.remedy,
                server=error.server or name,
                key=error.key,
                file=file,
            ) from None

    def changed(self, **changes: Any) -> ServerSpec:
        """A copy with other values, checked like the first."""
        given: dict[str, Any] = {**dict(self), **changes}
        return ServerSpec(**given)

    @field_validator("name")
    @classmethod
    def _check_name(cls, name: str) -> str:
        if not NAME.fullmatch(name):
            raise problem(
                f"{name[:80]!r} is not a server name",
                "Use 1 to 64 letters, digits, '-' and '_', beginning with one of the former",
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
            raise problem("it holds a NUL character", "Correct it")
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
        if key is not None and not _KEY.fullmatch(key.get_secret_value()):
            raise problem(
                "the key is empty, or holds what a header cannot carry",
                "Give the bare key, without quotes, blanks or a line end",
            )
        return key

    @property
    def secrets(self) -> tuple[str, ...]:
        """What was given in confidence to the program that is started."""
        return (*self.env.values(), *secrets_of_args(self.args))

    @property
    def each(self) -> tuple[ServerSpec, ...]:
        """One for each address of the server, in the order of `urls`."""
        if not self.urls:
            return (self,)
        return tuple(self.model_copy(update={"url": url, "urls": ()}) for url in self.urls)

    @property
    def session_bound(self) -> int:
        """How many sessions of principals may be open at once."""
        return self.max_sessions or (_MOST_PROCESSES if self.command else _MOST_SESSIONS)

    @model_validator(mode="before")
    @classmethod
    def _be_patient(cls, given: Any) -> Any:
        """Programs may have to be downloaded before they say a word."""
        return with_patience(given, PROGRAM_START)

    @model_validator(mode="before")
    @classmethod
    def _gather_addresses(cls, given: Any) -> Any:
        return with_addresses(given)

    @model_validator(mode="before")
    @classmethod
    def _gather_tags(cls, given: Any) -> Any:
        return with_tags(given)

    @model_validator(mode="after")
    def _check_transport(self) -> Self:
        check_transport(self)
        return self

    @model_validator(mode="after")
    def _warn(self) -> Self:
        for doubt in doubts_about(self):
            warn(doubt)
        return self
