"""What `toolkeep check` knows about servers that do not work.

`examine` takes one server step by step, from its configuration to a ping, and judges by evidence.
From the handshake on it uses the client that calls use. It yields values (`Finding`); the command
line shows them.
"""

from __future__ import annotations

from toolkeep._doctor.report import Fault, Finding, State, Step
from toolkeep._doctor.steps import configuration_failure, configuration_findings, examine

__all__ = [
    "Fault",
    "Finding",
    "State",
    "Step",
    "configuration_failure",
    "configuration_findings",
    "examine",
]
