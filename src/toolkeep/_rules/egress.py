"""Which hosts and addresses toolkeep may connect to. The caller resolves and connects.

A host named by the configuration may have any address but a link-local, cloud metadata or
multicast one. A host named by a server must have a public address and use https, unless the user
allows it or that server was itself reached in the same range. An IPv4 address inside an IPv6
address (mapped, compatible, NAT64, 6to4, Teredo, ISATAP) or in an old numeric spelling counts as
the IPv4 address.
"""

from __future__ import annotations

import enum
import ipaddress
import unicodedata
from dataclasses import dataclass, replace

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class AddressRange(enum.Enum):
    """What kind of network an address belongs to. Errors show the value."""

    PUBLIC = "public"
    LOOPBACK = "loopback"
    PRIVATE = "private"
    SHARED = "carrier-grade NAT"
    LINK_LOCAL = "link-local"
    METADATA = "cloud metadata"
    MULTICAST = "multicast"
    RESERVED = "reserved"


INHERITABLE_RANGES = frozenset({AddressRange.LOOPBACK, AddressRange.PRIVATE, AddressRange.SHARED})
"""Ranges in which a server may name another host, if it was reached there itself."""

CONFIGURABLE_RANGES = INHERITABLE_RANGES | {AddressRange.PUBLIC, AddressRange.RESERVED}
"""Ranges in which the configuration may name a host without allowing it explicitly. Some VPN
clients resolve every name to a reserved address."""


class NamedBy(enum.Enum):
    """Where a host's name comes from."""

    CONFIGURATION = "the configuration"
    SERVER = "a server"


@dataclass(frozen=True, slots=True)
class EgressPolicy:
    """What the configuration allows. Immutable; one for each server."""

    origins: frozenset[str] = frozenset()
    """Origins (`https://host:port`) that the configuration names."""
    allow: tuple[str, ...] = ()
    """Host names, `*.suffixes`, addresses and networks that are always permitted."""
    ranges: frozenset[AddressRange] = frozenset()
    """Ranges in which the server itself was reached; it may name other hosts there."""

    def reached(self, address: str) -> EgressPolicy:
        """The policy after a configured server has answered from this address."""
        found = range_of(address) if address else AddressRange.PUBLIC
        if found not in INHERITABLE_RANGES or found in self.ranges:
            return self
        return replace(self, ranges=self.ranges | {found})

    def named_by(self, scheme: str, host: str, port: int) -> NamedBy:
        configured = origin(scheme, host, port) in self.origins
        return NamedBy.CONFIGURATION if configured else NamedBy.SERVER


def origin(scheme: str, host: str, port: int) -> str:
    shown = f"[{host}]" if ":" in host else host
    return f"{scheme}://{shown}:{port}".lower()


def check_host(scheme: str, host: str, policy: EgressPolicy, named_by: NamedBy) -> str:
    """Why a host is refused by its name, before it is resolved; empty if it is allowed.

    The only check that is possible when a proxy resolves the name.
    """
    if scheme not in ("http", "https"):
        return f"the scheme {scheme!r} is not http or https"
    name = normalize_host(host)
    if not name or not name.isprintable() or any(c in name for c in " /\\@?#%,"):
        return "the host is not a valid name"
    if _allowed_name(name, policy.allow):
        return ""
    address = parse_address(name)
    if address is not None:
        return _check_parsed(scheme, address, policy, named_by)
    known = _range_of_name(name)
    return "" if known is None else _check_range(scheme, known, policy, named_by)


def check_address(
    scheme: str, host: str, address: str, policy: EgressPolicy, named_by: NamedBy
) -> str:
    """Why this resolved address of `host` is refused; empty if it is allowed."""
    name = normalize_host(host)
    if _allowed_name(name, policy.allow):
        return ""
    parsed = parse_address(address)
    if parsed is None:
        return f"{address!r} is not an address"
    return _check_parsed(scheme, parsed, policy, named_by)


def check_addresses(
    scheme: str, host: str, addresses: list[str], policy: EgressPolicy, named_by: NamedBy
) -> str:
    """Why a name is refused: one refused address is enough, a mixture is a sign of an attack."""
    for address in addresses:
        if problem := check_address(scheme, host, address, policy, named_by):
            return problem
    return "" if addresses else "the name has no address"


def range_of(address: str) -> AddressRange:
    parsed = parse_address(address)
    return AddressRange.RESERVED if parsed is None else _range_of_address(parsed)


def normalize_host(host: str) -> str:
    """A host name as resolvers read it: width and case folded, other dots and a last one gone."""
    folded = unicodedata.normalize("NFKC", host.replace("。", ".").replace("｡", "."))
    name = folded.strip("[]").lower()
    return name[:-1] if name.endswith(".") else name


def parse_address(host: str) -> Address | None:
    """Parse a literal address, also in the octal, hex, decimal and short forms of IPv4."""
    text = host.partition("%")[0]  # a zone changes the interface, not the range
    if ":" in text:
        try:
            return ipaddress.IPv6Address(text)
        except ValueError:
            return None
    parts = text.split(".")
    values = [_parse_ipv4_part(part) for part in parts]
    if len(values) > 4 or any(value is None for value in values):
        return None
    *heads, last = [value for value in values if value is not None]
    if any(head > 255 for head in heads) or last >= 256 ** (4 - len(heads)):
        return None
    high = sum(head << (24 - 8 * place) for place, head in enumerate(heads))
    return ipaddress.IPv4Address(high + last)


def _parse_ipv4_part(text: str) -> int | None:
    """Parse one part of an IPv4 address as `inet_aton` does."""
    base = 16 if text.startswith("0x") else 8 if text.startswith("0") and len(text) > 1 else 10
    digits = text[2:] if base == 16 else text
    if base == 16 and not digits:
        return 0
    if len(digits) > 32 or not digits.isalnum() or not digits.isascii():
        return None
    try:
        return int(digits, base)
    except ValueError:
        return None


# -- ranges -------------------------------------------------------------------------------------


def _networks(*texts: str) -> tuple[Network, ...]:
    return tuple(ipaddress.ip_network(text) for text in texts)


_METADATA_ADDRESSES = frozenset(
    ipaddress.ip_address(text)
    for text in (
        "169.254.169.254",  # AWS, Azure, Google, DigitalOcean, OpenStack, Oracle
        "169.254.169.253",  # the resolver of an AWS VPC
        "169.254.170.2",  # credentials of AWS ECS tasks
        "169.254.170.23",  # credentials of AWS EKS pods
        "169.254.0.23",  # Tencent
        "100.100.100.200",  # Alibaba
        "168.63.129.16",  # Azure's host, at a public address
        "192.0.0.192",  # Oracle, classic
        "fd00:ec2::254",  # AWS
        "fd00:ec2::23",  # AWS EKS
        "fd20:ce::254",  # Google
        "fd00:42::42",  # Scaleway
    )
)
_METADATA_NAMES = frozenset(
    {
        *("metadata", "metadata.google.internal", "metadata.goog", "metadata.azure.internal"),
        *("instance-data", "instance-data.ec2.internal", "metadata.tencentyun.com"),
        *("metadata.platformequinix.com", "metadata.packet.net"),
    }
)

_RANGES: tuple[tuple[AddressRange, tuple[Network, ...]], ...] = (
    # 0.0.0.0 and :: connect to this machine.
    (AddressRange.LOOPBACK, _networks("127.0.0.0/8", "0.0.0.0/32", "::1/128", "::/128")),
    (AddressRange.PRIVATE, _networks("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7")),
    (AddressRange.SHARED, _networks("100.64.0.0/10")),
    (AddressRange.LINK_LOCAL, _networks("169.254.0.0/16", "fe80::/10")),
    (AddressRange.MULTICAST, _networks("224.0.0.0/4", "ff00::/8")),
    (
        AddressRange.RESERVED,
        _networks(
            *("0.0.0.0/8", "192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "198.18.0.0/15"),
            *("198.51.100.0/24", "203.0.113.0/24", "240.0.0.0/4", "64:ff9b:1::/48", "100::/64"),
            *("100:0:0:1::/64", "2001::/23", "2001:db8::/32", "3fff::/20", "5f00::/16"),
            *("fec0::/10",),
        ),
    ),
)

_GLOBAL_UNICAST = ipaddress.IPv6Network("2000::/3")
_MAPPED, _TRANSLATED, _COMPATIBLE, _NAT64, _SIX_TO_FOUR, _TEREDO = _networks(
    *("::ffff:0:0/96", "::ffff:0:0:0/96", "::/96", "64:ff9b::/96", "2002::/16", "2001::/32")
)


def _range_of_address(address: Address) -> AddressRange:
    if address in _METADATA_ADDRESSES:
        return AddressRange.METADATA
    known = next((kind for kind, nets in _RANGES if any(address in net for net in nets)), None)
    inside = _embedded(address)
    if inside is not None and known in (None, AddressRange.RESERVED):
        inner = _range_of_address(inside)
        return inner if inner is not AddressRange.PUBLIC else known or AddressRange.PUBLIC
    if known is not None:
        return known
    is_public = isinstance(address, ipaddress.IPv4Address) or address in _GLOBAL_UNICAST
    return AddressRange.PUBLIC if is_public else AddressRange.RESERVED


def _embedded(address: Address) -> ipaddress.IPv4Address | None:
    """The IPv4 address that packets to this IPv6 address reach."""
    if isinstance(address, ipaddress.IPv4Address):
        return None
    bits = int(address)
    if any(address in net for net in (_MAPPED, _TRANSLATED, _COMPATIBLE, _NAT64)):
        return ipaddress.IPv4Address(bits & 0xFFFFFFFF)
    if address in _SIX_TO_FOUR:
        return ipaddress.IPv4Address((bits >> 80) & 0xFFFFFFFF)
    if address in _TEREDO:
        return ipaddress.IPv4Address(~bits & 0xFFFFFFFF)
    if (bits >> 32) & 0xFCFFFFFF == 0x00005EFE:  # ISATAP
        return ipaddress.IPv4Address(bits & 0xFFFFFFFF)
    return None


def _range_of_name(name: str) -> AddressRange | None:
    if name == "localhost" or name.endswith((".localhost", ".localdomain")):
        return AddressRange.LOOPBACK
    return AddressRange.METADATA if name in _METADATA_NAMES else None


# -- verdicts -----------------------------------------------------------------------------------


def _check_parsed(scheme: str, address: Address, policy: EgressPolicy, named_by: NamedBy) -> str:
    if _allowed_address(address, policy.allow):
        return ""
    return _check_range(scheme, _range_of_address(address), policy, named_by)


def _check_range(scheme: str, found: AddressRange, policy: EgressPolicy, named_by: NamedBy) -> str:
    if named_by is NamedBy.CONFIGURATION:
        return "" if found in CONFIGURABLE_RANGES else f"it has a {found.value} address"
    if found is AddressRange.PUBLIC:
        return "" if scheme == "https" else "a server may name a public host only with https"
    if found in policy.ranges:
        return ""
    return f"a server may not name a host with a {found.value} address"


def _allowed_name(name: str, allow: tuple[str, ...]) -> bool:
    entries = [normalize_host(entry) for entry in allow]
    return any(
        name == entry or (entry.startswith("*.") and name.endswith(entry[1:])) for entry in entries
    )


def _allowed_address(address: Address, allow: tuple[str, ...]) -> bool:
    inside = _embedded(address)
    return any(
        address in network or (inside is not None and inside in network)
        for network in map(_as_network, allow)
        if network is not None
    )


def _as_network(entry: str) -> Network | None:
    try:
        return ipaddress.ip_network(entry.strip("[]"), strict=False)
    except ValueError:
        return None
