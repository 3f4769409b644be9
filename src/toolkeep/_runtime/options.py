"""What a user can say about a runtime, beside where its servers are described."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from toolkeep._catalogue.builtin import builtin
from toolkeep._engine.inputs import Answers
from toolkeep._rules.budget import Backoff
from toolkeep._rules.classify import SessionRow
from toolkeep._runtime.gate import Filter, PermissionsGiven
from toolkeep._runtime.speaking import HeaderProvider
from toolkeep.auth import Authorizer
from toolkeep.config import Approvals
from toolkeep.errors import ConfigError
from toolkeep.stores import SessionStore
from toolkeep.stores.results import ResultStore

if TYPE_CHECKING:
    from toolkeep._engine.setup import ResponseCacheStore
    from toolkeep.config.inputs import Inputs


class Options(TypedDict, total=False):
    """All of them may be left out."""

    strict: bool
    """One server that cannot be opened, or whose configuration is wrong, fails the opening.
    Otherwise it is tried again, or set aside."""
    functions: Iterable[Callable[..., Any]] | None
    """These join the catalogue as a server named `builtin`, with `echo` and `chat_log`."""
    permissions: PermissionsGiven | None
    """Who may see and call what: from principals to patterns of tools, or a function."""
    filter: Filter | None
    """Which tools are offered in which context."""
    header_provider: HeaderProvider | None
    """Headers from a context and a server's name, under those of the context."""
    auth: Authorizer | None
    """Who gives requests their credentials, for each principal."""
    store: SessionStore | None
    """Where sessions are kept that other processes may take up."""
    terminate_on_close: bool | None
    client_info: Mapping[str, str] | None
    session_rows: Sequence[SessionRow]
    sampling: Answers | None
    elicitation: Answers | None
    roots: Answers | Sequence[str | Path] | None
    cache: ResponseCacheStore | None
    results: ResultStore | None
    """Where results are kept that may be used again (`cache_results`). None: in memory, 64 MiB."""
    live: bool
    """Hear of changed lists as they change: over HTTP that takes a stream for each server."""
    follow: bool
    """Apply edits of the configuration's file as they are made."""
    env: Mapping[str, str] | None
    cwd: Path | str | None
    inputs: Inputs | None
    approvals: Approvals | None
    parallel: bool
    """Open servers at the same time, which is the default, or one after the other."""
    connect_timeout: float
    cleanup_timeout: float
    health_interval: float | None
    """Seconds between two looks at whether a server is alive. None: never."""
    backoff: Backoff | None
    """Between two tries to open a server. None: only `reconnect` tries again."""


OF_GROUP = (
    "strict",
    "parallel",
    "connect_timeout",
    "cleanup_timeout",
    "health_interval",
    "backoff",
)
OF_CLIENTS = ("auth", "client_info", "session_rows", "store", "terminate_on_close", "cache")
OF_QUESTIONS = ("sampling", "elicitation", "roots")
OF_SOURCES = ("env", "cwd", "inputs", "approvals", "strict")


def checked(options: Options) -> dict[str, Any]:
    known = Options.__optional_keys__
    for key in options:
        if key not in known:
            remedy = f"There are: {', '.join(sorted(known))}"
            raise ConfigError("there is no such option", remedy=remedy, key=key)
    return dict(options)


def functions_of(options: Mapping[str, Any]) -> tuple[Callable[..., Any], ...] | None:
    """Checked, and kept for every opening."""
    functions = options.get("functions")
    if functions is None:
        return None
    kept = tuple(functions)
    builtin(kept)
    return kept


def chosen(options: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    return {name: options[name] for name in names if name in options}
