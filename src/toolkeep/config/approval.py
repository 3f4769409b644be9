"""Approvals for programs that a discovered configuration file wants to start.

A file that was discovered, not named, may come from any cloned repository. Its programs stay
`PendingApproval` until a person approves them. An approval covers the command, its arguments,
its environment and its working directory; a change to any of them needs a new approval.
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

from toolkeep._files import (
    UntrustedFile,
    locked,
    make_private_directory,
    read_private,
    write_private,
)
from toolkeep.config.spec import Configuration, ServerSpec
from toolkeep.errors import ConfigError


@runtime_checkable
class Approvals(Protocol):
    """A store of approved programs."""

    def is_approved(self, digest: str) -> bool: ...
    def approve(self, digest: str, note: str) -> None:
        """Store an approval. `note` describes it to people and contains no secret."""
        ...


def command_digest(spec: ServerSpec, cwd: Path) -> str:
    """Digest of everything that an approval covers."""
    directory = os.path.realpath(cwd / (spec.cwd or ""))
    parts = [spec.command, list(spec.args), directory, sorted(spec.env.items())]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def approve(
    configuration: Configuration, name: str, approvals: Approvals | None = None
) -> Configuration:
    """Approve a program for this and later loads. Returns the configuration with its server."""
    for pending in configuration.needs_approval:
        if pending.name == name:
            approvals = approvals or FileApprovals()
            approvals.approve(pending.digest, f"{pending.origin}: {name}: {pending.command_line}")
            return replace(
                configuration,
                servers=configuration.sort_servers((*configuration.servers, pending.spec)),
                needs_approval=tuple(
                    one for one in configuration.needs_approval if one is not pending
                ),
            )
    waiting = ", ".join(one.name for one in configuration.needs_approval)
    raise ConfigError(
        f"no server {name[:80]!r} needs approval",
        remedy=f"Approve one of: {waiting}" if waiting else "There is nothing to approve",
    )


class MemoryApprovals:
    """Approvals in memory, for this process."""

    def __init__(self, *digests: str) -> None:
        self._notes = dict.fromkeys(digests, "")

    def __repr__(self) -> str:
        return f"<MemoryApprovals, {len(self._notes)} programs>"

    def is_approved(self, digest: str) -> bool:
        return digest in self._notes

    def approve(self, digest: str, note: str) -> None:
        self._notes[digest] = note


class FileApprovals:
    """Approvals in a file that only its owner can access, for all processes of that user.

    A file that other users could have written approves nothing.
    """

    def __init__(self, path: Path | str | None = None) -> None:
        self.path = Path(path) if path is not None else default_approvals_path(os.environ)

    def __repr__(self) -> str:
        return f"FileApprovals({str(self.path)!r})"

    def is_approved(self, digest: str) -> bool:
        try:
            return digest in self._load()
        except (UntrustedFile, OSError):
            return False

    def approve(self, digest: str, note: str) -> None:
        with self._as_config_error("the approval cannot be saved"):
            self._update(lambda notes: {**notes, digest: note})

    def revoke(self, digest: str) -> None:
        """Remove an approval, if there is one."""
        with self._as_config_error("the approval cannot be revoked"):
            self._update(lambda notes: {key: notes[key] for key in notes if key != digest})

    def notes(self) -> dict[str, str]:
        """The note of each approved digest."""
        with self._as_config_error("the approvals cannot be read"):
            return self._load()

    def _update(self, change: Callable[[dict[str, str]], dict[str, str]]) -> None:
        make_private_directory(self.path.parent)
        with locked(self.path.with_suffix(".lock")):
            notes = change(self._load())
            write_private(self.path, json.dumps({"approved": notes}, indent=1).encode())

    @contextlib.contextmanager
    def _as_config_error(self, what: str) -> Generator[None]:
        try:
            yield
        except (UntrustedFile, OSError) as error:
            reason = (
                str(error) if isinstance(error, UntrustedFile) else error.strerror or "no access"
            )
            raise ConfigError(
                f"{what}: {reason}",
                remedy="Remove the file, or make it accessible only to you (chmod 600)",
                file=str(self.path),
            ) from None

    def _load(self) -> dict[str, str]:
        try:
            content: Any = json.loads(read_private(self.path))
        except FileNotFoundError:
            return {}
        except (ValueError, RecursionError) as error:
            if isinstance(error, UntrustedFile):
                raise
            raise UntrustedFile("toolkeep did not write its contents") from None
        notes = (
            cast("dict[str, Any]", content).get("approved") if isinstance(content, dict) else None
        )
        if not isinstance(notes, dict):
            raise UntrustedFile("toolkeep did not write its contents")
        return {str(key): str(note) for key, note in cast("dict[str, Any]", notes).items()}


def default_approvals_path(env: Mapping[str, str]) -> Path:
    return state_directory(env) / "approvals.json"


def state_directory(env: Mapping[str, str]) -> Path:
    """Where toolkeep keeps files of this user: below XDG_STATE_HOME, or LOCALAPPDATA on Windows."""
    if sys.platform == "win32":
        base = env.get("LOCALAPPDATA") or f"{home_directory(env)}/AppData/Local"
    else:
        base = env.get("XDG_STATE_HOME") or f"{home_directory(env)}/.local/state"
    return Path(base) / "toolkeep"


def home_directory(env: Mapping[str, str]) -> str:
    """The home directory, or `~` if there is none, as in some containers; `Path.home()` raises."""
    return env.get("HOME") or os.path.expanduser("~")
