"""The public API is what `public_api.txt` says: a change to it is a decision, seen in review.

`make snapshot` writes the file. The other half of the promise is what an import costs: neither the
SDK nor the HTTP library until first use.
"""

import dataclasses
import difflib
import enum
import functools
import importlib
import importlib.util
import inspect
import pkgutil
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin

import pytest

SNAPSHOT = Path(__file__).with_name("public_api.txt")

NOT_API = frozenset({"toolkeep.cli"})
"""A program: its interface is the command line."""

PACKAGES = ("toolkeep", "toolkeep.adapters")
"""All of whose modules are public, but those that begin with an underscore."""
INSIDE = frozenset({"toolkeep.testing.store_suite"})
"""Public, in a package of which the other modules are its own affair."""

HEAVY = ("mcp", "mcp_types", "aiohttp", "httpx2", "jsonschema", "jsonschema_rs")

SPECIAL = frozenset(
    {
        *("__init__", "__call__", "__await__", "__iter__", "__aiter__", "__anext__"),
        *("__enter__", "__exit__", "__aenter__", "__aexit__"),
        *("__getitem__", "__len__", "__contains__"),
    }
)
"""Methods that users reach by syntax."""

ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


def public_modules() -> list[str]:
    """Found without importing one, so that a broken module fails tests and not their collection."""
    names = {name for package in PACKAGES for name in _below(package)}
    return ["toolkeep", *sorted({*names, *INSIDE} - NOT_API)]


def _below(package: str) -> Iterator[str]:
    root = importlib.util.find_spec("toolkeep")
    assert root is not None, "toolkeep is not installed: make install"
    assert root.submodule_search_locations is not None
    folder = Path(root.submodule_search_locations[0], *package.split(".")[1:])
    for module in pkgutil.iter_modules([str(folder)]):
        if not module.name.startswith("_"):
            yield f"{package}.{module.name}"


def public_names(module: ModuleType) -> list[str]:
    """What `__all__` says; without one, what the module itself defines."""
    declared = getattr(module, "__all__", None)
    if declared is not None:
        return sorted(declared)
    return sorted(
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", None) == module.__name__
    )


def described() -> str:
    """The public API as text: one block a module, one line a name or member."""
    blocks: list[str] = []
    for module_name in public_modules():
        module = importlib.import_module(module_name)
        lines = [f"# {module_name}"]
        for name in public_names(module):
            lines.extend(describe(name, getattr(module, name), home=module_name))
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks) + "\n"


def describe(name: str, value: Any, *, home: str) -> Iterator[str]:
    defined_in = getattr(value, "__module__", home)
    if home == "toolkeep" and defined_in in public_modules() and defined_in != home:
        yield f"{name} is {defined_in}.{value.__qualname__}"
    elif inspect.isclass(value):
        bases = ", ".join(public_bases(value))
        yield f"class {name}({bases})" if bases else f"class {name}"
        yield from (f"    {line}" for line in members(value))
    elif inspect.isroutine(value):
        yield routine(name, value)
    elif isinstance(value, ModuleType):
        yield f"{name}: module"
    elif name == "__version__":
        yield f"{name}: str"
    else:
        yield f"{name}: {type(value).__name__}"


def members(cls: type) -> Iterator[str]:
    """What a class offers, its private bases' share included, its public bases' left to them."""
    found: dict[str, str] = {}
    for part in reversed([cls, *hidden_bases(cls)]):
        for name, value in vars(part).items():
            if name in SPECIAL or not name.startswith("_"):
                found[name] = member(name, value)
        for name, annotation in inspect.get_annotations(part).items():
            if not name.startswith("_"):
                found.setdefault(name, f"{name}: {shown(annotation)}")
    if issubclass(cls, enum.Enum):
        found = {one.name: f"{one.name} = {one.value!r}" for one in cls}
    elif dataclasses.is_dataclass(cls):
        found["__init__"] = routine("__init__", cls)
        for name in inspect.signature(cls).parameters:
            found.pop(name, None)
    elif hasattr(cls, "model_fields"):
        found.pop("model_config", None)
        found.update({name: model_field(name, field) for name, field in cls.model_fields.items()})
    elif getattr(cls, "_is_protocol", False):
        found.pop("__init__", None)
    if positional := vars(cls).get("__match_args__"):
        found["__match_args__"] = f"match ({', '.join(positional)})"
    yield from (ADDRESS.sub("", found[name]) for name in sorted(found))


def hidden_bases(cls: type) -> list[type]:
    return [
        base
        for base in cls.__mro__[1:]
        if base.__module__.startswith("toolkeep._") or base.__name__.startswith("_")
        if base.__module__.startswith("toolkeep")
    ]


def public_bases(cls: type) -> Iterator[str]:
    """The bases a user can name: a private one counts as its own bases."""
    for base in cls.__bases__:
        if base in hidden_bases(cls):
            yield from public_bases(base)
        elif base is not object:
            yield base.__name__


def model_field(name: str, field: Any) -> str:
    default = "" if field.is_required() else " = <factory>"
    if not field.is_required() and field.default_factory is None:
        value = field.default  # a set prints in another order in every process
        default = f" = {sorted(value)!r}" if isinstance(value, frozenset) else f" = {value!r}"
    return f"{name}: {plain(field.annotation)}{default}"


def plain(annotation: Any) -> str:
    """An annotation without the checks that pydantic hangs on it."""
    origin = get_origin(annotation)
    if origin is Annotated:
        return plain(annotation.__origin__)
    if origin in (Union, UnionType):
        return " | ".join(plain(part) for part in get_args(annotation))
    return "None" if annotation is NoneType else shown(annotation)


def member(name: str, value: Any) -> str:
    if isinstance(value, staticmethod | classmethod):
        kind = "static" if isinstance(value, staticmethod) else "class"
        return f"{kind} {routine(name, value.__func__)}"
    if isinstance(value, property):
        result = inspect.get_annotations(value.fget).get("return", "?") if value.fget else "?"
        return f"property {name}: {shown(result)}"
    if isinstance(value, functools.cached_property):
        return f"property {name}: {shown(inspect.get_annotations(value.func).get('return', '?'))}"
    if inspect.isroutine(value):
        return routine(name, value)
    if inspect.isclass(value):
        return f"class {name}"
    return f"{name}: {type(value).__name__}"


def routine(name: str, value: Any) -> str:
    prefix = "async def" if inspect.iscoroutinefunction(value) else "def"
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):
        return f"{prefix} {name}(...)"
    parameters = [
        parameter.replace(annotation=Quoted(parameter.annotation))
        if parameter.annotation is not inspect.Parameter.empty
        else parameter
        for parameter in signature.parameters.values()
    ]
    result = signature.return_annotation
    if result is not inspect.Signature.empty:
        result = Quoted(result)
    text = str(signature.replace(parameters=parameters, return_annotation=result))
    return ADDRESS.sub("", f"{prefix} {name}{text}")


class Quoted:
    """An annotation that prints alike whether or not its module postpones annotations."""

    def __init__(self, annotation: Any) -> None:
        self.text = shown(annotation)

    def __repr__(self) -> str:
        return self.text


def shown(annotation: Any) -> str:
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    return text.replace("typing.", "").replace("collections.abc.", "")


def test_the_public_api_is_the_one_written_down():
    now, written = described().splitlines(), SNAPSHOT.read_text(encoding="utf-8").splitlines()
    difference = "\n".join(difflib.unified_diff(written, now, "written down", "now", lineterm=""))
    assert not difference, "if this is meant, run `make snapshot` and say it in CHANGELOG.md"


def test_every_public_name_exists():
    for module_name in public_modules():
        module = importlib.import_module(module_name)
        for name in public_names(module):
            assert hasattr(module, name), f"{module_name}.{name}"


def test_dir_tells_the_public_names():
    import toolkeep

    assert set(toolkeep.__all__) <= set(dir(toolkeep))


@pytest.mark.parametrize("statement", ["import toolkeep", "from toolkeep import Client"])
def test_importing_loads_neither_the_sdk_nor_the_http_library(statement: str):
    report = f"import sys; print(*[name for name in {HEAVY!r} if name in sys.modules])"
    assert python(f"{statement}; {report}").split() == []


@pytest.mark.parametrize("module", public_modules() if __name__ != "__main__" else [])
def test_every_public_module_can_be_imported_first(module: str):
    python(f"import {module}")


def python(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        SNAPSHOT.write_text(described(), encoding="utf-8")
    else:
        sys.stdout.write(described())
