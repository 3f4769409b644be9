"""One process of a fleet that shares a grant: `python fleet_worker.py FOLDER ORIGIN CALLS`.

Prints a JSON object: how many calls were answered with 200, and every failure.
"""

import asyncio
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.oauth.world import call, client, shared_store
from toolkeep.auth.storage import LoginStorage


async def main(folder: str, origin: str, calls: int) -> None:
    store = shared_store(Path(folder))
    oauth = client(origin, LoginStorage(store))
    done, failures = 0, list[str]()

    async def one() -> None:
        nonlocal done
        try:
            reply = await call(oauth)
            done += reply.status == 200 and reply.body["user"] == "alice"
        except Exception as error:
            failures.append(repr(error))

    for _ in range(calls // 4):
        await asyncio.gather(*(one() for _ in range(4)))
        await asyncio.sleep(0.25)  # to live through several expiries
    await oauth.aclose()
    await store.aclose()
    print(json.dumps({"done": done, "failures": failures}))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
