"""Credentials and principal of one client: configured headers, the authorizer, and the check that
a session serves one principal only.

All configuration errors are raised before anything is opened. Never logs a header value.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from toolkeep._rules.headers import HeaderRefused, check_headers, split_ignored_headers
from toolkeep._rules.identity import CREDENTIAL_HEADERS, conflicting_header, identity_headers
from toolkeep._tasks import was_cancelled
from toolkeep._version import __version__
from toolkeep.auth import Authorizer, AuthRequest, Challenge
from toolkeep.auth.configured import ServerAuth
from toolkeep.config import ServerSpec
from toolkeep.config.spec import warn
from toolkeep.errors import ConfigError, NotPermitted, ToolkeepError

if TYPE_CHECKING:
    from toolkeep._client.options import ClientOptions

logger = logging.getLogger("toolkeep.client")


def check_client_options(spec: ServerSpec, options: ClientOptions) -> None:
    """Raise `ConfigError` for options that contradict each other, before anything is opened."""
    if options.auth is not None and not spec.url:
        what = "'auth' needs a server that is reached over HTTP"
        raise ConfigError(what, server=spec.name, key="auth", remedy="Remove 'auth'")
    is_authorized = options.auth is not None or ServerAuth(spec).is_login
    if options.stores_sessions and is_authorized and options.stored_for is None:
        raise ConfigError(
            "the principal of the stored sessions is unknown",
            server=spec.name,
            key="principal",
            remedy="Name the principal that the authorizer authorizes",
        )


def credentials_for(
    spec: ServerSpec, options: ClientOptions, refresher: CredentialRefresher
) -> RequestCredentials | None:
    """What authorizes the requests of a client; None: nothing ever does."""
    if not spec.url:
        return None
    return RequestCredentials(spec, options, refresher)


class RequestCredentials:
    """Gives a transport the credentials of each request: the authorizer's headers, and the caller's
    identity headers unless the request brings its own. Lives as long as its transport factory."""

    def __init__(
        self, spec: ServerSpec, options: ClientOptions, refresher: CredentialRefresher
    ) -> None:
        self._refresher, self._caller = refresher, options.caller_headers
        self._requests = {
            method: AuthRequest(spec.name, options.principal, method, spec.url)
            for method in ("POST", "GET", "DELETE")
        }
        self._answered = getattr(refresher.auth, "answered", None)
        self.takes_responses = self._answered is not None
        self._given: Mapping[str, str] = {}
        self._checked: Mapping[str, str] = {}

    @property
    def is_active(self) -> bool:
        return self._caller is not None or self._refresher.auth is not None

    async def headers(self, method: str, own: bool) -> Mapping[str, str]:
        caller: Mapping[str, str] = {} if own or self._caller is None else self._caller.headers
        auth = self._refresher.auth
        if auth is None:
            return caller
        given = await auth.headers(self._requests[method])
        if given != self._given:
            checked = check_headers(given, origin="the authorizer")
            self._given, self._checked = dict(given), split_ignored_headers(checked)[0]
        return {**self._checked, **caller} if caller else self._checked

    def answered(self, method: str, headers: Mapping[str, str]) -> None:
        if self._answered is not None:
            try:
                self._answered(self._requests[method], headers)
            except Exception as error:  # its text may quote a token
                logger.warning("the authorizer failed with %s", type(error).__name__)


def check_configured_headers(spec: ServerSpec) -> None:
    """Raise `ConfigError` for headers that could never be sent, before anything is opened."""
    _check_config_headers(spec, spec.headers, "headers")
    for tool, given in spec.tool_headers.items():
        _check_config_headers(spec, given, f"tool_headers.{tool}")
    _check_config_headers(spec, dict.fromkeys(spec.derived_headers.values(), ""), "derived_headers")


def server_headers(spec: ServerSpec) -> dict[str, str]:
    """The headers that go with every request, to every endpoint."""
    checked = _check_config_headers(spec, spec.headers, "headers")
    kept, ignored = split_ignored_headers(checked)
    for name in ignored:
        warn(f"{spec.name}: the header {name!r} is set by the protocol and ignored here")
    return {"user-agent": f"toolkeep/{__version__}", **kept}


def _check_config_headers(spec: ServerSpec, given: Mapping[str, str], key: str) -> dict[str, str]:
    try:
        return check_headers(given, origin=key)
    except HeaderRefused as refused:
        key = f"{key}.{refused.name}"
        raise ConfigError(
            refused.reason, server=spec.name, key=key, remedy="Remove or correct it"
        ) from None


def basic_auth_headers(url: str) -> dict[str, str]:
    """The credentials in a URL as a Basic authorization header."""
    parts = urlsplit(url)
    if parts.username is None:
        return {}
    user = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    return {"authorization": f"Basic {base64.b64encode(user.encode()).decode()}"}


def distinguishing_headers(identity: Mapping[str, str], *, named: bool) -> list[tuple[str, str]]:
    """The headers by which principals differ. A named principal may rotate its token; without a
    name, the headers alone tell principals apart."""
    return sorted(
        (name, value)
        for name, value in identity.items()
        if not named or name not in CREDENTIAL_HEADERS
    )


class PrincipalBinding:
    """The principal that one client's session belongs to. Identity headers are only ever added,
    until the client is closed."""

    def __init__(
        self,
        spec: ServerSpec,
        headers: Mapping[str, str],
        *,
        authorized: bool,
        fixed: bool,
        trusted: bool,
    ) -> None:
        self._spec, self._fixed, self._trusted = spec, fixed, trusted
        self._identity = dict(identity_headers(headers, spec.non_identity_headers))
        if authorized:
            self._identity["authorization"] = ""

    @property
    def identity_facts(self) -> Mapping[str, str]:
        """The headers that tell this principal from other unnamed ones."""
        key = self._spec.api_key
        key_header = {"authorization": key.get_secret_value()} if key is not None else {}
        return {**self._identity, **key_header}

    @property
    def has_credentials(self) -> bool:
        """Whether the session belongs to the sender of an authorization header."""
        return "authorization" in self._identity

    def authorize(self) -> None:
        """From now on an authorizer gives the credentials: no call may bring its own."""
        self._identity.setdefault("authorization", "")

    def bind(self, headers: Mapping[str, str]) -> None:
        """Add the identity headers of a call. Raises `NotPermitted` if they are another
        principal's."""
        if self._trusted:
            return
        wanted = identity_headers(headers, self._spec.non_identity_headers)
        differing = conflicting_header(self._identity, wanted)
        if differing is None and self._fixed:
            # Another process may resume the session and would not know of a new identity header.
            differing = next((name for name in wanted if name not in self._identity), None)
        if differing is not None:
            raise NotPermitted(
                f"{self._spec.name}: the header {differing!r} differs from the one of this"
                " client's session. Use one client for each user (and name the principal if"
                " sessions are stored), or list the header in non_identity_headers"
            )
        self._identity.update(wanted)


def cache_partition(
    spec: ServerSpec,
    options: ClientOptions,
    binding: PrincipalBinding,
    version: str | None,
    instance_id: str,
    *,
    authorized: bool,
) -> str:
    """The response cache's key for what one server told one principal. `instance_id` is unique to
    the client: it keeps apart clients that nothing else distinguishes, and clients of a server
    without an address, since the same command in another directory is another program.
    `authorized`: an authorizer gives the credentials."""
    principal, identity_key = options.principal, options.identity_key
    facts: list[Any] = [
        spec.url,
        spec.urls,
        spec.command,
        spec.args,
        sorted(spec.env.items()),
        spec.cwd,
    ]
    facts += [
        distinguishing_headers(binding.identity_facts, named=principal is not None),
        identity_key,
    ]
    unnamed = principal is None and identity_key is None and authorized
    if not (spec.url or spec.urls) or unnamed:
        facts.append(instance_id)
    digest = hashlib.sha256(json.dumps(facts).encode()).hexdigest()
    return json.dumps([spec.name, version, principal, digest])


class CredentialRefresher:
    """Renews the credentials of one client, once for all requests that met the same challenge. The
    client's endpoints share it."""

    def __init__(self, auth: Authorizer | None, server_auth: ServerAuth) -> None:
        """`auth`: the user's own authorizer, in place of the configured one."""
        self.auth = auth or server_auth.configured
        self.is_dynamic = auth is not None or server_auth.is_login
        """Whether the credentials depend on more than the configuration."""
        self._server_auth = server_auth
        self.epoch: int = 0
        """Grows whenever the credentials are renewed."""
        self.reset()

    def reset(self) -> None:
        """Called when the client is closed: it may be used next in another event loop."""
        self._lock = asyncio.Lock()

    async def refresh(self, epoch: int, request: AuthRequest, challenge: Challenge) -> bool:
        """Whether there are newer credentials than those of the epoch that met this challenge.
        Raises what the authorizer raises, if it is a `ToolkeepError`.

        Without an authorizer, a server that offers OAuth gets the login that was made for it.
        """
        async with self._lock:
            if epoch != self.epoch:
                return True  # another call has already renewed them
            auth = self.auth or self._login_for(challenge)
            if auth is None:
                return False
            renewed = await _ask_authorizer(auth, request, challenge)
            if renewed and self.auth is None:
                self.auth, self.is_dynamic = auth, True
            self.epoch += renewed
            return renewed

    def _login_for(self, challenge: Challenge) -> Authorizer | None:
        if challenge.status != 401 or "authorization" in challenge.sent:
            return None
        from toolkeep.auth.discovery import bearer_challenge  # imports the HTTP library

        if not bearer_challenge(challenge.www_authenticate).resource_metadata:
            return None
        return self._server_auth.login


async def _ask_authorizer(auth: Authorizer, request: AuthRequest, challenge: Challenge) -> bool:
    """Whether the authorizer has new credentials. If it fails unexpectedly, the challenge is
    reported."""
    try:
        return bool(await auth.challenged(request, challenge))
    except asyncio.CancelledError:
        if was_cancelled():
            raise
        return False
    except ToolkeepError:
        raise
    except Exception as error:  # its text may quote a token
        logger.warning("the authorizer failed with %s", type(error).__name__)
        return False
