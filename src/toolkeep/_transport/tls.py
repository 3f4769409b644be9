"""TLS contexts, shared by all connections with equal settings.

The first of these gives the trusted roots: the configured CA file; SSL_CERT_FILE and
SSL_CERT_DIR; REQUESTS_CA_BUNDLE (a file or a directory); the system's store. A context takes
about 20 ms to load. This module turns verification off only if the configuration says so.
"""

from __future__ import annotations

import functools
import os
import ssl
from collections.abc import Mapping

from toolkeep.config import TLS
from toolkeep.errors import ConfigError

_CA_VARIABLES = ("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE")


def ssl_context_for(tls: TLS, env: Mapping[str, str] | None = None) -> ssl.SSLContext:
    """The shared context for these settings and this environment. Raises `ConfigError`."""
    env = os.environ if env is None else env
    try:
        named = [env.get(name) or None for name in _CA_VARIABLES]
        files = (tls.ca_file, tls.client_cert, tls.client_key, *named)
        return _cached_context(tls, *named, tuple(_modified_at(path) for path in files))
    except (OSError, ssl.SSLError) as error:
        problem = f"certificates cannot be loaded: {error.strerror or type(error).__name__}"
        remedy = "Check ca_file, client_cert and client_key, and SSL_CERT_FILE"
        raise ConfigError(problem, key="tls", remedy=remedy) from None


@functools.lru_cache(maxsize=32)
def _cached_context(
    tls: TLS,
    cert_file: str | None,
    cert_dir: str | None,
    bundle: str | None,
    changed_at: tuple[float, ...],
) -> ssl.SSLContext:
    """`changed_at`: the files' modification times, so that renewed files get a new context."""
    context = _context_with_roots(tls, cert_file, cert_dir, bundle)
    if not tls.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if tls.client_cert is not None:
        password = tls.client_key_password
        secret = password.get_secret_value() if password else None
        context.load_cert_chain(tls.client_cert, tls.client_key, secret)
    return context


def _modified_at(path: str | None) -> float:
    try:
        return os.stat(path).st_mtime if path else 0.0
    except OSError:
        return 0.0  # loading the file will fail, with a better error


def _context_with_roots(
    tls: TLS, cert_file: str | None, cert_dir: str | None, bundle: str | None
) -> ssl.SSLContext:
    if tls.ca_file is not None:
        return _context_from_path(tls.ca_file)
    if cert_file or cert_dir:
        return ssl.create_default_context(cafile=cert_file, capath=cert_dir)
    if bundle:
        return _context_from_path(bundle)
    import truststore  # the native stores of macOS and Windows; OpenSSL's paths elsewhere

    return truststore.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def _context_from_path(path: str) -> ssl.SSLContext:
    if os.path.isdir(path):
        return ssl.create_default_context(capath=path)
    return ssl.create_default_context(cafile=path)
