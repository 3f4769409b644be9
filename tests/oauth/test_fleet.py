"""Eight processes share one grant whose tokens live for two seconds."""

import asyncio
import json
import os
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from tests.oauth.world import HERE, REDIRECT, browse, client, ledger, running_provider, shared_store
from toolkeep.auth.login import begin_login, complete_login
from toolkeep.auth.storage import LoginStorage

PROCESSES, CALLS, LIFE = 8, 64, 2


@pytest.mark.requirement("N4")
@pytest.mark.timeout(180)  # eight interpreters on a busy machine
async def test_eight_processes_refresh_once_for_each_expiry_and_no_call_fails(tmp_path: Path):
    with running_provider(ttl=LIFE) as origin:
        store = shared_store(tmp_path)
        oauth = client(origin, LoginStorage(store))
        login = await begin_login(oauth, "alice", redirect_uri=REDIRECT)
        await complete_login(oauth, await browse(login.url))
        await store.aclose()
        command = [sys.executable, str(HERE / "fleet_worker.py"), str(tmp_path), origin, str(CALLS)]
        pipe = asyncio.subprocess.PIPE
        fleet = [
            await asyncio.create_subprocess_exec(*command, stdout=pipe) for _ in range(PROCESSES)
        ]
        try:
            async with asyncio.timeout(150):
                outputs = [(await process.communicate())[0] for process in fleet]
        finally:
            for process in fleet:
                if process.returncode is None:
                    process.kill()
                    await process.wait()
        results = [json.loads(output) for output in outputs]
        assert [result["failures"] for result in results] == [[]] * PROCESSES
        assert sum(result["done"] for result in results) == PROCESSES * CALLS
        done = await ledger(origin)
        refreshes = done["grants"].count("refresh_token")
        assert done["refused"] == []
        assert refreshes >= 1
        # oidc-provider counts whole seconds: a token of two lives for more than one.
        gaps = [after - before for before, after in pairwise(done["at"])]
        assert min(gaps) > LIFE - 1, "one token, one refresh"


@pytest.mark.requirement("N4")
@pytest.mark.timeout(300)
@pytest.mark.skipif(not hasattr(os, "fork"), reason="the processes are forked")
async def test_a_killed_process_loses_no_grant_that_the_server_would_have_kept():
    """25 kills at each of two servers; `make fleet-auth` has 1,000."""
    command = [sys.executable, "-m", "tests.oauth.fleet_kills", "25"]
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, cwd=HERE.parents[1]
    )
    try:
        async with asyncio.timeout(280):
            output, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0
    results = [json.loads(line) for line in output.splitlines()]
    assert [result["kills"] for result in results] == [25, 25]
