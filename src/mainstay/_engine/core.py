"""What stands behind a client's face: its keeper, its tool book, its observers, its way to send.

Private to the engine, so that `Client` shows its users nothing but what is theirs. Making one does
no I/O; the SDK and the HTTP library are imported when the keeper is first needed.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import uuid
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mainstay._engine.belonging import told_apart
from mainstay._engine.credentials import check_combination, server_headers, static_key
from mainstay._engine.inputs import Inputs, Question, nobody_answers
from mainstay._engine.legs import Legs
from mainstay._engine.observing import Observers
from mainstay._engine.shelf import Shelf
from mainstay._engine.watching import Watch
from mainstay._rules import headers as header_rules
from mainstay._rules.classify import SESSION_ROWS, SessionRow
from mainstay._version import __version__
from mainstay.auth import Authorizer
from mainstay.config import ServerSpec
from mainstay.errors import InvalidArguments
from mainstay.events import Changed, Disconnected, Event
from mainstay.stores import SessionStore

if TYPE_CHECKING:
    from mcp.client.caching import ResponseCacheStore
    from pydantic import BaseModel

    from mainstay._engine.keeper import Keeper
    from mainstay._engine.negotiate import Agreement
    from mainstay._engine.outgoing import Outgoing
    from mainstay._engine.pursuit import Pursuit
    from mainstay._engine.toolbook import Toolbook


_MOMENT = 0.25


class Core:
    """One for each client, for as long as the client lives."""

    def __init__(
        self,
        spec: ServerSpec,
        *,
        auth: Authorizer | None,
        principal: str | None,
        client_info: Mapping[str, str] | None,
        session_rows: Sequence[SessionRow],
        store: SessionStore | None,
        terminate_on_close: bool | None,
        inputs: Inputs,
        cache: ResponseCacheStore | None,
    ) -> None:
        self.spec, self._principal = spec, principal
        self._auth = auth or static_key(spec)
        check_combination(spec, auth, store, principal)
        self._store = store
        self._is_authorized = auth is not None
        self._own = uuid.uuid4().hex
        self._headers = server_headers(spec)
        self._client_info = dict(client_info or {"name": "mainstay", "version": __version__})
        self._session_rows = (*session_rows, *SESSION_ROWS)
        self._terminate = terminate_on_close
        self._keeper: Keeper | None = None
        self.observers = Observers(spec.name)
        self.inputs = inputs
        inputs.emit = self.emit
        self.watch = Watch(
            spec.name,
            asked=self._is_watched,
            answers=bool(inputs.offers),
            catch_up=self._catch_up,
        )
        self.shelf = Shelf(self, cache)
        self._changes = 0
        """How often the server said that its tools changed."""
        self.book: Toolbook | None = None
        self.log_level: str | None = None

    @property
    def state(self) -> str:
        return self._keeper.state.value if self._keeper else "idle"

    @property
    def agreement(self) -> Agreement | None:
        """What the current connection settled on; None: there is none."""
        return self._keeper.agreement if self._keeper else None

    @property
    def session_id(self) -> str | None:
        return self._keeper.session_id if self._keeper else None

    @property
    def era(self) -> str | None:
        return self.agreement.era.value if self.agreement else None

    def keeper(self) -> Keeper:
        """The keeper, made at first use."""
        if self._keeper is None:
            from mcp_types import Implementation

            from mainstay._engine.keeper import Keeper

            self._keeper = Keeper(
                self.spec,
                headers=self._headers,
                auth=self._auth,
                principal=self._principal,
                client_info=Implementation.model_validate(self._client_info),
                session_rows=self._session_rows,
                store=self._store,
                terminate_on_close=self._terminate,
                inputs=self.inputs,
                emit=self.emit,
                log_level=lambda: self.log_level,
                watch=self.watch,
            )
        return self._keeper

    def _is_watched(self) -> bool:
        return self.spec.listen or self.observers.listening

    def listen(self) -> None:
        """Somebody wants to hear what the server says outside of calls."""
        if self._keeper is not None:
            self._keeper.listen()

    async def aclose(self) -> None:
        if self._keeper is not None:
            await self._keeper.aclose()
        self.book = None

    # -- sending --------------------------------------------------------------------------------

    def pursuit(self, outgoing: Outgoing, before: Pursuit | None = None) -> Pursuit:
        from mainstay._engine.pursuit import Pursuit

        return Pursuit(self.keeper(), outgoing, before)

    async def pursue(
        self,
        method: str,
        params: dict[str, Any] | None,
        *,
        timeout: float | None = None,
        **known: Any,
    ) -> dict[str, Any]:
        """One request, to its result. What is `known` about it goes to `Outgoing`."""
        from mainstay._engine.outgoing import Outgoing

        within = self.spec.timeouts.call if timeout is None else timeout
        if not within > 0:
            raise self.invalid(method, "its timeout is no positive number of seconds")
        outgoing = Outgoing(method=method, params=params, timeout=within, **known)
        return await self.pursuit(outgoing).run()

    def checked_headers(
        self, headers: Mapping[str, str] | None, what: str
    ) -> dict[str, str] | None:
        if not headers:
            return None
        if not self.spec.url:
            why = "a server that is reached without HTTP gets no headers; use one client a user"
            raise self.invalid(what, why)
        try:
            checked = header_rules.check(headers, origin="the call")
        except header_rules.HeaderRefused as refused:
            raise self.invalid(what, str(refused)) from None
        return header_rules.split_ignored(checked)[0]

    def invalid(self, what: str, why: str, problems: tuple[str, ...] = ()) -> InvalidArguments:
        name = self.spec.name
        text = f"{name}: {what} was not sent: {why}"
        return InvalidArguments(text, server=name, tool=what, problems=problems)

    async def connect(self) -> None:
        """Have a connection."""
        self.keeper().home.check()
        if self.agreement is not None:
            return
        # A moment longer than the opening itself may take, since that knows better what failed.
        await self.pursue("", None, timeout=self.spec.timeouts.connect + _MOMENT)

    async def notify(self, method: str) -> None:
        """Tell a legacy server something, on the connection there is. Nobody answers."""
        await self.connect()
        connection = self.keeper().connection
        if connection is not None:
            await connection.notify(method)

    async def converse(self, method: str, params: dict[str, Any]) -> tuple[dict[str, Any], bool]:
        """A request that may be answered by questions; whether it was."""
        from mainstay._engine.outgoing import Outgoing

        legs = Legs(self, self.spec.timeouts.call)

        async def send(more: dict[str, Any]) -> dict[str, Any]:
            return await legs.go(Outgoing(method=method, params={**params, **more}, timeout=0))

        raw = await send({})
        if self.era != "modern" or raw.get("resultType") != "input_required":
            return raw, False
        from mainstay._engine.rounds import complete

        ended = await complete(
            raw,
            send=send,
            ask=self._ask,
            pause=legs.pause,
            server=self.spec.name,
            what=method,
        )
        return ended, True

    async def _ask(self, key: str, method: str, params: Mapping[str, Any]) -> BaseModel:
        return await self.answer(self.inputs.unrelated(method, params, key), watched=False)

    async def answer(self, question: Question, *, watched: bool) -> BaseModel:
        """The SDK's result or `ErrorData`. Closing the client ends the waiting for it."""
        answering = asyncio.ensure_future(self.inputs.answer(question, watched=watched))
        closed = asyncio.ensure_future(self.keeper().closed.wait())
        try:
            await asyncio.wait((answering, closed), return_when=asyncio.FIRST_COMPLETED)
            return answering.result() if answering.done() else nobody_answers("the client closed")
        finally:
            closed.cancel()
            answering.cancel()
            await asyncio.wait((answering, closed))

    # -- listing --------------------------------------------------------------------------------

    async def list_tools(self, *, refresh: bool) -> Toolbook:
        """The tool book, filled anew if it has to be."""
        if not refresh and self.book is not None and not self.book.stale:
            return self.book
        from mainstay._engine.toolbook import Toolbook

        changes = self._changes
        listed = await self.shelf.all_pages("tools/list", "tools", refresh=refresh)
        book = Toolbook(self.spec.name, listed.items, modern=self.era == "modern")
        book.expires_at = listed.expires_at
        book.outdated = changes != self._changes  # they changed while they were listed
        self.book = book
        return book

    async def read(self, uri: str, *, refresh: bool = False) -> dict[str, Any]:
        """A resource, in wire shape."""

        async def fetch() -> tuple[dict[str, Any], bool]:
            return await self.converse("resources/read", {"uri": uri})

        return await self.shelf.read(uri, fetch, refresh=refresh)

    @property
    def partition(self) -> str:
        """Where the response cache keeps what this principal was told by this server."""
        agreement = self.agreement
        version = agreement.version if agreement else None
        spec, secrets = self.spec, self.keeper().belonging.secrets
        facts: list[Any] = [spec.url, spec.command, spec.args, sorted(spec.env.items()), spec.cwd]
        facts.append(told_apart(secrets, named=self._principal is not None))
        if spec.server is not None or (self._principal is None and self._is_authorized):
            facts.append(self._own)  # nothing tells it from others: it keeps to itself
        digest = hashlib.sha256(json.dumps(facts).encode()).hexdigest()
        return json.dumps([spec.name, version, self._principal, digest])

    # -- what changes ---------------------------------------------------------------------------

    async def _catch_up(self, missed: frozenset[str]) -> None:
        """Fetch what is known, and tell what is no longer so. `missed`: resources of whose changes
        nothing could be heard for a while."""
        for event in await self.shelf.differences(missed):
            self.emit(event)

    # -- observing ------------------------------------------------------------------------------

    def emit(self, event: Event) -> None:
        """Note what an event means for what is known, and tell the observers."""
        match event:
            case Changed():
                if event.what == "tools":
                    self._changes += 1
                    self.book = None
                self.shelf.outdate(event)
            case Disconnected() if self.book is not None:
                self.book.outdated = True  # the next connection may lead to a newer server
            case _:
                pass
        self.observers.tell(event)
