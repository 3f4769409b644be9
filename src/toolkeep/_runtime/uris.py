"""Whether an address is written in the one way in which a pattern can judge it.

`file:///pub/../etc/passwd` begins like `file:///pub/`, and is another file (RFC 3986, section 6).
"""

from __future__ import annotations

import re
from urllib.parse import unquote, urlsplit

__all__ = ["is_plain"]

_ESCAPED_NEEDLESSLY = re.compile(r"%(2[DE]|3[0-9]|4[1-9A-F]|5[0-9A]|5F|6[1-9A-F]|7[0-9A]|7E)", re.I)
"""Letters, digits and `-._~`: RFC 3986, section 2.3."""


def is_plain(uri: str) -> bool:
    """Scheme and host in lower case, nothing escaped that need not be, no `.` and `..`."""
    try:
        parts = urlsplit(uri)
    except ValueError:
        return False
    if "\\" in uri or _ESCAPED_NEEDLESSLY.search(uri) or not uri.isprintable():
        return False
    scheme, _, _ = uri.partition(":")
    if scheme != scheme.lower() or parts.netloc != parts.netloc.lower():
        return False
    segments = re.split(r"[/\\]", unquote(f"{parts.netloc}/{parts.path}"))
    return not {".", ".."} & set(segments)
