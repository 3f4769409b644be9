"""What an authorizer is asked about, and how OAuth fails.

Owns the words that all of `auth` shares; it does nothing itself and knows no HTTP.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from toolkeep.errors import AuthNeeded, ToolkeepError

__all__ = ["AuthRequest", "Challenge", "LoginNeeded", "OAuthError"]


@dataclass(frozen=True, slots=True)
class AuthRequest:
    """One HTTP request that needs credentials. `method` is the HTTP method."""

    server: str
    principal: str | None
    method: str
    url: str


@dataclass(frozen=True, slots=True)
class Challenge:
    """A 401 or 403 of an MCP server. `sent`: the headers that the authorizer had given."""

    status: int
    headers: Mapping[str, str] = field(repr=False)
    sent: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)

    @property
    def www_authenticate(self) -> str:
        found = (value for name, value in self.headers.items() if name.lower() == HEADER)
        return ", ".join(found)


HEADER = "www-authenticate"


class OAuthError(ToolkeepError):
    """One step of OAuth failed. `transient`: nothing is lost, trying again may help."""

    def __init__(
        self, step: str, problem: str, *, remedy: str = "", error: str = "", transient: bool = False
    ) -> None:
        self.step, self.problem, self.remedy = step, problem, remedy
        self.error = error
        """The code that the authorization server gave, such as `invalid_grant`."""
        self.transient = transient
        text = f"OAuth, {step}: {problem}"
        super().__init__(f"{text}. {remedy}" if remedy else text)


class LoginNeeded(AuthNeeded):
    """A person has to log in. `scopes`: those to ask for; `login_url`: set when one was begun."""

    def __init__(
        self,
        reason: str,
        *,
        server: str,
        principal: str | None = None,
        scopes: tuple[str, ...] = (),
        login_url: str = "",
    ) -> None:
        self.reason, self.principal = reason, principal
        self.scopes, self.login_url = scopes, login_url
        helps = f"Open {login_url}" if login_url else f"Run 'toolkeep login {server}'"
        who = f" for {principal!r}" if principal is not None else ""
        super().__init__(f"server {server!r} needs a login{who}: {reason}. {helps}", server=server)
