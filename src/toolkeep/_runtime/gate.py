"""Who may see and call what. Fails closed: what cannot be decided is refused, and said so.

Two questions that a user may answer: permissions, by principal, and a filter, by tool and context.
What may not be seen does not exist for whoever asks; what may be seen and not called is refused.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from typing import Any, cast

from toolkeep._catalogue.offer import Prompt, Resource, Template
from toolkeep._catalogue.tool import Tool
from toolkeep._rules.permissions import Action, Permissions
from toolkeep._runtime.speaking import PATIENCE
from toolkeep._wire.cancelling import cancellations, is_cancelled
from toolkeep.context import CallContext
from toolkeep.errors import ConfigError

logger = logging.getLogger("toolkeep.runtime")

Offered = Tool | Prompt | Resource | Template
Filter = Callable[[Tool, CallContext], bool | Awaitable[bool]]
"""Whether this tool is offered in this context."""
PermissionFunction = Callable[[Action, Offered, CallContext], bool | Awaitable[bool]]
"""Whether this may be done in this context."""
PermissionsGiven = PermissionFunction | Mapping[str, Any]

NO_CONTEXT = CallContext()
_judging: ContextVar[bool] = ContextVar("toolkeep_judging", default=False)
_SHOWN = 200


class Gate:
    """One for each runtime."""

    def __init__(
        self, permissions: PermissionsGiven | None = None, filter: Filter | None = None
    ) -> None:
        if filter is not None and not callable(filter):
            remedy = "Give a function of a tool and a context"
            raise ConfigError("it is no function", remedy=remedy, key="filter")
        self._filter = filter
        self._asks: PermissionFunction | None = None
        self._rules: Permissions | None = None
        if callable(permissions):
            self._asks = permissions
        elif permissions is not None:
            self._rules = Permissions.of(permissions)
        self.is_open = permissions is None and filter is None
        """Whether everybody may do everything."""

    async def lets(self, action: Action, what: Offered, context: CallContext | None) -> bool:
        if self.is_open:
            return True
        context = context or NO_CONTEXT
        if _judging.get():
            logger.warning("a filter or permission asks the runtime that it judges for: withheld")
            return False
        before, token = cancellations(), _judging.set(True)
        try:
            return await self._decides(action, what, context)
        except asyncio.CancelledError as error:
            if is_cancelled(before):
                raise
            kind = type(error).__name__
        except Exception as error:
            kind = type(error).__name__
        finally:
            _judging.reset(token)
        name = what.name[:_SHOWN]
        logger.warning("%s is withheld: a filter or permission failed with %s", name, kind)
        return False

    async def _decides(self, action: Action, what: Offered, context: CallContext) -> bool:
        if self._rules is not None:
            tags = what.tags if isinstance(what, Tool) else frozenset[str]()
            if not self._rules.may(context.principal, action, what.name, tags):
                return False
        if self._asks is not None and not await _settled(self._asks(action, what, context)):
            return False
        if self._filter is None or not isinstance(what, Tool):
            return True
        return await _settled(self._filter(what, context))


async def _settled(answer: object) -> bool:
    """Only True is yes: a mistake in a user's function must not open what it was to guard. Nor does
    one that never answers hold anybody up for ever."""
    if inspect.isawaitable(answer):
        async with asyncio.timeout(PATIENCE):
            return await cast("Awaitable[object]", answer) is True
    return answer is True
