"""The public API, a page a module: what `__all__` says, with the first paragraph of each docstring.

On a site the same pages also have the docstrings in full (`conf.py` adds them).
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import pkgutil
from collections.abc import Iterator
from functools import partial
from textwrap import fill
from types import ModuleType, UnionType

PROGRAMS = frozenset({"toolkeep.cli"})
"""Their interface is the command line."""
WIDTH = 120
HEADING = "<!-- Written by docs/generate.py from the code. Change the code, then run it again. -->"


def modules() -> list[str]:
    """Every public module, with those of the packages that have public ones."""
    found = ["toolkeep", *below("toolkeep"), *below("toolkeep.adapters")]
    found.append("toolkeep.testing.store_suite")
    return sorted(name for name in found if name not in PROGRAMS)


def below(package: str) -> Iterator[str]:
    spec = importlib.util.find_spec(package)
    assert spec is not None
    for module in pkgutil.iter_modules(spec.submodule_search_locations):
        if not module.name.startswith("_"):
            yield f"{package}.{module.name}"


def names(module: ModuleType) -> list[str]:
    """What `__all__` says; without one, what the module itself defines."""
    declared = getattr(module, "__all__", None)
    if declared is not None:
        return sorted(declared, key=str.lower)
    return sorted(
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", None) == module.__name__
    )


def home(name: str, module: str) -> str | None:
    """The other public module in which a name of `module` is at home, if there is one."""
    value = getattr(importlib.import_module(module), name)
    if module != "toolkeep" or not getattr(value, "__module__", "").startswith("toolkeep."):
        return None
    for other in modules():
        found = importlib.import_module(other)
        if other != module and name in names(found) and getattr(found, name) is value:
            return other
    return None


def guests(module: str) -> list[str]:
    return [name for name in names(importlib.import_module(module)) if home(name, module)]


def first_paragraph(docstring: str | None) -> str:
    return " ".join(inspect.cleandoc(docstring or "").partition("\n\n")[0].split())


def said_about(value: object) -> str:
    if inspect.isclass(value) or inspect.isroutine(value):
        said = first_paragraph(value.__doc__).replace("|", "\\|")
        return (
            "" if said.startswith(f"{value.__name__}(") else said
        )  # a dataclass that says nothing
    kind = type(value).__name__
    if kind.startswith("_") or isinstance(value, UnionType):
        return "a type, for annotations"
    return f"a constant, of type `{kind}`"


def table(module: ModuleType) -> str:
    rows = [
        f"| {linked(name, module.__name__)} | {said_about(getattr(module, name))} |"
        for name in names(module)
    ]
    return "\n".join(["| name | |", "|---|---|", *rows])


def linked(name: str, module: str) -> str:
    other = home(name, module)
    return f"[`{name}`]({other}.md)" if other else f"`{name}`"


def page_of(name: str) -> str:
    module = importlib.import_module(name)
    said = fill(first_paragraph(module.__doc__), WIDTH)
    listed = [table(module)] if names(module) else []
    return "\n\n".join([f"# {name}", HEADING, said, *listed]) + "\n"


def index() -> str:
    rows = [
        f"- [{name}](api/{name}.md): {first_paragraph(importlib.import_module(name).__doc__)}"
        for name in modules()
    ]
    intro = fill(
        "What may be imported: the names that these modules list in `__all__`. Everything else is"
        " private and may change in any release. `toolkeep` alone has all that most programs need.",
        WIDTH,
    )
    return "\n\n".join(["# API", HEADING, intro, "\n".join(rows)]) + "\n"


PAGES = {
    "reference/api.md": index,
    **{f"reference/api/{name}.md": partial(page_of, name) for name in modules()},
}
