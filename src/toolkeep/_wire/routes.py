"""Where a request goes: through which proxy, after which redirect, and when again."""

from __future__ import annotations

import urllib.request
from datetime import UTC
from email.utils import parsedate_to_datetime
from time import time
from urllib.parse import urlsplit

from yarl import URL

from toolkeep._wire.exchange import unreadable
from toolkeep.config import ServerSpec, redact_url
from toolkeep.errors import ConfigError

_REDIRECTS_THAT_KEEP_THE_METHOD = (307, 308)


def proxy_for(configured: str | None, url: URL) -> str | None:
    if configured is not None:
        return configured or None
    if urllib.request.proxy_bypass(f"{url.host_subcomponent}:{url.port}"):
        return None
    proxies = urllib.request.getproxies()
    proxy = proxies.get(url.scheme) or proxies.get("all")
    if proxy and urlsplit(proxy).scheme not in ("http", "https"):
        problem = f"the proxy of the environment is not an http(s) URL: {redact_url(proxy)}"
        raise ConfigError(problem, key="proxy", remedy="Set NO_PROXY, or proxy: '' for none")
    return proxy


def proxy_of(spec: ServerSpec) -> str | None:
    """The proxy through which a server at a URL is reached. Raises `ConfigError`."""
    return proxy_for(spec.proxy, URL(spec.url).with_user(None))


def redirected(url: URL, status: int, location: str, method: str) -> URL:
    """Where a redirect leads, if it stays inside the origin and keeps the request as it is."""
    try:
        target = url.join(URL(location)).with_user(None)
        stays = bool(location) and target.origin() == url.origin()
    except ValueError:
        raise unreadable("a redirect to no address", status) from None
    shown = redact_url(str(target))
    if not stays:
        raise unreadable(f"a redirect to {shown} leaves the origin", status)
    if method == "POST" and status not in _REDIRECTS_THAT_KEEP_THE_METHOD:
        raise unreadable(f"a redirect to {shown} would drop the request", status)
    return target


def seconds_of(retry_after: str) -> str:
    """Retry-After in seconds, also when it came as a date."""
    try:
        when = parsedate_to_datetime(retry_after)
        when = when if when.tzinfo else when.replace(tzinfo=UTC)
        return str(max(0.0, when.timestamp() - time()))
    except (ValueError, OverflowError):
        return retry_after
