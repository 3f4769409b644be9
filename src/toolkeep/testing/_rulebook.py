"""The rules of a test, in their order, and how often each was used."""

from __future__ import annotations

from collections.abc import Iterable

from toolkeep.testing.script import Behaviour, Rule

Announced = tuple[str | None, str | None]
"""What is known of a request before its body is read: its method and its tool."""


class ActiveRule:
    __slots__ = ("rule", "seen", "used")

    def __init__(self, rule: Rule) -> None:
        self.rule, self.seen, self.used = rule, 0, 0

    def take(self) -> bool:
        if self.rule.times is not None and self.used >= self.rule.times:
            return False
        self.seen += 1
        if self.seen <= self.rule.skip:
            return False
        self.used += 1
        return True


class Rulebook:
    """One server's rules."""

    def __init__(self) -> None:
        self._rules: list[ActiveRule] = []

    def add(self, rules: Iterable[Rule]) -> None:
        self._rules += map(ActiveRule, rules)

    def clear(self) -> None:
        self._rules.clear()

    def early(self, http: str, announced: Announced) -> Behaviour | None:
        """A drop that can be decided before the body is read."""
        for active in self._rules:
            rule = active.rule
            if rule.do.drop == "before_body" and rule.matches(http, *announced) and active.take():
                return rule.do
        return None

    def pick(
        self,
        http: str,
        method: str | None,
        tool: str | None,
        *,
        refused: bool,
        passed: Announced | None = None,
    ) -> Behaviour | None:
        """The first rule for this request; `passed` is what `early` has seen of it."""
        for active in self._rules:
            rule = active.rule
            if refused and rule.do.runs:
                continue
            if passed and rule.do.drop == "before_body" and rule.matches(http, *passed):
                continue
            if rule.matches(http, method, tool) and active.take():
                return rule.do
        return None
