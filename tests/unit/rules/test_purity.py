"""The rules do not await, read a clock or a random source, log, or do I/O."""

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


def test_all_rules_are_checked():
    assert {"identity.py", "json_schema.py", "limits.py"} <= {file.name for file in FILES}
