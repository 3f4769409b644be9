"""The page about debugging names every step and every fault, in the words of the code."""

import re

from tests.docs.markdown import ROOT
from toolkeep._doctor import Fault, Step

PAGE = (ROOT / "docs" / "how-to" / "debug-a-server.md").read_text(encoding="utf-8")


def rows(heading: str) -> list[list[str]]:
    """The table below a heading, without its head."""
    section = re.split(r"^## ", PAGE.partition(f"## {heading}\n")[2], flags=re.MULTILINE)[0]
    _, _, *lines = (line for line in section.splitlines() if line.startswith("|"))
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def test_every_fault_has_its_row_as_the_code_has_it():
    known = [[f"`{fault}`", fault.step.value, fault.meaning, fault.remedy] for fault in Fault]
    assert rows("The faults") == known


def test_every_step_has_its_row_in_order():
    assert [row[0] for row in rows("The steps")] == [step.value for step in Step]
