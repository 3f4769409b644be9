"""Processes that are killed while they refresh one grant: `python -m tests.oauth.fleet_kills 1000`.

Each process refreshes without a pause until SIGKILL ends it at a random moment. After each kill
the next process must be able to go on, unless the kill fell between the answer of the authorization
server and the store, and that server takes no refresh token twice. Prints a JSON object:

    kills    processes killed
    between  kills after which the server's ledger has a refresh that the store has not
    lost     grants that ended
"""

import asyncio
import json
import os
import random
import signal
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

from tests.oauth.world import REDIRECT, browse, client, direct, running_provider, shared_store
from toolkeep.auth.authorizer import OAuthError
from toolkeep.auth.login import begin_login, complete_login
from toolkeep.auth.oauth import OAuth
from toolkeep.auth.storage import LoginStorage
from toolkeep.auth.token_refresh import GrantRefresher

LONGEST_LIFE = 0.12
"""Seconds until the kill: a few refreshes."""
LEASE = 0.3


class Fleet:
    """One grant at one authorization server, and the processes that refresh it."""

    def __init__(self, origin: str, folder: Path) -> None:
        self._origin, self._folder = origin, folder
        self.kills = self.between = self.lost = 0
        self._before = 0
        """Refreshes in the ledger that the renewals of the current grant do not count."""

    def run(self, kills: int) -> dict[str, int]:
        asyncio.run(self._log_in())
        for _ in range(kills):
            self._kill_one()
            behind = self._refreshes() - self._before - asyncio.run(self._renewals())
            self.between += behind > 0
            if asyncio.run(self._goes_on()):
                self._before = self._refreshes() - asyncio.run(self._renewals())
            else:
                assert behind > 0, "a grant was lost although the store had the last answer"
                self.lost += 1
                asyncio.run(self._log_in())
        return {"kills": self.kills, "between": self.between, "lost": self.lost}

    def _kill_one(self) -> None:
        ready, told = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                asyncio.run(self._refresh_on(told))
            finally:
                os._exit(1)
        os.close(told)
        os.read(ready, 1)
        os.close(ready)
        time.sleep(random.uniform(0, LONGEST_LIFE))
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status), "the process ended by itself"
        self.kills += 1

    async def _refresh_on(self, told: int) -> None:
        oauth = self._client()
        key = oauth.settings.key("alice")
        grant = await oauth.grants.usable(key)
        os.write(told, b"x")
        while grant is not None:
            grant = await oauth.grants.usable(key, rejected=grant.access_token)

    async def _goes_on(self) -> bool:
        """Whether the next process gets a new token."""
        oauth = self._client()
        key = oauth.settings.key("alice")
        try:
            grant = await oauth.grants.usable(key)
            assert grant is not None
            return await oauth.grants.usable(key, rejected=grant.access_token) is not None
        except OAuthError as error:
            if "a refresh was interrupted" not in error.problem:
                raise
            return False
        finally:
            await self._close(oauth)

    async def _renewals(self) -> int:
        """Refreshes of the stored grant."""
        oauth = self._client()
        grant = await oauth.grants.stored(oauth.settings.key("alice"))
        await self._close(oauth)
        assert grant is not None
        return grant.renewals

    async def _log_in(self) -> None:
        oauth = self._client()
        login = await begin_login(oauth, "alice", redirect_uri=REDIRECT)
        await complete_login(oauth, await browse(login.url))
        await self._close(oauth)
        self._before = self._refreshes()

    def _client(self) -> OAuth:
        oauth = client(self._origin, LoginStorage(shared_store(self._folder)))
        how: dict[str, Any] = {"settings": oauth.settings.client, "policy": oauth.policy}
        oauth.grants = GrantRefresher(oauth.grants.storage, fetch=direct, lease=LEASE, **how)
        return oauth

    async def _close(self, oauth: OAuth) -> None:
        await oauth.aclose()
        await (await oauth.grants.storage.open()).aclose()

    def _refreshes(self) -> int:
        with urllib.request.urlopen(f"{self._origin}/ledger") as answer:
            return json.load(answer)["grants"].count("refresh_token")


def main(kills: int) -> None:
    for name, rotates in (("rotating", True), ("allows reuse", False)):
        with tempfile.TemporaryDirectory() as folder, running_provider(rotate=rotates) as origin:
            result = Fleet(origin, Path(folder)).run(kills)
        assert result["lost"] <= result["between"], result
        assert rotates or result["lost"] == 0, result
        print(json.dumps({"server": name, **result}), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
