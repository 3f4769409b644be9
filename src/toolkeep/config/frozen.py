"""A dictionary that stays as it was made: hashable, picklable, safe to share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

Value = TypeVar("Value")


class FrozenDict(dict[str, Value]):
    """Reads like any dictionary; every way to change it raises TypeError."""

    def __hash__(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return hash(frozenset(self.items()))

    def __reduce__(self) -> tuple[Any, ...]:
        return FrozenDict, (dict(self),)

    if not TYPE_CHECKING:  # to a type checker it is a Mapping, which has none of these

        def _refuse(self, *_args: Any, **_kwargs: Any) -> NoReturn:
            raise TypeError("a configuration does not change; make a new one")

        __setitem__ = __delitem__ = __ior__ = _refuse
        clear = pop = popitem = setdefault = update = _refuse
