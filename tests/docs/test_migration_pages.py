"""The pages for those who move here: every name of the other system, and what it became.

The first column of a table holds the other system's names, each one in backticks of its own, and
the tables of a page hold exactly those of `other_systems`. What is in backticks in the second
column is ours, and is there: something that can be imported, an attribute, an argument, a setting
and a value of it, a variable, a command or one of its options. A row without any says "None".
"""

import ast
import importlib
import importlib.util
import inspect
import re
import typing
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import mcp_types
import pytest
import typer.main

import toolkeep
from tests.docs.markdown import ROOT, Block, blocks
from tests.docs.other_systems import PAGES
from toolkeep.cli.app import app
from toolkeep.config import ServerSpec, load
from toolkeep.config.dialects.draft import FOREIGN_TOOL_KEYS, OWN_KEYS
from toolkeep.config.dialects.environment import SERVER_VARIABLES, VARIABLE_PREFIX

HOW_TO = ROOT / "docs" / "how-to"
NAMES = ROOT / "docs" / "explanation" / "names-from-other-systems.md"
SECTIONS = ["The same program", "Old and new", "Differences that matter"]
CODE = re.compile(r"`([^`]+)`")
VARIABLE = re.compile(r"[A-Z][A-Z0-9]*_[A-Z0-9_<>]+")
ADAPTERS = {
    "migrate-from-uipath": "uipath",
    "migrate-from-cortex-flow": "langchain",
    "migrate-from-aether-frame": "adk",
    "migrate-from-openai-agents": "openai_agents",
    "migrate-from-langchain-adapters": "langchain",
}
"""The adapter whose names stand on a page without its own name."""
MODULES = (
    "toolkeep",
    "toolkeep.auth",
    "toolkeep.client",
    "toolkeep.code_mode",
    "toolkeep.config",
    "toolkeep.errors",
    "toolkeep.events",
    "toolkeep.group",
    "toolkeep.runtime",
    "toolkeep.state",
    "toolkeep.telemetry",
    "toolkeep.testing",
)
NOT_HERE = ("uipath_langchain", "langchain_mcp_adapters", "utils", "aether_frame")
"""What the programs of other systems import and no test can: those programs are compiled only."""

WRONG = (AssertionError, AttributeError, LookupError, SyntaxError, TypeError, ValueError)

everyone = pytest.mark.parametrize("page", sorted(PAGES))


def path_of(page: str) -> Path:
    return HOW_TO / f"{page}.md"


# -- the tables ------------------------------------------------------------------------------------


def tables(page: str) -> dict[str, list[tuple[str, str]]]:
    """The rows of each table in the part "Old and new", by its heading."""
    text = path_of(page).read_text(encoding="utf-8")
    part = text.partition("\n## Old and new\n")[2].partition("\n## ")[0]
    found: dict[str, list[tuple[str, str]]] = {}
    for section in part.split("\n### ")[1:]:
        heading, _, rest = section.partition("\n")
        lines = [line for line in rest.splitlines() if line.startswith("|")][2:]
        cells = [re.split(r"(?<!\\)\|", line.strip("|")) for line in lines]
        assert all(len(row) == 2 for row in cells), cells
        found[heading.replace("`", "")] = [(row[0], row[1]) for row in cells]
    return found


def names_in(cell: str) -> set[str]:
    return {name.removesuffix("()").removesuffix("=") for name in CODE.findall(cell)}


@everyone
def test_a_page_has_its_three_parts(page: str):
    text = path_of(page).read_text(encoding="utf-8")
    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == SECTIONS


@everyone
def test_the_tables_of_a_page_hold_every_name_of_the_other_system_and_no_more(page: str):
    held = {
        heading: {name for theirs, _ in rows for name in names_in(theirs)}
        for heading, rows in tables(page).items()
    }
    wanted = PAGES[page]()
    assert list(held) == list(wanted)
    assert [
        (each, sorted(wanted[each] - held[each])) for each in wanted if wanted[each] - held[each]
    ] == []
    assert [
        (each, sorted(held[each] - wanted[each])) for each in wanted if held[each] - wanted[each]
    ] == []


@everyone
def test_what_a_row_gives_in_place_of_a_name_is_there(page: str):
    wrong: list[str] = []
    for theirs, ours in (row for rows in tables(page).values() for row in rows):
        found = CODE.findall(ours)
        if not found and not ours.strip().startswith("None"):
            wrong.append(f"{theirs}: it gives no name of ours and no reason")
        for code in found:
            try:
                check(code, page)
            except WRONG as error:
                wrong.append(f"{theirs}: `{code}`: {type(error).__name__} {error}")
    assert wrong == []


def test_what_the_table_of_things_names_is_there():
    lines = NAMES.read_text(encoding="utf-8").partition("\n## ")[0].splitlines()
    cells = [line.strip("|").split("|")[1] for line in lines if line.startswith("| ")][1:]
    assert len(cells) > 15
    for code in (code for cell in cells for code in CODE.findall(cell)):
        check(code, "")


def test_a_name_that_is_not_ours_would_be_found():
    page = "migrate-from-openai-agents"
    for wrong in (
        "Client.no_such",
        "Client(no_such=1)",
        "Client.call_tool(no_such=1)",
        "NoSuch",
        "no_such_key",
        "timeouts.no_such",
        'mode = "no such"',
        "TOOLKEEP_NO_SUCH",
        "MCP_SERVER_<NAME>_NO_SUCH",
        "toolkeep no-such",
        "toolkeep check --no-such",
        'Client({"no_such": 1})',
    ):
        with pytest.raises(WRONG):
            check(wrong, page)


# -- names of ours ---------------------------------------------------------------------------------


def check(code: str, page: str) -> None:
    """Raise unless this is ours."""
    if code.startswith("toolkeep "):
        check_command(code.split()[1:])
    elif VARIABLE.fullmatch(code) and not hasattr(toolkeep, code):
        check_variable(code)
    elif setting := re.fullmatch(r"([a-z_.]+) = (.+)", code):
        check_setting(setting[1], ast.literal_eval(setting[2]))
    else:
        check_expression(ast.parse(code.removeprefix("async with "), mode="eval").body, page)


def check_command(words: list[str]) -> None:
    command: Any = typer.main.get_command(app)
    for word in words:
        if word.startswith("-"):
            known = {option for parameter in command.params for option in parameter.opts}
            known |= set(command.context_settings.get("help_option_names", ["--help"]))
            assert word in known, f"no option {word}"
        elif hasattr(command, "commands"):
            command = command.commands[word]


def check_variable(name: str) -> None:
    if name.startswith(f"{VARIABLE_PREFIX}<NAME>_"):
        assert name.removeprefix(f"{VARIABLE_PREFIX}<NAME>_") in SERVER_VARIABLES
    else:
        assert name in sources()


@cache
def sources() -> set[str]:
    """The variables that the code names."""
    files = (ROOT / "src" / "toolkeep").rglob("*.py")
    return {
        name
        for file in files
        for name in re.findall(r"\b[A-Z][A-Z0-9]*_[A-Z0-9_]+\b", file.read_text(encoding="utf-8"))
    }


def check_setting(key: str, value: object) -> None:
    first, _, rest = key.partition(".")
    reached = {} if first in ("command", "url") else {"url": "http://127.0.0.1:8000/mcp"}
    ServerSpec.parse({**reached, first: {rest: value} if rest else value}, name="x")


def check_expression(node: ast.expr, page: str) -> Any:
    """What an expression stands for: a thing of ours, or None for what has no name."""
    match node:
        case ast.Constant() | ast.List() | ast.Tuple() | ast.Dict():
            return None
        case ast.Name(name):
            return find(name, page)
        case ast.Attribute(value, attribute):
            return member(check_expression(value, page), attribute)
        case ast.Call(function, given, keywords):
            called = check_expression(function, page)
            known = keywords_of(called)
            unknown = [one.arg for one in keywords if one.arg not in known]
            assert not unknown, f"no argument {unknown}"
            for one in given:
                check_server(called, one, page)
            for one in keywords:
                check_expression(one.value, page)
            return called
        case _:
            raise ValueError(ast.dump(node))


def find(name: str, page: str) -> Any:
    modules = [importlib.import_module(each) for each in MODULES]
    if page in ADAPTERS:
        modules.append(importlib.import_module(f"toolkeep.adapters.{ADAPTERS[page]}"))
    for module in reversed(modules):
        if name in getattr(module, "__all__", ()):
            return getattr(module, name)
    if name == "mcp_types":
        return mcp_types
    if name in ("adk", "langchain", "openai_agents", "pydantic_ai", "uipath"):
        return importlib.import_module(f"toolkeep.adapters.{name}")
    if name in ("blocking", "code_mode", "testing"):
        return importlib.import_module(f"toolkeep.{name}")
    if name in OWN_KEYS or name in FOREIGN_TOOL_KEYS:
        return ServerSpec.model_fields.get(name, name)
    raise LookupError(f"nothing is called {name}")


def member(of: Any, name: str) -> Any:
    of = getattr(of, "annotation", of)  # a setting
    if inspect.isclass(of):
        fields = getattr(of, "model_fields", None) or getattr(of, "__dataclass_fields__", {})
        if name in fields:
            return fields[name]
        if any(name in vars(base).get("__annotations__", {}) for base in of.__mro__):
            return None
        if any(name in fields_set_by(base) for base in of.__mro__):
            return None
    if isinstance(of, property):
        of = typing.get_type_hints(of.fget).get("return")
    return getattr(of, name)


def fields_set_by(kind: type[Any]) -> set[str]:
    try:
        source = inspect.getsource(kind)
    except (OSError, TypeError):
        return set()
    set_there = (line.partition(" = ")[0] for line in source.splitlines() if " = " in line)
    return {name for line in set_there for name in re.findall(r"\bself\.([a-z]\w*)", line)}


def keywords_of(function: Any) -> set[str]:
    known = set[str]()
    for name, one in inspect.signature(function).parameters.items():
        if unpacked := re.fullmatch(r"Unpack\[(\w+)\]", str(one.annotation)):
            made = inspect.unwrap(getattr(function, "__init__", function))
            source = getattr(made, "__globals__", None) or inspect.unwrap(function).__globals__
            known |= source[unpacked[1]].__optional_keys__
        else:
            known.add(name)
    return known


def check_server(called: Any, given: ast.expr, page: str) -> None:
    """A configuration that a row shows is read."""
    try:
        value = ast.literal_eval(given)
    except ValueError:
        check_expression(given, page)
        return
    if isinstance(value, Mapping) and called is toolkeep.Client:
        ServerSpec.parse(value, name="x")
    elif isinstance(value, Mapping):
        load(value, env={}, strict=True)


# -- the programs ----------------------------------------------------------------------------------


def programs(page: str) -> Iterator[Block]:
    text = path_of(page).read_text(encoding="utf-8")
    end = text[: text.index("\n## Old and new\n")].count("\n")
    return (one for one in blocks(path_of(page)) if one.language == "python" and one.line < end)


def roots(text: str) -> set[str]:
    """The packages that a program imports."""
    tree = ast.walk(ast.parse(text))
    modules = [one.module for one in tree if isinstance(one, ast.ImportFrom)]
    tree = ast.walk(ast.parse(text))
    modules += [each.name for one in tree if isinstance(one, ast.Import) for each in one.names]
    return {str(module).partition(".")[0] for module in modules}


@everyone
def test_a_page_begins_with_their_program_and_ours_both_whole(page: str):
    """`test_blocks` runs those that can run here: all of ours, and theirs if it is installed."""
    theirs, ours = list(programs(page))[:2]
    assert "toolkeep" not in roots(theirs.text)
    assert "toolkeep" in roots(ours.text)
    for one in (theirs, ours):
        compile(one.text, str(one), "exec")
        assert 'if __name__ == "__main__":' in one.text
    away = roots(theirs.text) & set(NOT_HERE)
    assert (theirs.about == "theirs") == bool(away)


@everyone
def test_a_program_that_cannot_run_here_uses_names_of_the_tables(page: str):
    known = {name for table in PAGES[page]().values() for name in table}
    for one in programs(page):
        if one.about == "theirs":
            for node in ast.walk(ast.parse(one.text)):
                if isinstance(node, ast.ImportFrom) and roots(f"import {node.module}") & set(
                    NOT_HERE
                ):
                    assert {each.name for each in node.names} <= known


def test_what_the_sdk_calls_its_protocol_types_is_what_we_return():
    import mcp

    theirs = {name for name in mcp.__all__ if getattr(mcp_types, name, None) is not None}
    assert len(theirs) > 50
    assert [name for name in theirs if getattr(mcp, name) is not getattr(mcp_types, name)] == []
