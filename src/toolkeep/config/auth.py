"""`Auth`: how toolkeep logs in to a server with OAuth, also as other products write it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, cast
from urllib.parse import urlsplit

from pydantic import (
    BeforeValidator,
    Field,
    SecretStr,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from toolkeep.config.fields import FrozenModel, Number, check_http_url, field_error, is_loopback

FOREIGN_AUTH_KEYS: Mapping[str, str] = {
    "clientId": "client_id",  # Claude Code, Gemini CLI
    "clientSecret": "client_secret",
    "callbackPort": "callback_port",
    "redirectUri": "redirect_uri",
    "CLIENT_ID": "client_id",  # Cursor
    "CLIENT_SECRET": "client_secret",
    "oauth_scopes": "scopes",
}
"""Keys of other products below `auth` or `oauth`, with ours."""


def _split_scopes(given: Any) -> Any:
    """Scopes may be written as one text, as OAuth does."""
    return given.split() if isinstance(given, str) else given


TEXTS_SCHEMA = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}
"""For a list that may be written as one text."""

Scopes = Annotated[tuple[str, ...], BeforeValidator(_split_scopes), WithJsonSchema(TEXTS_SCHEMA)]


class Auth(FrozenModel):
    """How toolkeep gets access tokens for a server."""

    type: Literal["oauth", "client_credentials", "none"] = "oauth"
    """`oauth`: a person logs in (`toolkeep login`). `client_credentials`: toolkeep acts as a
    service. `none`: no login, also when the server asks for one."""
    client_id: str = ""
    """The client that you registered with the authorization server. Empty: toolkeep registers one
    where the server allows it."""
    client_secret: SecretStr | None = None
    client_metadata_url: str = ""
    """The https URL of a client ID metadata document that you host."""
    client_name: str = "toolkeep"
    """The name that toolkeep registers with, which the login page shows."""
    auth_method: Literal["none", "client_secret_basic", "client_secret_post", "private_key_jwt"] | (
        None
    ) = None
    """How the client authenticates. None: as the authorization server supports."""
    signing_key: SecretStr | None = None
    """A private key in PEM, for `private_key_jwt`."""
    signing_algorithm: str = "ES256"
    key_id: str = ""
    scopes: Scopes = ()
    """Scopes to request in any case, in a list or separated by spaces."""
    resource: str = ""
    """The resource indicator to send: `omit` for none, a URL, or empty for the server's own."""
    issuer: str = ""
    """The only authorization server to trust. Empty: the one that the server names."""
    callback_port: Annotated[int, Field(ge=1, le=65535), Number] | None = None
    """The port of `toolkeep login`'s callback, if the client is registered with a fixed one."""
    redirect_uri: str = ""
    """The callback URL of a web application, for `Runtime.begin_login`."""

    @field_validator("client_metadata_url", "issuer")
    @classmethod
    def _check_url(cls, url: str) -> str:
        if url:
            check_http_url(url)
        return url

    @field_validator("resource")
    @classmethod
    def _check_resource(cls, resource: str) -> str:
        if resource not in ("", "omit") and not urlsplit(resource).scheme:
            raise field_error("it is not a URL", "Give a URL, or 'omit' to send no resource")
        return resource

    @field_validator("redirect_uri")
    @classmethod
    def _check_redirect(cls, uri: str) -> str:
        parts = urlsplit(uri)
        plain = parts.scheme == "http" and not is_loopback(parts.hostname or "")
        if uri and (not parts.scheme or plain):
            raise field_error("it must use https or a loopback address", "Write https://…")
        return uri

    @field_validator("client_secret", "signing_key")
    @classmethod
    def _check_secret(cls, secret: SecretStr | None) -> SecretStr | None:
        if secret is not None and not secret.get_secret_value():
            raise field_error("it is empty", "Give it, for example from a variable: ${NAME}")
        return secret

    @model_validator(mode="after")
    def _check_client(self) -> Auth:
        secret = self.client_secret or self.signing_key
        if self.type == "client_credentials" and not (self.client_id and secret):
            problem = "a service needs a client with a secret or a key"
            remedy = "Set 'client_id', and 'client_secret' or 'signing_key'"
            raise field_error(problem, remedy, "client_id")
        if secret and not (self.client_id or self.client_metadata_url):
            problem = "a secret needs the client that it belongs to"
            raise field_error(problem, "Set 'client_id'", "client_id")
        return self


def to_auth(given: Any) -> Any:
    """`auth` may be the type alone. The error for another text must not quote it: it may be a
    token."""
    if not isinstance(given, str):
        return given
    if given in ("oauth", "client_credentials", "none"):
        return {"type": given}
    remedy = 'Write "oauth" or {"type": "oauth", …}; a token belongs into \'api_key\''
    raise field_error("it is not a type of authorization", remedy)


def auth_converter(_entry: Mapping[str, Any]) -> Any:
    """Converts the `auth` or `oauth` of other products to ours."""

    def ours(value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        given = cast("dict[str, Any]", value)
        found = {FOREIGN_AUTH_KEYS.get(key, key): one for key, one in given.items()}
        found.pop("enabled", None)
        return found

    return ours
