"""Where logins are kept: the store of the runtime, or an encrypted file of this user.

The file is an SQLite store, sealed with a key from the keyring of the operating system or from
TOOLKEEP_KEY. Without either, logins are kept in memory, with a warning.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from toolkeep._files import locked, make_private_directory
from toolkeep.config.approval import state_directory
from toolkeep.config.spec import warn
from toolkeep.errors import ConfigError
from toolkeep.state import MemoryStore, SealedStore, SQLiteStore, Store, sealed

__all__ = ["LoginStorage"]

KEY_VARIABLE = "TOOLKEEP_KEY"
FILE, KEYRING_LOCK = "logins.sqlite", "logins.keyring"
KEYRING_SERVICE, KEYRING_NAME = "toolkeep", "logins"
TIMEOUT = 5.0
"""Seconds that an operation on the file may take: a refreshed token that is not stored is lost."""
SET_KEY = (
    f"Install toolkeep[oauth] for the keyring of the operating system, or set {KEY_VARIABLE} to a "
    "key from: python -c 'import secrets; print(secrets.token_hex(32))'"
)

_memory = MemoryStore()
"""Shared by all clients of this process."""


class LoginStorage:
    """The store of logins, opened at first use. Belongs to one runtime or client, which closes it.

    `store`: the runtime's own, or a function that returns it. `must_persist`: logins may not be
    kept in memory.
    """

    def __init__(
        self,
        store: Store | Callable[[], Store | None] | None = None,
        *,
        env: Mapping[str, str] | None = None,
        must_persist: bool = False,
    ) -> None:
        self._find = store if callable(store) else lambda: store
        self._env, self._must_persist = env, must_persist
        self._opened: Store | None = None
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"LoginStorage({self._find() or self._opened})"

    async def open(self, *, to_log_in: bool = False) -> Store:
        """The store. Raises `ConfigError`. `to_log_in`: make what is missing, and warn if logins
        cannot be kept."""
        given = self._find()
        if given is None:
            return self._opened or await asyncio.to_thread(self._open, to_log_in)
        if to_log_in and not isinstance(given, SealedStore | MemoryStore):
            warn(f"logins are stored without encryption in {given!r}; give the runtime keys")
        return given

    def _open(self, to_log_in: bool) -> Store:
        env = os.environ if self._env is None else self._env
        file = state_directory(env) / FILE
        with self._lock:
            if self._opened is not None:
                return self._opened
            if not to_log_in and not file.exists():
                return _memory
            keys = [*_key_from_keyring(file.parent), *_keys_from_env(env)]
            if keys:
                self._opened = sealed(SQLiteStore(file, timeout=TIMEOUT), keys)
                return self._opened
        problem = "logins cannot be kept: there is no key to encrypt them with"
        if file.exists():
            problem = f"the logins in {file} cannot be read: there is no key to decrypt them"
        if self._must_persist or not to_log_in:
            raise ConfigError(problem, key=KEY_VARIABLE, remedy=SET_KEY)
        warn(f"{problem}, so they end with this process. {SET_KEY}")
        return _memory

    async def aclose(self) -> None:
        """Close what `open` opened. A given store is its owner's."""
        opened, self._opened = self._opened, None
        if opened is not None:
            await opened.aclose()


def _keys_from_env(env: Mapping[str, str]) -> list[str]:
    """The keys of TOOLKEEP_KEY: one, or several with commas between. The first one encrypts."""
    keys = [key.strip() for key in env.get(KEY_VARIABLE, "").split(",") if key.strip()]
    if keys:
        try:
            sealed(_memory, keys)
        except ConfigError as error:
            raise ConfigError(error.problem, key=KEY_VARIABLE, remedy=error.remedy) from None
    return keys


def _key_from_keyring(directory: Path) -> list[str]:
    """A random key that only the keyring holds; none without a working keyring.

    Only the key goes there: some keyrings take no more than 2,560 bytes, which tokens exceed.
    """
    try:
        import keyring
        import keyring.errors
        from keyring.backends import fail, null
    except ImportError:
        return []
    if isinstance(keyring.get_keyring(), fail.Keyring | null.Keyring):
        return []
    try:
        make_private_directory(directory)
        with locked(directory / KEYRING_LOCK):
            found = keyring.get_password(KEYRING_SERVICE, KEYRING_NAME)
            if found is None:
                found = secrets.token_hex(32)
                keyring.set_password(KEYRING_SERVICE, KEYRING_NAME, found)
            return [found]
    except (keyring.errors.KeyringError, OSError, RuntimeError):
        return []
