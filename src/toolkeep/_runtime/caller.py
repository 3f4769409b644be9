"""`CallerIdentity`: for whom a call is made, and the headers that say so.

Fails closed: a header provider that fails or times out refuses the call. Never logs or chains what
it raised, since that may quote credentials.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from toolkeep._rules.headers import (
    HeaderRefused,
    by_precedence,
    check_headers,
    split_ignored_headers,
)
from toolkeep._rules.identity import Identity, identify
from toolkeep._tasks import foreign_code
from toolkeep.config import ServerSpec
from toolkeep.context import CallContext
from toolkeep.errors import AuthNeeded, CallNotSentInTime, Delivery, InvalidArguments

logger = logging.getLogger("toolkeep.runtime")

HeaderProvider = Callable[
    [CallContext, str], Mapping[str, str] | Awaitable[Mapping[str, str] | None] | None
]
"""Gives headers for a context and a server's name. Headers of the context override them."""

Headers = Mapping[str, str]

USER_FUNCTION_TIMEOUT = 30.0
"""Seconds for a function of the user, where nothing else bounds it."""


@dataclass(frozen=True, slots=True)
class CallerIdentity:
    """For whom a call to one server is made, with the headers that say so."""

    identity: Identity | None = None
    call_headers: Headers = field(default_factory=dict[str, str], repr=False)
    context_headers: Headers = field(default_factory=dict[str, str], repr=False)
    derived_headers: Headers = field(default_factory=dict[str, str], repr=False)

    def headers(self, spec: ServerSpec, tool: Headers) -> dict[str, str] | None:
        """The headers of this call, beside those of every request. None: there are none, and no
        identity."""
        if not spec.url:
            return None
        if self.identity is None and not (
            self.call_headers or tool or self.context_headers or self.derived_headers
        ):
            return None
        own = split_ignored_headers(tool)[0] if tool else tool
        return by_precedence(
            call=self.call_headers,
            tool=own,
            context=self.context_headers,
            derived=self.derived_headers,
        )


ANONYMOUS = CallerIdentity()


async def identify_caller(
    spec: ServerSpec,
    context: CallContext | None,
    headers: Headers | None,
    provider: HeaderProvider | None,
    within: float = USER_FUNCTION_TIMEOUT,
) -> CallerIdentity:
    """Raises `InvalidArguments` for headers that may not be sent, `AuthNeeded` when the provider
    fails: no call goes out without the identity that it should have."""
    if provider is None:
        return identify_caller_now(spec, context, headers)
    context = CallContext() if context is None else context
    call, task, derived = _given_headers(spec, context, headers)
    given = await _call_provider(spec, provider, context, within)
    provided = _check_headers(spec, given, "the header provider")
    return _make_caller(spec, context, call, task, {**derived, **provided})


def identify_caller_now(
    spec: ServerSpec, context: CallContext | None, headers: Headers | None
) -> CallerIdentity:
    """The same without a header provider, and so without waiting."""
    if context is None:
        if not headers:
            return ANONYMOUS
        context = CallContext()
    return _make_caller(spec, context, *_given_headers(spec, context, headers))


def _given_headers(
    spec: ServerSpec, context: CallContext, headers: Headers | None
) -> tuple[Headers, Headers, Headers]:
    """The checked headers of the call, of its context, and those that the configuration derives
    from the context."""
    if not isinstance(cast("object", context), CallContext):
        raise _invalid_call(spec, f"context must be a CallContext, not {type(context).__name__}")
    if headers and not spec.url:
        why = "only HTTP servers take headers; name a principal in the context instead"
        raise _invalid_call(spec, why)
    return (
        _check_headers(spec, headers, "the call"),
        _check_headers(spec, context.headers, "the context"),
        _check_headers(spec, _derived_headers(spec, context), "derived_headers"),
    )


def _make_caller(
    spec: ServerSpec, context: CallContext, call: Headers, task: Headers, derived: Headers
) -> CallerIdentity:
    neutral = spec.non_identity_headers
    if "trace" in spec.derived_headers:
        neutral |= {spec.derived_headers["trace"]}
    identity = identify(context.principal, call=call, task={**derived, **task}, neutral=neutral)
    return CallerIdentity(identity, call, task, derived)


def _derived_headers(spec: ServerSpec, context: CallContext) -> dict[str, str]:
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


def _check_headers(spec: ServerSpec, given: Headers | None, origin: str) -> dict[str, str]:
    if not given:
        return {}
    if not isinstance(cast("Any", given), Mapping):
        raise _invalid_call(spec, f"the headers of {origin} must be a mapping")
    try:
        checked = check_headers(given, origin=origin)
    except HeaderRefused as refused:
        raise _invalid_call(spec, str(refused)) from None
    return split_ignored_headers(checked)[0]


async def _call_provider(
    spec: ServerSpec, provider: HeaderProvider, context: CallContext, within: float
) -> Headers | None:
    limit = asyncio.timeout(within)
    try:
        with foreign_code():
            given = provider(context, spec.name)
            if not inspect.isawaitable(given):
                return given
            async with limit:
                return await given
    except Exception as error:
        kind = type(error).__name__
    if limit.expired():
        text = f"{spec.name}: the header provider did not answer in time. Nothing was sent"
        raise CallNotSentInTime(text, server=spec.name, delivery=Delivery.NOT_SENT)
    # Not chained: the exception of a provider may quote credentials.
    text = f"{spec.name}: the header provider failed with {kind}. Nothing was sent"
    raise AuthNeeded(text, server=spec.name)


def _invalid_call(spec: ServerSpec, why: str) -> InvalidArguments:
    text = f"{spec.name}: the call was not sent: {why}"
    return InvalidArguments(text, server=spec.name, tool="")
