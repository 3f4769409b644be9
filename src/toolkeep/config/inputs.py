"""Who answers `${input:id}`: a mapping, or a function that asks a person. Each is asked once."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from toolkeep.config.draft import Input
from toolkeep.errors import ConfigError

Inputs = Mapping[str, str] | Callable[[Input], str | None]
"""None, or a missing key: whoever was asked does not know; the input's default is taken."""


class Answers:
    """Lives while one source is read, or while it is watched, so that nobody is asked twice."""

    def __init__(self, inputs: Inputs | None) -> None:
        self._inputs = inputs
        self._given: dict[str, str] = {}
        self._passwords: set[str] = set()

    def __repr__(self) -> str:
        return f"<Answers to {', '.join(self._given) or 'nothing yet'}>"

    @property
    def passwords(self) -> tuple[str, ...]:
        return tuple(self._given[id_] for id_ in self._passwords if self._given[id_])

    def to(self, declared: Mapping[str, Input]) -> Callable[[str], str]:
        """What `expand` asks."""

        def answer(id_: str) -> str:
            asked = declared.get(id_)
            if asked is None:
                remedy = "Declare it under 'inputs'"
                raise ConfigError(f"the input {id_[:80]!r} is not declared", remedy=remedy)
            if id_ not in self._given:
                self._given[id_] = self._ask(asked)
            if asked.password:
                self._passwords.add(id_)
            return self._given[id_]

        return answer

    def _ask(self, asked: Input) -> str:
        if callable(self._inputs):
            answer: object = self._inputs(asked)
        else:
            answer = (self._inputs or {}).get(asked.id)
        answer = asked.default if answer is None else answer
        if not isinstance(answer, str):
            raise ConfigError(
                f"nobody answered the input {asked.id!r}",
                remedy=f"Run it at a terminal, or give inputs={{{asked.id!r}: …}} in Python",
            )
        if asked.options and answer not in asked.options:
            raise ConfigError(
                f"the answer to the input {asked.id!r} is none of its options",
                remedy=f"Answer one of: {', '.join(asked.options)}",
            )
        return answer
