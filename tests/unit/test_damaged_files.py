"""Any file of a store that is cut or has a flipped bit: all that was acknowledged is there, or the store is refused.

Each damaged copy is opened in a process of its own, because LMDB may end the process that reads a damaged file.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import detent
from detent.errors import DetentError
from detent.journal import fragments
from detent.kv.commitrecord import PAGE
from filestore import bytes_of

IS_LONG = os.environ.get("DETENT_SOAK") == "1"
FLIPS = 300 if IS_LONG else 4
"""Places in each file at which a bit is flipped."""

FILL = """
import sys
import pyarrow as pa
import detent
from detent.remote import owner

owner.TICK_S = 3600.0
store = detent.open("file:" + sys.argv[1])
journal = store.journal("j")
def fill(first, last):
    for number in range(first, last):
        journal.append(b"%d " % number + bytes(number * 77 % 2000))
fill(0, 8)
journal.adopt([journal.write_fragment(pa.table({"body": pa.array([b"8 " + bytes(9000)], pa.binary())}))])
fill(9, 12)
store._connection.owner(1e18).engine.tick()
fill(12, 30)
print("filled", flush=True)
sys.stdin.read()
"""
MESSAGES = 30
REFUSALS = (["refused", "Corrupt"], ["refused", "NotFound"])


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store whose owner was killed with commits in its log."""
    path = tmp_path_factory.mktemp("damaged") / "store"
    with subprocess.Popen([sys.executable, "-c", FILL, str(path)], stdin=-1, stdout=-1, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "filled\n"
        process.kill()
    return path


@pytest.fixture(scope="module")
def closed(killed: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same, closed as it should be."""
    path = tmp_path_factory.mktemp("damaged") / "store"
    copy(killed, path)
    with detent.open(f"file:{path}") as store:  # the children need not import then what this has imported
        assert len(list(store.journal("j").read())) == MESSAGES
    return path


def copy(source: Path, target: Path) -> None:
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("owner.sock"))


class Damage(NamedTuple):
    """What is done to one file of a copy."""

    name: str
    how: str
    at: int

    def do(self, directory: Path) -> None:
        path = directory / self.name
        if self.how == "cut":
            os.truncate(path, self.at)
        elif self.how == "removed":
            path.unlink()
        else:
            data = bytearray(path.read_bytes())
            if self.how == "zeroed":
                data[self.at : self.at + PAGE] = bytes(len(data[self.at : self.at + PAGE]))
            else:
                data[self.at] ^= 1 << self.at % 8
            path.write_bytes(data)


def damages(directory: Path, name: str, choose: random.Random) -> list[Damage]:
    """Cuts at each 4 KiB, flips at random places that are not in holes, each page zeroed, and the file removed."""
    data = (directory / name).read_bytes()
    used = [at for at in range(0, len(data), PAGE) if any(data[at : at + PAGE])]
    cuts = (
        range(0, len(data), PAGE) if IS_LONG else {0, *choose.sample(range(0, len(data) or 1, PAGE), min(5, len(used)))}
    )
    flips = [min(choose.choice(used) + choose.randrange(PAGE), len(data) - 1) for _ in range(FLIPS)] if used else []
    if name == "data.mdb":  # LMDB has no checksums, so some of what is changed there is not found here
        flips, used = [], []
    zeroed = used if IS_LONG else choose.sample(used, min(3, len(used)))
    return [
        *(Damage(name, "cut", at) for at in cuts),
        *(Damage(name, "flipped", at) for at in flips),
        *(Damage(name, "zeroed", at) for at in zeroed),
        Damage(name, "removed", 0),
    ]


def body_of(number: int) -> bytes:
    """What `FILL` writes."""
    return b"%d " % number + bytes(9000 if number == 8 else number * 77 % 2000)


def _told(work: Callable[[], Any]) -> Any:
    try:
        return work()
    except BaseException as error:  # the parent is told, and checks it
        return ["raised", repr(error)]


def in_a_child(work: Callable[[], Any]) -> Any:
    """What a function returns, or by which signal its process ended."""
    ours, theirs = os.pipe()
    child = os.fork()
    if not child:
        os.close(ours)
        try:
            os.write(theirs, json.dumps(_told(work)).encode())
        finally:
            os._exit(0)
    os.close(theirs)
    with os.fdopen(ours, "rb") as pipe:
        answer = pipe.read()
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return ["died", os.WTERMSIG(status)]
    return json.loads(answer)


def look(path: Path, role: Any) -> list[Any]:
    """What a store holds, or how it refuses."""
    fragments._seen.clear()  # of the process that this one was forked from
    try:
        with detent.open(f"file:{path}", role=role, timeout="5s") as store:
            bodies = [message.body for message in store.journal("j").read()]
            found = [int(body.partition(b" ")[0]) for body in bodies if body == body_of(int(body.partition(b" ")[0]))]
            if role == "auto":
                assert store.journal("j").append(b"99 ").offset == len(found)
            return ["found", found]
    except DetentError as error:
        return ["refused", type(error).__name__, str(error)]


def check(source: Path, place: Path, damage: Damage, whole: list[int]) -> str:
    """Open a damaged copy as a reader and as an owner; what came of it. A refusal changes nothing."""
    copy(source, place)
    damage.do(place)
    before = bytes_of(place)
    answers = []
    for role in ("reader", "auto"):
        answer = in_a_child(lambda: look(place, role))  # noqa: B023 - it is run at once
        answers.append(answer)
        assert answer[0] == "found" or answer[:2] in REFUSALS, (damage, role, answer)
        if answer[0] == "found":
            assert answer[1] == whole, (damage, role, answer)
        elif damage.name != "owner.lock" and not damage.name.startswith("objects/"):
            assert bytes_of(place) == before, (damage, role, answer)
    shutil.rmtree(place)
    return "/".join(answer[0] for answer in answers)


def test_a_meta_page_that_shows_an_old_commit_is_refused(closed: Path, tmp_path: Path) -> None:
    """LMDB takes the meta page with the higher number: with a flipped bit in the newer one, that is the older one."""
    data = (closed / "data.mdb").read_bytes()
    numbers = [int.from_bytes(data[page + 144 : page + 152], "little") for page in (0, PAGE)]
    newer = numbers.index(max(numbers)) * PAGE
    for bit in (1, 2, 7, 8, 40):
        place = tmp_path / str(bit)
        copy(closed, place)
        changed = bytearray(data)
        changed[newer + 144 + bit // 8] ^= 1 << bit % 8
        (place / "data.mdb").write_bytes(changed)
        before = bytes_of(place)
        for role in ("reader", "auto"):
            answer = in_a_child(lambda: look(place, role))  # noqa: B023 - it is run at once
            assert answer[:2] == ["refused", "Corrupt"], (bit, answer)
            assert "meta pages" in answer[2] or bit == 1, "that makes it the commit before the older one"
        assert bytes_of(place) == before


@pytest.mark.timeout(3600 if IS_LONG else 300)
@pytest.mark.parametrize("state", ["closed", "killed"])
def test_a_damaged_file_is_refused_or_does_no_harm(state: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    source: Path = request.getfixturevalue(state)
    whole = list(range(MESSAGES))
    seed = int(os.environ.get("DETENT_SEED", time.time_ns() % 1_000_000))
    choose, tally, failed = random.Random(seed), {}, []
    for name in bytes_of(source):
        for damage in damages(source, name, choose):
            try:
                outcome = check(source, tmp_path / "copy", damage, whole)
            except AssertionError as error:
                failed.append(str(error)[:300])
                shutil.rmtree(tmp_path / "copy")
                continue
            kind = (name.rpartition(".")[2], damage.how, outcome)
            tally[kind] = tally.get(kind, 0) + 1
    print(f"\nseed {seed}: {sum(tally.values())} damaged copies")
    for kind, count in sorted(tally.items()):
        print("  ", *kind, count)
    assert not failed, "\n".join(failed)
