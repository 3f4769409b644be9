"""The short form of the chaos of logins, and that its ledger finds what breaks a promise."""

from typing import Any

import pytest

from chaos.logins import Soak, soaked
from chaos.scene import SECRET
from toolkeep import AuthNeeded

pytestmark = [pytest.mark.requirement("N4", "N7"), pytest.mark.timeout(120)]


async def test_users_keep_their_logins_and_nobody_gets_anothers():
    soak, found, _ = await soaked(calls=1_500, seed=3)
    assert soak.broken == []
    assert soak.outcomes["completed"] > 1_300
    assert found["grants"].count("refresh_token") > 20


def told(**found: Any) -> list[str]:
    """What is broken after one completed call of user-1, by this ledger."""
    soak = Soak("", [], 1, 1)
    soak.completed["user-1"] = 1
    soak.hold_against({"foreign": [], "calls": {"user-1": 1}, "refused": [], **found})
    return soak.broken


def test_the_ledger_is_believed():
    assert told() == []
    assert told(foreign=["user-1 came with the token of user-2"])
    assert told(calls={})
    assert told(calls={"user-1": 1, "user-2": 1})
    assert told(refused=["refresh_token: invalid_grant"])


async def test_a_login_that_is_lost_without_a_reason_and_a_token_that_is_shown_are_found():
    class Lost:
        async def call(self, *_: Any, **__: Any) -> Any:
            raise AuthNeeded(f"log in: {SECRET}", server="files")

    soak = Soak("", [], 1, 1)
    await soak._call("user-1", Lost())  # pyright: ignore[reportArgumentType]
    assert len(soak.broken) == 2
    assert "a token is shown by AuthNeeded" in soak.broken
    assert "has lost a login that was not revoked" in soak.broken[1]
