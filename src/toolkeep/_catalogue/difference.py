"""What is different between two snapshots, by full names.

A tool has changed if a model would be told something else of it. That its server went out of reach
is no change of the tool.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from toolkeep._catalogue.catalogue import Catalogue
from toolkeep._catalogue.names import Named
from toolkeep._catalogue.tool import offers_the_same

__all__ = ["Changes", "Delta", "difference"]

Item = TypeVar("Item", bound=Named)


@dataclass(frozen=True, slots=True)
class Delta:
    """Full names, in the order of the snapshot that has them."""

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.changed)


@dataclass(frozen=True, slots=True)
class Changes:
    """True if there are any."""

    tools: Delta = Delta()
    prompts: Delta = Delta()
    resources: Delta = Delta()
    templates: Delta = Delta()

    def __bool__(self) -> bool:
        return bool(self.tools or self.prompts or self.resources or self.templates)


def difference(old: Catalogue, new: Catalogue) -> Changes:
    """What `new` has that `old` had not, and so on. Offers that both share cost nothing."""
    shared = {id(offer) for offer in old.offers} & {id(offer) for offer in new.offers}
    before, after = without(old, shared), without(new, shared)
    return Changes(
        tools=delta(before.tools, after.tools, offers_the_same),
        prompts=delta(before.prompts, after.prompts),
        resources=delta(before.resources, after.resources),
        templates=delta(before.templates, after.templates),
    )


def without(catalogue: Catalogue, offers: set[int]) -> Catalogue:
    return Catalogue.of((one for one in catalogue.offers if id(one) not in offers), 0)


def equal(one: object, other: object) -> bool:
    return one == other


def delta(
    before: Sequence[Item], after: Sequence[Item], same: Callable[[Item, Item], bool] = equal
) -> Delta:
    old, new = named(before), named(after)
    return Delta(
        added=tuple(name for name in new if name not in old),
        removed=tuple(name for name in old if name not in new),
        changed=tuple(
            name for name, item in new.items() if name in old and not same(old[name], item)
        ),
    )


def named(items: Iterable[Item]) -> dict[str, Item]:
    return {item.name: item for item in items}
