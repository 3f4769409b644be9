"""Everything a runtime can ask its servers that is not a tool call.

Each goes to one server, on behalf of whoever the context says, in that principal's own session, and
past the gate: what may not be seen may not be read.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from time import monotonic
from typing import TYPE_CHECKING, Any

from toolkeep._catalogue.catalogue import Catalogue
from toolkeep._catalogue.offer import Prompt, Resource, Template
from toolkeep._catalogue.prompts import LocalPrompt
from toolkeep._catalogue.stock import KINDS
from toolkeep._engine.client import Client
from toolkeep._engine.tenancy import Lease, Superseded
from toolkeep._runtime.desk import Desk
from toolkeep._runtime.uris import is_plain
from toolkeep.context import CallContext
from toolkeep.errors import NotPermitted, UnknownResource

if TYPE_CHECKING:
    import mcp_types as types


class Asking:
    """The part of `Runtime` that asks."""

    _desk: Desk

    async def request(
        self,
        server: str,
        method: str,
        params: Mapping[str, Any] | None = None,
        *,
        context: CallContext | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
        repeatable: bool = False,
    ) -> dict[str, Any]:
        """Any request to one server, in wire shape. It passes no gate but this one: whoever may
        make requests by hand may make any."""
        began = monotonic()
        async with self._client(server, context, headers, timeout) as (client, sent):
            left = None if timeout is None else max(timeout - (monotonic() - began), 0.001)
            return await client.request(
                method, params, headers=sent, timeout=left, repeatable=repeatable
            )

    async def get_prompt(
        self,
        name: str,
        arguments: Mapping[str, str] | None = None,
        *,
        context: CallContext | None = None,
    ) -> types.GetPromptResult:
        """A prompt of a server's, or one of the user's own that stands beside them."""
        whole = await self._desk.whole(context, kinds=KINDS)
        prompt = await self._desk.seen(whole, lambda view: view.prompt(name), context)
        await self._check(prompt, context)
        own = await self._own_prompt(prompt, context)
        if own is not None:
            return own.render(arguments)
        async with self._client(prompt.server, context) as (client, sent):
            return await client.get_prompt(prompt.prompt, arguments, headers=sent)

    async def read_resource(
        self, uri: str, *, server: str | None = None, context: CallContext | None = None
    ) -> types.ReadResourceResult:
        """A resource, of the server that lists it; `server` says which, if several do or none."""
        owner = server or await self._owner(uri, context)
        self._check_plain(owner, uri)
        await self._check(_resource(owner, uri), context)
        async with self._client(owner, context) as (client, sent):
            return await client.read_resource(uri, headers=sent)

    async def complete(
        self,
        of: str,
        argument: str,
        value: str,
        *,
        context: CallContext | None = None,
        arguments: Mapping[str, str] | None = None,
    ) -> types.Completion:
        """Completions for one argument of a prompt, by its name, or of a template of resources, by
        itself (`file:///{path}`). `arguments`: those that are filled in already."""
        import mcp_types

        whole = await self._desk.whole(context, kinds=KINDS)
        found = await self._desk.seen(whole, lambda view: _completed(view, of), context)
        await self._check(found, context)
        ref: types.PromptReference | types.ResourceTemplateReference
        if isinstance(found, Template):
            ref = mcp_types.ResourceTemplateReference(type="ref/resource", uri=found.uri_template)
        elif await self._own_prompt(found, context):
            return mcp_types.Completion(values=[])  # its server knows nothing of it
        else:
            ref = mcp_types.PromptReference(type="ref/prompt", name=found.prompt)
        async with self._client(found.server, context) as (client, sent):
            return await client.complete(ref, argument, value, context=arguments, headers=sent)

    async def subscribe(self, uri: str, *, server: str, context: CallContext | None = None) -> None:
        """Have observers told (`Changed`) when this resource changes, as the server tells its own
        client; `context` says who may ask for that."""
        self._desk.check_open()
        self._check_plain(server, uri)
        await self._check(_resource(server, uri), context)
        await self._desk.supplier(server).subscribe(uri)

    async def unsubscribe(
        self, uri: str, *, server: str, context: CallContext | None = None
    ) -> None:
        self._desk.check_open()
        await self._check(_resource(server, uri), context)
        await self._desk.supplier(server).unsubscribe(uri)

    # -- which, and may they --------------------------------------------------------------------

    async def _own_prompt(self, prompt: Prompt, context: CallContext | None) -> LocalPrompt | None:
        """The user's own, if it is one that stands beside the server's."""
        supplier = self._desk.supplier(prompt.server)
        speaker = await self._desk.speaker(supplier, context, None)
        stock = await supplier.stock_for(speaker.identity, supplier.spec.timeouts.call, KINDS)
        return supplier.dressing.prompt(prompt.prompt, stock.rest)

    async def _owner(self, uri: str, context: CallContext | None) -> str:
        whole = await self._desk.whole(context, kinds=KINDS)
        return (await self._desk.seen(whole, lambda view: _listed(view, uri), context)).server

    def _check_plain(self, server: str, uri: str) -> None:
        """A pattern says nothing about an address that is written in another way."""
        if self._desk.gate.is_open or is_plain(uri):
            return
        stock = self._desk.supplier(server).stock
        if stock is None or uri not in {str(one.uri) for one in stock.whole.resources}:
            text = f"{uri[:200]!r} is not in its normal form, so permissions cannot judge it"
            raise NotPermitted(text)

    async def _check(self, what: Prompt | Resource | Template, context: CallContext | None) -> None:
        if not await self._desk.gate.lets("call", what, context):
            raise NotPermitted(f"{what.name[:200]} may not be used in this context")

    @asynccontextmanager
    async def _client(
        self,
        server: str,
        context: CallContext | None,
        headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> AsyncGenerator[tuple[Client, dict[str, str] | None]]:
        lease, sent = await self._lend(server, context, headers, timeout)
        try:
            yield lease.client, sent
        finally:
            lease.give_back()

    async def _lend(
        self,
        server: str,
        context: CallContext | None,
        headers: Mapping[str, str] | None,
        timeout: float | None,
        tries: int = 5,
    ) -> tuple[Lease, dict[str, str] | None]:
        """A client; of the server that is there, if another has just taken its place."""
        self._desk.check_open()
        supplier = self._desk.supplier(server)
        speaker = await self._desk.speaker(supplier, context, headers, timeout)
        within = supplier.spec.timeouts.call if timeout is None else timeout
        try:
            lease = await supplier.sessions.lend(speaker.identity, within)
        except Superseded:
            if not tries:
                raise
            return await self._lend(server, context, headers, timeout, tries - 1)
        return lease, speaker.headers(supplier.spec, {})


def _completed(view: Catalogue, of: str) -> Prompt | Template:
    """Full names first, and what is unique after that: nobody's words go to another's server."""
    for item in (*view.prompts, *view.templates):
        if item.name == of:
            return item
    found = [template for template in view.templates if template.uri_template == of]
    if len(found) > 1:
        names = tuple(template.name for template in found)
        text = f"{len(found)} servers list {of[:200]!r}; say which: {', '.join(names)}"
        raise UnknownResource(text, suggestions=names)
    return found[0] if found else view.prompt(of)


def _listed(view: Catalogue, uri: str) -> Resource:
    found = [resource for resource in view.resources if resource.uri == uri]
    if len(found) == 1:
        return found[0]
    said = f"{len(found)} servers list it" if found else "no server lists it"
    raise UnknownResource(f"{uri[:200]!r}: {said}; say which with `server`")


def _resource(server: str, uri: str) -> Resource:
    import mcp_types

    return Resource(server, mcp_types.Resource(uri=uri, name=uri))
