"""The module graph of a package and its size, read from its source files; nothing is imported."""

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ENTRY_FILES = ("__init__", "__main__")
"""Python asks for these files by name, so they are left out of the count of modules."""


@dataclass
class Module:
    """One source file and what it imports."""

    name: str
    file: str
    """The name of the file, without its suffix."""
    tree: ast.Module
    lines: int
    imports: set[str] = field(default_factory=set[str])
    """The modules of the same package that it imports."""
    origins: dict[str, str] = field(default_factory=dict[str, str])
    """For each name that it imports from a module: the full name there."""

    def resolve_imports(self, modules: Mapping[str, "Module"]) -> None:
        for node in ast.walk(self.tree):
            if isinstance(node, ast.ImportFrom):
                source = self._source(node)
                names = {
                    alias.asname or alias.name: f"{source}.{alias.name}" for alias in node.names
                }
                self.origins |= names
                targets = {source, *names.values()}
            elif isinstance(node, ast.Import):
                targets = {alias.name for alias in node.names}
            else:
                continue
            self.imports |= {name for name in targets if name in modules and name != self.name}

    def _source(self, node: ast.ImportFrom) -> str:
        """The full name of the module that names are imported from."""
        package = self.name if self.file == "__init__" else parent(self.name)
        for _ in range(node.level - 1):
            package = parent(package)
        return ".".join(filter(None, (package if node.level else "", node.module)))

    def definition(self, name: str) -> str:
        """The full name of what this module calls `name`."""
        return self.origins.get(name, f"{self.name}.{name}")


def measure(root: Path) -> dict[str, Any]:
    """Every measure of the package in this folder: a number, or the names that were counted."""
    modules = read(root)
    sizes = [module.lines for module in modules.values()]
    functions = [
        (node.end_lineno or node.lineno) - node.lineno + 1
        for module in modules.values()
        for node in ast.walk(module.tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    single = imported_by_one_sibling(modules)
    return {
        "files": len(modules),
        "lines": sum(sizes),
        "file_lines_median": percentile(sizes, 50),
        "file_lines_p90": percentile(sizes, 90),
        "function_lines_median": percentile(functions, 50),
        "function_lines_p95": percentile(functions, 95),
        "modules": sum(module.file not in ENTRY_FILES for module in modules.values()),
        "one_sibling_nested": {name: user for name, user in single.items() if name.count(".") > 1},
        "one_sibling": single,
        "single_child_bases": single_child_bases(modules),
        "cut_bases": cut_bases(modules),
        "classes": sum(1 for _ in classes(modules)),
        "private_classes": sum(
            is_private(f"{module.name}.{node.name}") for module, node in classes(modules)
        ),
        "repeated_class_names": repeated_class_names(modules),
    }


def read(root: Path) -> dict[str, Module]:
    """The modules of a package by their full names."""
    modules: dict[str, Module] = {}
    for path in sorted(root.rglob("*.py")):
        *folders, file = path.relative_to(root.parent).with_suffix("").parts
        name = ".".join(folders if file == "__init__" else [*folders, file])
        text = path.read_text(encoding="utf-8")
        modules[name] = Module(name, file, ast.parse(text), len(text.splitlines()))
    for module in modules.values():
        module.resolve_imports(modules)
    return modules


def imported_by_one_sibling(modules: Mapping[str, Module]) -> dict[str, str]:
    """Modules whose only importer is another module of the same parent package, with that one."""
    importers: dict[str, list[str]] = defaultdict(list)
    for module in modules.values():
        for name in module.imports:
            importers[name].append(module.name)
    return {
        name: users[0]
        for name, users in sorted(importers.items())
        if len(users) == 1 and users[0] != parent(name) == parent(users[0])
    }


def classes(modules: Mapping[str, Module]) -> Iterator[tuple[Module, ast.ClassDef]]:
    for module in modules.values():
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ClassDef):
                yield module, node


def single_child_bases(modules: Mapping[str, Module]) -> dict[str, str]:
    """Classes of the package with exactly one direct subclass in it, with that subclass."""
    children: dict[str, list[str]] = {f"{m.name}.{node.name}": [] for m, node in classes(modules)}
    for module, node in classes(modules):
        for base in node.bases:
            plain = base.value if isinstance(base, ast.Subscript) else base
            name = module.definition(plain.id) if isinstance(plain, ast.Name) else ""
            if name in children:
                children[name].append(f"{module.name}.{node.name}")
    return {base: found[0] for base, found in children.items() if len(found) == 1}


def cut_bases(modules: Mapping[str, Module]) -> dict[str, str]:
    """Bases that only split a class over two files: one subclass, in another module, and no other
    mention in the package (no import elsewhere, no annotation, no call, no `isinstance`).
    """
    mentions: dict[str, int] = defaultdict(int)
    for module in modules.values():
        for origin in module.origins.values():
            mentions[origin] += 1
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Name):
                mentions[module.definition(node.id)] += 1
    return {
        base: child
        for base, child in single_child_bases(modules).items()
        if parent(base) != parent(child) and mentions[base] == 2  # one import, one list of bases
    }


def repeated_class_names(modules: Mapping[str, Module]) -> dict[str, list[str]]:
    """Class names that are defined in two or more modules, with those modules."""
    places: dict[str, set[str]] = defaultdict(set)
    for module, node in classes(modules):
        places[node.name].add(module.name)
    return {name: sorted(found) for name, found in sorted(places.items()) if len(found) > 1}


def is_private(name: str) -> bool:
    """Whether a part of this full name begins with an underscore."""
    return any(part.startswith("_") and not part.startswith("__") for part in name.split("."))


def parent(name: str) -> str:
    return name.rpartition(".")[0]


def percentile(values: list[int], percent: int) -> int:
    """The smallest value that this share of the values does not exceed (nearest rank)."""
    return sorted(values)[max(0, -(-len(values) * percent // 100) - 1)] if values else 0
