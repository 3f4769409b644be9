"""The rules wait for nothing, ask no clock, throw no dice, log nothing and speak no HTTP."""

import ast
from pathlib import Path

import pytest

import toolkeep._rules

FORBIDDEN = {
    *(
        "asyncio",
        "anyio",
        "trio",
        "threading",
        "concurrent",
        "time",
        "datetime",
        "random",
        "secrets",
    ),
    *("logging", "warnings", "socket", "ssl", "http", "urllib", "os", "subprocess"),
    *("aiohttp", "httpx2", "mcp"),
}
WAITING = (ast.AsyncFunctionDef, ast.AsyncFor, ast.AsyncWith, ast.Await)

FOLDER = Path(toolkeep._rules.__path__[0])
FILES = sorted(FOLDER.glob("**/*.py"))


def imported(tree: ast.AST) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module or "")
    return {name.partition(".")[0] for name in names}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_a_rule_is_pure(file: Path):
    tree = ast.parse(file.read_text(encoding="utf-8"))
    assert not imported(tree) & FORBIDDEN
    assert not [node for node in ast.walk(tree) if isinstance(node, WAITING)]


def test_the_rules_are_all_looked_at():
    assert {"headers.py", "schema.py", "breaker.py"} <= {file.name for file in FILES}
