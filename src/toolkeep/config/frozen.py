"""Dictionaries and lists that stay as they were made: safe to share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, cast

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


def _refuse_json(_self: Any, *_args: Any, **_kwargs: Any) -> NoReturn:
    raise TypeError("what a server said is not altered; alter a copy (copy.deepcopy)")


class FrozenJson(dict[str, Any]):
    """An object that a server sent, frozen with all that is in it. A deep copy is a plain dict."""

    __slots__ = ()

    def __deepcopy__(self, memo: object) -> dict[str, Any]:
        return thawed(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return frozen, (thawed(self),)

    if not TYPE_CHECKING:
        __setitem__ = __delitem__ = __ior__ = _refuse_json
        clear = pop = popitem = setdefault = update = _refuse_json


class FrozenArray(list[Any]):
    """An array that a server sent, likewise."""

    __slots__ = ()

    def __deepcopy__(self, memo: object) -> list[Any]:
        return thawed(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return frozen, (thawed(self),)

    if not TYPE_CHECKING:
        __setitem__ = __delitem__ = __iadd__ = __imul__ = _refuse_json
        append = extend = insert = pop = remove = clear = sort = reverse = _refuse_json


def frozen(value: Any) -> Any:
    """A copy of a JSON value that cannot be altered, at any depth."""
    if isinstance(value, dict):
        return FrozenJson({k: frozen(v) for k, v in cast("dict[str, Any]", value).items()})
    if isinstance(value, list):
        return FrozenArray([frozen(one) for one in cast("list[Any]", value)])
    return value


def thawed(value: Any) -> Any:
    """A plain copy of a JSON value, to do with as one likes. A third of the time of `deepcopy`."""
    if isinstance(value, dict):
        return {key: thawed(held) for key, held in cast("dict[str, Any]", value).items()}
    if isinstance(value, list):
        return [thawed(one) for one in cast("list[Any]", value)]
    return value
