"""The doctor behind `mainstay check`: step by step to one server, and the cause where it ends.

It looks on, and judges by evidence. From the handshake on it uses the very client that calls use.
What it finds are values (`Finding`); who shows them is not its business.
"""

from __future__ import annotations

from mainstay._doctor.about import ABOUT, About
from mainstay._doctor.configuration import finding_of, waiting
from mainstay._doctor.examining import examine
from mainstay._doctor.faults import Fault
from mainstay._doctor.finding import Finding, State, Step

__all__ = [
    "ABOUT",
    "About",
    "Fault",
    "Finding",
    "State",
    "Step",
    "examine",
    "finding_of",
    "waiting",
]
