"""Where and when figures were taken, and of what."""

import json
import os
import platform
import subprocess
import time
from pathlib import Path
from typing import Any

from benchmarks.calls import TURNS
from benchmarks.cores import CLIENT, SERVER
from benchmarks.roster import ROSTER
from benchmarks.stub import node
from benchmarks.workers import python_of

_VERSIONS = """
import json, sys
from importlib.metadata import version
print(json.dumps({name: version(name) for name in sys.argv[1:]}))
"""


def about() -> dict[str, Any]:
    """Nothing that says whose machine it is."""
    return {
        "date": time.strftime("%Y-%m-%d"),
        "system": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "cores": os.cpu_count(),
        "own_cores": bool(CLIENT and SERVER and CLIENT != SERVER),
        "load": round(os.getloadavg()[0], 1),
        "python": platform.python_version(),
        "node": _said([node(), "--version"]).strip().removeprefix("v"),
        "versions": _versions(),
    }


def unfit(turns: int, load: float, cores: int) -> str:
    """Why figures that are taken now are not fit to be published; empty: they are."""
    if turns < TURNS:
        return f"{turns} turns of each are too few: {TURNS} or more are published"
    if load > cores:
        return f"the load is {load:.1f} on {cores} cores: wait until the machine has less to do"
    return ""


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    found = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(found, platform.processor())


def _versions() -> dict[str, str]:
    found: dict[str, str] = {}
    for environment in sorted({each.environment for each in ROSTER.values()}):
        here = [one for one in ROSTER.values() if one.environment == environment and one.is_here]
        packages = sorted({one.package for one in here if one.package})
        if packages:
            said = _said([python_of(environment), "-c", _VERSIONS, *packages])
            found |= json.loads(said)
    return dict(sorted(found.items()))


def _said(command: list[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
