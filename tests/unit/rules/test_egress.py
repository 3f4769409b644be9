"""Which addresses may be connected to: the hostile corpus, and what stays possible."""

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkeep._rules.egress import (
    INHERITABLE_RANGES,
    AddressRange,
    EgressPolicy,
    NamedBy,
    check_address,
    check_addresses,
    check_host,
    normalize_host,
    origin,
    parse_address,
    range_of,
)

pytestmark = pytest.mark.requirement("N2")

NOBODY = EgressPolicy()
SERVER, CONFIGURATION = NamedBy.SERVER, NamedBy.CONFIGURATION

HOSTILE = {
    # loopback, in every spelling that a resolver takes
    "127.0.0.1": AddressRange.LOOPBACK,
    "127.0.0.1.": AddressRange.LOOPBACK,
    "127.1": AddressRange.LOOPBACK,
    "127.0.1": AddressRange.LOOPBACK,
    "127.255.255.254": AddressRange.LOOPBACK,
    "2130706433": AddressRange.LOOPBACK,
    "017700000001": AddressRange.LOOPBACK,
    "0177.0.0.1": AddressRange.LOOPBACK,
    "0177.0.0.01": AddressRange.LOOPBACK,
    "0x7f.0.0.1": AddressRange.LOOPBACK,
    "0x7f.1": AddressRange.LOOPBACK,
    "0x7f000001": AddressRange.LOOPBACK,
    "0X7F000001": AddressRange.LOOPBACK,
    "127.0x.0.1": AddressRange.LOOPBACK,
    "0.0.0.0": AddressRange.LOOPBACK,
    "0": AddressRange.LOOPBACK,
    "0x0": AddressRange.LOOPBACK,
    "localhost": AddressRange.LOOPBACK,
    "LOCALHOST": AddressRange.LOOPBACK,
    "localhost.": AddressRange.LOOPBACK,
    "api.localhost": AddressRange.LOOPBACK,
    "localhost.localdomain": AddressRange.LOOPBACK,
    "\uff11\uff12\uff17.0.0.1": AddressRange.LOOPBACK,
    "①②⑦.⓪.⓪.①": AddressRange.LOOPBACK,
    "127。0。0。1": AddressRange.LOOPBACK,
    "127｡0｡0｡1": AddressRange.LOOPBACK,
    "ⓛⓞⓒⓐⓛⓗⓞⓢⓣ": AddressRange.LOOPBACK,
    "[::1]": AddressRange.LOOPBACK,
    "::1": AddressRange.LOOPBACK,
    "0:0:0:0:0:0:0:1": AddressRange.LOOPBACK,
    "::": AddressRange.LOOPBACK,
    "::ffff:127.0.0.1": AddressRange.LOOPBACK,
    "::ffff:7f00:1": AddressRange.LOOPBACK,
    "::127.0.0.1": AddressRange.LOOPBACK,
    "::ffff:0:127.0.0.1": AddressRange.LOOPBACK,
    "64:ff9b::127.0.0.1": AddressRange.LOOPBACK,
    "64:ff9b::7f00:1": AddressRange.LOOPBACK,
    "2002:7f00:1::": AddressRange.LOOPBACK,
    "2001:0:4136:e378:8000:63bf:80ff:fffe": AddressRange.LOOPBACK,  # Teredo, inverted
    "2607:f8b0::5efe:127.0.0.1": AddressRange.LOOPBACK,  # ISATAP
    "2607:f8b0::200:5efe:127.0.0.1": AddressRange.LOOPBACK,
    # private networks
    "10.0.0.1": AddressRange.PRIVATE,
    "10.1": AddressRange.PRIVATE,
    "012.0.0.1": AddressRange.PRIVATE,
    "167772161": AddressRange.PRIVATE,
    "172.16.0.1": AddressRange.PRIVATE,
    "172.31.255.255": AddressRange.PRIVATE,
    "192.168.1.1": AddressRange.PRIVATE,
    "0xc0a80101": AddressRange.PRIVATE,
    "::ffff:10.0.0.1": AddressRange.PRIVATE,
    "64:ff9b::10.0.0.1": AddressRange.PRIVATE,
    "2002:a00:1::": AddressRange.PRIVATE,
    "fc00::1": AddressRange.PRIVATE,
    "fd12:3456:789a::1": AddressRange.PRIVATE,
    # carrier-grade NAT
    "100.64.0.1": AddressRange.SHARED,
    "100.127.255.254": AddressRange.SHARED,
    "::ffff:100.64.0.1": AddressRange.SHARED,
    # link-local
    "169.254.1.1": AddressRange.LINK_LOCAL,
    "fe80::1": AddressRange.LINK_LOCAL,
    "febf::1": AddressRange.LINK_LOCAL,
    "::ffff:169.254.1.1": AddressRange.LINK_LOCAL,
    # metadata services
    "169.254.169.254": AddressRange.METADATA,
    "2852039166": AddressRange.METADATA,
    "0xa9fea9fe": AddressRange.METADATA,
    "0251.0376.0251.0376": AddressRange.METADATA,
    "169.254.43518": AddressRange.METADATA,
    "::ffff:169.254.169.254": AddressRange.METADATA,
    "::ffff:a9fe:a9fe": AddressRange.METADATA,
    "64:ff9b::a9fe:a9fe": AddressRange.METADATA,
    "2002:a9fe:a9fe::": AddressRange.METADATA,
    "169.254.170.2": AddressRange.METADATA,
    "169.254.170.23": AddressRange.METADATA,
    "100.100.100.200": AddressRange.METADATA,
    "168.63.129.16": AddressRange.METADATA,
    "192.0.0.192": AddressRange.METADATA,
    "fd00:ec2::254": AddressRange.METADATA,
    "fd20:ce::254": AddressRange.METADATA,
    "metadata.google.internal": AddressRange.METADATA,
    "Metadata.Google.Internal.": AddressRange.METADATA,
    "metadata.goog": AddressRange.METADATA,
    "metadata": AddressRange.METADATA,
    "instance-data": AddressRange.METADATA,
    # the rest of what is not the public internet
    "224.0.0.1": AddressRange.MULTICAST,
    "239.255.255.250": AddressRange.MULTICAST,
    "ff02::1": AddressRange.MULTICAST,
    "255.255.255.255": AddressRange.RESERVED,
    "240.0.0.1": AddressRange.RESERVED,
    "0.1.2.3": AddressRange.RESERVED,
    "192.0.2.1": AddressRange.RESERVED,
    "198.18.0.1": AddressRange.RESERVED,
    "203.0.113.9": AddressRange.RESERVED,
    "64:ff9b:1::1": AddressRange.RESERVED,
    "2001:db8::1": AddressRange.RESERVED,
    "2001:0:4136:e378:8000:63bf:f7f7:f7f7": AddressRange.RESERVED,  # Teredo to a public address
    "100::1": AddressRange.RESERVED,
    "fec0::1": AddressRange.RESERVED,
    "4000::1": AddressRange.RESERVED,
}

PUBLIC = [
    *("1.1.1.1", "8.8.8.8", "172.15.0.1", "172.32.0.1", "100.128.0.1", "169.253.0.1", "11.0.0.1"),
    *("2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::8.8.8.8", "2002:808:808::", "0x08080808"),
]


@pytest.mark.parametrize(("host", "found"), HOSTILE.items())
def test_a_server_may_not_name_a_host_that_is_not_public(host: str, found: AddressRange):
    reason = check_host("https", host, NOBODY, SERVER)
    assert reason == f"a server may not name a host with a {found.value} address"


def test_the_corpus_is_as_large_as_promised():
    assert len(HOSTILE) >= 60


@pytest.mark.parametrize("host", PUBLIC)
def test_a_server_may_name_a_public_address_with_https(host: str):
    assert range_of(host) is AddressRange.PUBLIC
    assert check_host("https", host, NOBODY, SERVER) == ""
    assert check_address("https", "auth.example", host, NOBODY, SERVER) == ""


@pytest.mark.parametrize("host", PUBLIC)
def test_a_server_may_not_name_a_public_address_without_https(host: str):
    reason = "a server may name a public host only with https"
    assert check_address("http", "auth.example", host, NOBODY, SERVER) == reason
    assert check_address("http", "auth.example", host, NOBODY, CONFIGURATION) == ""


@pytest.mark.parametrize("scheme", ["file", "ftp", "gopher", "javascript", "data", "ws", ""])
def test_only_http_and_https_are_fetched(scheme: str):
    assert "not http or https" in check_host(scheme, "example.com", NOBODY, CONFIGURATION)


@pytest.mark.parametrize(
    "host", ["", ".", "a b", "a\\b", "a@b", "a/b", "a?b", "a#b", "a%2eb", "fe80::1%eth0", "a\x00b"]
)
def test_a_host_with_letters_that_parsers_disagree_about_is_refused(host: str):
    assert check_host("https", host, NOBODY, SERVER) == "the host is not a valid name"


@pytest.mark.parametrize(
    "name",
    ["example.com", "1.2.3.4.5", "256.1.1.1", "1.2.3.256", "09.1.1.1", "0xzz", "1..2", "a.1"],
)
def test_what_is_no_address_is_left_to_the_resolver(name: str):
    assert parse_address(name) is None
    assert check_host("https", name, NOBODY, SERVER) == ""


def test_numbers_that_are_too_long_are_no_addresses():
    assert parse_address("1" * 5000) is None
    assert parse_address("4294967296") is None
    assert parse_address("1:2:zz") is None


@pytest.mark.parametrize("found", AddressRange)
def test_the_configuration_may_name_what_is_not_link_local_or_worse(found: AddressRange):
    address = next(host for host in [*HOSTILE, *PUBLIC] if range_of(host) is found)
    reason = check_address("http", "mcp.internal", address, NOBODY, CONFIGURATION)
    assert bool(reason) == (found not in {AddressRange.PUBLIC, *INHERITABLE_RANGES})


@pytest.mark.parametrize("found", AddressRange)
def test_a_server_may_name_hosts_in_the_range_where_it_was_reached(found: AddressRange):
    address = next(host for host in [*HOSTILE, *PUBLIC] if range_of(host) is found)
    policy = NOBODY.reached(address)
    reason = check_address("http", "auth.internal", address, policy, SERVER)
    assert (reason == "") == (found in INHERITABLE_RANGES)


def test_a_server_on_loopback_may_not_name_private_hosts():
    policy = NOBODY.reached("127.0.0.1")
    assert policy.reached("127.0.0.2") is policy
    assert policy.reached("") is policy
    assert check_address("http", "a", "127.0.0.9", policy, SERVER) == ""
    assert "private" in check_address("http", "a", "10.0.0.1", policy, SERVER)


@pytest.mark.parametrize(
    ("allow", "host", "address"),
    [
        ("auth.corp.example", "auth.corp.example", "10.0.0.1"),
        ("AUTH.corp.example.", "auth.corp.example", "169.254.1.1"),
        ("*.corp.example", "auth.corp.example", "10.0.0.1"),
        ("10.0.0.0/8", "anything", "10.9.9.9"),
        ("10.0.0.1", "anything", "10.0.0.1"),
        ("10.0.0.1", "anything", "::ffff:10.0.0.1"),
        ("169.254.169.254", "anything", "169.254.169.254"),
        ("fd00::/8", "anything", "fd00:ec2::254"),
        ("[::1]", "anything", "::1"),
    ],
)
def test_what_the_user_allows_is_allowed(allow: str, host: str, address: str):
    policy = EgressPolicy(allow=("other.example", allow))
    for named_by in NamedBy:
        assert check_address("http", host, address, policy, named_by) == ""
    if host != "anything":
        assert check_host("http", host, policy, SERVER) == ""


@pytest.mark.parametrize("allow", ["corp.example", "*.example.corp", "10.0.0.0/9", "::1", ""])
def test_what_is_allowed_allows_nothing_else(allow: str):
    policy = EgressPolicy(allow=(allow,))
    assert check_address("https", "auth.corp.example", "10.200.0.1", policy, SERVER)


def test_one_refused_address_refuses_the_name():
    both = ["8.8.8.8", "127.0.0.1"]
    for addresses in (both, both[::-1]):
        assert "loopback" in check_addresses("https", "a.example", addresses, NOBODY, SERVER)
    assert check_addresses("https", "a.example", ["8.8.8.8"], NOBODY, SERVER) == ""
    assert check_addresses("https", "a.example", [], NOBODY, SERVER) == "the name has no address"


def test_a_resolver_that_answers_no_address_is_not_believed():
    assert "not an address" in check_address("https", "a.example", "b.example", NOBODY, SERVER)
    assert range_of("b.example") is AddressRange.RESERVED


def test_a_host_is_configured_by_its_whole_origin():
    policy = EgressPolicy(origins=frozenset({origin("https", "MCP.example", 443)}))
    assert policy.named_by("https", "mcp.example", 443) is CONFIGURATION
    for scheme, host, port in [
        ("http", "mcp.example", 443),
        ("https", "mcp.example", 6379),
        ("https", "auth.mcp.example", 443),
    ]:
        assert policy.named_by(scheme, host, port) is SERVER
    assert origin("http", "::1", 80) == "http://[::1]:80"


@given(st.ip_addresses(v=4))
def test_every_spelling_of_an_address_has_the_range_of_the_address(address: ipaddress.IPv4Address):
    number, expected = int(address), range_of(str(address))
    a, b, c, d = address.packed
    spellings = [str(number), hex(number), f"0{number:o}", f"{a}.{b}.{c * 256 + d}"]
    spellings += [f"{a:#x}.{b:#x}.{c:#x}.{d:#x}", f"::ffff:{address}"]
    assert {range_of(one) for one in spellings} == {expected}


@given(st.ip_addresses(v=6))
def test_only_global_ipv6_addresses_are_public(address: ipaddress.IPv6Address):
    if range_of(str(address)) is AddressRange.PUBLIC:
        embedded = address in ipaddress.ip_network("::/3")
        assert address in ipaddress.ip_network("2000::/3") or embedded


@given(st.text(max_size=40))
def test_any_text_gets_a_verdict(host: str):
    check_host("https", host, NOBODY, SERVER)
    assert normalize_host(normalize_host(host)) is not None
