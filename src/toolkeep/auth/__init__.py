"""Credentials for requests: the `Authorizer` protocol, `StaticKey`, and logins with OAuth.

The client asks an authorizer for headers before every HTTP request, handshakes and health checks
included, and once more after a 401 or 403. The authorizer returns before the request is sent, so it
holds no lock meanwhile. If it raises, the request fails: no request is sent without credentials.
"""

from __future__ import annotations

from toolkeep.auth.authorizer import (
    ANY_PRINCIPAL,
    AnyPrincipal,
    Authorizer,
    AuthRequest,
    Challenge,
    Login,
    LoginRequest,
    OAuthError,
    StaticKey,
)

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
]
