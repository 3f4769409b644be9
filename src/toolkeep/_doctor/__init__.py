"""The doctor behind `toolkeep check`: step by step to one server, and the cause where it ends.

It looks on, and judges by evidence. From the handshake on it uses the very client that calls use.
What it finds are values (`Finding`); who shows them is not its business.
"""

from __future__ import annotations

from toolkeep._doctor.about import ABOUT, About
from toolkeep._doctor.configuration import finding_of, waiting
from toolkeep._doctor.examining import examine
from toolkeep._doctor.faults import Fault
from toolkeep._doctor.finding import Finding, State, Step

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
