"""Programs that a found file wants to start: asked about once, bound to what would be started.

A file that nobody named may lie in any directory that somebody cloned. What it wants to start is
`Pending` until a person approves it. An approval is for a command with its arguments, its
environment and the directory it starts in: change one of them, and it has to be given again. The
same words in another directory may start another program, so they are another command.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
from collections.abc import Callable, Generator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, cast, runtime_checkable

from toolkeep._files import Unusable, content, locked, make_private, write
from toolkeep.config.configuration import Configuration
from toolkeep.config.spec import ServerSpec
from toolkeep.errors import ConfigError


@runtime_checkable
class Approvals(Protocol):
    """What people have approved."""

    def is_approved(self, digest: str) -> bool: ...
    def approve(self, digest: str, note: str) -> None:
        """`note` is for people who look at the list; it holds no secret."""
        ...


def digest_of(spec: ServerSpec, cwd: Path) -> str:
    directory = os.path.realpath(cwd / (spec.cwd or ""))
    parts = [spec.command, list(spec.args), directory, sorted(spec.env.items())]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def approve(
    configuration: Configuration, name: str, approvals: Approvals | None = None
) -> Configuration:
    """The configuration with this program among its servers, now and whenever it is loaded."""
    for pending in configuration.needs_approval:
        if pending.name == name:
            kept = approvals or FileApprovals()
            kept.approve(pending.digest, f"{pending.origin}: {name}: {pending.shown}")
            return replace(
                configuration,
                servers=configuration.in_order((*configuration.servers, pending.spec)),
                needs_approval=tuple(
                    one for one in configuration.needs_approval if one is not pending
                ),
            )
    waiting = ", ".join(one.name for one in configuration.needs_approval)
    raise ConfigError(
        f"no server {name[:80]!r} needs approval",
        remedy=f"These do: {waiting}" if waiting else "Nothing is to be approved",
    )


class MemoryApprovals:
    """For this process alone."""

    def __init__(self, *digests: str) -> None:
        self._notes = dict.fromkeys(digests, "")

    def is_approved(self, digest: str) -> bool:
        return digest in self._notes

    def approve(self, digest: str, note: str) -> None:
        self._notes[digest] = note


class FileApprovals:
    """In a file that its owner alone can read, for all processes of that user.

    A file that others could have written approves nothing.
    """

    def __init__(self, path: Path | str | None = None) -> None:
        self.path = Path(path) if path is not None else default_path(os.environ)

    def __repr__(self) -> str:
        return f"FileApprovals({str(self.path)!r})"

    def is_approved(self, digest: str) -> bool:
        try:
            return digest in self._notes()
        except (Unusable, OSError):
            return False

    def approve(self, digest: str, note: str) -> None:
        with self._told("the approval cannot be kept"):
            self._change(lambda notes: {**notes, digest: note})

    def revoke(self, digest: str) -> None:
        """It has to be approved again; nothing if it never was."""
        with self._told("the approval cannot be taken back"):
            self._change(lambda notes: {key: notes[key] for key in notes if key != digest})

    def notes(self) -> dict[str, str]:
        """What is approved: the note of each digest."""
        with self._told("approvals cannot be read"):
            return self._notes()

    def _change(self, change: Callable[[dict[str, str]], dict[str, str]]) -> None:
        make_private(self.path.parent)
        with locked(self.path.with_suffix(".lock")):
            notes = change(self._notes())
            write(self.path, json.dumps({"approved": notes}, indent=1).encode())

    @contextlib.contextmanager
    def _told(self, what: str) -> Generator[None]:
        try:
            yield
        except (Unusable, OSError) as error:
            reason = str(error) if isinstance(error, Unusable) else error.strerror or "no access"
            raise ConfigError(
                f"{what}: {reason}",
                remedy="Remove the file, or make it yours alone (chmod 600)",
                file=str(self.path),
            ) from None

    def _notes(self) -> dict[str, str]:
        try:
            kept: Any = json.loads(content(self.path))
        except FileNotFoundError:
            return {}
        except (ValueError, RecursionError) as error:
            if isinstance(error, Unusable):
                raise
            raise Unusable("it is not what we have written") from None
        notes = cast("Values", kept).get("approved") if isinstance(kept, dict) else None
        if not isinstance(notes, dict):
            raise Unusable("it is not what we have written")
        return {str(key): str(note) for key, note in cast("Values", notes).items()}


Values = dict[str, Any]


def default_path(env: Mapping[str, str]) -> Path:
    """Beside the state of other programs: the XDG base directories, or Windows' own."""
    if sys.platform == "win32":
        base = env.get("LOCALAPPDATA") or f"{home_of(env)}/AppData/Local"
    else:
        base = env.get("XDG_STATE_HOME") or f"{home_of(env)}/.local/state"
    return Path(base) / "toolkeep" / "approvals.json"


def home_of(env: Mapping[str, str]) -> str:
    """`~` where there is none: a container's user may have no home. `Path.home()` would raise."""
    return env.get("HOME") or os.path.expanduser("~")
