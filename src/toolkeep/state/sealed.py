"""`sealed`: authenticated encryption of values, log entries and messages, around any store.

The cipher is XAES-256-GCM (C2SP): AES-256-GCM with a key derived for each message from a random
nonce of 24 bytes. Plain AES-GCM has 12: after four thousand million messages with one key, two
might share a nonce, and a busy fleet gets there in weeks.

A ciphertext is bound to its kind and name: a value that was moved to another key does not decrypt.
It is not bound to a time: an attacker who can write to the store can restore an older value of the
same key. Names, sizes, leases and buckets are not encrypted.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import importlib
import logging
import re
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from toolkeep.errors import ConfigError, SealBroken
from toolkeep.state.store import Entry, Lease, Store

__all__ = ["SealedStore", "sealed"]

logger = logging.getLogger("toolkeep.state")

FORMAT = b"\x01"
KEY_SIZE, KEY_ID_SIZE, NONCE_SIZE, TAG_SIZE = 32, 8, 24, 16
HEADER_SIZE = len(FORMAT) + KEY_ID_SIZE + NONCE_SIZE

_URLSAFE_TO_STANDARD = str.maketrans("-_", "+/")
"""From the base64 alphabet for URLs to the standard one."""

GENERATE_KEY = "Generate a key with: python -c 'import secrets; print(secrets.token_hex(32))'"


def sealed(store: Store, keys: Sequence[str | bytes]) -> SealedStore:
    """`store` with its values, log entries and messages encrypted.

    A key is 32 random bytes, as base64, hexadecimal or bytes. The first key encrypts, all decrypt.
    To change keys, add the new one at the end in every process, then move it to the front, and
    remove the old one when everything it encrypted has expired or been rewritten.
    """
    return SealedStore(store, keys)


class SealedStore:
    """A store that encrypts the contents of another. Made by `sealed`.

    `get` and `read` raise `SealBroken` for contents that do not decrypt: if they counted as absent,
    a process with wrong keys would overwrite data that others need. `put` and `delete` still work.
    Messages that do not decrypt are dropped with a warning.
    """

    def __init__(self, store: Store, keys: Sequence[str | bytes]) -> None:
        self._store, self._key_ring = store, KeyRing(keys)

    def __repr__(self) -> str:
        return f"sealed({self._store!r})"

    async def get(self, key: str) -> Entry | None:
        found = await self._store.get(key)
        if found is None:
            return None
        return Entry(self._decrypt(found.value, "value", key), found.version)

    async def put(
        self, key: str, value: bytes, *, ttl: float | None = None, if_version: int | None = None
    ) -> int | None:
        ciphertext = self._key_ring.encrypt(value, _associated_data("value", key))
        return await self._store.put(key, ciphertext, ttl=ttl, if_version=if_version)

    async def delete(self, key: str, *, if_version: int | None = None) -> bool:
        return await self._store.delete(key, if_version=if_version)

    def scan(self, prefix: str) -> AsyncIterator[str]:
        return self._store.scan(prefix)

    async def lease(self, key: str, ttl: float) -> Lease | None:
        return await self._store.lease(key, ttl)

    async def renew(self, lease: Lease, ttl: float) -> bool:
        return await self._store.renew(lease, ttl)

    async def release(self, lease: Lease) -> None:
        await self._store.release(lease)

    async def take(self, key: str, *, rate: float, burst: float, cost: float = 1.0) -> float:
        return await self._store.take(key, rate=rate, burst=burst, cost=cost)

    async def append(self, log: str, entry: bytes, *, max_entries: int, ttl: float) -> int:
        ciphertext = self._key_ring.encrypt(entry, _associated_data("log", log))
        return await self._store.append(log, ciphertext, max_entries=max_entries, ttl=ttl)

    async def read(self, log: str, after: int = 0, *, limit: int = 100) -> list[tuple[int, bytes]]:
        found = await self._store.read(log, after, limit=limit)
        return [(position, self._decrypt(entry, "log", log)) for position, entry in found]

    async def publish(self, channel: str, message: bytes) -> None:
        await self._store.publish(
            channel, self._key_ring.encrypt(message, _associated_data("channel", channel))
        )

    def subscribe(self, channel: str) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        return self._subscribed(channel)

    @asynccontextmanager
    async def _subscribed(self, channel: str) -> AsyncGenerator[AsyncIterator[bytes]]:
        async with self._store.subscribe(channel) as messages:
            yield self._decrypt_messages(messages, channel)

    async def _decrypt_messages(
        self, messages: AsyncIterator[bytes], channel: str
    ) -> AsyncGenerator[bytes]:
        async for message in messages:
            try:
                yield self._decrypt(message, "channel", channel)
            except SealBroken as problem:
                logger.warning("dropped a message: %s", problem)

    async def aclose(self) -> None:
        await self._store.aclose()

    def _decrypt(self, ciphertext: bytes, kind: str, name: str) -> bytes:
        try:
            return self._key_ring.decrypt(ciphertext, _associated_data(kind, name))
        except DecryptionFailed as problem:
            raise SealBroken(
                f"the {kind} {name!r} cannot be decrypted: {problem}",
                store=repr(self._store),
                remedy="Add the key that encrypted it to the keys, or delete it",
            ) from None


def _associated_data(kind: str, name: str) -> bytes:
    """The associated data. A kind has no colon, so it is unique for each kind and name."""
    return f"{kind}:{name}".encode()


class DecryptionFailed(ValueError):
    """Why a ciphertext does not decrypt. Its message quotes only a key id."""


class KeyRing:
    """Encrypts with the first key, decrypts with any. A key's id is a digest of it."""

    def __init__(self, keys: Sequence[str | bytes]) -> None:
        cryptography = _library()
        if isinstance(keys, str | bytes) or not keys:
            raise ConfigError("keys must be a list of one or more keys", remedy=GENERATE_KEY)
        self._keys: dict[bytes, DerivedKeys] = {}
        for number, key in enumerate(keys, 1):
            secret = _decoded(key, number)
            self._keys.setdefault(_key_id(secret), DerivedKeys(secret, cryptography))
        self._first = next(iter(self._keys))

    def __repr__(self) -> str:
        return f"<KeyRing {', '.join(one.hex() for one in self._keys)}>"

    def encrypt(self, value: bytes, data: bytes) -> bytes:
        nonce = secrets.token_bytes(NONCE_SIZE)
        header = FORMAT + self._first + nonce
        return header + self._keys[self._first].encrypt(nonce, value, header + data)

    def decrypt(self, ciphertext: bytes, data: bytes) -> bytes:
        header, body = ciphertext[:HEADER_SIZE], ciphertext[HEADER_SIZE:]
        if header[:1] != FORMAT or len(body) < TAG_SIZE:
            raise DecryptionFailed("it is truncated or not encrypted")
        key_id = header[1 : 1 + KEY_ID_SIZE]
        key = self._keys.get(key_id)
        if key is None:
            raise DecryptionFailed(
                f"it was encrypted with the key {key_id.hex()}, which is not configured"
            )
        value = key.decrypt(header[-NONCE_SIZE:], body, header + data)
        if value is None:
            raise DecryptionFailed("it was changed, or moved from another name")
        return value


class DerivedKeys:
    """One key as XAES-256-GCM uses it: <https://c2sp.org/XAES-256-GCM>."""

    def __init__(self, key: bytes, cryptography: Any) -> None:
        ciphers = cryptography.hazmat.primitives.ciphers
        self._aes = ciphers.Cipher(ciphers.algorithms.AES(key), ciphers.modes.ECB())
        self._gcm, self._invalid = ciphers.aead.AESGCM, cryptography.exceptions.InvalidTag
        # The subkey K1 of CMAC: the encrypted zero block, doubled in GF(2^128).
        block = int.from_bytes(self._encrypt_blocks(bytes(16)))
        self._mask = (block << 1 & (1 << 128) - 1) ^ (0x87 if block >> 127 else 0)

    def encrypt(self, nonce: bytes, value: bytes, data: bytes) -> bytes:
        return self._derived(nonce).encrypt(nonce[12:], value, data)

    def decrypt(self, nonce: bytes, ciphertext: bytes, data: bytes) -> bytes | None:
        try:
            return self._derived(nonce).decrypt(nonce[12:], ciphertext, data)
        except self._invalid:
            return None

    def _derived(self, nonce: bytes) -> Any:
        blocks = (b"\x00" + number + b"X\x00" + nonce[:12] for number in (b"\x01", b"\x02"))
        masked = ((int.from_bytes(block) ^ self._mask).to_bytes(16) for block in blocks)
        return self._gcm(self._encrypt_blocks(b"".join(masked)))

    def _encrypt_blocks(self, blocks: bytes) -> bytes:
        return self._aes.encryptor().update(blocks)


def _key_id(key: bytes) -> bytes:
    return hashlib.sha256(b"toolkeep key id" + key).digest()[:KEY_ID_SIZE]


def _decoded(key: str | bytes, number: int) -> bytes:
    """The 32 bytes of a key. An error names the key by its number and does not quote it."""
    found = key if isinstance(key, bytes) else _from_text(key.strip())
    if len(found) != KEY_SIZE:
        raise ConfigError(
            f"key {number} of the store must be 32 bytes in base64 or hexadecimal",
            remedy=GENERATE_KEY,
        )
    return found


def _from_text(text: str) -> bytes:
    if re.fullmatch(r"[0-9a-fA-F]{64}", text):
        return bytes.fromhex(text)
    if not re.fullmatch(r"(?:[\w+/-]{43})=?", text, re.ASCII):
        return b""
    try:
        return base64.b64decode(
            text.rstrip("=").translate(_URLSAFE_TO_STANDARD) + "=", validate=True
        )
    except binascii.Error:
        return b""


def _library() -> Any:
    try:
        for part in ("exceptions", "hazmat.primitives.ciphers.aead"):
            importlib.import_module(f"cryptography.{part}")
    except ImportError:
        remedy = "Install toolkeep with its extra: pip install 'toolkeep[sealed]'"
        raise ConfigError(
            "encryption of a store needs the package cryptography", remedy=remedy
        ) from None
    return importlib.import_module("cryptography")
