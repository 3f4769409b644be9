"""Stores: what each of them promises to the engine."""

import asyncio
import dataclasses
import logging
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from toolkeep.stores import FileSessionStore, MemorySessionStore, SessionStore, StoredSession

HANDSHAKE = {
    "protocolVersion": "2025-11-25",
    "capabilities": {"tools": {"listChanged": True}},
    "serverInfo": {"name": "kit", "version": "1"},
    "instructions": "naïve \ud800 \N{SNOWMAN}\n",
}


def a_session(session_id: str, **changes: Any) -> StoredSession:
    given: dict[str, Any] = {"handshake": HANDSHAKE, "binding": "b1nd1ng", "saved_at": 12.5}
    return StoredSession(session_id=session_id, **{**given, **changes})


@pytest.fixture(params=["memory", "files"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> SessionStore:
    return MemorySessionStore() if request.param == "memory" else FileSessionStore(tmp_path / "s")


async def test_what_was_saved_is_loaded_as_it_was(store: SessionStore):
    assert isinstance(store, SessionStore)
    assert await store.load("kit", "ann") is None
    session = a_session("one", saved_at=1_800_000_000)
    assert await store.save("kit", "ann", session, replacing=None)
    assert await store.load("kit", "ann") == session


async def test_only_the_session_that_was_seen_is_replaced(store: SessionStore):
    one, two, late = a_session("one"), a_session("two"), a_session("late")
    assert not await store.save("kit", None, one, replacing="zero")
    assert await store.save("kit", None, one, replacing=None)
    assert not await store.save("kit", None, late, replacing=None)
    assert await store.save("kit", None, two, replacing="one")
    assert not await store.save("kit", None, late, replacing="one")
    assert await store.load("kit", None) == two


async def test_only_the_session_that_was_seen_is_dropped(store: SessionStore):
    assert not await store.drop("kit", None, "one")
    await store.save("kit", None, a_session("one"), replacing=None)
    assert not await store.drop("kit", None, "other")
    assert await store.drop("kit", None, "one")
    assert not await store.drop("kit", None, "one")
    assert await store.load("kit", None) is None


async def test_servers_and_principals_are_kept_apart(store: SessionStore):
    pairs = [
        ("a", "b"),
        ("ab", ""),
        ("a", None),
        ("a", ""),
        ('a","b', None),
        ("", "ab"),
        ("A", "b"),
    ]
    pairs += [("a", "null"), ("../a", "b"), ("\ud800", "b")]
    for number, (server, principal) in enumerate(pairs):
        assert await store.save(server, principal, a_session(str(number)), replacing=None)
    for number, (server, principal) in enumerate(pairs):
        assert await store.load(server, principal) == a_session(str(number))


async def test_what_is_kept_does_not_change_with_what_was_given_or_taken(store: SessionStore):
    handshake: dict[str, Any] = {"capabilities": {"tools": {}}}
    await store.save("kit", None, a_session("one", handshake=handshake), replacing=None)
    handshake["capabilities"]["tools"] = "given"
    loaded = await store.load("kit", None)
    assert loaded is not None
    loaded.handshake["capabilities"]["tools"] = "taken"
    assert await store.load("kit", None) == a_session(
        "one", handshake={"capabilities": {"tools": {}}}
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"saved_at": float("inf")},
        {"handshake": {"x": float("nan")}},
        {"handshake": {"instructions": "x" * 5_000_000}},
    ],
    ids=["saved_at", "nan", "huge"],
)
async def test_what_could_not_be_read_again_is_refused(
    store: SessionStore, changes: dict[str, Any]
):
    with pytest.raises(ValueError):
        await store.save("kit", None, a_session("one", **changes), replacing=None)
    assert await store.load("kit", None) is None


def test_threads_with_loops_of_their_own_replace_one_session_at_a_time(store: SessionStore):
    async def climb(name: str) -> list[tuple[str | None, str]]:
        won: list[tuple[str | None, str]] = []
        while len(won) < 25:
            seen = await store.load("kit", None)
            old, new = seen and seen.session_id, f"{name}{len(won)}"
            if await store.save("kit", None, a_session(new), replacing=old):
                won.append((old, new))
        return won

    async def race() -> list[list[tuple[str | None, str]]]:
        climbers = (asyncio.to_thread(asyncio.run, climb(name)) for name in "abcd")
        return await asyncio.wait_for(asyncio.gather(*climbers), 40)

    won = dict(pair for wins in asyncio.run(race()) for pair in wins)
    assert len(won) == 100  # no session was replaced twice
    last = None
    while last in won:
        last = won.pop(last)
    assert not won
    assert asyncio.run(store.load("kit", None)) == a_session(str(last))


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["load", "save", "drop"]),
        st.sampled_from([("a", None), ("a", "p"), ("b", "p")]),
        st.sampled_from(["1", "2", ""]),
        st.sampled_from([None, "1", "2", ""]),
    ),
    max_size=20,
)


@pytest.mark.parametrize("kind", ["memory", "files"])
@examples(max_examples=40)
@given(steps=STEPS)
def test_any_order_of_steps_does_what_a_dictionary_does(kind: str, steps: list[Any]):
    async def follow(store: SessionStore) -> None:
        model: dict[Any, str] = {}
        for what, (server, principal), new, old in steps:
            who = server, principal
            if what == "load":
                kept = await store.load(server, principal)
                assert (kept and kept.session_id) == model.get(who)
                continue
            expected = old if what == "save" else new
            right = model.get(who) == expected
            if what == "save":
                assert await store.save(server, principal, a_session(new), replacing=old) is right
            else:
                assert await store.drop(server, principal, new) is right
            if right:
                model.pop(who, None)
                model.update({who: new} if what == "save" else {})

    with tempfile.TemporaryDirectory() as place:
        chosen = MemorySessionStore() if kind == "memory" else FileSessionStore(f"{place}/s")
        asyncio.run(follow(chosen))


async def test_no_secret_is_shown(store: SessionStore, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.DEBUG)
    session = a_session("s3cret")
    await store.save("kit", "ann", session, replacing=None)
    shown = f"{session!r} {store!r} {await store.load('kit', 'ann')!r} {caplog.text}"
    assert "s3cret" not in shown
    assert "b1nd1ng" not in shown


def test_a_stored_session_does_not_change():
    with pytest.raises(dataclasses.FrozenInstanceError):
        a_session("one").session_id = "two"  # pyright: ignore[reportAttributeAccessIssue]
