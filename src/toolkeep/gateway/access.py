"""Who may call a gateway: API keys, and access tokens of an authorization server.

An `Access` turns the headers of a request into a `Caller`, or raises `Denied` with the HTTP answer
to give. It sees only headers, keeps no session and passes no credential on. Reasons name the rule
that a credential breaks and quote nothing of it.

Tokens are JWTs that are verified here (RFC 9068, RFC 8725): the signature must be one of the pinned
algorithms, all with public keys, made with a key of the issuer that fits the algorithm. Challenges
follow RFC 6750, and name the document (RFC 9728) by which an OAuth client logs in by itself.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import re
import secrets
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from time import monotonic, time
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, Protocol, cast
from urllib.parse import urlsplit

from toolkeep.auth.discovery import Fetch, json_object, resource_metadata_urls
from toolkeep.config.fields import is_loopback
from toolkeep.config.gateway import ApiKey, GatewaySettings, Jwt, hash_key, new_key
from toolkeep.errors import ConfigError, ToolkeepError

if TYPE_CHECKING:
    from jwt.types import Options

__all__ = [
    "FORBIDDEN",
    "UNAUTHORIZED",
    "UNAVAILABLE",
    "Access",
    "AnyAccess",
    "ApiKey",
    "Caller",
    "Denied",
    "JwtAccess",
    "KeyAccess",
    "OpenAccess",
    "access_for",
    "check_exposure",
    "hash_key",
    "new_key",
]

logger = logging.getLogger("toolkeep.gateway")

UNAUTHORIZED, FORBIDDEN, UNAVAILABLE = -32010, -32011, -32013
"""JSON-RPC codes of refusals: no valid credential, too few rights, and not now. MCP leaves their
range to implementations."""

MAX_TOKEN = 16 * 1024
"""Characters of a credential. Larger ones are refused unread."""
MAX_PRINCIPAL = 256
MAX_VERIFIED = 1024
"""Verified tokens that are remembered: a signature costs about as much as a whole call."""

FRESH = 600.0
"""Seconds until the keys of an issuer are read again."""
USABLE = 4 * 3600.0
"""Seconds for which known keys are used while the issuer cannot be reached."""
REFETCH_INTERVAL = 10.0
"""Seconds between two requests for keys, however many tokens name an unknown one."""
FETCH_TIMEOUT = 5.0
MAX_KEYS = 100
MIN_RSA_BITS = 2048

_BEARER = re.compile(r"(?i:bearer) +([A-Za-z0-9._~+/-]+=*)")
_TYPES = ("jwt", "at+jwt", "application/at+jwt")
"""What `typ` may say: other kinds of JWTs are no access tokens."""
_CURVES = {"ES256": "P-256", "ES384": "P-384", "ES512": "P-521"}
_KINDS = {"R": "RSA", "P": "RSA", "E": "EC"}


@dataclass(frozen=True, slots=True)
class Caller:
    """Who sent a request."""

    principal: str | None
    """None: the gateway asks for no credential."""
    claims: Mapping[str, Any] = field(default_factory=dict[str, Any], repr=False)
    """Facts about the principal, for permissions and filters."""
    kind: Literal["open", "key", "jwt"] = "open"
    expires: float | None = None
    """When the credential ends (seconds since the epoch)."""


class Denied(ToolkeepError):
    """A request that is refused: the HTTP status and headers, and the JSON-RPC error to answer."""

    def __init__(
        self, status: int, code: int, message: str, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.http_status, self.code, self.message = status, code, message
        self.headers = MappingProxyType(dict(headers or {}))

    @property
    def status(self) -> int:
        return self.http_status


class Access(Protocol):
    """Decides who sent a request."""

    async def authenticate(self, headers: Mapping[str, str]) -> Caller:
        """The caller, by the headers of a request with names in lower case. Raises `Denied`."""
        ...

    def metadata(self, url: str) -> dict[str, Any] | None:
        """The protected-resource metadata (RFC 9728) of the gateway at this URL, if there is
        one."""
        ...


class OpenAccess:
    """No check: for loopback, where the user of the machine is the only caller."""

    async def authenticate(self, headers: Mapping[str, str]) -> Caller:
        return _ANYBODY

    def metadata(self, url: str) -> dict[str, Any] | None:
        return None


_ANYBODY = Caller(None)


class AnyAccess:
    """Takes what any of several takes, asked in this order. The last one's refusal is the answer:
    let it be the one whose challenge tells a client how to log in."""

    def __init__(self, *accesses: Access) -> None:
        if not accesses:
            raise ValueError("AnyAccess needs at least one access")
        *self._first, self._last = accesses

    async def authenticate(self, headers: Mapping[str, str]) -> Caller:
        for access in self._first:
            try:
                return await access.authenticate(headers)
            except Denied as denied:
                if denied.status != 401:
                    raise
        return await self._last.authenticate(headers)

    def metadata(self, url: str) -> dict[str, Any] | None:
        found = (access.metadata(url) for access in (*self._first, self._last))
        return next((one for one in found if one is not None), None)


def access_for(settings: GatewaySettings) -> Access:
    """What the configuration says: keys, tokens, either of both, or no check."""
    accesses: list[Access] = []
    if settings.keys:
        accesses.append(KeyAccess(settings.keys))
    if settings.jwt is not None:
        accesses.append(JwtAccess.of(settings.jwt))
    if not accesses:
        return OpenAccess()
    return accesses[0] if len(accesses) == 1 else AnyAccess(*accesses)


def check_exposure(access: Access, host: str) -> None:
    """Refuse to serve without credentials at an address that other machines can reach."""
    if isinstance(access, OpenAccess) and not is_loopback(host.strip("[]")):
        raise ConfigError(
            f"{host} can be reached from other machines, and the gateway asks for no credential",
            key="gateway.host",
            remedy="Add [gateway.keys] or [gateway.jwt], or listen at 127.0.0.1",
        )


# -- API keys -----------------------------------------------------------------------------------


class KeyAccess:
    """Takes API keys, sent as bearer tokens. `keys`: hashes and claims, by principal."""

    def __init__(self, keys: Mapping[str, ApiKey]) -> None:
        # By a digest with a key of this process: what a look-up costs tells nothing about a hash.
        self._secret = secrets.token_bytes(32)
        self._callers = {
            self._digest(one): Caller(principal, key.claims, "key")
            for principal, key in keys.items()
            for one in key.hash
        }

    def __repr__(self) -> str:
        return f"<KeyAccess, {len(self._callers)} keys>"

    def _digest(self, hashed: str) -> bytes:
        return hmac.digest(self._secret, hashed.encode(), "sha256")

    async def authenticate(self, headers: Mapping[str, str]) -> Caller:
        token = bearer_token(headers, self._denied)
        caller = self._callers.get(self._digest(hash_key(token)))
        if caller is None:
            raise self._denied("the API key is not valid", "invalid_token")
        return caller

    def metadata(self, url: str) -> dict[str, Any] | None:
        return None

    def _denied(self, message: str, error: str = "") -> Denied:
        return Denied(401, UNAUTHORIZED, message, _challenge(error=error, description=message))


def bearer_token(headers: Mapping[str, str], denied: Callable[..., Denied]) -> str:
    """The bearer token of a request. Raises what `denied` makes."""
    given = headers.get("authorization", "")
    if len(given) > MAX_TOKEN:
        raise denied("the credential is too large", "invalid_token")
    found = _BEARER.fullmatch(given.strip(" \t"))
    if found is not None:
        return found[1]
    if given[:6].lower() == "bearer":
        raise denied("the credential is malformed", "invalid_token")
    raise denied("a credential is needed: send Authorization: Bearer with it")


def _challenge(
    *, error: str = "", description: str = "", scopes: Iterable[str] = (), metadata: str = ""
) -> dict[str, str]:
    """A `WWW-Authenticate` header. Without an error when the request had no credential (RFC 6750,
    section 3.1)."""
    parts = {"resource_metadata": metadata, "error": error}
    parts["error_description"] = description if error else ""
    parts["scope"] = " ".join(scopes)
    given = ", ".join(f'{name}="{value}"' for name, value in parts.items() if value)
    return {"www-authenticate": f"Bearer {given}".strip()}


# -- access tokens ------------------------------------------------------------------------------


class JwtAccess:
    """Takes JWT access tokens of one issuer, for one or several audiences.

    The keys of the issuer are read from `jwks_url`, or given as `jwks` (a JSON Web Key Set).
    `scopes` must all be granted. `resource` is the public URL of the gateway; by default the
    audience that is a URL. `fetch` replaces the guarded request for the keys, for example with
    other TLS trust.
    """

    def __init__(
        self,
        issuer: str,
        audience: str | Iterable[str],
        jwks_url: str = "",
        *,
        jwks: Mapping[str, Any] | None = None,
        algorithms: Iterable[str] = ("RS256", "ES256"),
        leeway: float = 30.0,
        scopes: Iterable[str] = (),
        principal_claim: str = "sub",
        resource: str = "",
        fetch: Fetch | None = None,
    ) -> None:
        if bool(jwks_url) == (jwks is not None):
            raise ConfigError(
                "the keys of the issuer come from one place",
                key="jwks_url",
                remedy="Give jwks_url, or jwks",
            )
        self._settings = settings = Jwt(
            issuer=issuer,
            audience=(audience,) if isinstance(audience, str) else tuple(audience),
            jwks_url=jwks_url or issuer,
            algorithms=tuple(algorithms),
            leeway=leeway,
            scopes=tuple(scopes.split()) if isinstance(scopes, str) else tuple(scopes),
            principal_claim=principal_claim,
            resource=resource,
        )
        self._resource = settings.public_url
        has_server = urlsplit(issuer).scheme in ("https", "http")
        self._metadata_url = resource_metadata_urls(self._resource)[0] if has_server else ""
        self._keys = KeySet(jwks_url, _imported_keys(jwks) if jwks else (), fetch)
        self._verified: OrderedDict[bytes, tuple[Caller, int]] = OrderedDict()
        self._options: Options = {"require": ["exp", "iss", "aud"], "verify_sub": False}

    @classmethod
    def of(cls, settings: Jwt, fetch: Fetch | None = None) -> JwtAccess:
        given = settings.model_dump()
        return cls(**given, fetch=fetch)

    def __repr__(self) -> str:
        return f"<JwtAccess, tokens of {self._settings.issuer}>"

    def metadata(self, url: str) -> dict[str, Any] | None:
        """Always about the gateway as a whole: a token for it is valid below its URL, too."""
        if not self._metadata_url:
            return None
        scopes = {"scopes_supported": list(self._settings.scopes)} if self._settings.scopes else {}
        return {
            "resource": self._resource,
            "authorization_servers": [self._settings.issuer],
            "bearer_methods_supported": ["header"],
            **scopes,
        }

    async def authenticate(self, headers: Mapping[str, str]) -> Caller:
        token = bearer_token(headers, self._denied)
        digest = hashlib.sha256(token.encode()).digest()
        known = self._verified.get(digest)
        if known is not None and self._is_valid(*known):
            self._verified.move_to_end(digest)
            return known[0]
        header = self._read_header(token)
        key = await self._find_key(header)
        caller = self._verify(token, header["alg"], key)
        self._verified[digest] = caller, self._keys.revision
        if len(self._verified) > MAX_VERIFIED:
            self._verified.popitem(last=False)
        return caller

    def _is_valid(self, caller: Caller, revision: int) -> bool:
        """Whether a remembered token still is: not expired, and the keys are those that it was
        verified with."""
        assert caller.expires is not None
        in_time = time() < caller.expires + self._settings.leeway
        return in_time and revision == self._keys.revision and not self._keys.is_due

    def _read_header(self, token: str) -> dict[str, Any]:
        """The header, which is not verified yet: it may only choose among what is accepted."""
        import jwt

        try:
            header = jwt.get_unverified_header(token)
        except Exception:
            raise self._invalid("it is not a JWT") from None
        kid, kind = header.get("kid"), header.get("typ", "JWT")
        if header.get("alg") not in self._settings.algorithms:
            raise self._invalid("its algorithm is not accepted")
        if "crit" in header or not (kid is None or isinstance(kid, str)):
            raise self._invalid("it is not supported")
        if not isinstance(kind, str) or kind.lower() not in _TYPES:
            raise self._invalid("it is not an access token")
        return header

    async def _find_key(self, header: Mapping[str, Any]) -> Any:
        try:
            key = await self._keys.find(header.get("kid"), header["alg"])
        except KeysUnavailable:
            text = "the keys of the authorization server cannot be read now; try again"
            retry = {"retry-after": f"{REFETCH_INTERVAL:.0f}"}
            raise Denied(503, UNAVAILABLE, text, retry) from None
        if key is None:
            raise self._invalid("it is signed with an unknown key")
        return key

    def _verify(self, token: str, algorithm: str, key: Any) -> Caller:
        import jwt

        settings = self._settings
        try:
            claims: dict[str, Any] = jwt.decode(
                token,
                key,
                algorithms=[algorithm],
                audience=settings.audience,
                issuer=settings.issuer,
                leeway=settings.leeway,
                options=self._options,
            )
            expires = float(claims["exp"])
        except Exception as error:
            raise self._invalid(_reason(error)) from None
        principal = claims.get(settings.principal_claim)
        if not isinstance(principal, str) or not 0 < len(principal) <= MAX_PRINCIPAL:
            raise self._invalid("it names no principal")
        if not principal.isprintable():
            raise self._invalid("the name of its principal is not printable")
        if not _scopes_of(claims).issuperset(settings.scopes):
            raise self._lacks_scope()
        return Caller(principal, MappingProxyType(claims), "jwt", expires)

    def _invalid(self, reason: str) -> Denied:
        return self._denied(f"the access token is not accepted: {reason}", "invalid_token")

    def _denied(self, message: str, error: str = "") -> Denied:
        return Denied(401, UNAUTHORIZED, message, self._challenge(error, message))

    def _lacks_scope(self) -> Denied:
        text = "the access token has too few scopes"
        return Denied(403, FORBIDDEN, text, self._challenge("insufficient_scope", text))

    def _challenge(self, error: str, text: str) -> dict[str, str]:
        scopes, metadata = self._settings.scopes, self._metadata_url
        return _challenge(error=error, description=text, scopes=scopes, metadata=metadata)


def _reason(error: Exception) -> str:
    """Why a token is not valid, without the texts of the library, which may quote it."""
    import jwt

    match error:
        case jwt.ExpiredSignatureError():
            return "it has expired"
        case jwt.ImmatureSignatureError():
            return "it is not valid yet"
        case jwt.InvalidAudienceError():
            return "it is for another audience"
        case jwt.InvalidIssuerError():
            return "it is from another issuer"
        case jwt.InvalidSignatureError():
            return "its signature is wrong"
        case jwt.MissingRequiredClaimError():
            return "it lacks exp, iss or aud"
        case _:
            return "it cannot be read"


def _scopes_of(claims: Mapping[str, Any]) -> set[str]:
    """The scopes of a token: `scope` as text (RFC 9068), or `scp`, as some issuers write it."""
    given = claims.get("scope", claims.get("scp", ""))
    if isinstance(given, str):
        return set(given.split())
    listed = cast("list[Any]", given) if isinstance(given, list) else []
    return {one for one in listed if isinstance(one, str)}


# -- the keys of an issuer ----------------------------------------------------------------------


class KeysUnavailable(Exception):
    """The keys of the issuer could not be read, and none are known."""


@dataclass(frozen=True, slots=True)
class SigningKey:
    """One public key of an issuer."""

    kid: str | None
    algorithm: str | None
    kind: str
    curve: str | None
    key: Any = field(repr=False)

    def fits(self, kid: str | None, algorithm: str) -> bool:
        """Whether a token with this header may be verified with it."""
        if kid is not None and self.kid != kid:
            return False
        if self.algorithm not in (None, algorithm):
            return False
        if algorithm == "EdDSA":
            return self.kind == "OKP"
        return self.kind == _KINDS[algorithm[0]] and self.curve == _CURVES.get(algorithm)


class KeySet:
    """The public keys of one issuer. Without a URL, they never change.

    Read again when they are old, and when a token names an unknown key, but at most every
    `REFETCH_INTERVAL` seconds. One caller reads, in its own request, the others wait for it. While
    the issuer cannot be reached, known keys are used for `USABLE` seconds.
    """

    def __init__(
        self, url: str, keys: Iterable[SigningKey] = (), fetch: Fetch | None = None
    ) -> None:
        self._url, self._keys, self._fetch = url, tuple(keys), fetch
        self._read_at = float("-inf")
        self._next_read = float("-inf")
        self._lock = asyncio.Lock()
        self.revision = 0
        """Changes with the keys."""

    @property
    def is_due(self) -> bool:
        """Whether the keys should be read again, and may be."""
        now = monotonic()
        return bool(self._url) and now >= max(self._read_at + FRESH, self._next_read)

    async def find(self, kid: str | None, algorithm: str) -> Any:
        """The key for a token with this header; None: there is none. Raises `KeysUnavailable`."""
        # While another caller reads, usable keys are used.
        if not self._is_usable or (self.is_due and not self._lock.locked()):
            await self._read_once(self._read_at)
        found = self._of(kid, algorithm)
        if found is None:
            await self._read_once(self._read_at)
            found = self._of(kid, algorithm)
        if not self._is_usable:
            raise KeysUnavailable
        return found

    @property
    def _is_usable(self) -> bool:
        return not self._url or monotonic() < self._read_at + USABLE

    def _of(self, kid: str | None, algorithm: str) -> Any:
        found = [one for one in self._keys if one.fits(kid, algorithm)]
        # A token that names no key must leave no choice.
        return found[0].key if found and (kid is not None or len(found) == 1) else None

    async def _read_once(self, known_at: float) -> None:
        """Read the keys, unless they never change, or were read lately: for example while this
        caller waited for its turn."""
        async with self._lock:
            if not self._url or self._read_at != known_at or monotonic() < self._next_read:
                return
            self._next_read = monotonic() + REFETCH_INTERVAL
            keys = await self._read()
            if keys:
                self._keys, self._read_at = keys, monotonic()
                self.revision += 1

    async def _read(self) -> tuple[SigningKey, ...]:
        from toolkeep._transport import egress

        fetch = self._fetch or partial(egress.fetch, timeout=FETCH_TIMEOUT)
        policy = egress.policy_for(self._url)
        try:
            headers = {"accept": "application/jwk-set+json, application/json"}
            response = await fetch("GET", self._url, policy=policy, headers=headers)
        except egress.FetchFailed as error:
            logger.warning("the keys of an issuer could not be read: %s", error)
            return ()
        document = json_object(response.body) if response.status == 200 else None
        keys = _imported_keys(document or {})
        if not keys:
            text = "the keys of an issuer could not be read: %s answered %s without a usable key"
            logger.warning(text, urlsplit(self._url).hostname, response.status)
        return keys


def _imported_keys(document: Mapping[str, Any]) -> tuple[SigningKey, ...]:
    """The keys of a JSON Web Key Set that can verify signatures. Others are left out."""
    listed = document.get("keys")
    given = cast("list[Any]", listed)[:MAX_KEYS] if isinstance(listed, list) else []
    return tuple(key for one in given if (key := _import_key(one)) is not None)


def _import_key(given: Any) -> SigningKey | None:
    import jwt
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

    if not isinstance(given, dict):
        return None
    data = cast("dict[str, Any]", given)
    texts = [data.get(name) for name in ("kid", "alg", "kty", "crv")]
    if not all(one is None or isinstance(one, str) for one in texts):
        return None
    kid, algorithm, kind, curve = cast("list[str | None]", texts)
    operations = data.get("key_ops", ["verify"])
    usable = kind in ("RSA", "EC", "OKP") and "d" not in data
    if not usable or data.get("use", "sig") != "sig" or operations != ["verify"]:
        return None
    try:
        # The algorithm decides which class reads the key, not what it is used for.
        key = jwt.PyJWK({**data, "alg": None}, _READ_AS.get(curve or "", "RS256")).key
    except Exception:
        return None
    if isinstance(key, RSAPublicKey) and key.key_size < MIN_RSA_BITS:
        return None
    return SigningKey(kid, algorithm, kind or "", curve, key)


_READ_AS = {
    **{curve: algorithm for algorithm, curve in _CURVES.items()},
    **dict.fromkeys(("Ed25519", "Ed448"), "EdDSA"),
}
