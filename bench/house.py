"""`python -m bench.house [--tree FOLDER] [--json]`: the house in numbers.

What is counted: places that start a thread or a process by themselves, formulas of a back-off, keepers of leases, lines
and files, class names with two meanings, words, and the modules of Detent that one call passes. Run it on two trees,
and compare. A number is to see by: one that falls because a room became harder to read is a loss.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

STARTS: Final = {"Thread", "Timer", "ThreadPoolExecutor", "ProcessPoolExecutor", "Popen", "Process"}
"""Calls that start threads or processes."""

PAUSES: Final = re.compile(r"pause|retry|back_?off|wait|rest|delay|settle", re.IGNORECASE)
"""How people call the time between two attempts."""

KEEPERS: Final = re.compile(r"^_?(keep_leases?|keep|beat|renew\w*|extend_(all|due|leases)|keep_alive)$")
"""How people call a function that extends leases until it is told to stop."""

STREAM: Final = ("consumer/", "processor/", "shard/", "state/", "stream/")

STEERS: Final = re.compile(
    r"^(runtime/|consumer/(supervisor|lives|running|worker|reporting|committer|loading|workers|processes)"
    r"|processor/(life|live|loading|runner|status|workers)|stream/(life|lives|supervis\w+|run\w+|report\w+|worker\w*)"
    r"|bus/(app|running|worker|workers|forwarder|housekeeping|loading|looking|replies|calling)"
    r"|queue/worker\w*|spark/(pipeline_\w+|progress|launch|source_\w+|stream_\w+)"
    r"|ingest/(running|pipeline|progress|coordinator|views|steering|visibility|job|runner|parts)"
    r"|demo/(crew|running)|testing/running|transports/lease\w*"
    r"|(loops|signals|loading|user_file|growth)\.py"
    r"|cli/(consume|_consume\w*|_consumers|_bus_(views|shown)|_graph_(views|shown|running)|_views|run\w*|kind\w*|_frame"
    r"|ingest|pipeline|views?|frames?|verbs?)(/|\.py|\w*\.py)|cli/(kinds|verbs)/)"
)
"""Files of what runs and of what steers it, by the names in use before and after they were moved."""

PERSONS: Final = re.compile(r"\b(nobody|whoever|somebody|anybody|someone|anyone)\b", re.IGNORECASE)
WIDE: Final = 100


@dataclass(frozen=True)
class Source:
    """A file of the package."""

    name: str
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        """The file, parsed."""
        return ast.parse(self.text)

    @property
    def lines(self) -> int:
        """How many it has."""
        return self.text.count("\n")

    def nodes(self, *kinds: type[ast.AST]) -> Iterator[ast.AST]:
        """All nodes of these kinds."""
        return (node for node in ast.walk(self.tree) if isinstance(node, kinds))


def sources(tree: Path) -> list[Source]:
    """The package's files in a tree."""
    root = tree / "src" / "detent"
    return [Source(path.relative_to(root).as_posix(), path.read_text()) for path in sorted(root.rglob("*.py"))]


def main() -> int:
    """Count, and show."""
    parser = argparse.ArgumentParser(prog="python -m bench.house", description=__doc__)
    parser.add_argument("--tree", type=Path, default=Path(__file__).parents[1], metavar="FOLDER")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.add_argument("--where", action="store_true", help="also say where what was counted stands")
    options = parser.parse_args()
    found = sources(options.tree)
    counts = {what: count(found) for what, count in COUNTS.items()}
    passed = _passed(options.tree)
    if options.json:
        print(json.dumps({**{what: len(places) for what, places in counts.items()}, **_sums(found), **passed}))
        return 0
    for what, places in counts.items():
        print(f"{what:<60} {len(places):>7,} in {len({place.split(':')[0] for place in places})} files")
        for place in places if options.where else ():
            print(f"    {place}")
    for what, number in {**_sums(found), **passed}.items():
        print(f"{what:<60} {number:>7,}")
    return 0


# -- places -----------------------------------------------------------------------------------------------------------


def starts(found: list[Source]) -> list[str]:
    """Calls that start a thread, a process, or a pool of them."""
    calls = ((one, node) for one in found for node in one.nodes(ast.Call) if isinstance(node, ast.Call))
    return [f"{one.name}:{node.lineno}" for one, node in calls if _called(node) in STARTS]


def _called(node: ast.Call) -> str:
    if isinstance(node.func, ast.Attribute):
        return node.func.attr
    return node.func.id if isinstance(node.func, ast.Name) else ""


def backoffs(found: list[Source]) -> list[str]:
    """Formulas that make a pause longer from one attempt to the next: a power of two, a doubling, a shift."""
    nodes = ((one, node) for one in found for node in one.nodes(ast.BinOp) if isinstance(node, ast.BinOp))
    return sorted({f"{one.name}:{node.lineno}" for one, node in nodes if _is_backoff(one, node)})


def _is_backoff(one: Source, node: ast.BinOp) -> bool:
    if not isinstance(node.op, ast.Pow | ast.Mult | ast.LShift):
        return False
    two = node.left if isinstance(node.op, ast.Pow) else node.right
    is_growth = isinstance(node.op, ast.LShift) or (isinstance(two, ast.Constant) and two.value == 2)
    if isinstance(node.op, ast.Pow) and isinstance(two, ast.Name | ast.Attribute):
        is_growth = ast.unparse(two).endswith("factor")
    line = one.text.splitlines()[node.lineno - 1]
    return is_growth and "min(" in line and bool(PAUSES.search(line.replace("wait_for", "")))


def keepers(found: list[Source]) -> list[str]:
    """Functions that extend leases in time. Those that only hand on a call are not counted: they have no loop."""
    return [
        f"{one.name}:{node.lineno}"
        for one in found
        for node in _functions(one)
        if KEEPERS.match(node.name) and _loops(node)
    ]


def _functions(one: Source) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in one.nodes(ast.FunctionDef, ast.AsyncFunctionDef):
        assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        yield node


def _loops(node: ast.AST) -> bool:
    return any(isinstance(inner, ast.While) for inner in ast.walk(node))


def shared_names(found: list[Source]) -> list[str]:
    """Public class names that mean two different things."""
    homes: dict[str, list[str]] = {}
    for one in found:
        for node in one.tree.body:
            if isinstance(node, ast.ClassDef):
                homes.setdefault(node.name.lstrip("_"), []).append(one.name)
    return [f"{name}: {', '.join(places)}" for name, places in sorted(homes.items()) if len(places) > 1]


def single_importers(found: list[Source]) -> list[str]:
    """Files that one other file imports."""
    importers: dict[str, set[str]] = {_module(one): set() for one in found}
    for one in found:
        for name in _imported(one):
            if name in importers and name != _module(one):
                importers[name].add(one.name)
    return [name for name, by in sorted(importers.items()) if len(by) == 1]


def _module(one: Source) -> str:
    return "detent." + one.name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _imported(one: Source) -> Iterator[str]:
    for node in one.nodes(ast.Import, ast.ImportFrom):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def persons(found: list[Source]) -> list[str]:
    """Lines that name a person where a part of the system is meant."""
    return [
        f"{one.name}:{number}"
        for one in found
        for number, line in enumerate(one.text.splitlines(), 1)
        if PERSONS.search(line)
    ]


def repeated_file_names(found: list[Source]) -> list[str]:
    """File names that stand in three folders or more."""
    names = Counter(Path(one.name).name for one in found)
    return [name for name, count in sorted(names.items()) if count > 2 and not name.startswith("__")]


COUNTS: Final[dict[str, Callable[[list[Source]], list[str]]]] = {
    "starts of threads, processes and pools": starts,
    "formulas of a back-off": backoffs,
    "keepers of leases": keepers,
    "class names for several things": shared_names,
    "files with one importer": single_importers,
    "file names that stand in three folders or more": repeated_file_names,
    "lines that say nobody, whoever, somebody": persons,
}


def _sums(found: list[Source]) -> dict[str, int]:
    return {
        "lines of what runs and steers": sum(one.lines for one in found if STEERS.match(one.name)),
        "lines of consumers, processors, shards and state": sum(
            one.lines for one in found if one.name.startswith(STREAM)
        ),
        "files": len(found),
        "lines": sum(one.lines for one in found),
    }


# -- modules that a call passes ----------------------------------------------------------------------------------------


def _passed(tree: Path) -> dict[str, int]:
    """How many modules of Detent are entered by one call, counted in a process of its own by that tree's Python."""
    python = tree / ".venv" / "bin" / "python"
    script = Path(__file__).with_name("house_calls.py")
    command = [str(python if python.exists() else sys.executable), "-P", str(script)]
    done = subprocess.run(command, cwd=tree, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"the calls could not be traced in {tree}:\n{done.stderr}")
    answer: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    return answer


if __name__ == "__main__":
    sys.exit(main())
