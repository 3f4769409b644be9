"""An issuer of access tokens: real keys, and its key set on a real server of this machine."""

import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

from tests.oauth.world import Faulty, faulty
from toolkeep._transport.egress import fetch
from toolkeep.gateway.access import Denied, JwtAccess

AUDIENCE = "https://gateway.example/mcp"
KEYS_PATH = "/keys"

direct = partial(fetch, proxy="", timeout=5.0)

RSA = rsa.generate_private_key(public_exponent=65537, key_size=2048)
EC = ec.generate_private_key(ec.SECP256R1())
ED = ed25519.Ed25519PrivateKey.generate()

_JWK = {
    "RS256": RSAAlgorithm,
    "ES256": ECAlgorithm,
    "EdDSA": OKPAlgorithm,
}


def public_jwk(key: Any, algorithm: str, **more: Any) -> dict[str, Any]:
    found = _JWK[algorithm].to_jwk(key.public_key(), as_dict=True)
    wanted = {"use": "sig", "alg": algorithm, **found, **more}
    return {name: value for name, value in wanted.items() if value is not None}


def claims(**changed: Any) -> dict[str, Any]:
    """Claims that are right; None removes one."""
    now = int(time.time())
    right = {"iss": "https://issuer.example", "aud": AUDIENCE, "sub": "alice", "exp": now + 300}
    return {name: value for name, value in {**right, **changed}.items() if value is not None}


def sign(
    given: Mapping[str, Any],
    key: Any = RSA,
    algorithm: str = "RS256",
    kid: str | None = "first",
    **header: Any,
) -> str:
    named = header if kid is None else {"kid": kid, **header}
    return jwt.encode(dict(given), key, algorithm, named)


def bearer(token: str) -> dict[str, str]:
    return {"host": "gateway.example", "authorization": f"Bearer {token}"}


async def refusal(access: Any, headers: Mapping[str, str]) -> Denied:
    """How a request is refused."""
    try:
        found = await access.authenticate(headers)
    except Denied as denied:
        return denied
    raise AssertionError(f"it was accepted: {found}")


@dataclass
class Issuer:
    """An authorization server's key set. `keys` may be changed while it runs."""

    server: Faulty
    keys: list[dict[str, Any]] = field(default_factory=list)

    @property
    def url(self) -> str:
        return self.server.origin + KEYS_PATH

    @property
    def reads(self) -> int:
        """How often the keys were read."""
        return len(self.server.asked(KEYS_PATH))

    def access(self, **options: Any) -> JwtAccess:
        given = {"issuer": "https://issuer.example", "audience": AUDIENCE, **options}
        return JwtAccess(jwks_url=self.url, fetch=direct, **given)


@asynccontextmanager
async def issuing(*keys: dict[str, Any]) -> AsyncIterator[Issuer]:
    async with faulty() as server:
        issuer = Issuer(server, list(keys) or [public_jwk(RSA, "RS256", kid="first")])
        server.routes[KEYS_PATH] = lambda request: (200, {"keys": issuer.keys})
        yield issuer
