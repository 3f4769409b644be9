"""`toolkeep.toml`: `[servers.name]` in our own words, and `[defaults]` for all of them.

It is ours, so a word that we do not know is a mistake.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from toolkeep.config.dialects.plain import entries
from toolkeep.config.draft import Draft
from toolkeep.config.model import kind_of, unknown_key
from toolkeep.config.words import OF_ONE_SERVER, OURS, Vocabulary, settings_of

FRAME = ("servers", "defaults")
SERVER = Vocabulary(strict=True)
DEFAULTS = Vocabulary(
    {key: ours for key, ours in OURS.items() if key not in OF_ONE_SERVER}, strict=True
)


def read(draft: Draft) -> None:
    given = cast("Mapping[str, Any]", draft.document.value)
    for key in given:
        if key not in FRAME:
            origin = draft.document.origin((key,))
            problem, _ = unknown_key(str(key), FRAME)
            remedy = "Write [servers.name] and [defaults]"
            draft.mistakes.add(problem, remedy=remedy, origin=origin, key=key)
    defaults = given.get("defaults", {})
    if isinstance(defaults, Mapping):
        found = cast("Mapping[str, Any]", defaults)
        settings = settings_of(found, DEFAULTS, draft, ("defaults",), None, of_one_server=False)
        draft.defaults.extend(settings)
    else:
        problem = f"defaults are a table, not {kind_of(defaults)}"
        origin = draft.document.origin(("defaults",))
        draft.mistakes.add(problem, remedy="Write [defaults]", origin=origin, key="defaults")
    entries(draft, given.get("servers", {}), SERVER, ("servers",))
