"""What an authorizer is asked, the simplest authorizer, and the errors of OAuth.

Does no I/O.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol, runtime_checkable

from toolkeep.errors import AuthNeeded, ToolkeepError

__all__ = [
    "ANY_PRINCIPAL",
    "AnyPrincipal",
    "AuthRequest",
    "Authorizer",
    "Challenge",
    "Login",
    "LoginRequest",
    "OAuthError",
    "StaticKey",
    "login_needed",
]

HEADER = "www-authenticate"


@dataclass(frozen=True, slots=True)
class AuthRequest:
    """One HTTP request that needs credentials. `method` is the HTTP method."""

    server: str
    principal: str | None
    method: str
    url: str


@dataclass(frozen=True, slots=True)
class Challenge:
    """A 401 or 403 from an MCP server. `sent`: the headers of the request that it refused."""

    status: int
    headers: Mapping[str, str] = field(repr=False)
    sent: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)

    @property
    def www_authenticate(self) -> str:
        found = (value for name, value in self.headers.items() if name.lower() == HEADER)
        return ", ".join(found)


@runtime_checkable
class Authorizer(Protocol):
    """Gives each request its credentials.

    A `ToolkeepError` that it raises, such as `AuthNeeded` with a `login_url`, reaches the caller of
    the request. Of any other exception the caller learns the type only: its text may hold secrets.

    An authorizer may also have a method `answered(request, headers)`. It is called, without
    waiting, with the headers of each HTTP response, in lower case.
    """

    async def headers(self, request: AuthRequest) -> Mapping[str, str]:
        """Headers for one HTTP request."""
        ...

    async def challenged(self, request: AuthRequest, challenge: Challenge) -> bool:
        """Called once per call after a 401 or 403. True: the credentials changed, send again."""
        ...


class StaticKey:
    """One key, sent as a bearer token."""

    def __init__(self, key: str) -> None:
        self._headers = {"authorization": f"Bearer {key}"}

    def __repr__(self) -> str:
        return "StaticKey(***)"

    async def headers(self, request: AuthRequest) -> Mapping[str, str]:
        return self._headers

    async def challenged(self, request: AuthRequest, challenge: Challenge) -> bool:
        return False


@dataclass(frozen=True, slots=True)
class LoginRequest:
    """A login that has begun. Open `url` in the user's browser before `expires`."""

    url: str = field(repr=False)
    state: str = field(repr=False)
    expires: float
    """Seconds since the epoch."""


@dataclass(frozen=True, slots=True)
class Login:
    """Who is logged in where. Holds no secret."""

    server: str
    principal: str | None
    url: str
    issuer: str
    scopes: tuple[str, ...]
    expires: float | None
    """When the access token expires (seconds since the epoch); None: the server did not say."""
    is_renewable: bool
    """Whether there is a refresh token, so that the login outlives the access token."""


class AnyPrincipal(enum.Enum):
    """The type of `ANY_PRINCIPAL`: a callback may complete the login of any principal."""

    ANY = "any"


ANY_PRINCIPAL: Final = AnyPrincipal.ANY


class OAuthError(ToolkeepError):
    """One step of OAuth failed. `transient`: nothing is lost, and a retry may succeed."""

    def __init__(
        self, step: str, problem: str, *, remedy: str = "", error: str = "", transient: bool = False
    ) -> None:
        self.step, self.problem, self.remedy = step, problem, remedy
        self.error = error
        """The error code of the authorization server, such as `invalid_grant`."""
        self.transient = transient
        text = f"OAuth, {step}: {problem}"
        super().__init__(f"{text}. {remedy}" if remedy else text)


def login_needed(
    reason: str,
    *,
    server: str,
    principal: str | None = None,
    scopes: tuple[str, ...] = (),
    login_url: str = "",
) -> AuthNeeded:
    """The error for a user who must log in. `login_url`: set when a login has begun."""
    remedy = f"Open {login_url}" if login_url else login_remedy(server, principal)
    who = f" for {principal!r}" if principal is not None else ""
    return AuthNeeded(
        f"server {server!r} needs a login{who}: {reason}. {remedy}",
        server=server,
        principal=principal,
        reason=reason,
        scopes=scopes,
        login_url=login_url,
    )


def login_remedy(server: str, principal: str | None = None) -> str:
    """The command that logs in; for a principal, the method, since its browser is elsewhere."""
    if principal is None:
        return f"Run 'toolkeep login {server}'"
    return f"Begin a login: runtime.begin_login({server!r}, {principal!r})"
