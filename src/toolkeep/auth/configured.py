"""`ServerAuth`: the authorizer of one server, as its configuration asks for it."""

from __future__ import annotations

from functools import cached_property, partial
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from toolkeep.auth.authorizer import Authorizer, StaticKey

if TYPE_CHECKING:
    from toolkeep.auth.discovery import Fetch
    from toolkeep.auth.oauth import OAuth, OAuthSettings
    from toolkeep.auth.services import ClientCredentials
    from toolkeep.auth.storage import LoginStorage
    from toolkeep.config import Auth, ServerSpec


class ServerAuth:
    """The authorizer of one configured server, and its logins. Making it does no I/O.

    Belongs to a server of a runtime, or to a client that stands alone; all principals share it.
    `storage`: the runtime's. None: its own, made when it is needed.
    """

    def __init__(self, spec: ServerSpec, storage: LoginStorage | None = None) -> None:
        self.spec, self._storage = spec, storage
        self._own_storage: LoginStorage | None = None

    @cached_property
    def configured(self) -> Authorizer | None:
        """The authorizer that the configuration names; None: it names none."""
        spec = self.spec
        if spec.api_key is not None:
            return StaticKey(spec.api_key.get_secret_value())
        if spec.auth is None or spec.auth.type == "none":
            return None
        return self._service if spec.auth.type == "client_credentials" else self.login

    @property
    def is_login(self) -> bool:
        """Whether the configuration asks for OAuth."""
        return self.spec.auth is not None and self.spec.auth.type != "none"

    @property
    def is_in_use(self) -> bool:
        """Whether OAuth gives, or has given, the credentials of a request."""
        login: OAuth | None = self.__dict__.get("login")
        return self.is_login or (login is not None and login.was_used)

    @property
    def has_login(self) -> bool:
        """Whether people can log in to this server."""
        spec, wanted = self.spec, self.spec.auth
        if not spec.url or len(spec.urls) > 1 or spec.api_key is not None:
            return False
        if wanted is not None:
            return wanted.type == "oauth"
        own = urlsplit(spec.url).username or any(n.lower() == "authorization" for n in spec.headers)
        return not own

    @cached_property
    def login(self) -> OAuth | None:
        """The authorizer for logins of people; None: this server has no login."""
        if not self.has_login:
            return None
        from toolkeep.auth.oauth import OAuth
        from toolkeep.config import Auth

        settings = _settings(self.spec, self.spec.auth or Auth())
        return OAuth(settings, self._kept, fetch=_fetch_for(self.spec))

    @cached_property
    def _kept(self) -> LoginStorage:
        from toolkeep.auth.storage import LoginStorage

        if self._storage is None:
            self._own_storage = LoginStorage()
        storage = self._storage or self._own_storage
        assert storage is not None
        return storage

    @cached_property
    def _service(self) -> ClientCredentials:
        from toolkeep.auth.services import ClientCredentials

        assert self.spec.auth is not None
        settings, fetch = _settings(self.spec, self.spec.auth), _fetch_for(self.spec)
        return ClientCredentials(settings, self._kept, fetch=fetch)

    async def aclose(self) -> None:
        """Wait for running refreshes, and close what was opened. It may be used again."""
        for name in ("login", "_service"):
            made: OAuth | ClientCredentials | None = self.__dict__.get(name)
            if made is not None:
                await made.aclose()
        if self._own_storage is not None:
            await self._own_storage.aclose()


def _settings(spec: ServerSpec, wanted: Auth) -> OAuthSettings:
    from toolkeep.auth.oauth import OAuthSettings
    from toolkeep.auth.registration import ClientSettings

    client = ClientSettings(
        client_id=wanted.client_id,
        client_secret=wanted.client_secret.get_secret_value() if wanted.client_secret else "",
        metadata_url=wanted.client_metadata_url,
        name=wanted.client_name,
        auth_method=wanted.auth_method or "",
        signing_key=wanted.signing_key.get_secret_value() if wanted.signing_key else "",
        signing_algorithm=wanted.signing_algorithm,
        key_id=wanted.key_id,
    )
    return OAuthSettings(
        server=spec.name,
        url=_plain_url(spec.url),
        client=client,
        scopes=wanted.scopes,
        resource=wanted.resource,
        issuer=wanted.issuer,
        redirect_uri=wanted.redirect_uri,
        allow=spec.egress.allow,
    )


def _plain_url(url: str) -> str:
    """Without a user and password: they are a header of the MCP server."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def _fetch_for(spec: ServerSpec) -> Fetch:
    """The guarded fetch with the server's proxy and trust, without its client certificate."""
    from toolkeep._transport.egress import fetch

    tls = spec.tls.model_copy(update={"client_cert": None, "client_key": None})
    return partial(fetch, tls=tls, proxy=spec.proxy)
