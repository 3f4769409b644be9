"""Choose and create the transport for a server's configuration.

A factory creates one transport per connection. The HTTP client of a server at a URL outlives
them; its endpoint owns it. Each transport is imported on first use: a program needs no HTTP
library. This module never opens a connection.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from toolkeep._rules.recovery import TransportKind
from toolkeep._transport.base import (
    Attempt,
    MessageChannel,
    OnLost,
    Tap,
    Transport,
    TransportFactory,
)
from toolkeep._transport.duplex import DuplexTransport
from toolkeep.config import ServerSpec
from toolkeep.errors import ConfigError

if TYPE_CHECKING:
    from toolkeep._transport.http_client import HttpClient
    from toolkeep._transport.streamable_http import Credentials


def create_transport_factory(
    spec: ServerSpec,
    headers: Mapping[str, str],
    credentials: Credentials | None,
    *,
    client: HttpClient | None,
    legacy_sse: bool = False,
    tap: Tap | None = None,
) -> TransportFactory:
    """The transport factory for this configuration. Raises `ConfigError`.

    `client`: the HTTP client of a server at a URL. `legacy_sse`: use HTTP+SSE of 2024-11-05.
    `tap`: for programs and servers in this process; over HTTP the client has it.
    """
    if spec.command:
        from toolkeep._transport.stdio import StdioChannel

        return DuplexTransportFactory(spec, lambda: StdioChannel(spec), tap)
    if spec.server is not None:
        channel = _in_process_channel(spec)
        return DuplexTransportFactory(spec, lambda: channel(spec), tap)
    assert client is not None
    legacy_sse = legacy_sse or spec.transport == "sse"
    return HttpTransportFactory(spec, client, headers, credentials, legacy_sse=legacy_sse)


def _in_process_channel(spec: ServerSpec) -> Callable[[ServerSpec], MessageChannel]:
    try:
        from toolkeep._transport.in_process import InProcessChannel
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("toolkeep"):
            raise  # all others come with the SDK
        what, remedy = "a server in this process needs the MCP SDK", "pip install 'toolkeep[mcp]'"
        raise ConfigError(what, server=spec.name, key="server", remedy=remedy) from None
    return InProcessChannel


def create_http_client(spec: ServerSpec, tap: Tap | None = None) -> HttpClient:
    from toolkeep._transport.http_client import HttpClient

    return HttpClient(spec, tap)


class HttpTransportFactory:
    """Creates transports for a server at a URL. All of them use one HTTP client.

    `legacy_sse`: HTTP+SSE of 2024-11-05, with one event stream per transport.
    """

    exclusive = False

    def __init__(
        self,
        spec: ServerSpec,
        client: HttpClient,
        headers: Mapping[str, str],
        credentials: Credentials | None,
        *,
        legacy_sse: bool,
    ) -> None:
        self._spec, self._client = spec, client
        self._headers, self._credentials = headers, credentials
        self.kind = TransportKind.DUPLEX if legacy_sse else TransportKind.REQUEST_RESPONSE
        self.resumable = self.supports_modern = not legacy_sse

    def create(self, on_lost: OnLost) -> Transport:
        spec, limit = self._spec, self._spec.max_result_bytes
        common: dict[str, Any] = {"headers": self._headers, "credentials": self._credentials}
        if self.kind is TransportKind.REQUEST_RESPONSE:
            from toolkeep._transport.streamable_http import StreamableHttpTransport

            return StreamableHttpTransport(
                self._client,
                max_result_bytes=limit,
                on_lost=on_lost,
                routing_id=spec.routing_id,
                **common,
            )
        from toolkeep._transport.sse import SseChannel

        return DuplexTransport(
            SseChannel(self._client, limit=limit, **common),
            secrets=self._client.secrets,
            read_timeout=spec.timeouts.read,
            on_lost=on_lost,
            request_ids=self._client.request_ids,
        )

    async def probe(self) -> int | None:
        from toolkeep._transport.streamable_http import RequestHeaders

        headers = await RequestHeaders(
            self._headers, self._credentials, self._client.secrets
        ).build("GET", {"accept": "*/*"})
        del headers["content-type"]
        response = await self._client.send("GET", headers, None, Attempt())
        response.discard()
        return response.status

    def detach(self, *, forked: bool) -> None:
        """Do nothing: the HTTP client belongs to the endpoint."""


class DuplexTransportFactory:
    """Creates transports for a program or a server in this process, which runs anew for each."""

    kind = TransportKind.DUPLEX
    resumable = False
    exclusive = True
    supports_modern = True

    def __init__(
        self,
        spec: ServerSpec,
        create_channel: Callable[[], MessageChannel],
        tap: Tap | None = None,
    ) -> None:
        self._spec, self._create_channel, self._tap = spec, create_channel, tap
        self._channels: weakref.WeakSet[MessageChannel] = weakref.WeakSet()

    def create(self, on_lost: OnLost) -> Transport:
        channel = self._create_channel()
        self._channels.add(channel)
        return DuplexTransport(
            channel,
            secrets=self._spec.secrets,
            read_timeout=self._spec.timeouts.read,
            on_lost=on_lost,
            tap=self._tap,
        )

    async def probe(self) -> None:
        """None: there is no HTTP endpoint to probe."""

    def detach(self, *, forked: bool) -> None:
        for channel in tuple(self._channels):
            channel.detach(forked=forked)
