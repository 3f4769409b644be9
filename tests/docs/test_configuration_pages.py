"""The configurations that pages show can be loaded, and the refused ones are refused as shown."""

import inspect
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.docs.markdown import PAGES, ROOT, Block, blocks
from toolkeep import ConfigError, ServerGroup, load
from toolkeep.config import Configuration, schema
from toolkeep.config.loader import DEFAULT_PATHS

FORMATS = ("json", "toml", "ini")
ENV = {"API_TOKEN": "t-123", "NOTES_URL": "http://localhost:8000/mcp"}
HOW_TO = ROOT / "docs" / "how-to"


def shown() -> Iterator[tuple[Block, str]]:
    """Each file that a page shows, with the error below it, if there is one."""
    for page in PAGES:
        for block, after in pairwise((*blocks(page), Block(page, 0, "", "", ""))):
            if block.language in FORMATS and block.about:
                yield block, after.text if after.about == "error" else ""


def loaded(block: Block, folder: Path) -> Configuration:
    (folder / block.about).write_text(block.text, encoding="utf-8")
    (folder / "files.env").write_text("FILES_KEY=f-123\n", encoding="utf-8")
    return load(block.about, cwd=folder, env=ENV)


GOOD = [block for block, error in shown() if not error]
BAD = [(block, error) for block, error in shown() if error]


@pytest.mark.parametrize("block", GOOD, ids=str)
def test_a_configuration_on_a_page_can_be_loaded(block: Block, tmp_path: Path):
    assert loaded(block, tmp_path).servers


@pytest.mark.parametrize(("block", "error"), BAD, ids=str)
def test_a_mistake_on_a_page_is_told_in_the_words_below_it(
    block: Block, error: str, tmp_path: Path
):
    with pytest.raises(ConfigError) as caught:
        loaded(block, tmp_path)
    said, whole = " ".join(error.split()), str(caught.value)
    assert whole.startswith(said.removesuffix("…")) if said.endswith("…") else whole == said


def test_the_pages_show_both():
    assert len(GOOD) >= 3
    assert len(BAD) >= 3


def test_the_page_about_loading_has_the_usual_places_in_order():
    page = (HOW_TO / "load-mcp-json.md").read_text(encoding="utf-8")
    row = next(line for line in page.splitlines() if line.startswith("2. `toolkeep.toml`"))
    named = [word for word in re.findall(r"`([^`]+)`", row) if word in DEFAULT_PATHS]
    assert named == list(DEFAULT_PATHS)


def test_the_page_about_groups_names_every_argument_and_every_view():
    page = (HOW_TO / "server-groups.md").read_text(encoding="utf-8")
    arguments = set(inspect.signature(ServerGroup).parameters) - {"servers"}
    views = {name for name in vars(ServerGroup) if not name.startswith("_")}
    assert [name for name in sorted(arguments | views) if name not in page] == []


def test_the_command_that_prints_the_schema_prints_it():
    page = ROOT / "docs" / "reference" / "configuration.md"
    (command,) = [block.text for block in blocks(page) if block.language == "sh"]
    arguments = shlex.split(command.partition(" > ")[0])
    done = subprocess.run(
        [sys.executable, "-m", *arguments], capture_output=True, timeout=30, check=True, text=True
    )
    printed: dict[str, Any] = json.loads(done.stdout)
    assert printed == schema()
