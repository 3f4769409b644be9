"""The options of `Runtime`, and which part of it each one configures."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from toolkeep._client.server_requests import RequestHandlerOption
from toolkeep._rules.backoff import Backoff
from toolkeep._rules.classify import SessionLostRule
from toolkeep._runtime.access_policy import Filter, PermissionsOption
from toolkeep._runtime.builtin import builtin_server
from toolkeep._runtime.caller import HeaderProvider
from toolkeep.auth import Authorizer
from toolkeep.config import Approvals
from toolkeep.errors import ConfigError
from toolkeep.state import Store

if TYPE_CHECKING:
    from toolkeep.config.resolve import Inputs


class RuntimeOptions(TypedDict, total=False):
    """All are optional."""

    strict: bool
    """Fail if one server cannot be opened or is configured wrongly, and refuse a list whose pages
    repeat. Otherwise the server is tried again in the background, or skipped, and the list is used
    as far as it was read, with a warning."""
    functions: Iterable[Callable[..., Any]] | None
    """Python functions to offer as tools of a server `builtin`, beside `echo` and `chat_log`."""
    permissions: PermissionsOption | None
    """Who may see and call what: patterns of tools by principal, or a function."""
    filter: Filter | None
    """Which tools are offered in which context."""
    header_provider: HeaderProvider | None
    """Gives headers for a context and a server's name. Headers of the context override them."""
    auth: Authorizer | None
    """Adds credentials to requests, for each principal."""
    state: str | Store | None
    """What processes share: a store, or its URL. None: TOOLKEEP_STATE, then `state` of the
    configuration, then nothing."""
    keys: Sequence[str | bytes] | None
    """Encrypt what is in the store. The first key encrypts, all decrypt."""
    session_owner: str | None
    """Whose the sessions of calls without a principal are. With a name, a store keeps them also
    where an authorizer gives their credentials."""
    terminate_on_close: bool | None
    client_info: Mapping[str, str] | None
    session_lost_rules: Sequence[SessionLostRule]
    sampling: RequestHandlerOption | None
    elicitation: RequestHandlerOption | None
    roots: RequestHandlerOption | Sequence[str | Path] | None
    listen: bool
    """Receive change notifications. Over HTTP this takes one stream per server."""
    auto_reload: bool
    """Apply edits of the configuration file as they are made."""
    env: Mapping[str, str] | None
    cwd: Path | str | None
    inputs: Inputs | None
    approvals: Approvals | None
    parallel: bool
    """Open servers in parallel (the default) or one after the other."""
    connect_timeout: float
    cleanup_timeout: float
    health_interval: float | None
    """Seconds between two health checks of a server. None: never."""
    backoff: Backoff | None
    """Delays between tries to open a server. None: only `reconnect` tries again."""


GROUP_OPTIONS = (
    "strict",
    "parallel",
    "connect_timeout",
    "cleanup_timeout",
    "health_interval",
    "backoff",
)
CLIENT_OPTIONS = (
    "strict",
    "auth",
    "client_info",
    "session_lost_rules",
    "session_owner",
    "terminate_on_close",
)
HANDLER_OPTIONS = ("sampling", "elicitation", "roots")
CONFIG_OPTIONS = ("env", "cwd", "inputs", "approvals", "strict")


def check_options(options: RuntimeOptions) -> dict[str, Any]:
    known = RuntimeOptions.__optional_keys__
    for key in options:
        if key not in known:
            remedy = f"Known: {', '.join(sorted(known))}"
            raise ConfigError("there is no such option", remedy=remedy, key=key)
    return dict(options)


def check_functions(options: Mapping[str, Any]) -> tuple[Callable[..., Any], ...] | None:
    """The functions as a tuple, since an iterator serves one opening only. Raises `ConfigError` for
    what cannot be a tool."""
    functions = options.get("functions")
    if functions is None:
        return None
    kept = tuple(functions)
    builtin_server(kept)
    return kept


def select_options(options: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    return {name: options[name] for name in names if name in options}
