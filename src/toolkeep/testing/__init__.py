"""Test kit for MCP clients and agents: a scriptable server and a fault proxy, on the standard
library alone.

It imports nothing else of `toolkeep`, so any MCP client can be tested with it. The exception is
`toolkeep.testing.store_suite`, which tests drivers of `toolkeep.state`.
"""

from toolkeep.testing.proxy import FaultProxy
from toolkeep.testing.script import Behaviour, Cancelled, Launch, Recorded, Rule
from toolkeep.testing.scripted import ScriptedProgram, ScriptedServer
from toolkeep.testing.session_loss import (
    ALL_LOSSES,
    BARE_404,
    CSHARP_SDK,
    GO_SDK,
    JAVA_SDK,
    OLD_CSHARP,
    OLD_PYTHON,
    PYTHON_SDK,
    RUST_RMCP,
    RUST_RMCP_401,
    TYPESCRIPT_400,
    TYPESCRIPT_404,
    SessionLoss,
)

__all__ = [
    "ALL_LOSSES",
    "BARE_404",
    "CSHARP_SDK",
    "GO_SDK",
    "JAVA_SDK",
    "OLD_CSHARP",
    "OLD_PYTHON",
    "PYTHON_SDK",
    "RUST_RMCP",
    "RUST_RMCP_401",
    "TYPESCRIPT_400",
    "TYPESCRIPT_404",
    "Behaviour",
    "Cancelled",
    "FaultProxy",
    "Launch",
    "Recorded",
    "Rule",
    "ScriptedProgram",
    "ScriptedServer",
    "SessionLoss",
]
