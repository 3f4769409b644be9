"""`ServerSpec` afterwards: nothing changes it, and it shows no secret."""

import copy
import json
import pickle
import socket
from typing import Any

import pytest
from pydantic import ValidationError

from toolkeep import Client
from toolkeep.config import ServerSpec
from toolkeep.config.spec import ConfigWarning
from toolkeep.errors import ConfigError, ServerUnavailable

URL = "http://localhost:8000/mcp"
SECRET = "hunter2"


def spec(**given: Any) -> ServerSpec:
    return ServerSpec(**{"name": "research", "url": URL, **given})


# --- frozen ----------------------------------------------------------------------------------


@pytest.mark.requirement("S1")
@pytest.mark.parametrize("field", ServerSpec.model_fields)
def test_no_value_can_be_changed(field: str):
    known = spec()
    with pytest.raises(ValidationError):
        setattr(known, field, getattr(known, field))
    with pytest.raises(ValidationError):
        delattr(known, field)


def test_no_part_can_be_changed():
    known = spec(headers={"x-a": "1"}, retry_tools={"t": "never"})
    changes: list[Any] = [
        lambda: known.headers.__setitem__("x-a", "2"),  # pyright: ignore
        lambda: known.headers.update({}),  # pyright: ignore
        lambda: known.headers.pop("x-a"),  # pyright: ignore
        lambda: known.headers.clear(),  # pyright: ignore
        lambda: known.headers.setdefault("x-b", "2"),  # pyright: ignore
        lambda: known.headers.__ior__({"x-b": "2"}),  # pyright: ignore
        lambda: known.headers.__delitem__("x-a"),  # pyright: ignore
        lambda: known.retry_tools.__setitem__("t", "always"),  # pyright: ignore
    ]
    for change in changes:
        with pytest.raises(TypeError):
            change()
    for part in (known.timeouts, known.tls):
        with pytest.raises(ValidationError):
            setattr(part, next(iter(type(part).model_fields)), 1)
    assert known.headers == {"x-a": "1"}


def test_the_mapping_it_was_made_from_stays_the_callers():
    given = {"x-a": "1"}
    known = spec(headers=given)
    given["x-a"] = "2"
    assert known.headers == {"x-a": "1"}


def test_a_spec_can_be_a_key_be_copied_and_be_sent_to_another_process():
    known = spec(
        headers={"x-a": "1"},
        retry_tools={"t": "never"},
        tls={"client_cert": "c"},
        extensions={"com.example/x": {"sizes": [1, {"deep": None}]}},
    )
    for twin in (copy.deepcopy(known), pickle.loads(pickle.dumps(known)), known.replace()):
        assert twin == known
        assert hash(twin) == hash(known)
        with pytest.raises(TypeError):
            twin.headers["x-a"] = "2"  # pyright: ignore[reportIndexIssue]
    assert spec(headers={"x-a": "2"}) != known


def test_a_changed_copy_is_checked_like_the_first():
    assert spec().replace(mode="legacy").mode == "legacy"
    with pytest.raises(ConfigError):
        spec().replace(mode="fast")


# --- secrets ---------------------------------------------------------------------------------


def secretive() -> ServerSpec:
    with pytest.warns(ConfigWarning):
        return spec(
            url=f"http://u:{SECRET}@localhost/mcp?token={SECRET}",
            headers={"x-a": SECRET},
            api_key=SECRET,
            proxy=f"http://u:{SECRET}@localhost:3128",
            tls={"client_key_password": SECRET},
        )


@pytest.mark.requirement("H6")
def test_a_spec_shows_no_secret():
    known = secretive()
    shown = [repr(known), str(known), f"{known}", known.model_dump_json(), repr(known.tls)]
    assert not [text for text in shown if SECRET in text]
    assert json.loads(known.model_dump_json())["headers"] == {"x-a": "***"}
    assert known.headers["x-a"] == SECRET


@pytest.mark.requirement("H6")
@pytest.mark.parametrize(
    "mistake",
    [
        {"url": f"ftp://u:{SECRET}@localhost/"},
        {"url": f"u:{SECRET}@localhost/mcp"},
        {"url": f"example.com/mcp?api_key={SECRET}"},
        {"url": f"http://u:{SECRET}@:80/"},
        {"url": f"http://u:{SECRET}@localhost:99999/"},
        {"proxy": f"socks5://u:{SECRET}@localhost:1"},
        {"api_key": f"{SECRET}\n"},
        {"api_key": [SECRET]},
        {"headers": {"x-a": [SECRET]}},
        {"headers": SECRET},
        {"tls": {"client_key_password": [SECRET]}},
        {"mode": SECRET},
        {"timeouts": {"call": SECRET}},
    ],
)
def test_no_mistake_shows_a_secret(mistake: dict[str, Any]):
    with pytest.raises(ConfigError) as caught:
        spec(**mistake)
    error = caught.value
    assert SECRET not in f"{error!r} {error} {error.problem} {error.remedy}"


# --- warnings --------------------------------------------------------------------------------


@pytest.mark.requirement("C3")
@pytest.mark.parametrize(
    "url",
    [
        "http://example.com/mcp",
        "http://10.0.0.1/",
        "http://localhost.example.com/",
        f"https://u:{SECRET}@example.com/",
        f"https://example.com/?api_key={SECRET}",
    ],
)
def test_what_is_unwise_is_a_warning_without_the_secret(url: str):
    with pytest.warns(ConfigWarning) as caught:
        ServerSpec.parse(url)
    assert len(caught) == 1
    assert SECRET not in str(caught[0].message)


@pytest.mark.parametrize(
    "url",
    [
        "https://example.com/mcp",
        "http://localhost/",
        "http://tools.localhost:8000/",
        "http://127.0.0.1:8000/",
        "http://127.1.2.3/",
        "http://[::1]:8000/",
    ],
)
def test_what_is_wise_is_no_warning(url: str):
    ServerSpec.parse(url)  # every warning is an error here


@pytest.mark.parametrize("make", [ServerSpec.parse, Client], ids=["spec", "client"])
def test_a_warning_points_at_the_line_that_caused_it(make: Any):
    with pytest.warns(ConfigWarning) as caught:
        make("http://example.com/mcp")
    assert caught[0].filename == __file__


# --- what a client makes of it ---------------------------------------------------------------


async def test_a_cooldown_of_any_length_works():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: refuses at once
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/mcp"
        client = Client({"url": url, "breaker_cooldown": 3600.0, "max_retries": 0})
        with pytest.raises(ServerUnavailable):
            await client.connect()
        await client.aclose()
