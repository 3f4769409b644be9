"""Parts of a server's configuration: how long things may take, and whom to trust."""

from __future__ import annotations

import math
import sys
from typing import Annotated, Any, cast

from pydantic import BeforeValidator, Field, SecretStr

from toolkeep.config.expand import FromVariable
from toolkeep.config.model import Frozen, kind_of
from toolkeep.config.urls import problem


def _number(value: object) -> object:
    """A number, or a variable's text that says one. `True` and `"5"` are neither, and what no
    clock can count is refused here, where the key is known."""
    if isinstance(value, FromVariable):
        try:
            return float(value) if any(mark in value for mark in ".eEnN") else int(value)
        except ValueError:
            raise problem("the variable holds no number", "Set it to a number") from None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise problem(f"a number is needed, not {kind_of(value)}", "Give a number")
    if isinstance(value, float) and not math.isfinite(value):
        raise problem("it is not finite", "Give a finite number")
    if isinstance(value, int) and abs(value) > sys.float_info.max:
        raise problem("the number is too large", "Give a smaller number")
    return value


Number = BeforeValidator(_number)
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False), Number]


class Timeouts(Frozen):
    """How long things may take, in seconds."""

    connect: Seconds = 10.0
    """To be ready for calls: TCP, TLS, handshake. For a program 60 s, unless it is given: `npx`,
    `uvx` and `docker` may have to download it first."""
    call: Seconds = 30.0
    """A call with all its replays and waits, unless the call says otherwise."""
    silence: Seconds | None = None
    """Longest time without a byte while an answer is awaited. None: the deadline alone counts."""
    close: Seconds = 5.0
    """To end a session and its sockets, or a process and its children."""
    input: Seconds = 600.0
    """For an answer to what the server asks in the middle of a call. The call's own time stands
    still meanwhile."""
    extend_on_progress: bool = False
    """Whether each progress report gives the call its full time again …"""
    longest_call: Seconds = 3600.0
    """… up to this."""


PROGRAM_START = 60.0
"""Seconds that the well-known clients give a program to be ready."""


def with_patience(given: Any, connect: float) -> Any:
    """What is given for a server, with another default for programs."""
    if not isinstance(given, dict) or not cast("dict[str, Any]", given).get("command"):
        return cast("Any", given)
    found = cast("dict[str, Any]", given)
    match found.get("timeouts"):
        case None:
            timeouts: Any = {"connect": connect}
        case Timeouts() as made if "connect" not in made.model_fields_set:
            timeouts = made.model_copy(update={"connect": connect})
        case dict() if "connect" not in found["timeouts"]:
            timeouts = {**found["timeouts"], "connect": connect}
        case _:
            return found
    return {**found, "timeouts": timeouts}


class TLS(Frozen):
    """Trust and client certificates. By default the system's store, or what SSL_CERT_FILE,
    SSL_CERT_DIR or REQUESTS_CA_BUNDLE name."""

    verify: bool = True
    ca_file: str | None = None
    client_cert: str | None = None
    client_key: str | None = None
    client_key_password: SecretStr | None = None

    def __hash__(self) -> int:  # pydantic makes one for frozen models; type checkers do not see it
        return hash(tuple(getattr(self, name) for name in type(self).model_fields))
