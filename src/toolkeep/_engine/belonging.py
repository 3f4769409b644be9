"""Whose session it is, as far as headers tell: one client, one principal."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from toolkeep._engine.setup import Setup
from toolkeep._rules.headers import conflict, identity
from toolkeep._rules.identity import CREDENTIALS
from toolkeep.config import ServerSpec
from toolkeep.errors import NotPermitted


def told_apart(identity: Mapping[str, str], *, named: bool) -> list[tuple[str, str]]:
    """The headers by which principals differ. A rotated token of a named one changes nothing;
    without a name, the headers are all that tells principals apart."""
    return sorted(
        (name, value) for name, value in identity.items() if not named or name not in CREDENTIALS
    )


class Belonging:
    """On whose behalf a client speaks. Only ever grows, until the client is closed."""

    def __init__(
        self,
        spec: ServerSpec,
        headers: Mapping[str, str],
        *,
        authorized: bool,
        settled: bool,
        vouched: bool,
    ) -> None:
        self._spec, self._settled, self._vouched = spec, settled, vouched
        self._identity = dict(identity(headers, spec.neutral_headers))
        if authorized:
            self._identity["authorization"] = ""

    @property
    def secrets(self) -> Mapping[str, str]:
        """What tells this principal from others who gave no name."""
        key = self._spec.api_key
        told = {"authorization": key.get_secret_value()} if key is not None else {}
        return {**self._identity, **told}

    def bind(self, headers: Mapping[str, str]) -> None:
        """A session belongs to one principal: refuse a call that speaks for another."""
        if self._vouched:
            return
        wanted = identity(headers, self._spec.neutral_headers)
        differing = conflict(self._identity, wanted)
        if differing is None and self._settled:
            # Another process may take the session up, and would know nothing of this identity.
            differing = next((name for name in wanted if name not in self._identity), None)
        if differing is not None:
            raise NotPermitted(
                f"{self._spec.name}: the header {differing!r} differs from the one that this"
                " client's session belongs to. Use one client a user (and name the principal, if"
                " sessions are stored), or list it in neutral_headers"
            )
        self._identity.update(wanted)


def partition(
    spec: ServerSpec, setup: Setup, belonging: Belonging, version: str | None, own: str
) -> str:
    """Where a response cache keeps what one principal was told by one server. `own` is nobody
    else's: a client that nothing tells from others keeps to itself, and so does one of a server
    without an address: the same command in another directory is another program."""
    principal, apart = setup.principal, setup.apart
    facts: list[Any] = [
        spec.url,
        spec.urls,
        spec.command,
        spec.args,
        sorted(spec.env.items()),
        spec.cwd,
    ]
    facts += [told_apart(belonging.secrets, named=principal is not None), apart]
    nameless = principal is None and apart is None and setup.auth is not None
    if not (spec.url or spec.urls) or nameless:
        facts.append(own)
    digest = hashlib.sha256(json.dumps(facts).encode()).hexdigest()
    return json.dumps([spec.name, version, principal, digest])
