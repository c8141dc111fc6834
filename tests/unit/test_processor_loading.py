"""Finding the graph that a command was told to run, and saying what is wrong where there is none."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from detent.cli.kinds import GRAPH
from detent.errors import DetentError, Invalid, NotFound

ONE = """
from detent.processor import Graph
{name} = Graph("{name}")
{name}.source("in")

@{name}.sink(input="in")
def show(message):
    pass
"""
RUNS = """
if __name__ == "__main__":
    raise SystemExit("it was run")
"""


def write(path: Path, *names: str, more: str = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(ONE.format(name=name) for name in names) + more + RUNS)


@pytest.mark.parametrize("target", ["shop.py", "shop.py:orders", "shop", "shop:orders", "./shop.py:orders"])
def test_a_graph_of_a_file_or_a_module_which_is_not_run(folder: Path, target: str) -> None:
    write(folder / "shop.py", "orders")
    assert GRAPH.find(target).name == "orders"


def test_graph_is_meant_where_there_are_several(folder: Path) -> None:
    write(folder / "shop.py", "other", "graph", "app", more="same = other\n")
    assert GRAPH.find("shop.py").name == "graph"
    assert GRAPH.find("shop.py:same").name == "other"
    write(folder / "shop_two.py", "app", "other")  # which is what is meant among apps
    with pytest.raises(Invalid, match=r"declares 2 graphs: say which one; there is shop_two.py:app, shop_two.py:othe"):
        GRAPH.find("shop_two.py")


def test_classes_of_a_file_find_their_module_later(folder: Path) -> None:
    more = "import pickle\nclass Order: pass\ndef copied(): return pickle.loads(pickle.dumps(Order()))\n"
    write(folder / "deep" / "shop.py", "graph", more=more)
    GRAPH.find("deep/shop.py")
    module = sys.modules["shop"]
    assert type(module.copied()) is module.Order


@pytest.mark.parametrize(
    ("target", "kind", "says"),
    [
        (":graph", Invalid, "names no module and no file: write shop.py:graph or"),
        ("nothing.py:graph", NotFound, "there is no file nothing.py: give a Python file that declares a graph"),
        ("shop", Invalid, "declares no graph; it needs lines such as from detent.processor import Graph; graph ="),
        ("shop.py:graph", NotFound, "shop.py has no 'graph'; it needs lines such as"),
        ("shop.py:number", Invalid, "shop.py:number is no Graph but a int; it needs"),
        ("shop_bad.py", Invalid, r"shop_bad.py:2: a graph's name has up to 80 letters and no '/'"),
        ("shop_empty.py", Invalid, "the graph 'empty' has no processors: declare one with"),
        ("shop_wrong.py", Invalid, "'show' reads 'inn', which is neither a source nor an output: did you mean 'in'"),
        ("shop_runs.py", Invalid, r"shop_runs.py:9: graph.run\(\) runs whenever the file is loaded: put it under if"),
    ],
)
def test_what_is_wrong_is_said(folder: Path, target: str, kind: type[DetentError], says: str) -> None:
    (folder / "shop.py").write_text("number = 1\n")
    (folder / "shop_bad.py").write_text("from detent.processor import Graph\nbad = Graph('a/b')\n")
    (folder / "shop_empty.py").write_text("from detent.processor import Graph\nempty = Graph('empty')\n")
    (folder / "shop_wrong.py").write_text(ONE.format(name="graph").replace('input="in"', 'input="inn"'))
    (folder / "shop_runs.py").write_text(ONE.format(name="graph") + "graph.run('memory:')\n")
    with pytest.raises(kind, match=says):
        GRAPH.find(target)
