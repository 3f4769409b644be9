"""URLs as people write them: checked, named, and never shown with their secrets."""

from __future__ import annotations

import ipaddress
import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast
from urllib.parse import urlsplit

from pydantic_core import PydanticCustomError


def problem(what: str, remedy: str, key: str = "") -> PydanticCustomError:
    """`key`: for what is wrong with a model as a whole."""
    said = {"problem": what, "remedy": remedy, "key": key}
    return PydanticCustomError("toolkeep", "{problem}", said)


def check_http_url(url: str) -> None:
    """Says nothing of the value: who confuses two variables has a key where a URL belongs."""
    remedy = "Give a full address, such as http://localhost:8000/mcp"
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise problem("not a URL", remedy) from None
    if parts.scheme not in ("http", "https"):
        raise problem("not an http(s) URL", remedy)
    if not parts.hostname or port == 0 or re.search(r"[\s\x00-\x1f]", url):
        raise problem("a URL without a host", remedy)


def with_addresses(given: Any) -> Any:
    """`urls` holds all addresses of a server that has several, and `url` the first of them."""
    if not isinstance(given, Mapping):
        return given
    said = cast("Mapping[str, Any]", given)
    urls, url = said.get("urls"), said.get("url")
    if not isinstance(urls, Sequence) or isinstance(urls, str) or not urls:
        return said
    every = list(cast("Sequence[Any]", urls))
    if url and url not in every:
        raise problem(
            "'url' is none of 'urls'", "List every address in 'urls', and leave out 'url'", "urls"
        )
    if any(every.count(one) > 1 for one in every):
        raise problem("an address is listed twice", "List each address once", "urls")
    return {**said, "url": url or every[0], "urls": every if len(every) > 1 else ()}


def is_loopback(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def name_from(url: object) -> str:
    """A name for a server that was given by its URL alone: its host."""
    try:
        host = urlsplit(url).hostname if isinstance(url, str) else None
    except ValueError:
        host = None
    return as_name(host or "")


def as_name(text: str) -> str:
    """The nearest thing to `text` that is a server's name."""
    return re.sub(r"[^A-Za-z0-9_-]", "-", text).strip("-_")[:64] or "server"


NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
"""A server's name: no dot, because `server.tool` names a tool."""


def our_names(given: Iterable[str], taken: Iterable[str] = ()) -> dict[str, str]:
    """For each name the one it has here. Other products allow dots, blanks and slashes, so
    `io.github.upstash/context7` becomes `io-github-upstash-context7`. A name that is legal stays
    as it is; others that would become equal to one are numbered."""
    listed = list(dict.fromkeys(given))
    used = {*taken, *(name for name in listed if NAME.fullmatch(name))}
    ours: dict[str, str] = {}
    for name in listed:
        if NAME.fullmatch(name):
            ours[name] = name
            continue
        near = as_name(name)
        numbered = (f"{near[: 63 - len(str(n))]}-{n}" for n in itertools.count(2))
        ours[name] = near if near not in used else next(one for one in numbered if one not in used)
        used.add(ours[name])
    return ours
