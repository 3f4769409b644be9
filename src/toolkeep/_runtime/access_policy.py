"""`AccessPolicy`: what a context may see and call, by permissions and filter.

Fails closed: a function of the user that fails or times out withholds the tool. Never logs what
such a function raised, since it may quote credentials.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from typing import Any, cast
from urllib.parse import unquote, urlsplit

from toolkeep._catalogue.listing import Prompt, Resource, Template
from toolkeep._catalogue.tool import Tool
from toolkeep._rules.access import Action, Permissions
from toolkeep._runtime.caller import USER_FUNCTION_TIMEOUT
from toolkeep._tasks import foreign_code
from toolkeep.context import CallContext
from toolkeep.errors import ConfigError

logger = logging.getLogger("toolkeep.runtime")

AccessTarget = Tool | Prompt | Resource | Template
Filter = Callable[[Tool, CallContext], bool | Awaitable[bool]]
"""Whether this tool is offered in this context."""
PermissionFunction = Callable[[Action, AccessTarget, CallContext], bool | Awaitable[bool]]
"""Whether this may be done in this context."""
PermissionsOption = PermissionFunction | Mapping[str, Any]

NO_CONTEXT = CallContext()
_deciding: ContextVar[bool] = ContextVar("toolkeep_deciding", default=False)
_MAX_NAME_SHOWN = 200


class AccessPolicy:
    """Decides what a context may see and call. One for each runtime."""

    def __init__(
        self, permissions: PermissionsOption | None = None, filter: Filter | None = None
    ) -> None:
        if filter is not None and not callable(filter):
            remedy = "Give a function of a tool and a context"
            raise ConfigError("it must be a function", remedy=remedy, key="filter")
        self._filter = filter
        self._function: PermissionFunction | None = None
        self._rules: Permissions | None = None
        if callable(permissions):
            self._function = permissions
        elif permissions is not None:
            self._rules = Permissions.parse(permissions)
        self.allows_all = permissions is None and filter is None
        """Whether neither permissions nor a filter are configured."""

    async def allows(self, action: Action, what: AccessTarget, context: CallContext | None) -> bool:
        if self.allows_all:
            return True
        context = context or NO_CONTEXT
        if _deciding.get():
            logger.warning(
                "a filter or permission called the runtime that asked it; access is refused"
            )
            return False
        token = _deciding.set(True)
        try:
            with foreign_code():
                return await self._decide(action, what, context)
        except Exception as error:
            kind = type(error).__name__
        finally:
            _deciding.reset(token)
        name = what.name[:_MAX_NAME_SHOWN]
        logger.warning("%s is withheld: a filter or permission failed with %s", name, kind)
        return False

    async def _decide(self, action: Action, what: AccessTarget, context: CallContext) -> bool:
        if self._rules is not None:
            tags = what.tags if isinstance(what, Tool) else frozenset[str]()
            if not self._rules.allows(context.principal, action, what.name, tags):
                return False
        if self._function is not None and not await _is_true(self._function(action, what, context)):
            return False
        if self._filter is None or not isinstance(what, Tool):
            return True
        return await _is_true(self._filter(what, context))


async def _is_true(answer: object) -> bool:
    """Only True grants access, so that a mistake in a function of the user grants nothing. An
    awaitable has a time limit."""
    if inspect.isawaitable(answer):
        async with asyncio.timeout(USER_FUNCTION_TIMEOUT):
            return await cast("Awaitable[object]", answer) is True
    return answer is True


_UNNEEDED_ESCAPE = re.compile(r"%(2[DE]|3[0-9]|4[1-9A-F]|5[0-9A]|5F|6[1-9A-F]|7[0-9A]|7E)", re.I)
"""Letters, digits and `-._~`: RFC 3986, section 2.3."""


def is_normal_uri(uri: str) -> bool:
    """Whether scheme and host are lower case, no escape is needless, and no segment is `.` or
    `..`."""
    try:
        parts = urlsplit(uri)
    except ValueError:
        return False
    if "\\" in uri or _UNNEEDED_ESCAPE.search(uri) or not uri.isprintable():
        return False
    scheme, _, _ = uri.partition(":")
    if scheme != scheme.lower() or parts.netloc != parts.netloc.lower():
        return False
    segments = re.split(r"[/\\]", unquote(f"{parts.netloc}/{parts.path}"))
    return not {".", ".."} & set(segments)
