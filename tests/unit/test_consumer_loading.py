"""Finding the consumer that a command was told to run, and saying what is wrong where there is none."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from detent.cli.kinds import CONSUMER
from detent.cli.kinds.consumer import adjust
from detent.consumer import Consumer
from detent.errors import DetentError, Invalid, NotFound

ONE = """
from detent.consumer import Consumer
{name} = Consumer("{name}", read="in")

@{name}.consume
def consume(message, state, publish):
    pass
"""


def write(path: Path, *names: str, more: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(ONE.format(name=name) for name in names) + more)
    return path


@pytest.mark.parametrize("target", ["shop.py", "shop.py:orders", "shop", "shop:orders", "./shop.py:orders"])
def test_a_consumer_of_a_file_or_a_module(folder: Path, target: str) -> None:
    write(folder / "shop.py", "orders")
    assert CONSUMER.find(target).name == "orders"


def test_a_consumer_in_a_package(folder: Path) -> None:
    write(folder / "shop" / "parts" / "orders.py", "app")
    (folder / "shop" / "__init__.py").touch()
    (folder / "shop" / "parts" / "__init__.py").touch()
    assert CONSUMER.find("shop.parts.orders:app").name == "app"
    assert CONSUMER.find("shop.parts.orders").name == "app"
    assert CONSUMER.find("shop/parts/orders.py:app").name == "app"
    assert CONSUMER.find(str(folder / "shop/parts/orders.py")).name == "app"


def test_app_is_meant_where_there_are_several(folder: Path) -> None:
    write(folder / "shop.py", "app", "other")
    assert CONSUMER.find("shop.py").name == "app"
    assert CONSUMER.find("shop.py:other").name == "other"
    write(folder / "shop_two.py", "one", "other", more="same = one\n")
    with pytest.raises(Invalid, match=r"declares 2 consumers: say which one; .* shop_two.py:one, shop_two.py:other, s"):
        CONSUMER.find("shop_two.py")


def test_one_consumer_with_two_names_is_one(folder: Path) -> None:
    write(folder / "shop.py", "one", more="same = one\n")
    assert CONSUMER.find("shop.py").name == "one"


def test_classes_of_a_file_find_their_module_later(folder: Path) -> None:
    more = "import pickle\nclass Order: pass\ndef copied(): return pickle.loads(pickle.dumps(Order()))\n"
    write(folder / "shop.py", "app", more=more)
    CONSUMER.find("shop.py")
    module = sys.modules["shop"]
    assert type(module.copied()) is module.Order


def test_what_lies_beside_a_file_can_be_imported(folder: Path) -> None:
    write(folder / "deep" / "shop.py", "app", more="import shop_helper\n")
    (folder / "deep" / "shop_helper.py").touch()
    assert CONSUMER.find("deep/shop.py").name == "app"


@pytest.mark.parametrize(
    ("target", "kind", "says"),
    [
        ("", Invalid, "names no module and no file"),
        (":app", Invalid, "names no module and no file"),
        ("nothing.py:app", NotFound, "there is no file nothing.py: give a Python file that declares a consumer"),
        ("shop", Invalid, "declares no consumer; it needs lines such as"),
        ("shop_nothing:app", NotFound, "there is no module 'shop_nothing', neither in "),
        ("shop.nothing:app", NotFound, "there is no module 'shop.nothing'"),
        ("shop.a.b:app", NotFound, "there is no module 'shop.a'"),
        ("..x:app", NotFound, "there is no module"),
        ("shop.py:app", NotFound, "shop.py has no 'app'; it needs lines such as"),
        ("shop.py:number", Invalid, "shop.py:number is no Consumer but a int; it needs"),
        ("shop_raises.py", Invalid, r"shop_raises.py:3: ZeroDivisionError: division by zero"),
        ("shop_raises", Invalid, r"shop_raises.py:3: ZeroDivisionError: division by zero"),
        ("shop_ends.py", Invalid, r"shop_ends.py:2: the file ends the program while it is loaded"),
        ("shop_ends", Invalid, r"shop_ends.py:2: the file ends the program while it is loaded"),
        ("shop_wrong.py", Invalid, r"shop_wrong.py:1: this is not Python"),
        ("shop_wrong", Invalid, r"shop_wrong.py:1: this is not Python"),
        ("shop_needs.py", Invalid, r"shop_needs.py:1: there is no module shop_else: install it, or correct the name"),
        ("shop_needs", Invalid, r"shop_needs.py:1: there is no module shop_else: install it, or correct the name"),
        ("shop_bad.py", Invalid, r"shop_bad.py:2: shards: a number from 1 to 1024, not 0"),
        ("shop_bad", Invalid, r"shop_bad.py:2: shards: a number from 1 to 1024, not 0"),
        ("shop_idle.py", Invalid, "the consumer 'idle' consumes nothing: decorate a function"),
        ("shop_package.orders", Invalid, r"shop_package/__init__.py:1: ZeroDivisionError"),
    ],
)
def test_what_is_wrong_is_said(folder: Path, target: str, kind: type[DetentError], says: str) -> None:
    (folder / "shop.py").write_text("number = 1\n")
    (folder / "shop_raises.py").write_text("def f():\n    pass\n1 / 0\n")
    (folder / "shop_ends.py").write_text("import sys\nsys.exit(0)\n")
    (folder / "shop_wrong.py").write_text("def f(:\n")
    (folder / "shop_needs.py").write_text("import shop_else\n")
    declared = "from detent.consumer import Consumer\nbad = Consumer('idle', read='in'{})\n"
    (folder / "shop_bad.py").write_text(declared.format(", shards=0"))
    (folder / "shop_idle.py").write_text(declared.format(""))
    (folder / "shop_package").mkdir()
    (folder / "shop_package" / "__init__.py").write_text("1 / 0\n")
    with pytest.raises(kind, match=says):
        CONSUMER.find(target)


def test_a_module_that_is_no_python_at_all_is_not_kept(folder: Path) -> None:
    (folder / "shop.py").write_text("1 / 0\n")
    with pytest.raises(Invalid):
        CONSUMER.find("shop.py")
    assert "shop" not in sys.modules


def test_what_is_said_when_it_is_run_counts() -> None:
    app = Consumer("c", read="in", shards=2, standbys=1, lease="20s")
    adjust(app)
    assert (app.shards, app.standbys, app.lease_ms) == (2, 1, 20_000)
    adjust(app, shards=8, standbys=0, lease="5s")
    assert (app.shards, app.standbys, app.lease_ms) == (8, 0, 5_000)
    for wrong in ({"shards": 0}, {"standbys": 9}, {"lease": "1ms"}, {"lease": "soon"}):
        with pytest.raises(Invalid):
            adjust(app, **wrong)  # type: ignore[arg-type]
