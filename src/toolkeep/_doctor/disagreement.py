"""Why a handshake came to nothing, whatever it went over. Pure: from evidence to words."""

from __future__ import annotations

import shlex
from typing import Any, cast

from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, MODERN_PROTOCOL_VERSIONS

from toolkeep._doctor.case import Case
from toolkeep._doctor.faults import Fault, Step
from toolkeep._doctor.finding import Doubt, Trouble
from toolkeep._doctor.record import Record
from toolkeep._wire.tap import Move
from toolkeep.config.redact import redact_args
from toolkeep.errors import FailureKind, ToolkeepError

_KNOWN = (*HANDSHAKE_PROTOCOL_VERSIONS, *MODERN_PROTOCOL_VERSIONS)
_LAST_WORDS = 3
_UNSUPPORTED, _METHOD_NOT_FOUND = -32022, -32601


def disagreement(case: Case, record: Record, error: ToolkeepError) -> Trouble:
    failure = error.failure
    if error.exit_code is not None:
        return exited(case, error, Step.HANDSHAKE)
    if (trouble := _other_version(case, record, error)) is not None:
        return trouble
    if record.noise:
        cause, remedy = _printing(case, record)
        return Trouble(Fault.STDOUT_NOISE, f"no handshake, and {cause}", remedy)
    if failure is not None and failure.code is not None:
        cause = f"the server answers the handshake with error {failure.code}: {failure.message}"
        return Trouble(Fault.HANDSHAKE_REJECTED, cause, "Do as it says; see the server's log")
    if record.hung or (record.of(Move.OUT) and not record.of(Move.IN, Move.ENDED)):
        return _hanging(case)
    detail = failure.message if failure is not None else str(error)
    remedy = f"See that {case.place('url' if case.spec.url else 'command')} is an MCP server"
    return Trouble(Fault.NOT_MCP, f"the handshake failed: {detail}", remedy, step=Step.HANDSHAKE)


def _hanging(case: Case) -> Trouble:
    cause = f"the server took the handshake and did not answer within {case.wait:g} s"
    if case.spec.command:
        remedy = (
            f"Run it by hand ({_line(case)}): it may wait for input, download something, or "
            "speak another protocol; raise --timeout if it is only slow"
        )
    else:
        remedy = f"Look into the log of {case.url}; raise --timeout if it is only slow"
    return Trouble(Fault.HANDSHAKE_HANG, cause, remedy)


def _other_version(case: Case, record: Record, error: ToolkeepError) -> Trouble | None:
    failure = error.failure
    mismatch = FailureKind.VERSION_MISMATCH
    told = failure is not None and (failure.kind is mismatch or failure.code == _UNSUPPORTED)
    theirs = [str(one) for one in _versions(record) if one not in _KNOWN]
    if not (told or theirs or _knows_no_discovery(case, record, error)):
        return None
    speaks = ", ".join(theirs or _supported(error)) or "none of the modern versions"
    cause = f"the server speaks {speaks[:200]}; this client speaks {', '.join(_KNOWN)}"
    if case.spec.mode != "auto":
        cause += f", and {case.place('mode')} is {case.spec.mode!r}"
        return Trouble(Fault.VERSION, cause, f"Set {case.place('mode')} to 'auto'")
    newer = any(one > max(_KNOWN) for one in theirs)
    side = "toolkeep" if newer else f"the server ({case.spec.name})"
    return Trouble(Fault.VERSION, cause, f"Update {side}")


def _knows_no_discovery(case: Case, record: Record, error: ToolkeepError) -> bool:
    """Whether `mode` wants a modern server, and this is none."""
    failure = error.failure
    if case.spec.mode != "modern" or failure is None:
        return False
    unknown = failure.kind is FailureKind.UNREADABLE or failure.code == _METHOD_NOT_FOUND
    return unknown or record.refused_in_protocol


def _supported(error: ToolkeepError) -> list[str]:
    """What a modern server says that it knows instead."""
    data: Any = error.failure.data if error.failure is not None else None
    found: Any = cast("dict[str, Any]", data).get("supported") if isinstance(data, dict) else None
    return [str(one) for one in cast("list[Any]", found)] if isinstance(found, list) else []


def _versions(record: Record) -> list[Any]:
    return [one["protocolVersion"] for one in record.results() if "protocolVersion" in one]


# -- programs -----------------------------------------------------------------------------------


def exited(case: Case, error: ToolkeepError, step: Step) -> Trouble:
    code = error.exit_code or 0
    how = f"was killed by signal {-code}" if code < 0 else f"exited with code {code}"
    words = [line for line in error.stderr.splitlines() if line.strip()][-_LAST_WORDS:]
    said = f"; its last words: {' / '.join(words)}" if words else ", and said nothing"
    remedy = "Do what its last words ask for" if words else "See why"
    remedy += f"; by hand it is started with: {_line(case)}; set by {case.place('command')}"
    cause = f"the program {how} before it was ready{said}"
    return Trouble(Fault.PROGRAM_EXITS, cause, remedy, step=step)


def noisy(case: Case, record: Record) -> tuple[Doubt, ...]:
    if not record.noise:
        return ()
    cause, remedy = _printing(case, record)
    return (Doubt(Fault.STDOUT_NOISE, cause, remedy),)


def _printing(case: Case, record: Record) -> tuple[str, str]:
    first = record.noise.splitlines()[0]
    cause = f"the program prints to its standard output what is no message: {first!r}"
    remedy = (
        f"Have {case.spec.name} print to standard error instead: "
        "other clients give up at such a line"
    )
    return cause, remedy


def _line(case: Case) -> str:
    return shlex.join([case.spec.command, *redact_args(case.spec.args)])[:300]
