"""What may be shown of a URL and of a command line."""

import string
from urllib.parse import parse_qsl, quote, urlsplit

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from toolkeep.config.redact import (
    HIDDEN,
    is_secret_name,
    misplaced_url_secrets,
    redact_args,
    redact_url,
    secret_parts,
    secrets_of_url,
)

SECRET = "QxZ7hunter2"

SECRET_NAMES = [
    "api_key",
    "apikey",
    "API-KEY",
    "access_token",
    "Token",
    "client_secret",
    "password",
    "passwd",
    "authorization",
    "auth",
    "sig",
    "X-Amz-Signature",
    "credential",
    "session_id",
]


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("http://localhost:8000/mcp", "http://localhost:8000/mcp"),
        ("https://u:p@example.com/mcp", "https://example.com/mcp"),
        ("https://token@example.com", "https://example.com"),
        ("https://u:p@[::1]:8000/mcp", "https://[::1]:8000/mcp"),
        ("http://h/mcp?token=a&page=2", "http://h/mcp?token=***&page=2"),
        ("http://h/mcp?page=&Api_Key=", "http://h/mcp?page=&Api_Key=***"),
        ("http://h/mcp?to%6ben=abc", "http://h/mcp?token=***"),
        ("http://h/mcp?q=a%26token%3Db", "http://h/mcp?q=a%26token%3Db"),
        ("http://h/mcp#access_token=abc", "http://h/mcp"),
        (
            "http://h/mcp?code=a&jwt=b&pwd=c&pass=d&pin=1",
            "http://h/mcp?code=***&jwt=***&pwd=***&pass=***&pin=***",
        ),
        ("http://h/mcp?zip_code=1&passive=1", "http://h/mcp?zip_code=1&passive=1"),
        ("https://h/api/mcp/s/NzY0Zjk2ODQtYjQzZC00/mcp", "https://h/api/mcp/s/***/mcp"),
        ("https://h/f81d4fae-7dec-11d0-a765-00a0c91e6bf6/mcp", "https://h/***/mcp"),
        ("https://h/bot123456789:AAE-sEcReTtOkEn_x1y2/mcp", "https://h/***/mcp"),
        ("https://h/sk-live-abcdefghijkl/mcp", "https://h/***/mcp"),
        ("https://h/token/abc/mcp", "https://h/token/***/mcp"),
        ("https://h/mcp;key=abc", "https://h/***"),
        ("https://h/%66%38%31d4fae7dec11d0a765/mcp", "https://h/***/mcp"),
        ("https://h/mcp?x=eyJhbGciOiJIUzI1NiJ9.eyJzdWIi.abc", "https://h/mcp?x=***"),
        ("https://h/2025-11-25/preview-release/mcp", "https://h/2025-11-25/preview-release/mcp"),
        ("https://h/v1/streamable-http-v2", "https://h/v1/streamable-http-v2"),
        ("https://h/getCustomerOrderHistory", "https://h/getCustomerOrderHistory"),
        ("https://h/organizations/acme-corporation", "https://h/organizations/acme-corporation"),
        ("http://h:99999/mcp", HIDDEN),
        ("http://[::1", HIDDEN),
        ("", ""),
    ],
)
def test_what_is_left_of_a_url(url: str, shown: str):
    assert redact_url(url) == shown


@pytest.mark.parametrize("name", SECRET_NAMES)
def test_a_name_that_sounds_secret_hides_its_value(name: str):
    assert is_secret_name(name)
    assert secrets_of_url(f"http://h/?{name}={SECRET}")
    assert SECRET not in redact_url(f"http://h/?a=1&{name}={SECRET}&b=2")


@pytest.mark.parametrize("name", ["page", "q", "user", "limit"])
def test_any_other_value_is_shown(name: str):
    assert not is_secret_name(name)
    assert not secrets_of_url(f"http://h/?{name}=5")
    assert redact_url(f"http://h/?{name}=5") == f"http://h/?{name}=5"


@pytest.mark.parametrize("url", ["http://u:p@h/", "http://u@h/", "http://:p@h/", "http://h/?sig=1"])
def test_a_url_with_credentials_is_known_to_have_them(url: str):
    assert secrets_of_url(url)


@given(st.text() | st.text(st.characters(codec=None)) | st.text("htps:/@?&=[]#%;\\ \ud800"))
@example("http://h/?a=\ud800")
@example("http://\ud800@h/\udfff")
@example("http://h\u2100/")
@example("//[")
def test_nothing_makes_it_raise(url: str):
    assert isinstance(redact_url(url), str)


words = st.text(string.ascii_letters + string.digits + "-._~!$'()*+,=", min_size=1, max_size=8)
paths = st.text(string.ascii_lowercase + "/.", max_size=8)


@given(
    scheme=st.sampled_from(["http://", "https://", "ftp://", "//", "http:", "http:/", "", "x:///"]),
    user=st.just("") | words,
    colon=st.sampled_from([":", ""]),
    path=paths,
)
def test_no_password_is_shown_however_the_address_is_misspelt(scheme, user, colon, path):
    before = f"{user}{colon}" if user else ""
    url = f"{scheme}{before}{SECRET}@example.com/{path}"
    assert SECRET.lower() not in redact_url(url).lower()


@given(
    before=st.lists(st.tuples(words, words), max_size=3),
    name=st.sampled_from(SECRET_NAMES),
    encoded=st.booleans(),
    after=st.lists(st.tuples(words, words), max_size=3),
)
def test_no_secret_parameter_is_shown_wherever_it_stands(before, name, encoded, after):
    written = "".join(f"%{ord(letter):02x}" for letter in name) if encoded else name
    pairs = [f"{quote(n)}={quote(v)}" for n, v in before]
    pairs += [f"{written}={SECRET}", *(f"{quote(n)}={quote(v)}" for n, v in after)]
    shown = redact_url("http://h/mcp?" + "&".join(pairs))
    assert SECRET not in shown
    assert (name, HIDDEN) in parse_qsl(urlsplit(shown).query)


@given(paths, st.integers(1, 65535))
def test_what_holds_no_secret_is_shown_as_it_is(path: str, port: int):
    url = f"http://example.com:{port}/{path}"
    assert redact_url(url) == url


@given(st.text())
def test_what_was_redacted_once_stays_redacted(url: str):
    assert redact_url(redact_url(url)) in (redact_url(url), HIDDEN)


@pytest.mark.parametrize(
    ("args", "shown"),
    [
        (["--api-key", SECRET, "next"], ["--api-key", HIDDEN, "next"]),
        ([f"--api-key={SECRET}", "next"], [f"--api-key={HIDDEN}", "next"]),
        (["--token", "--verbose"], ["--token", "--verbose"]),
        (["-y", f"https://h/mcp?jwt={SECRET}"], ["-y", "https://h/mcp?jwt=***"]),
        ([f"--url=https://u:{SECRET}@h/mcp"], ["--url=https://h/mcp"]),
        (["https://h/mcp?page=2#here"], ["https://h/mcp?page=2#here"]),
    ],
    ids=str,
)
def test_only_the_argument_that_is_asked_for_is_hidden(args: list[str], shown: list[str]):
    assert redact_args(args) == shown


def test_a_token_in_a_path_is_known_but_cannot_be_moved_to_a_header():
    url = "https://h/s/NzY0Zjk2ODQtYjQzZC00/mcp"
    assert secrets_of_url(url) == ("NzY0Zjk2ODQtYjQzZC00",)
    assert misplaced_url_secrets(url) == ()


@given(st.text(), st.text())
def test_a_secret_is_its_own_first_part_and_nothing_makes_it_raise(text: str, more: str):
    value = f"{text} {more}"
    parts = list(secret_parts(value))
    assert (value in parts) is (len(value) >= 8)
