"""The kit stands on the standard library alone, so that any client can be tested with it."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import toolkeep.testing

FOLDER = Path(toolkeep.testing.__file__).parent


ABOUT_STORES = FOLDER / "store_suite.py"
"""Tests drivers of `toolkeep.state`, and no client: it may know that protocol."""


def imported() -> Iterator[str]:
    for path in set(FOLDER.rglob("*.py")) - {ABOUT_STORES}:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                assert node.module is not None
                yield node.module


def test_it_imports_only_itself_and_the_standard_library():
    foreign = {name for name in imported() if not name.startswith("toolkeep.testing")}
    assert {name for name in foreign if name.split(".")[0] not in sys.stdlib_module_names} == set()


def test_every_public_name_exists():
    assert all(hasattr(toolkeep.testing, name) for name in toolkeep.testing.__all__)
