"""Where logins are kept when the runtime has no state store.

`Storage` is the part of the state store's contract that `auth` uses; any state store fits. Here
are two more: `LocalStorage`, private files encrypted with a key from the OS keyring or from
TOOLKEEP_KEY, shared by the processes of one user; and `MemoryStorage`, gone with the process.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import os
import secrets
import time
import warnings
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar, cast

from toolkeep._files import Unusable, content, locked, make_private, write
from toolkeep.errors import ToolkeepError

__all__ = ["LocalStorage", "MemoryStorage", "Storage", "StorageUnavailable", "open_storage"]

KEY_VARIABLE = "TOOLKEEP_KEY"
_T = TypeVar("_T")


class StorageUnavailable(ToolkeepError):
    """What is stored cannot be read or written now."""


@dataclass(frozen=True, slots=True)
class Entry:
    value: bytes
    version: int


@dataclass(frozen=True, slots=True)
class Lease:
    key: str
    token: int
    holder: str


class Storage(Protocol):
    """What `auth` needs of a state store. See `LocalStorage` for what each does."""

    async def get(self, key: str) -> Entry | None: ...
    async def put(
        self, key: str, value: bytes, *, ttl: float | None = None, if_version: int | None = None
    ) -> int | None: ...
    async def delete(self, key: str, *, if_version: int | None = None) -> bool: ...
    def scan(self, prefix: str) -> AsyncIterator[str]: ...
    async def lease(self, key: str, ttl: float) -> Lease | None: ...
    async def renew(self, lease: Lease, ttl: float) -> bool: ...
    async def release(self, lease: Lease) -> None: ...


def open_storage(
    directory: Path, env: Mapping[str, str] | None = None, *, keyring: bool = True
) -> LocalStorage | MemoryStorage:
    """Encrypted files if there is a key for them, from the OS keyring or TOOLKEEP_KEY."""
    found = (_key_of_keyring(directory) if keyring else None) or _key_of(env or os.environ)
    if found is not None:
        return LocalStorage(directory, found)
    warnings.warn(
        "logins are kept in memory only and end with this process: install toolkeep[oauth] for the "
        f"OS keyring, or set {KEY_VARIABLE}",
        stacklevel=2,
    )
    return MemoryStorage()


def _key_of(env: Mapping[str, str]) -> bytes | None:
    text = env.get(KEY_VARIABLE, "")
    return text.encode() if text else None


def _key_of_keyring(directory: Path) -> bytes | None:
    """A random key that only the keyring holds. Small: some keyrings take no more than 2,560
    bytes, which tokens exceed. None: no keyring that works."""
    try:
        import keyring
        import keyring.errors
        from keyring.backends import fail
    except ImportError:
        return None
    if isinstance(keyring.get_keyring(), fail.Keyring):
        return None
    name = "storage-key"
    try:
        make_private(directory)
        with locked(directory / ".keyring"):
            found = keyring.get_password("toolkeep", name)
            if found is None:
                found = secrets.token_urlsafe(32)
                keyring.set_password("toolkeep", name, found)
    except (keyring.errors.KeyringError, OSError, RuntimeError):
        return None
    return found.encode()


class LocalStorage:
    """One encrypted private file for each key. Safe for threads and processes of one machine."""

    def __init__(self, directory: Path, secret: bytes) -> None:
        self._directory, self._secret = directory, secret
        self._made: Any = None
        self._import_cipher()

    def __repr__(self) -> str:
        return f"LocalStorage({str(self._directory)!r})"

    async def get(self, key: str) -> Entry | None:
        record = await self._locked(lambda: self._read(key))
        return None if record is None else _entry(record)

    async def put(
        self, key: str, value: bytes, *, ttl: float | None = None, if_version: int | None = None
    ) -> int | None:
        """The new version; None if `if_version` did not match (0: only if absent)."""

        def put() -> int | None:
            found = self._read(key)
            now = found["version"] if found else 0
            if if_version is not None and if_version != now:
                return None
            # Of the clock, so that a version is not used again after a delete.
            version = max(time.time_ns(), now + 1)
            self._write(key, version, value, ttl)
            return version

        return await self._locked(put)

    async def delete(self, key: str, *, if_version: int | None = None) -> bool:
        def delete() -> bool:
            found = self._read(key)
            if found is None or if_version not in (None, found["version"]):
                return False
            self._path(key).unlink(missing_ok=True)
            return True

        return await self._locked(delete)

    async def scan(self, prefix: str) -> AsyncIterator[str]:
        def keys() -> list[str]:
            paths = sorted(self._directory.glob("*.bin"))
            found = [record for path in paths if (record := self._decrypted(path)) is not None]
            return [record["key"] for record in found if record["key"].startswith(prefix)]

        for key in await self._locked(keys):
            yield key

    async def lease(self, key: str, ttl: float) -> Lease | None:
        """None: another holds it. A lease that is not released ends after `ttl` seconds."""
        taken = Lease(key, time.time_ns(), secrets.token_hex(8))
        version = await self.put(f"lease:{key}", taken.holder.encode(), ttl=ttl, if_version=0)
        return None if version is None else taken

    async def renew(self, lease: Lease, ttl: float) -> bool:
        """False: lost."""

        def renew() -> bool:
            found = self._read(f"lease:{lease.key}")
            if found is None or _entry(found).value != lease.holder.encode():
                return False
            self._write(f"lease:{lease.key}", found["version"], lease.holder.encode(), ttl)
            return True

        return await self._locked(renew)

    async def release(self, lease: Lease) -> None:
        def release() -> None:
            found = self._read(f"lease:{lease.key}")
            if found is not None and _entry(found).value == lease.holder.encode():
                self._path(f"lease:{lease.key}").unlink(missing_ok=True)

        await self._locked(release)

    # -- files, in a thread and under the lock ----------------------------------------------------

    async def _locked(self, action: Callable[[], _T]) -> _T:
        def run() -> _T:
            make_private(self._directory)
            with locked(self._directory / ".lock"):
                return action()

        try:
            return await asyncio.to_thread(run)
        except (OSError, Unusable) as error:
            what = str(error) if isinstance(error, Unusable) else type(error).__name__
        raise StorageUnavailable(f"the logins in {self._directory} cannot be used: {what}")

    def _path(self, key: str) -> Path:
        return self._directory / f"{hashlib.sha256(key.encode()).hexdigest()}.bin"

    def _read(self, key: str) -> dict[str, Any] | None:
        return self._decrypted(self._path(key))

    def _decrypted(self, path: Path) -> dict[str, Any] | None:
        from cryptography.exceptions import InvalidTag

        try:
            sealed = content(path)
        except FileNotFoundError:
            return None
        try:
            plain = self._cipher().decrypt(sealed[:12], sealed[12:], path.name.encode())
        except (InvalidTag, ValueError):
            raise Unusable("they are encrypted with another key") from None
        record = cast("dict[str, Any]", json.loads(plain))
        expires = record["expires"]
        return None if expires is not None and expires <= time.time() else record

    def _write(self, key: str, version: int, value: bytes, ttl: float | None) -> None:
        expires = None if ttl is None else time.time() + ttl
        text = base64.b64encode(value).decode()
        record = {"key": key, "version": version, "expires": expires, "value": text}
        path, nonce = self._path(key), secrets.token_bytes(12)
        sealed = self._cipher().encrypt(nonce, json.dumps(record).encode(), path.name.encode())
        write(path, nonce + sealed)

    def _cipher(self) -> Any:
        if self._made is None:
            make = self._import_cipher()
            path = self._directory / "salt"
            try:
                salt = content(path)
            except FileNotFoundError:
                salt = secrets.token_bytes(16)
                write(path, salt)
            self._made = make(hashlib.scrypt(self._secret, salt=salt, n=2**14, r=8, p=1, dklen=32))
        return self._made

    @staticmethod
    def _import_cipher() -> Any:
        try:
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM
        except ImportError:
            raise StorageUnavailable("cryptography is missing: install toolkeep[oauth]") from None
        return AESGCM


def _entry(record: Mapping[str, Any]) -> Entry:
    return Entry(base64.b64decode(record["value"]), record["version"])


class MemoryStorage:
    """The same for one process."""

    def __init__(self) -> None:
        self._entries: dict[str, tuple[Entry, float | None]] = {}
        self._versions = 0

    def __repr__(self) -> str:
        return "MemoryStorage()"

    def _read(self, key: str) -> Entry | None:
        entry, expires = self._entries.get(key, (None, None))
        if expires is not None and expires <= time.monotonic():
            del self._entries[key]
            return None
        return entry

    async def get(self, key: str) -> Entry | None:
        return self._read(key)

    async def put(
        self, key: str, value: bytes, *, ttl: float | None = None, if_version: int | None = None
    ) -> int | None:
        found = self._read(key)
        if if_version is not None and if_version != (found.version if found else 0):
            return None
        self._versions += 1
        expires = None if ttl is None else time.monotonic() + ttl
        self._entries[key] = Entry(value, self._versions), expires
        return self._versions

    async def delete(self, key: str, *, if_version: int | None = None) -> bool:
        found = self._read(key)
        if found is None or if_version not in (None, found.version):
            return False
        del self._entries[key]
        return True

    async def scan(self, prefix: str) -> AsyncIterator[str]:
        for key in [key for key in self._entries if key.startswith(prefix)]:
            if self._read(key) is not None:
                yield key

    async def lease(self, key: str, ttl: float) -> Lease | None:
        holder = secrets.token_hex(8)
        token = await self.put(f"lease:{key}", holder.encode(), ttl=ttl, if_version=0)
        return None if token is None else Lease(key, token, holder)

    async def renew(self, lease: Lease, ttl: float) -> bool:
        found = self._read(f"lease:{lease.key}")
        if found is None or found.value != lease.holder.encode():
            return False
        self._entries[f"lease:{lease.key}"] = found, time.monotonic() + ttl
        return True

    async def release(self, lease: Lease) -> None:
        found = self._read(f"lease:{lease.key}")
        if found is not None and found.value == lease.holder.encode():
            del self._entries[f"lease:{lease.key}"]
