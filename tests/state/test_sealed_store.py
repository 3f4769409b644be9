"""Sealed stores: what others can read, move, change or lack the key for."""

import asyncio
import base64
import logging
import secrets

import pytest

from toolkeep.errors import ConfigError, SealBroken, StoreUnavailable
from toolkeep.state import MemoryStore, sealed
from toolkeep.state.sealed import DerivedKeys, KeyRing, _library

PATIENCE = 10.0
ONE, TWO = secrets.token_hex(32), base64.b64encode(secrets.token_bytes(32)).decode()


async def value_of(store, key: str) -> bytes:
    entry = await store.get(key)
    assert entry is not None
    return entry.value


@pytest.mark.requirement("H6")
async def test_the_store_below_sees_nothing_of_what_is_sealed():
    below = MemoryStore()
    store = sealed(below, [ONE])
    await store.put("key", b"a secret")
    await store.append("log", b"a secret", max_entries=1, ttl=60)
    async with below.subscribe("channel") as messages:
        await store.publish("channel", b"a secret")
        seen = [await value_of(below, "key"), (await below.read("log"))[0][1]]
        seen.append(await asyncio.wait_for(anext(messages), PATIENCE))
    assert not [one for one in seen if b"secret" in one]
    assert ONE not in repr(store)
    assert len(set(seen)) == 3


async def test_equal_values_look_different_each_time():
    below = MemoryStore()
    store = sealed(below, [ONE])
    seen = set()
    for _ in range(20):
        await store.put("key", b"x")
        seen.add(await value_of(below, "key"))
    assert len(seen) == 20


async def test_a_value_that_was_moved_to_another_name_or_kind_does_not_open():
    below = MemoryStore()
    store = sealed(below, [ONE])
    await store.put("ada", b"of ada")
    stolen = await value_of(below, "ada")
    await below.put("grace", stolen)
    with pytest.raises(SealBroken, match="the value 'grace' cannot be decrypted: it was changed"):
        await store.get("grace")
    await below.append("ada", stolen, max_entries=1, ttl=60)
    with pytest.raises(SealBroken, match="the log 'ada' cannot be decrypted"):
        await store.read("ada")


async def test_every_changed_byte_is_noticed():
    below = MemoryStore()
    store = sealed(below, [ONE])
    await store.put("key", b"value")
    good = await value_of(below, "key")
    bad = [good[:n] + bytes([good[n] ^ 1]) + good[n + 1 :] for n in range(len(good))]
    for one in (*bad, good[:-1], good[:20], b"", b"never sealed"):
        await below.put("key", one)
        with pytest.raises(SealBroken) as caught:
            await store.get("key")
        assert isinstance(caught.value, StoreUnavailable)
    assert await store.put("key", b"written anew")
    assert await value_of(store, "key") == b"written anew"


async def test_keys_are_changed_in_three_steps():
    below = MemoryStore()
    await sealed(below, [ONE]).put("key", b"x")
    both = [sealed(below, [ONE, TWO]), sealed(below, [TWO, ONE])]
    assert [await value_of(store, "key") for store in both] == [b"x", b"x"]
    await both[1].put("key", b"y")
    assert [await value_of(store, "key") for store in both] == [b"y", b"y"]
    assert await value_of(sealed(below, [TWO]), "key") == b"y"
    with pytest.raises(SealBroken, match=r"encrypted with the key \w{16}, which is not configured"):
        await sealed(below, [ONE]).get("key")


async def test_a_message_that_does_not_open_is_dropped_with_a_warning(
    caplog: pytest.LogCaptureFixture,
):
    below = MemoryStore()
    store = sealed(below, [ONE])
    with caplog.at_level(logging.WARNING, "toolkeep.state"):
        async with store.subscribe("channel") as messages:
            await below.publish("channel", b"forged, with words that no log shows")
            await sealed(below, [TWO]).publish("channel", b"foreign")
            await store.publish("channel", b"good")
            assert await asyncio.wait_for(anext(messages), PATIENCE) == b"good"
    assert len(caplog.records) == 2
    assert "forged" not in caplog.text


@pytest.mark.parametrize("aad", [b"", b"c2sp.org/XAES-256-GCM"])
def test_the_cipher_is_xaes_256_gcm(aad: bytes):
    """With the two test vectors of C2SP."""
    key, expected = {
        b"": (b"\x01" * 32, "ce546ef63c9cc60765923609b33a9a1974e96e52daf2fcf7075e2271"),
        b"c2sp.org/XAES-256-GCM": (
            b"\x03" * 32,
            "986ec1832593df5443a179437fd083bf3fdb41abd740a21f71eb769d",
        ),
    }[aad]
    made = DerivedKeys(key, _library())
    nonce, text = b"ABCDEFGHIJKLMNOPQRSTUVWX", b"XAES-256-GCM"
    assert made.encrypt(nonce, text, aad).hex() == expected
    assert made.decrypt(nonce, bytes.fromhex(expected), aad) == text


def test_a_key_may_be_written_in_four_ways():
    key = bytes(range(200, 232))
    spellings = [
        key,
        key.hex(),
        base64.b64encode(key).decode(),
        base64.urlsafe_b64encode(key).decode().rstrip("=") + "\n",
    ]
    assert len({repr(KeyRing([one])) for one in spellings}) == 1
    assert repr(KeyRing(spellings)) == repr(KeyRing([key]))


@pytest.mark.requirement("H6")
@pytest.mark.parametrize(
    "keys",
    [
        [],
        "0" * 64,
        b"x" * 32,
        ["correct horse battery staple"],
        [ONE, ONE[:-2]],
        [secrets.token_bytes(16)],
        [base64.b64encode(secrets.token_bytes(33)).decode()],
        ["ä" * 43],
    ],
)
def test_a_weak_or_broken_key_is_refused_without_showing_it(keys):
    with pytest.raises(ConfigError, match="Generate a key with") as caught:
        sealed(MemoryStore(), keys)
    assert not any(str(key) in str(caught.value) for key in keys if key)
