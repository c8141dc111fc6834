"""Finding the apps that a command was told to run, and saying what is wrong where there are none."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from detent.bus import Bus
from detent.cli.kinds import APP, find_all
from detent.cli.kinds.bus import refuse_twins
from detent.errors import DetentError, Invalid, NotFound

IMPORTS = """
from dataclasses import dataclass
from detent.bus import Bus

@dataclass
class Placed:
    number: int
"""
ONE = """
{name} = Bus("{name}", "memory:")

@{name}.handler
def handle_{name}(message: Placed):
    pass
"""
RUNS = """
if __name__ == "__main__":
    raise SystemExit("it was run")
"""


def write(path: Path, *names: str, more: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(IMPORTS + "".join(ONE.format(name=name) for name in names) + more + RUNS)
    return path


def load_buses(targets: Iterable[str]) -> list[Bus]:
    """The apps that `detent run` would run."""
    buses = [one.what for one in find_all(targets, APP)[APP.noun]]
    refuse_twins(buses)
    return buses


def names_of(*targets: str) -> list[str]:
    return [bus.name for bus in load_buses(targets)]


@pytest.mark.parametrize("target", ["shop.py", "shop.py:billing", "shop", "shop:billing", "./shop.py:billing"])
def test_an_app_of_a_file_or_a_module_which_is_not_run(folder: Path, target: str) -> None:
    write(folder / "shop.py", "billing")
    assert APP.find(target).name == "billing"
    assert names_of(target) == ["billing"]


def test_all_apps_of_a_file_where_none_is_named(folder: Path) -> None:
    write(folder / "shop.py", "mail", "billing", more="same = mail\n")
    assert names_of("shop.py") == ["mail", "billing"]
    assert names_of("shop.py:billing") == ["billing"]
    assert names_of("shop.py:billing", "shop.py:same", "./shop.py") == ["billing", "mail"]
    with pytest.raises(Invalid, match=r"declares 2 apps: say which one; there is shop.py:billing, shop.py:mail, shop"):
        APP.find("shop.py")
    assert APP.find("shop.py:same").name == "mail"


def test_files_that_import_each_other_have_the_same_apps(folder: Path) -> None:
    write(folder / "shop_events.py", "mail")
    (folder / "shop_web.py").write_text("from shop_events import Bus, Placed, mail\n" + ONE.format(name="web"))
    for targets in (["shop_web.py", "shop_events.py"], ["shop_events.py", "shop_web.py"]):
        buses = {bus.name: bus for bus in load_buses(targets)}
        assert set(buses) == {"mail", "web"}
        assert buses["mail"].all_handlers[0].classes == buses["web"].all_handlers[0].classes
        for name in ("shop_web", "shop_events"):
            sys.modules.pop(name, None)


def test_files_of_one_name_do_not_come_in_each_others_way(folder: Path) -> None:
    for name in ("one", "two", "three"):
        write(folder / name / "shop.py", name)
    write(folder / "queue.py", "queues")  # which is a name of Python's own, too
    buses = load_buses(["one/shop.py", "two/shop.py", "three/shop.py", "queue.py"])
    assert [bus.name for bus in buses] == ["one", "two", "three", "queues"]
    modules = [bus.all_handlers[0].classes[0].__module__ for bus in buses]
    assert len(set(modules)) == 4
    assert all(sys.modules[module].Bus for module in modules)  # classes find their module later
    import queue

    assert hasattr(queue, "SimpleQueue")


@pytest.mark.parametrize("line", ["mail.run()", "import asyncio; asyncio.run(mail.run_async())"])
@pytest.mark.parametrize("target", ["shop.py", "shop"])
def test_a_file_that_runs_its_app_by_itself_is_refused(folder: Path, target: str, line: str) -> None:
    write(folder / "shop.py", "mail", more=f"{line}\n")
    with pytest.raises(Invalid, match=r"shop.py:\d+: run.*\(\) runs whenever the file is loaded: put it under if __na"):
        load_buses([target])


@pytest.mark.parametrize("targets", [["shop.py", "shop"], ["shop", "shop.py"], ["shop.py:mail", "shop:mail"]])
def test_a_file_and_the_module_that_it_is_are_the_same(folder: Path, targets: list[str]) -> None:
    write(folder / "shop.py", "mail")
    assert names_of(*targets) == ["mail"]


@pytest.mark.parametrize("line", ["sys.exit(0)", "sys.exit()", "raise SystemExit('bye')", "exit(3)"])
@pytest.mark.parametrize("target", ["shop.py", "shop"])
def test_a_file_that_ends_the_program_is_refused(folder: Path, target: str, line: str) -> None:
    write(folder / "shop.py", "mail", more=f"import sys\n{line}\n")
    with pytest.raises(Invalid, match=r"shop.py:\d+: the file ends the program while it is loaded: put what"):
        load_buses([target])


def test_two_apps_of_one_name_are_refused(folder: Path) -> None:
    write(folder / "shop.py", "mail", more='other = Bus("mail", "memory:")\n')
    with pytest.raises(Invalid, match="two of these apps are called 'mail'"):
        load_buses(["shop.py"])
    assert names_of("shop.py:other") == ["mail"]


@pytest.mark.parametrize(
    ("target", "kind", "says"),
    [
        (":app", Invalid, "names no module and no file: write shop.py:billing or"),
        ("nothing.py:app", NotFound, "there is no file nothing.py: give a Python file that declares an app"),
        ("shop.py", Invalid, "declares no app; it needs lines such as from detent.bus import Bus; billing ="),
        ("shop_nothing:app", NotFound, "there is no module 'shop_nothing', neither in "),
        ("shop.py:app", NotFound, "shop.py has no 'app'; it needs lines such as"),
        ("shop.py:number", Invalid, "shop.py:number is no Bus but a int; it needs"),
        ("shop_raises.py", Invalid, r"shop_raises.py:2: a name|shop_raises.py:2: .*name"),
    ],
)
def test_what_is_wrong_is_said(folder: Path, target: str, kind: type[DetentError], says: str) -> None:
    (folder / "shop.py").write_text("number = 1\n")
    (folder / "shop_raises.py").write_text("from detent.bus import Bus\nbad = Bus('', 'memory:')\n")
    for load in (APP.find, lambda target: load_buses([target])):
        with pytest.raises(kind, match=says):
            load(target)
