"""A configuration as it may be shown to anybody: written as JSON, its secrets are hidden."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import field_serializer

from toolkeep.config.model import Frozen
from toolkeep.config.redact import HIDDEN, redact_args, redact_url


class Shown(Frozen):
    """The fields are those of the model that is shown."""

    @field_serializer("url", "proxy", when_used="json", check_fields=False)
    def _show_url(self, url: str | None) -> str | None:
        return redact_url(url) if url else url

    @field_serializer("urls", when_used="json", check_fields=False)
    def _show_urls(self, urls: tuple[str, ...]) -> list[str]:
        return [redact_url(url) for url in urls]

    @field_serializer("args", when_used="json", check_fields=False)
    def _show_args(self, args: tuple[str, ...]) -> list[str]:
        return redact_args(args)

    @field_serializer("headers", "env", when_used="json", check_fields=False)
    def _show_values(self, values: Mapping[str, str]) -> dict[str, str]:
        return dict.fromkeys(values, HIDDEN)

    @field_serializer("tool_headers", when_used="json", check_fields=False)
    def _show_tool_headers(self, given: Mapping[str, Mapping[str, str]]) -> dict[str, Any]:
        return {tool: dict.fromkeys(values, HIDDEN) for tool, values in given.items()}
