"""Why a login does not work: the steps of OAuth in their order, and the one that fails.

Asks what `toolkeep login` would ask, and registers nothing. Beside the stored login, which may be
refreshed, nothing is changed.
"""

from __future__ import annotations

import base64
from typing import Any, cast

from toolkeep._doctor.http import clock_skew
from toolkeep._doctor.report import Fault, Problem, StepFailed
from toolkeep._doctor.target import Target, Traffic
from toolkeep.auth import Authorizer, AuthRequest
from toolkeep.auth.authorizer import OAuthError
from toolkeep.auth.configured import ServerAuth
from toolkeep.auth.discovery import ISSUER, SERVER, bearer_challenge, json_object, require_pkce
from toolkeep.auth.grants import Grant
from toolkeep.auth.login import find_authorization_server
from toolkeep.auth.oauth import OAuth, resource_for
from toolkeep.auth.registration import known_client
from toolkeep.auth.tokens import GRANT_ENDING_ERRORS
from toolkeep.errors import AuthNeeded, ConfigError, ToolkeepError


async def examine_login(
    target: Target, traffic: Traffic, error: ToolkeepError, auth: ServerAuth, *, again: bool = False
) -> Authorizer | None:
    """The authorizer that the server should accept; None: this is not about OAuth.

    Raises `StepFailed` for the step of OAuth that fails. `again`: the server has refused that
    authorizer.
    """
    offered = bool(bearer_challenge(error.www_authenticate or "").resource_metadata)
    if not isinstance(error, AuthNeeded | OAuthError) or not (auth.is_login or offered):
        return None
    try:
        if auth.login is not None:
            return await _examine_user(target, traffic, auth.login, error, again=again)
        if auth.is_login and auth.configured is not None:
            return await _examine_service(target, auth.configured)
    except ConfigError as failed:  # the stored logins cannot be read
        raise StepFailed(Problem.of_config_error(failed)) from None
    except OAuthError as failed:
        raise StepFailed(_problem(target, failed)) from None
    return None


async def _examine_user(
    target: Target, traffic: Traffic, oauth: OAuth, error: ToolkeepError, *, again: bool
) -> Authorizer:
    found, _ = await find_authorization_server(oauth)
    try:
        require_pkce(found.server)
    except OAuthError as failed:
        raise StepFailed(Problem(Fault.OAUTH_PKCE, failed.problem, failed.remedy)) from None
    known_client(found.server, oauth.settings.client)
    name, key = target.spec.name, oauth.settings.key(None)
    login = f"Run `toolkeep login {name}`"
    try:
        grant = await oauth.grants.usable(key)
        if grant is not None and oauth.was_used and not again:
            grant = await oauth.grants.usable(key, rejected=grant.access_token)
    except OAuthError as failed:
        if failed.error not in GRANT_ENDING_ERRORS:
            raise
        cause = f"the login is no longer valid: {failed.problem}"
        raise StepFailed(Problem(Fault.LOGIN_EXPIRED, cause, login)) from None
    if grant is None and (oauth.was_used or error.failure is None):
        raise StepFailed(Problem(Fault.LOGIN_EXPIRED, str(error), login))  # it has just ended
    if grant is None:
        cause = f"no one has logged in; {found.server.issuer} is ready for it"
        raise StepFailed(Problem(Fault.LOGIN_NEEDED, cause, login))
    if again:
        resource = resource_for(oauth.settings, found.resource)
        raise StepFailed(_refused(target, traffic, grant, resource, error))
    return oauth


async def _examine_service(target: Target, service: Authorizer) -> Authorizer:
    await service.headers(AuthRequest(target.spec.name, None, "POST", target.spec.url))
    return service


def _problem(target: Target, error: OAuthError) -> Problem:
    fault = {
        "client registration": Fault.OAUTH_REGISTRATION,
        "resource metadata": Fault.OAUTH_METADATA,
        SERVER: Fault.OAUTH_METADATA,
        ISSUER: Fault.OAUTH_ISSUER,
    }.get(error.step, Fault.OAUTH_TOKEN)
    remedy = error.remedy or f"Check {target.key('auth')}, and ask the operator of the server"
    return Problem(fault, f"{error.step}: {error.problem}", remedy)


def _refused(
    target: Target, traffic: Traffic, grant: Grant, resource: str, error: ToolkeepError
) -> Problem:
    """Why the server refuses a token that is valid for its issuer."""
    audience = _audience(grant.access_token)
    if audience and resource and resource not in audience:
        shown = ", ".join(audience)[:200]
        cause = f"the token is for {shown}, and the server is {resource}"
        remedy = f"Set 'resource' in {target.key('auth')} to what the authorization server expects"
        return Problem(Fault.TOKEN_AUDIENCE, cause, remedy)
    for skew in clock_skew(traffic.responses):
        return skew
    reason = getattr(error, "reason", "") or "no reason given"
    cause = f"the server refuses the token of the login ({reason})"
    return Problem(Fault.LOGIN_EXPIRED, cause, f"Run `toolkeep login {target.spec.name}`")


def _audience(token: str) -> list[str]:
    """The audience that a JWT names, unchecked; empty for any other token."""
    parts = token.split(".")
    if len(parts) != 3:
        return []
    try:
        claims = json_object(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except ValueError:
        return []
    named: Any = (claims or {}).get("aud")
    listed = cast("list[Any]", named) if isinstance(named, list) else [named]
    return [one for one in listed if isinstance(one, str)]
