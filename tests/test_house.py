"""The rules of the house that no other tool checks."""

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from toolkeep._logs import LOGGERS

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src"

SKIPPED = frozenset({".git", ".venv", "__pycache__", "build", "dist", "node_modules"})

# Written in pieces, so that this file keeps the rule it checks.
REGISTRIES = ("py" + "pi.org", "python" + "hosted", "registry." + "npmjs", "npm" + "js.com")
PLACES = ("/wo" + "rk/", "../sh" + "ared")
UNFINISHED = ("TO" + "DO", "FIX" + "ME", "X" + "XX", "type:" + " ignore")


def files_of_the_project() -> list[Path]:
    """What git has or would take; without git, what lies in the tree."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, timeout=20, check=True)
    except (OSError, subprocess.CalledProcessError):
        return list(files_in_the_tree())
    paths = (ROOT / os.fsdecode(name) for name in done.stdout.split(b"\0") if name)
    return [
        path for path in paths if path.is_file() and not SKIPPED & set(path.relative_to(ROOT).parts)
    ]


def files_in_the_tree() -> Iterator[Path]:
    for folder, folders, names in os.walk(ROOT):
        folders[:] = [name for name in folders if name not in SKIPPED]
        yield from (Path(folder, name) for name in names)


def machine_paths() -> tuple[str, ...]:
    """Where this checkout and its user live; a path of one part is too common to mean a place."""
    here = [str(path) for path in (ROOT, Path.home()) if len(path.parts) > 2]
    return (*PLACES, *here)


def test_no_file_names_a_registry_or_a_place_on_a_machine():
    forbidden = [text.encode() for text in (*REGISTRIES, *machine_paths())]
    offenders = [
        f"{path.relative_to(ROOT)}: {text.decode()}"
        for path in files_of_the_project()
        for text in forbidden
        if text in path.read_bytes()
    ]
    assert not offenders


def modules() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


@pytest.mark.parametrize("word", UNFINISHED)
def test_the_source_holds_nothing_unfinished(word: str):
    pattern = re.compile(rf"\b{re.escape(word)}\b")
    assert [str(path) for path in modules() if pattern.search(path.read_text("utf-8"))] == []


def test_the_lock_holds_only_pins_and_comments():
    pin = re.compile(r"[A-Za-z0-9._-]+==[A-Za-z0-9.!+_-]+")
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert [line for line in pins if not pin.fullmatch(line)] == []
    assert not any(line.lower().startswith("toolkeep==") for line in pins)


def test_every_logger_escapes_what_others_wrote():
    named = re.compile(r'getLogger\(\s*"toolkeep\.([\w.]+)"')
    used = {name for path in modules() for name in named.findall(path.read_text("utf-8"))}
    assert used <= set(LOGGERS)
