"""docs/reference/command-line.md has every command with all that can be said to it."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.main import get_command

from toolkeep.cli import errors
from toolkeep.cli.app import app

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "command-line.md"


def commands(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    for word, inner in getattr(command, "commands", {}).items():
        yield f"{name} {word}", inner
        yield from commands(inner, f"{name} {word}")


def sections() -> dict[str, str]:
    parts = re.split(r"^## (.+)$", PAGE.read_text("utf-8"), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_every_command_has_its_section_with_its_arguments_and_options():
    found, there = sections(), dict(commands(get_command(app), "toolkeep"))
    assert {name for name in found if name.startswith("toolkeep ")} == set(there)
    for name, command in there.items():
        for param in command.params:
            names = [f"--{one.lstrip('-')}" for one in param.opts if one.startswith("--")]
            for word in names or [param.metavar]:
                assert word.replace("|", "\\|") in found[name], f"{name}: {word}"


def test_every_exit_code_is_explained():
    told = {int(code) for code in re.findall(r"^\| `(\d+)` \|", sections()["Exit codes"], re.M)}
    codes = (errors.OK, errors.FAILED, errors.USAGE, errors.UNKNOWN, errors.INTERRUPTED)
    assert told == set(codes)


@pytest.mark.parametrize("name", dict(commands(get_command(app), "toolkeep")))
def test_help_names_arguments_without_types_of_python(name: str):
    command = dict(commands(get_command(app), "toolkeep"))[name]
    text = command.get_help(typer.Context(command, info_name=name))
    assert re.findall(r"<\w+(?:\[\w+\])?>|x>=", text) == []
    assert [one.metavar for one in command.params if (one.metavar or "") not in text] == []
