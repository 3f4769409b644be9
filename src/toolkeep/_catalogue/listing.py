"""Asking a server what it offers.

A server that cannot list its tools is of no use, and the failure is told. What else it has no
answer for is no reason to do without them: that stays as it was, and is said so. A server that is
gone in the middle has listed nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from toolkeep._engine.client import Client
from toolkeep._engine.core import Core
from toolkeep._engine.tenancy import Lease
from toolkeep.errors import (
    CallRejected,
    CallTimedOut,
    InvalidResult,
    RemoteProtocolError,
    ToolkeepError,
)

if TYPE_CHECKING:
    import mcp_types

    from toolkeep._engine.toolbook import Toolbook

logger = logging.getLogger("toolkeep.catalogue")

METHOD_NOT_FOUND = -32601
_OF_PROMPTS = ("prompts/list",)
_OF_RESOURCES = ("resources/list", "resources/templates/list")


@dataclass(frozen=True, slots=True)
class Rest:
    """All that one server offers beside its tools."""

    prompts: tuple[mcp_types.Prompt, ...] = ()
    resources: tuple[mcp_types.Resource, ...] = ()
    templates: tuple[mcp_types.ResourceTemplate, ...] = ()
    instructions: str | None = None
    texts: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    """Of those prompts that guides name."""
    public: bool = True
    """Whether the server says of all that it has that everybody is told the same."""


async def tools_of(core: Core) -> Toolbook:
    """A new listing. A server that knows no tools has none."""
    try:
        return await core.list_tools(refresh=True)
    except CallRejected as error:
        if error.code != METHOD_NOT_FOUND:
            raise
    from toolkeep._engine.toolbook import Toolbook

    return Toolbook(core.spec.name, (), modern=False)


async def rest_of(
    lease: Lease, kinds: frozenset[str], before: Rest, named: frozenset[str] = frozenset()
) -> Rest:
    """As far as it is wanted and the server has it; `named` are prompts whose texts are needed."""
    client, said = lease.client, lease.client.handshake
    offered = said.capabilities if said else None
    prompts, texts = before.prompts, before.texts
    resources, templates = before.resources, before.templates
    if offered and "prompts" in kinds and offered.prompts is not None:
        prompts = await _listed(client, "list_prompts", prompts)
        texts = await _texts(client, prompts, named)
    if offered and "resources" in kinds and offered.resources is not None:
        resources = await _listed(client, "list_resources", resources)
        templates = await _listed(client, "list_resource_templates", templates)
    asked = [*(_OF_PROMPTS if prompts else ()), *(_OF_RESOURCES if resources or templates else ())]
    public = all(lease.core.shelf.is_public(method) for method in asked)
    instructions = said.instructions if said else None
    return Rest(prompts, resources, templates, instructions, texts, public)


async def _listed(client: Client, method: str, before: tuple[Any, ...]) -> tuple[Any, ...]:
    try:
        return tuple(await getattr(client, method)(refresh=True))
    except CallRejected as error:
        if error.code == METHOD_NOT_FOUND:
            return ()
        failed: ToolkeepError = error
    except (CallTimedOut, InvalidResult, RemoteProtocolError) as error:
        failed = error
    logger.warning("%s: %s failed: %s", client.name, method, failed)
    return before


async def _texts(
    client: Client, prompts: tuple[mcp_types.Prompt, ...], named: frozenset[str]
) -> dict[str, str]:
    """The texts of these prompts, as far as the server gives them without arguments."""
    texts: dict[str, str] = {}
    for prompt in prompts:
        if prompt.name in named and not any(one.required for one in prompt.arguments or ()):
            try:
                answer = await client.get_prompt(prompt.name)
            except ToolkeepError as error:
                logger.warning("%s: no guide from %r: %s", client.name, prompt.name, error)
                continue
            said = [one.content for one in answer.messages]
            texts[prompt.name] = "\n\n".join(one.text for one in said if one.type == "text")
    return texts
