"""`config approve`: what a person lets be started, and what no longer."""

from __future__ import annotations

from toolkeep.cli import columns
from toolkeep.cli.asking import can_ask, yes
from toolkeep.cli.ending import DONE, FAILED, Misused
from toolkeep.cli.place import loaded
from toolkeep.cli.screen import Screen
from toolkeep.config import Configuration, FileApprovals, MemoryApprovals, Pending
from toolkeep.config import approve as take
from toolkeep.errors import ConfigError

KEY = 12
"""Signs of a digest that people are shown."""


async def approve(server: str | None, *, json: bool) -> int:
    screen = Screen(json)
    found = loaded()
    wanted = [one for one in found.needs_approval if server in (None, one.name)]
    if server is not None and not wanted:
        return _none_waits(found, server, screen)
    taken = [one for one in wanted if await _is_wanted(one, screen, asked=server is None)]
    for one in taken:
        found = take(found, one.name)
    left = [one.name for one in found.needs_approval]
    screen.give({"approved": [one.name for one in taken], "waiting": left})
    screen.say(_told([one.name for one in taken], left))
    return DONE if taken or not wanted else FAILED


def _none_waits(found: Configuration, server: str, screen: Screen) -> int:
    if server not in found.order:
        known = ", ".join(one.name for one in found.needs_approval) or "none"
        raise Misused(f"no server {server!r} waits for approval here; these do: {known}")
    screen.give({"approved": [], "waiting": [one.name for one in found.needs_approval]})
    screen.say(f"{server} needs no approval")
    return DONE


async def _is_wanted(pending: Pending, screen: Screen, *, asked: bool) -> bool:
    screen.note(f"{pending.origin.place} wants to start {pending.name}:\n  {pending.shown}")
    if not asked:
        return True
    if not can_ask():
        raise Misused(
            f"nobody can be asked here: name it, `toolkeep config approve {pending.name}`"
        )
    return await yes("Start it, now and from now on?")


def _told(taken: list[str], left: list[str]) -> str:
    if not taken and not left:
        return "nothing waits for approval"
    parts = [f"approved: {', '.join(taken)}"] if taken else []
    parts += [f"still waiting: {', '.join(left)}"] if left else []
    return "; ".join(parts)


def listed(*, json: bool) -> int:
    screen = Screen(json)
    notes = FileApprovals().notes()
    screen.give({"approved": [{"key": key, "note": note} for key, note in notes.items()]})
    if notes and not json:
        columns.show(screen, ("key", "what"), [(key[:KEY], note) for key, note in notes.items()])
    elif not json:
        screen.say("nothing is approved")
    return DONE


def revoke(wanted: str, *, json: bool) -> int:
    screen, kept = Screen(json), FileApprovals()
    notes = kept.notes()
    digests = _digests_of(wanted) & notes.keys() or {
        key for key in notes if len(wanted) >= KEY and key.startswith(wanted)
    }
    if not digests:
        raise Misused(f"{wanted!r} is not approved; `toolkeep config approve --list` shows what is")
    for digest in digests:
        kept.revoke(digest)
    screen.give({"revoked": sorted(digests)})
    screen.say(f"revoked: {wanted}")
    return DONE


def _digests_of(name: str) -> set[str]:
    """Of the server of this name in the configuration here, as if nothing were approved."""
    try:
        found = loaded(approvals=MemoryApprovals())
    except ConfigError:  # it may still be a key
        return set()
    return {one.digest for one in found.needs_approval if one.name == name}
