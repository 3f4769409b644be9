"""What a server's configuration says about headers and credentials, settled before anything is
opened."""

from __future__ import annotations

import base64
from collections.abc import Awaitable, Callable, Mapping
from urllib.parse import unquote, urlsplit

from toolkeep._engine.setup import Setup
from toolkeep._rules import headers as header_rules
from toolkeep._version import __version__
from toolkeep.auth import Authorizer, StaticKey
from toolkeep.config import ServerSpec
from toolkeep.config.spec import warn
from toolkeep.errors import ConfigError
from toolkeep.stores import SessionStore


def check_combination(
    spec: ServerSpec, auth: Authorizer | None, store: SessionStore | None, principal: str | None
) -> None:
    """What makes no sense together is said before anything is opened."""
    for key, given in (("auth", auth), ("store", store)):
        if given is not None and not spec.url:
            what = f"{key!r} means nothing to a server that is reached without HTTP"
            raise ConfigError(what, server=spec.name, key=key, remedy=f"Leave out {key!r}")
    if store is not None and auth is not None and principal is None:
        raise ConfigError(
            "nothing tells whose sessions are stored",
            server=spec.name,
            key="principal",
            remedy="Name the principal for whom the authorizer speaks",
        )


def static_key(spec: ServerSpec) -> Authorizer | None:
    return StaticKey(spec.api_key.get_secret_value()) if spec.api_key is not None else None


def credentials(
    spec: ServerSpec, setup: Setup, auth: Authorizer | None
) -> Callable[[str, bool], Awaitable[Mapping[str, str]]] | None:
    """For the wire: what authorizes a request; and, unless it is a call that brings all that is
    said of its principal, what the principal says of itself."""
    if auth is None and setup.voice is None:
        return None

    async def given(method: str, own: bool) -> Mapping[str, str]:
        said: Mapping[str, str] = {} if own or setup.voice is None else setup.voice.headers
        if auth is None:
            return said
        found = await auth.headers(spec.name, setup.principal, method, spec.url)
        checked = header_rules.check(found, origin="the authorizer")
        return {**header_rules.split_ignored(checked)[0], **said}

    return given


def check_headers(spec: ServerSpec) -> None:
    """Whatever could never be sent is said before anything is opened."""
    _checked(spec, spec.headers, "headers")
    for tool, given in spec.tool_headers.items():
        _checked(spec, given, f"tool_headers.{tool}")
    _checked(spec, dict.fromkeys(spec.derived_headers.values(), ""), "derived_headers")


def server_headers(spec: ServerSpec) -> dict[str, str]:
    """Those that go with every request, to whichever address."""
    checked = _checked(spec, spec.headers, "headers")
    kept, ignored = header_rules.split_ignored(checked)
    for name in ignored:
        text = f"{spec.name}: the header {name!r} is the protocol's own and is ignored"
        warn(text)
    return {"user-agent": f"toolkeep/{__version__}", **kept}


def _checked(spec: ServerSpec, given: Mapping[str, str], key: str) -> dict[str, str]:
    try:
        return header_rules.check(given, origin=key)
    except header_rules.HeaderRefused as refused:
        key = f"{key}.{refused.name}"
        raise ConfigError(
            refused.reason, server=spec.name, key=key, remedy="Remove or correct it"
        ) from None


def basic_auth(url: str) -> dict[str, str]:
    """The credentials in a URL, as the header that they stand for."""
    parts = urlsplit(url)
    if parts.username is None:
        return {}
    user = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    return {"authorization": f"Basic {base64.b64encode(user.encode()).decode()}"}
