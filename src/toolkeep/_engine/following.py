"""Subscribing to a resource: the same for both eras, and for every connection that follows."""

from __future__ import annotations

from toolkeep._engine.core import Core
from toolkeep.errors import CallRejected, Delivery, Failure, FailureKind


async def subscribe(core: Core, uri: str) -> None:
    """Have `Changed` told for this resource. Raises `CallRejected` where that cannot be had."""
    await core.connect()
    if uri in core.watch.uris:
        return
    core.watch.uris[uri] = None
    try:
        await _subscribe_now(core, uri)
    except BaseException:
        core.watch.uris.pop(uri, None)
        raise


async def _subscribe_now(core: Core, uri: str) -> None:
    if core.era != "modern":
        await core.pursue("resources/subscribe", {"uri": uri})
        core.watch.cover(uri)
        core.listen()
        return
    core.listen()
    if not await core.watch.covers(uri, core.spec.timeouts.call):
        raise _not_offered(core.spec.name, uri)


def _not_offered(server: str, uri: str) -> CallRejected:
    failure = Failure(FailureKind.REJECTED, Delivery.ANSWERED, "not subscribed")
    text = f"{server}: the server offers no word of changes to {uri}"
    return CallRejected(text, server=server, delivery=Delivery.ANSWERED, failure=failure)


async def unsubscribe(core: Core, uri: str) -> None:
    if uri not in core.watch.uris:
        return
    del core.watch.uris[uri]
    if core.era == "legacy":
        await core.pursue("resources/unsubscribe", {"uri": uri})
    elif core.era == "modern":
        core.listen()
        await core.watch.until_settled()
