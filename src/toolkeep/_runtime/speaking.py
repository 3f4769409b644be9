"""The headers of one call, and on whose behalf they say that it is made.

Five levels, the highest first: the call's, the tool's, the task's, those derived from the context,
and the server's own, which the wire adds to every request. Nothing that was given is altered. What
a server that is reached without HTTP would have got still counts as identity.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, cast

from toolkeep._rules import headers as header_rules
from toolkeep._rules.identity import Identity, identify
from toolkeep._wire.cancelling import cancellations, is_cancelled
from toolkeep.config import ServerSpec
from toolkeep.context import CallContext
from toolkeep.errors import AuthNeeded, CallNotSentInTime, Delivery, InvalidArguments

HeaderProvider = Callable[
    [CallContext, str], Mapping[str, str] | Awaitable[Mapping[str, str] | None] | None
]
"""From a context and a server's name to headers of the derived level."""

Headers = Mapping[str, str]

PATIENCE = 30.0
"""Seconds for a function of the user's, where nothing else bounds it."""


class Left:
    """What is left of a call's time, over all that is done before it is sent. None: it has none of
    its own, and each step as much as it is given.
    """

    def __init__(self, seconds: float | None) -> None:
        self._until = None if seconds is None else monotonic() + seconds

    def __call__(self) -> float | None:
        return None if self._until is None else max(self._until - monotonic(), 0.0)


@dataclass(frozen=True, slots=True)
class Speaker:
    """On whose behalf a call to one server is made, and in which words."""

    identity: Identity | None = None
    call: Headers = field(default_factory=dict[str, str], repr=False)
    task: Headers = field(default_factory=dict[str, str], repr=False)
    derived: Headers = field(default_factory=dict[str, str], repr=False)

    def headers(self, spec: ServerSpec, tool: Headers) -> dict[str, str] | None:
        """What goes with the call, beside what goes with every request: all that is said of whom
        it is for. None: that is nobody."""
        if not spec.url:
            return None
        if self.identity is None and not (self.call or tool or self.task or self.derived):
            return None
        own = header_rules.split_ignored(tool)[0] if tool else tool
        return {**self.derived, **self.task, **own, **self.call}


NOBODY = Speaker()


async def speaker_for(
    spec: ServerSpec,
    context: CallContext | None,
    headers: Headers | None,
    provider: HeaderProvider | None,
    within: float | None = None,
) -> Speaker:
    """Raises `InvalidArguments` for headers that may not be sent, `AuthNeeded` when the provider
    fails: nothing goes out without the identity that it was to have."""
    if provider is None:
        return speaker_without(spec, context, headers)
    context = CallContext() if context is None else context
    call, task, derived = _said(spec, context, headers)
    given = await _provided(spec, provider, context, PATIENCE if within is None else within)
    provided = _checked(spec, given, "the header provider")
    return _speaker(spec, context, call, task, {**derived, **provided})


def speaker_without(
    spec: ServerSpec, context: CallContext | None, headers: Headers | None
) -> Speaker:
    """The same, where there is no provider."""
    if context is None:
        if not headers:
            return NOBODY
        context = CallContext()
    return _speaker(spec, context, *_said(spec, context, headers))


def _said(
    spec: ServerSpec, context: CallContext, headers: Headers | None
) -> tuple[Headers, Headers, Headers]:
    """What the call, its context and the configuration say, as headers."""
    if not isinstance(cast("object", context), CallContext):
        raise _refused(spec, f"its context is a CallContext, not {type(context).__name__}")
    if headers and not spec.url:
        why = "a server that is reached without HTTP gets no headers; name a principal instead"
        raise _refused(spec, why)
    return (
        _checked(spec, headers, "the call"),
        _checked(spec, context.headers, "the context"),
        _checked(spec, _facts(spec, context), "derived_headers"),
    )


def _speaker(
    spec: ServerSpec, context: CallContext, call: Headers, task: Headers, derived: Headers
) -> Speaker:
    neutral = spec.neutral_headers
    if "trace" in spec.derived_headers:
        neutral |= {spec.derived_headers["trace"]}
    identity = identify(context.principal, call=call, task={**derived, **task}, neutral=neutral)
    return Speaker(identity, call, task, derived)


def _facts(spec: ServerSpec, context: CallContext) -> dict[str, str]:
    if not spec.derived_headers:
        return {}
    facts = {
        "user": context.user_id,
        "session": context.session_id,
        "execution": context.execution_id,
        "trace": context.trace_id,
        "principal": context.principal,
    }
    found = {name: facts[fact] for fact, name in spec.derived_headers.items()}
    return {name: value for name, value in found.items() if value is not None}


def _checked(spec: ServerSpec, given: Headers | None, origin: str) -> dict[str, str]:
    if not given:
        return {}
    if not isinstance(cast("Any", given), Mapping):
        raise _refused(spec, f"the headers of {origin} are no mapping")
    try:
        checked = header_rules.check(given, origin=origin)
    except header_rules.HeaderRefused as refused:
        raise _refused(spec, str(refused)) from None
    return header_rules.split_ignored(checked)[0]


async def _provided(
    spec: ServerSpec, provider: HeaderProvider, context: CallContext, within: float
) -> Headers | None:
    limit, before = asyncio.timeout(within), cancellations()
    try:
        given = provider(context, spec.name)
        if not inspect.isawaitable(given):
            return given
        async with limit:
            return await given
    except asyncio.CancelledError as error:
        if is_cancelled(before):
            raise
        kind = type(error).__name__
    except Exception as error:
        kind = type(error).__name__
    if limit.expired():
        text = f"{spec.name}: the header provider has not answered. Nothing was sent"
        raise CallNotSentInTime(text, server=spec.name, delivery=Delivery.NOT_SENT)
    # Not chained: what a provider raises may quote the credentials it works with.
    text = f"{spec.name}: the header provider failed with {kind}. Nothing was sent"
    raise AuthNeeded(text, server=spec.name)


def _refused(spec: ServerSpec, why: str) -> InvalidArguments:
    text = f"{spec.name}: the call was not sent: {why}"
    return InvalidArguments(text, server=spec.name, tool="")
