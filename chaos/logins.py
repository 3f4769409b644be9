"""`python -m chaos.logins --calls N --seed S`: fifty users with logins, at a server that ends them.

Two runtimes share a store, as two replicas of a web application do. oidc-provider gives tokens that
live for three seconds, and takes each refresh token once. Its token endpoint answers 503 at times,
and it revokes grants of users, who then log in again at the other replica. It stands before the MCP
server, so its ledger has whose token came with each call. Held against that ledger:

- No call is made, or answered, with the token of another user.
- A user is asked to log in again only after the server has revoked the grant.
- Every call ends: with its result, with `AuthNeeded`, or, during an outage, with an `OAuthError`.
- The calls of each user that completed are those that the ledger has.
- No token is shown in an error, an event or a log line.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
import time
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from chaos.scene import SECRET
from chaos.witness import Witness
from tests.oauth.world import REDIRECT, browse, ledger, order, running_provider
from toolkeep import AuthNeeded, CallContext, Runtime
from toolkeep.auth.authorizer import OAuthError
from toolkeep.state import SQLiteStore, sealed
from toolkeep.testing import ScriptedServer

USERS, CALLERS, LIFE = 50, 16, 3
"""Principals, callers at once, and seconds that a token lives."""
OUTAGE_EVERY, OUTAGE = 10.0, 1.5
REVOKED_EVERY = 2.0
"""Seconds between troubles, and how long an outage lasts."""
AFTER_OUTAGE = 8.0
"""Seconds after the beginning of an outage in which a refresh may not be tried yet."""
BOUND = 60.0


class Soak:
    """One run. `broken` has what must not happen."""

    def __init__(self, origin: str, replicas: list[Runtime], calls: int, seed: int) -> None:
        self._origin, self._replicas, self._calls = origin, replicas, calls
        self._dice = random.Random(seed)
        self.users = [f"user-{number}" for number in range(USERS)]
        self.broken: list[str] = []
        self.outcomes: Counter[str] = Counter()
        self.completed: Counter[str] = Counter()
        self.unfinished: Counter[str] = Counter()
        """Calls of a user that ended with an error; one may have been on its way."""
        self.revoked = 0
        self._revoked: set[str] = set()
        """Users whose grant the server has ended, and who have not logged in since."""
        self._logged_in: dict[str, float] = {}
        self._logging_in = {user: asyncio.Lock() for user in self.users}
        self._outage_began = -AFTER_OUTAGE
        self.witness = Witness()

    async def run(self) -> None:
        for user in self.users:
            await self._log_in(user)
        left = iter(range(self._calls))
        troubles = [asyncio.create_task(one) for one in (self._outages(), self._revocations())]
        try:
            await asyncio.gather(*(self._call_on(left) for _ in range(CALLERS)))
        finally:
            for task in troubles:
                task.cancel()
            await asyncio.gather(*troubles, return_exceptions=True)

    async def _call_on(self, left: Any) -> None:
        for _ in left:
            user, replica = self._dice.choice(self.users), self._dice.choice(self._replicas)
            try:
                async with asyncio.timeout(BOUND):
                    await self._call(user, replica)
            except TimeoutError:
                self.broken.append(f"a call of {user} did not end within {BOUND:g} s")

    async def _call(self, user: str, replica: Runtime) -> None:
        began = time.monotonic()
        context = CallContext(principal=user, headers={"x-meant-for": user})
        try:
            result = await replica.call("files.headers", context=context)
        except AuthNeeded as error:
            self._note("login needed", user, error)
            await self._log_in_again(user, began, error)
        except OAuthError as error:
            self._note("outage", user, error)
            if began - self._outage_began > AFTER_OUTAGE:
                self.broken.append(f"{user}, without an outage: {error}")
        except Exception as error:  # whatever else it is, no caller is prepared for it
            self._note(type(error).__name__, user, error)
            self.broken.append(f"{user}: {error!r}"[:300])
        else:
            self.outcomes["completed"] += 1
            self.completed[user] += 1
            if result.data["x-user"] != user:
                self.broken.append(f"{user} was answered as {result.data['x-user']}")

    def _note(self, outcome: str, user: str, error: Exception) -> None:
        self.outcomes[outcome] += 1
        self.unfinished[user] += 1
        if SECRET in f"{error!r} {error}":
            self.broken.append(f"a token is shown by {type(error).__name__}")

    async def _log_in_again(self, user: str, began: float, error: AuthNeeded) -> None:
        async with self._logging_in[user]:
            if user in self._revoked:
                await self._log_in(user)
            elif began > self._logged_in.get(user, 0.0):
                self.broken.append(f"{user} has lost a login that was not revoked: {error}")

    async def _log_in(self, user: str) -> None:
        """At one replica; the other one completes it."""
        first, second = self._dice.sample(self._replicas, 2)
        for _ in range(20):
            try:
                login = await first.begin_login("files", user, redirect_uri=REDIRECT)
                await second.complete_login(await browse(login.url, user), principal=user)
                break
            except OAuthError as error:  # the token endpoint is out of order
                if not error.transient:
                    raise
                await asyncio.sleep(OUTAGE / 4)
        self._revoked.discard(user)
        self._logged_in[user] = time.monotonic()

    # -- troubles -------------------------------------------------------------------------------

    async def _outages(self) -> None:
        while True:
            await asyncio.sleep(OUTAGE_EVERY)
            self._outage_began = time.monotonic()
            await order(self._origin, f"/outage?seconds={OUTAGE}")

    async def _revocations(self) -> None:
        while True:
            await asyncio.sleep(REVOKED_EVERY)
            user = self._dice.choice(self.users)
            async with self._logging_in[user]:
                self._revoked.add(user)
                await order(self._origin, f"/revoke?user={user}")
                self.revoked += 1

    # -- the verdict ----------------------------------------------------------------------------

    def hold_against(self, found: dict[str, Any]) -> None:
        self.broken += found["foreign"]
        for user in self.users:
            made, done = found["calls"].get(user, 0), self.completed[user]
            if not done <= made <= done + 2 * self.unfinished[user]:
                self.broken.append(f"{user}: {done} calls completed, {made} in the ledger")
        self.broken += [str(one) for one in self.witness.findings(quiet=True)]
        if len(found["refused"]) > self.revoked:
            self.broken.append(f"{len(found['refused'])} refreshes refused: {found['refused'][:3]}")


async def soaked(calls: int, seed: int) -> tuple[Soak, dict[str, Any], float]:
    with tempfile.TemporaryDirectory(prefix="chaos-") as folder:
        async with AsyncExitStack() as stack:
            server = await stack.enter_async_context(ScriptedServer.spawn(record=False))
            settings = {"upstream": server.url, "ttl": LIFE, "mark": SECRET}
            origin = stack.enter_context(running_provider(**settings))
            config = {"mcpServers": {"files": {"url": f"{origin}/mcp", "auth": "oauth"}}}
            replicas: list[Runtime] = []
            for _ in range(2):
                store = sealed(SQLiteStore(Path(folder) / "state.sqlite", timeout=5.0), ["11" * 32])
                stack.push_async_callback(store.aclose)
                runtime = Runtime(config, state=store)
                replicas.append(await stack.enter_async_context(runtime))
            soak = Soak(origin, replicas, calls, seed)
            await stack.enter_async_context(soak.witness.listening())
            for runtime in replicas:
                runtime.observe(soak.witness)
            began = time.monotonic()
            await soak.run()
            found = await ledger(origin)
            soak.hold_against(found)
            return soak, found, time.monotonic() - began


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m chaos.logins", description=__doc__)
    parser.add_argument("--calls", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=7)
    given = parser.parse_args()
    soak, found, seconds = asyncio.run(soaked(given.calls, given.seed))
    grants = Counter(found["grants"])
    print(f"seed {given.seed}: {given.calls} calls of {USERS} users in {seconds:.0f} s")
    print("calls:", ", ".join(f"{name} {count}" for name, count in soak.outcomes.most_common()))
    print(
        f"the ledger: {grants['authorization_code']} logins, {grants['refresh_token']} refreshes,"
        f" {soak.revoked} grants revoked, {found['outages']} answers with 503,"
        f" {len(found['refused'])} refreshes refused, {sum(found['calls'].values())} calls"
    )
    for broken in soak.broken[:20]:
        print(f"BROKEN: {broken}")
    print("no invariant broken" if not soak.broken else f"{len(soak.broken)} broken")
    return 1 if soak.broken else 0


if __name__ == "__main__":
    sys.exit(main())
