"""`make shape`: its counts on a small package, and that toolkeep's own operations can be traced.

Peers are measured by `make shape` only: they need an environment of their own.
"""

import asyncio
import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

import toolkeep
from benchmarks.shape import __main__ as shape
from benchmarks.shape import graph
from benchmarks.shape.operations import traces
from benchmarks.shape.trace import Trace

FILES = {
    "__init__.py": "from shop.till import Till",
    "__main__.py": "import shop.till",
    "till.py": """\
from shop._parts.base import Base

class Till(Base):
    async def pay(self):
        await self.wait()
        await self.wait()
        return self.prices()
""",
    "_parts/__init__.py": "",
    "_parts/base.py": """\
import asyncio
from . import prices
from .names import Named as Name

class Base:
    async def wait(self):
        await asyncio.sleep(0)
    def prices(self):
        return [prices.price(n) for n in (1, 2)]

class Item(Name):
    def name(self) -> Name: ...
""",
    "_parts/names.py": "class Named: ...\n",
    "_parts/prices.py": """\
class Item:
    pass

def price(n):
    return n
""",
}


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A package `shop` in a folder that can be imported from."""
    for name, text in FILES.items():
        path = tmp_path / "shop" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path / "shop"
    for name in [name for name in sys.modules if name.partition(".")[0] == "shop"]:
        del sys.modules[name]


def test_the_graph_names_what_stands_alone_and_what_is_cut(root: Path):
    found = graph.measure(root)
    assert (found["files"], found["modules"]) == (7, 4)
    assert found["lines"] == sum(len(text.splitlines()) for text in FILES.values())
    assert found["one_sibling_nested"] == {
        "shop._parts.names": "shop._parts.base",
        "shop._parts.prices": "shop._parts.base",
    }
    # `till` is imported by two modules, `base` by one that is no sibling.
    assert found["one_sibling"] == found["one_sibling_nested"]
    assert found["single_child_bases"] == {
        "shop._parts.base.Base": "shop.till.Till",
        "shop._parts.names.Named": "shop._parts.base.Item",
    }
    assert found["cut_bases"] == {"shop._parts.base.Base": "shop.till.Till"}
    assert found["repeated_class_names"] == {"Item": ["shop._parts.base", "shop._parts.prices"]}
    assert (found["classes"], found["private_classes"]) == (5, 4)


def test_a_trace_counts_each_call_once_however_often_it_is_resumed(root: Path):
    till = importlib.import_module("shop").Till()
    before = sys.gettrace()

    async def pay() -> None:
        with trace:
            await till.pay()

    trace = Trace(root)
    asyncio.run(pay())
    found = trace.measures()
    assert sys.gettrace() is before
    assert found["lines_by_file"] == {"till.py": 3, "_parts/base.py": 2, "_parts/prices.py": 1}
    assert (found["files"], found["lines"], found["lines_per_file"]) == (3, 6, 2.0)
    # pay, wait, wait, prices, price, price: one step from `shop` into `shop._parts`.
    assert (found["calls"], found["functions"], found["package_changes"]) == (6, 4, 1)
    assert found["classes"] == 2


def test_toolkeeps_own_operations_are_traced():
    found = traces("toolkeep", Path(toolkeep.__file__).parent)
    for kind in ("call", "runtime call", "lost session", "opening"):
        assert found[kind]["files"] > 10
        assert not any(file.startswith("testing/") for file in found[kind]["lines_by_file"])
    # The session was lost and replaced: code runs that a warm call does not need.
    warm, lost = (set(found[kind]["lines_by_file"]) for kind in ("call", "lost session"))
    assert lost - warm
    assert found["lost session"]["lines"] > found["call"]["lines"]


def test_the_table_has_a_row_for_each_measure_and_a_dash_where_nothing_compares(root: Path):
    measures: dict[str, Any] = dict.fromkeys(shape.TRACE_ROWS, 3)
    columns = {
        "one": {"version": "1", "traces": {"call": {"operation": "get", **measures}}},
        "two": {"version": "2", "traces": {}},
    }
    for column in columns.values():
        column["graph"] = graph.measure(root)
    text = shape.table({"packages": columns})
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines()]
    assert len(rows) == 4 + len(shape.TRACE_ROWS) + len(shape.GRAPH_ROWS)
    assert ["", "one 1", "two 2"] in rows
    assert ["files touched", "3", "–"] in rows
    assert ["imported by one sibling only, everywhere", "2 (50%)", "2 (50%)"] in rows
