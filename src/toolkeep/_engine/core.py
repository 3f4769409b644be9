"""What stands behind a client's face: its keeper, its tool book, its observers, its way to send.

Private to the engine, so that `Client` shows its users nothing but what is theirs. Making one does
no I/O; the SDK and the HTTP library are imported when the keeper is first needed.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from toolkeep._engine.belonging import partition
from toolkeep._engine.credentials import check_combination, server_headers, static_key
from toolkeep._engine.ground import trouble_of
from toolkeep._engine.inputs import Inputs, Question, nobody_answers
from toolkeep._engine.legs import Legs
from toolkeep._engine.observing import Observers
from toolkeep._engine.setup import Setup
from toolkeep._engine.shelf import Shelf
from toolkeep._engine.watching import Watch
from toolkeep._rules import headers as header_rules
from toolkeep.config import ServerSpec
from toolkeep.errors import InvalidArguments, ToolkeepError
from toolkeep.events import CallEvent, Changed, Disconnected, Event

if TYPE_CHECKING:
    from pydantic import BaseModel

    from toolkeep._engine.endpoints import Endpoints
    from toolkeep._engine.home import Home
    from toolkeep._engine.keeper import Keeper
    from toolkeep._engine.negotiate import Agreement
    from toolkeep._engine.outgoing import Outgoing
    from toolkeep._engine.pursuit import Pursuit
    from toolkeep._engine.toolbook import Toolbook


_MOMENT = 0.25


def _nothing() -> None:
    pass


class Core:
    """One for each client, for as long as the client lives."""

    def __init__(
        self,
        spec: ServerSpec,
        setup: Setup,
        inputs: Inputs,
    ) -> None:
        self.spec, self.setup = spec, setup
        self._auth = setup.auth or static_key(spec)
        check_combination(spec, setup.auth, setup.store, setup.principal)
        self._own = uuid.uuid4().hex
        self._headers = server_headers(spec)
        self.addresses: Endpoints | None = None  # made at first use
        self.observers = Observers(spec.name) if setup.observers is None else setup.observers
        self.inputs = inputs
        inputs.emit = self.emit
        self.watch = Watch(
            spec.name,
            asked=self._is_watched,
            answers=bool(inputs.offers),
            on_gap=setup.on_gap or _nothing,
            catch_up=self._catch_up,
        )
        self.shelf = Shelf(self, setup.cache)
        self._changes = 0
        """How often the server said that its tools changed."""
        self.book: Toolbook | None = None
        self._outdated = False
        """Whether something happened after which the book may no longer be true."""
        self.log_level: str | None = None
        self.on_trouble: Callable[[ToolkeepError | None], None] | None = None
        """Told why requests fail, or None when one is answered again."""

    @property
    def state(self) -> str:
        return self._leader.state.value if self._leader else "idle"

    @property
    def agreement(self) -> Agreement | None:
        """What the current connection settled on; None: there is none."""
        return self._leader.agreement if self._leader else None

    @property
    def session_id(self) -> str | None:
        return self._leader.session_id if self._leader else None

    @property
    def era(self) -> str | None:
        return self.agreement.era.value if self.agreement else None

    @property
    def open_in(self) -> Home | None:
        """Where something of it is open; None: nothing is."""
        keepers = self.addresses.keepers if self.addresses else ()
        return next((keeper.home for keeper in keepers if keeper.is_open), None)

    @property
    def _leader(self) -> Keeper | None:
        return self.addresses.leader if self.addresses else None

    def keeper(self) -> Keeper:
        """Who keeps the address that is asked whatever is not a call."""
        return self.endpoints().leader

    def endpoints(self) -> Endpoints:
        """The keepers, made at first use."""
        if self.addresses is None:
            from toolkeep._engine.endpoints import Endpoints

            self.addresses = Endpoints.of(self, self._headers, self._auth)
        return self.addresses

    def _is_watched(self) -> bool:
        return self.spec.listen or self.setup.listen or self.observers.listening

    def listen(self) -> None:
        """Somebody wants to hear what the server says outside of calls."""
        if self._leader is not None:
            self._leader.listen()

    async def aclose(self, *, for_good: bool = False) -> None:
        """`for_good`: end the session at the server also if a store keeps it."""
        if self.addresses is not None:
            await self.addresses.aclose(for_good=for_good)
        self.book = None

    def abandon(self) -> None:
        """Its event loop is gone, or belongs to the parent process."""
        if self.addresses is not None:
            self.addresses.abandon()
        self.book = None

    async def end_stored(self) -> None:
        """End the sessions that a store keeps for this principal, at whichever address."""
        if self.setup.store is not None:
            await self.endpoints().take_up()
            await self.aclose(for_good=True)

    async def settled(self) -> None:
        """Wait until no opening is under way: what it opens is known only then."""
        if self.addresses is not None:
            await self.addresses.settled()

    # -- sending --------------------------------------------------------------------------------

    def pursuit(self, outgoing: Outgoing, before: Pursuit | None = None) -> Pursuit:
        from toolkeep._engine.pursuit import Pursuit

        return Pursuit(self.endpoints(), outgoing, before)

    async def pursue(
        self,
        method: str,
        params: dict[str, Any] | None,
        *,
        timeout: float | None = None,
        **known: Any,
    ) -> dict[str, Any]:
        """One request, to its result. What is `known` about it goes to `Outgoing`."""
        from toolkeep._engine.outgoing import Outgoing

        within = self.spec.timeouts.call if timeout is None else timeout
        if not within > 0:
            raise self.invalid(method, "its timeout is no positive number of seconds")
        outgoing = Outgoing(method=method, params=params, timeout=within, **known)
        return await self.pursuit(outgoing).run()

    def checked_headers(
        self, headers: Mapping[str, str] | None, what: str
    ) -> dict[str, str] | None:
        if not headers:
            return None if headers is None else {}
        if not self.spec.url:
            why = "a server that is reached without HTTP gets no headers; use one client a user"
            raise self.invalid(what, why)
        try:
            checked = header_rules.check(headers, origin="the call")
        except header_rules.HeaderRefused as refused:
            raise self.invalid(what, str(refused)) from None
        return header_rules.split_ignored(checked)[0]

    def lacks(self, capability: str) -> bool:
        """Whether the server said in its handshake that it has no such thing as `prompts`."""
        if self.agreement is None:
            return False
        return getattr(self.agreement.result.capabilities, capability, None) is None

    def invalid(self, what: str, why: str, problems: tuple[str, ...] = ()) -> InvalidArguments:
        name = self.spec.name
        text = f"{name}: {what} was not sent: {why}"
        return InvalidArguments(text, server=name, tool=what, problems=problems)

    async def connect(self) -> None:
        """Have a connection."""
        self.endpoints().check()
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

    async def converse(
        self, method: str, params: dict[str, Any], headers: Mapping[str, str] | None = None
    ) -> tuple[dict[str, Any], bool]:
        """A request that may be answered by questions; whether it was."""
        from toolkeep._engine.outgoing import Outgoing

        legs = Legs(self, self.spec.timeouts.call)

        async def send(more: dict[str, Any]) -> dict[str, Any]:
            sent = {**params, **more}
            return await legs.go(Outgoing(method=method, params=sent, timeout=0, headers=headers))

        raw = await send({})
        if not legs.modern or raw.get("resultType") != "input_required":
            return raw, False
        from toolkeep._engine.rounds import complete

        ended = await complete(
            raw,
            send=send,
            ask=self._ask,
            pause=legs.pause,
            bounds=legs.bounds,
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
        book = self.book
        if not refresh and book is not None and not self._outdated and not book.expired:
            return book
        from toolkeep._engine.toolbook import Toolbook

        changes = self._changes
        listed = await self.shelf.all_pages("tools/list", "tools", refresh=refresh)
        book = await Toolbook.of(self.spec.name, listed.items, modern=self.era == "modern")
        book.expires_at, book.ttl, book.public = listed.expires_at, listed.ttl, listed.public
        self._outdated = changes != self._changes  # they changed while they were listed
        self.book = book
        if self.setup.on_book is not None:
            self.setup.on_book(book)
        return book

    async def read(
        self, uri: str, headers: Mapping[str, str] | None = None, *, refresh: bool = False
    ) -> dict[str, Any]:
        """A resource, in wire shape. What was asked with headers of its own is nobody else's."""

        async def fetch() -> tuple[dict[str, Any], bool]:
            return await self.converse("resources/read", {"uri": uri}, headers)

        if headers:
            return (await fetch())[0]
        return await self.shelf.read(uri, fetch, refresh=refresh)

    @property
    def partition(self) -> str:
        """Where the response cache keeps what this principal was told by this server."""
        agreement = self.agreement
        version = agreement.version if agreement else None
        return partition(self.spec, self.setup, self.keeper().belonging, version, self._own)

    # -- what changes ---------------------------------------------------------------------------

    async def _catch_up(self, missed: frozenset[str]) -> None:
        """Fetch what is known, and tell what is no longer so. `missed`: resources of whose changes
        nothing could be heard for a while. What was just read need not be read again."""
        for event, was_read in await self.shelf.differences(missed):
            if was_read:
                self._tell(event)
            else:
                self.emit(event)

    def tell_trouble(self) -> None:
        if self.on_trouble is not None and self.addresses is not None:
            self.on_trouble(trouble_of(keeper.ground for keeper in self.addresses.keepers))

    # -- observing ------------------------------------------------------------------------------

    def emit(self, event: Event) -> None:
        """Note what an event means for what is known, and tell the observers."""
        match event:
            case Changed():
                if event.what == "tools":
                    self._changes += 1
                    self.book = None
                self.shelf.outdate(event)
            case Disconnected():
                self._outdated = True  # the next connection may lead to a newer server
            case _:
                pass
        self._tell(event)

    def _tell(self, event: Event) -> None:
        if self.setup.hear is not None and not isinstance(event, CallEvent):
            self.setup.hear(event)
        self.observers.tell(event)
