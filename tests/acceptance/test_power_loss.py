"""What `file:` means by durable, shown from the system calls: nothing is acknowledged before it is synced.

A child appends under strace. From the log come the number of syncs, the order of syncs around the adoption of a
fragment, and simulated power cuts: everything that was synced at some moment, plus any part of what was written and not
yet synced, is put into copies of the files. Whatever had been acknowledged at that moment must be in the copies.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import detent
from detent.errors import DetentError
from filestore import lose_power
from processes import Io, Processes

CALLS = (
    "openat,mkdir,link,unlink,rename,renameat,renameat2,lseek,write,writev,pwrite64,pwritev,pwritev2,fsync,fdatasync,msync,"
    "ftruncate"
)
WRITES = frozenset({"pwrite64", "pwritev", "pwritev2", "write", "writev"})
CUTS = 400 if os.environ.get("DETENT_SOAK") == "1" else 30


def _strace_works() -> bool:
    if shutil.which("strace") is None:
        return False
    return subprocess.run(["strace", "-o", "/dev/null", "true"], capture_output=True, check=False).returncode == 0


pytestmark = [
    pytest.mark.xdist_group("power-loss"),
    pytest.mark.skipif(not _strace_works(), reason="strace is not there, or may not trace"),
]


# -- reading the log --------------------------------------------------------------------------------------------


@dataclass
class Call:
    """One system call. `began` and `ended` number the lines of the log at which it was entered and left."""

    name: str
    arguments: str
    began: int
    ended: int = -1
    result: str = ""
    file: str = ""
    descriptor: int = -1
    through: bool = False
    """Whether it is a write through a descriptor that makes each write durable before it returns."""

    @property
    def failed(self) -> bool:
        return self.result.startswith("-1")

    @property
    def is_sync(self) -> bool:
        return self.name in {"fsync", "fdatasync", "msync"} and not self.failed

    @property
    def makes_durable(self) -> bool:
        """Whether something is durable when it returns that was not before."""
        return self.is_sync or (self.through and not self.failed)


_WHOLE = re.compile(r"^(\d+) +(\w+)\((.*)\) += (.*)$")
_BEGUN = re.compile(r"^(\d+) +(\w+)\((.*) <unfinished \.\.\.>$")
_ENDED = re.compile(r"^(\d+) +<\.\.\. (\w+) resumed>(.*)\) += (.*)$")
_ESCAPE = re.compile(r"\\x([0-9a-f]{2})")
_DESCRIPTOR = re.compile(r"^(\d+)<([^>]*)>")
_STRING = re.compile(r'"((?:\\x[0-9a-f]{2})*)"')


def plain(text: str) -> str:
    return _ESCAPE.sub(lambda found: chr(int(found[1], 16)), text)


def strings(arguments: str) -> list[bytes]:
    """The quoted byte strings among the arguments."""
    return [bytes.fromhex(found.replace("\\x", "")) for found in _STRING.findall(arguments)]


def read_log(path: Path) -> list[Call]:
    calls: list[Call] = []
    open_calls: dict[str, Call] = {}
    for number, line in enumerate(path.read_text().splitlines()):
        if found := _WHOLE.match(line):
            calls.append(Call(found[2], found[3], number, number, found[4]))
        elif found := _BEGUN.match(line):
            open_calls[found[1]] = Call(found[2], found[3], number)
            calls.append(open_calls[found[1]])
        elif found := _ENDED.match(line):
            call = open_calls.pop(found[1])
            call.arguments += found[3]
            call.ended, call.result = number, found[4]
    through: dict[int, bool] = {}
    for call in calls:
        if call.ended < 0:
            call.ended = 1 << 60
        where = _DESCRIPTOR.match(call.result if call.name == "openat" else call.arguments)
        if where:
            call.descriptor, call.file = int(where[1]), plain(where[2])
        if call.name == "openat":
            through[call.descriptor] = "O_DSYNC" in call.arguments
        elif call.name in WRITES:
            call.through = through.get(call.descriptor, False)
    return calls


# -- the store under strace -------------------------------------------------------------------------------------


def appends(io: Io, url: str, direct: bool, single: int, threads: int, each: int, fragments: int) -> None:
    """One caller, then many at once, then fragments. Marks in the log say what was acknowledged when."""
    from detent.kv.commitlog import DirectFile
    from detent.remote import owner

    owner.TICK_S = 3600.0
    if not direct:
        DirectFile.write = lambda *_: False  # type: ignore[method-assign]
    with detent.open(url) as store:
        journal = store.journal("j")
        io.say("phase", name="single")
        for number in range(single):
            offset = journal.append(b"s%d " % number + os.urandom(random.choice([10, 3000, 20_000, 50_000]))).offset
            io.say("ack", offset=offset, body=f"s{number}")
        io.say("phase", name="many")
        gate = threading.Barrier(threads)

        def run(thread: int) -> None:
            gate.wait()
            for number in range(each):
                offset = journal.append(b"t%d-%d" % (thread, number)).offset
                io.say("ack", offset=offset, body=f"t{thread}-{number}")

        running = [threading.Thread(target=run, args=(thread,)) for thread in range(threads)]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()
        for number in range(fragments):
            io.say("phase", name=f"fragment {number}")
            table = pa.table({"body": pa.array([b"f%d " % number + bytes(5000)], pa.binary())})
            ref = journal.write_fragment(table)
            io.say("phase", name=f"adoption {number}")
            io.say("ack", offset=journal.adopt([ref]).offset, body=f"f{number}")
        io.say("phase", name="end")
    io.say("closed")


@dataclass
class Traced:
    """A run, as its log shows it."""

    directory: Path
    calls: list[Call]
    phases: dict[str, int] = field(default_factory=dict)
    acknowledged: list[tuple[int, int, str]] = field(default_factory=list)
    """(line, offset, body): the write of the mark had begun by this line, so the append had returned before it."""

    def __post_init__(self) -> None:
        for call in self.calls:
            if call.name != "write" or call.descriptor != 1:
                continue
            for text in strings(call.arguments):
                if found := re.search(rb'"phase", "name": "([^"]+)"', text):
                    self.phases[found[1].decode()] = call.began
                if found := re.search(rb'"ack", "offset": (\d+), "body": "([^"]+)"', text):
                    self.acknowledged.append((call.began, int(found[1]), found[2].decode()))

    def between(self, first: str, last: str) -> list[Call]:
        return [call for call in self.calls if self.phases[first] < call.began < self.phases[last]]

    def data_syncs(self, first: str, last: str) -> int:
        return sum(call.makes_durable and is_store(call) for call in self.between(first, last))


SINGLE, THREADS, EACH, FRAGMENTS = 40, 100, 4, 3


@pytest.fixture(scope="module", params=["direct", "through the cache"])
def traced(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Traced:
    directory = tmp_path_factory.mktemp("traced")
    log = directory / "log"
    wrapper = ["strace", "-f", "-y", "-xx", "-s", str(1 << 22), "-o", str(log), "-e", f"trace={CALLS}"]
    with Processes() as processes:
        child = processes.start(
            appends, wrapper=wrapper, url=f"file:{directory / 'store'}", direct=request.param == "direct",
            single=SINGLE, threads=THREADS, each=EACH, fragments=FRAGMENTS,
        )  # fmt: skip
        while (event := child.next_event(seconds=120)) is not None and event["event"] != "closed":
            pass
        assert child.wait(seconds=60) == 0, child.errors()
    return Traced(directory / "store", read_log(log))


def test_the_log_shows_the_whole_run(traced: Traced) -> None:
    assert len(traced.acknowledged) == SINGLE + THREADS * EACH + FRAGMENTS
    assert sorted(offset for _, offset, _ in traced.acknowledged) == list(range(len(traced.acknowledged)))


def test_one_caller_syncs_for_every_append(traced: Traced) -> None:
    syncs = traced.data_syncs("single", "many")
    print(f"\n{SINGLE} appends of one caller: {syncs} syncs")
    assert syncs >= SINGLE


def test_many_callers_share_syncs(traced: Traced) -> None:
    syncs = traced.data_syncs("many", "fragment 0")
    print(f"\n{THREADS * EACH} appends of {THREADS} callers: {syncs} syncs")
    assert 1 <= syncs < THREADS * EACH / 2


def test_every_acknowledgement_follows_a_sync_of_its_message(traced: Traced) -> None:
    """The message is in a write to one of the store's files, and that write, or a sync after it, made it durable."""
    syncs = [call for call in traced.calls if call.is_sync and is_store(call)]
    writes = [(call, b"".join(strings(call.arguments))) for call in traced.calls if is_data(call)]
    for line, offset, body in traced.acknowledged[:SINGLE]:
        marker = body.encode() + b" "
        write = next(call for call, data in writes if marker in data)
        if write.through:
            assert write.ended <= line, f"offset {offset} was acknowledged before it was durable"
            continue
        assert any(write.ended <= sync.began and sync.ended <= line and sync.file == write.file for sync in syncs), (
            f"offset {offset} was acknowledged before it was synced"
        )


def test_lmdb_syncs_its_pages_before_its_meta_page(traced: Traced) -> None:
    """LMDB: data pages, a sync, then the meta page through a descriptor that syncs each write."""
    calls = [call for call in traced.calls if name_of(call) == "data.mdb"]
    commits = [call for call in calls if call.through]
    assert len(commits) >= 3, "opening, inheriting, closing"
    for commit in commits:
        data = [call for call in calls if is_data(call) and call not in commits and call.began < commit.began]
        last_sync = max(call.began for call in calls if call.is_sync and call.ended <= commit.began)
        assert max(call.ended for call in data) <= last_sync, "the meta page was written before its data was synced"


def test_the_log_is_not_written_over_before_lmdb_has_it(traced: Traced) -> None:
    """A page of the log is written again only after a commit of LMDB that came after the page's last write."""
    meta = [call.ended for call in traced.calls if call.through and name_of(call) == "data.mdb"]
    written: dict[tuple[str, int], int] = {}
    for call in traced.calls:
        if is_data(call) and name_of(call) != "data.mdb":
            for offset, data in Disk._pieces(call, 0):
                page = (name_of(call), offset // 4096)
                if page[1] == 0:
                    continue  # the log's head, which holds no commit
                if page in written and data.strip(b"\0"):
                    assert any(written[page] < line <= call.began for line in meta)
                if data.strip(b"\0"):
                    written[page] = call.ended


def name_of(call: Call) -> str:
    """The name of the file that a call is about, as it was before and after it was given its own or lost it."""
    return Path(call.file.removesuffix(" (deleted)").removesuffix("(deleted)")).name.replace(".new", ".log")


def is_store(call: Call) -> bool:
    return name_of(call) == "data.mdb" or re.fullmatch(r"commits-[0-9a-f]+-\d+\.log", name_of(call)) is not None


def is_data(call: Call) -> bool:
    return is_store(call) and call.name in WRITES


@pytest.mark.parametrize("number", range(FRAGMENTS))
def test_a_fragment_and_its_directory_are_synced_before_the_adoption(traced: Traced, number: int) -> None:
    calls = traced.between(f"fragment {number}", f"fragment {number + 1}" if number + 1 < FRAGMENTS else "end")
    written = [call for call in calls if call.name == "write" and "/objects/" in call.file]
    synced = {call.file: call.ended for call in calls if call.is_sync and "/objects" in call.file}
    (link,) = [call for call in calls if call.name == "link"]
    commit = min(call.began for call in calls if is_data(call))
    assert written
    assert max(call.ended for call in written) < synced[written[0].file] <= link.began
    name = Path(strings(link.arguments)[1].decode())
    assert link.ended < synced[str(name.parent)] < commit, "the name must be durable before the adoption is"


def test_new_directories_are_synced_into_their_parents(traced: Traced) -> None:
    syncs = [call for call in traced.calls if call.is_sync]
    made = [call for call in traced.calls if call.name == "mkdir" and not call.failed]
    made = [call for call in made if strings(call.arguments)[0].decode().startswith(str(traced.directory))]
    assert len(made) >= 3
    for call in made:
        parent = str(Path(strings(call.arguments)[0].decode()).parent)
        later = [sync for sync in syncs if sync.file == parent and sync.began > call.ended]
        assert later, f"{parent} was not synced"
        acknowledged = [line for line, _, _ in traced.acknowledged if line > call.began]
        assert not acknowledged or later[0].ended < acknowledged[0]
    created = next(call for call in traced.calls if call.name == "openat" and call.file.endswith("data.mdb"))
    names = [sync for sync in syncs if sync.file == str(traced.directory) and sync.began > created.ended]
    assert names[0].ended < traced.acknowledged[0][0], "the name of the new data file must be durable too"


# -- power cuts -------------------------------------------------------------------------------------------------


class Disk:
    """One file as a disk might hold it: what was synced for sure, what was only written maybe."""

    def __init__(self, calls: list[Call], name: str) -> None:
        self._events: list[tuple[int, str, Call]] = []
        for call in calls:
            if name_of(call) == name and not call.failed:
                self._events += [(call.began, "began", call), (call.ended, "ended", call)]
        self._events.sort(key=lambda event: event[:2])

    def image(self, cut: int, choose: random.Random | None) -> bytearray:
        """The file after a power cut just before line `cut`. `choose` None: nothing unsynced has survived."""
        image = bytearray()
        waiting: list[tuple[Call, list[tuple[int, bytes]]]] = []
        covered: dict[int, int] = {}
        at = 0
        for line, what, call in self._events:
            if line >= cut:
                break
            if call.name == "lseek" and what == "ended":
                at = int(call.result)
            elif is_data(call) and what == "began":
                waiting.append((call, self._pieces(call, at)))
                at += 0 if call.name.startswith("p") else sum(len(data) for data in strings(call.arguments))
            elif is_data(call) and call.through:
                waiting = self._settle(image, waiting, lambda other, call=call: other is call)
            elif call.is_sync and what == "began":
                covered[id(call)] = line
            elif call.is_sync:
                began = covered[id(call)]
                waiting = self._settle(image, waiting, lambda other, began=began: other.ended <= began)
        if choose is not None:
            for _, pieces in waiting:
                for offset, data in pieces:
                    if choose.random() < 0.5:
                        put(image, offset, data)
        return image

    @staticmethod
    def _settle(image: bytearray, waiting: list[Any], durable: Any) -> list[Any]:
        left = []
        for call, pieces in waiting:
            if not durable(call):
                left.append((call, pieces))
                continue
            for offset, data in pieces:
                put(image, offset, data)
        return left

    @staticmethod
    def _pieces(call: Call, at: int) -> list[tuple[int, bytes]]:
        """What a call writes where, page by page: a disk may keep any of the pages."""
        data = b"".join(strings(call.arguments))
        if call.name.startswith("p"):
            at = int(call.arguments.rsplit(", ", 2)[-2 if call.name == "pwritev2" else -1])
        return [(at + start, data[start : start + 4096]) for start in range(0, len(data), 4096)]


def put(image: bytearray, offset: int, data: bytes) -> None:
    if len(image) < offset + len(data):
        image.extend(bytes(offset + len(data) - len(image)))
    image[offset : offset + len(data)] = data


class Disks:
    """All files of the store, and which of their names a disk might know."""

    def __init__(self, traced: Traced) -> None:
        names = {name_of(call) for call in traced.calls if is_store(call)}
        self._files = {name: Disk(traced.calls, name) for name in names}
        self._named: dict[str, int] = {}  # from which line on the name is durable
        self._gone: dict[str, int] = {}
        syncs = [call for call in traced.calls if call.is_sync and call.file == str(traced.directory)]
        for call in traced.calls:
            if call.failed or call.name not in {"rename", "renameat", "renameat2", "unlink"}:
                continue
            name = Path(strings(call.arguments)[-1].decode()).name
            if name in names and call.name == "unlink":
                self._gone[name] = call.ended
            elif name in names:
                self._named[name] = min(sync.ended for sync in syncs if sync.began >= call.ended)
        assert set(self._named) == names - {"data.mdb"}

    def images(self, cut: int, choose: random.Random | None) -> dict[str, bytearray]:
        """The files after a power cut just before line `cut`."""
        found = {}
        for name, disk in self._files.items():
            unsure = self._named.get(name, 0) >= cut or self._gone.get(name, cut) < cut
            if unsure and (choose.random() < 0.5 if choose is not None else self._named.get(name, 0) >= cut):
                continue
            found[name] = disk.image(cut, choose)
        return found


def survivors(traced: Traced, images: dict[str, bytearray], directory: Path, role: str = "reader") -> dict[int, str]:
    """What a store opened on the copies holds. The tip of its log is never synced, and gone."""
    directory.mkdir(parents=True)
    for name, image in images.items():
        (directory / name).write_bytes(image)
    lose_power(directory)
    (directory / "objects").symlink_to(traced.directory / "objects")
    with detent.open(f"file:{directory}", role=role) as store:  # type: ignore[arg-type]
        if "j" not in store.journals():
            return {}
        found = {
            m.offset: m.body.partition(b" ")[0].decode() for m in store.journal("j").read() if m.offset is not None
        }
        if role == "auto":
            assert store.journal("j").append(b"after the cut").offset == len(found)
        return found


def test_the_replayed_files_are_the_files(traced: Traced, tmp_path: Path) -> None:
    found = survivors(traced, Disks(traced).images(1 << 59, None), tmp_path / "copy")
    assert found == {offset: body for _, offset, body in traced.acknowledged}


def test_power_cuts_take_nothing_that_was_acknowledged(traced: Traced, tmp_path: Path) -> None:
    seed = int(os.environ.get("DETENT_SEED", time.time_ns() % 1_000_000))
    choose = random.Random(seed)
    disks = Disks(traced)
    first, last = traced.phases["single"], traced.calls[-1].began
    lost = unreadable = checked = logs = 0
    for number in range(CUTS):
        cut = choose.randint(first, last)
        expected = {offset: body for line, offset, body in traced.acknowledged if line < cut}
        images = disks.images(cut, choose if number % 2 else None)
        logs += len(images) > 1
        role = "auto" if number % 5 == 0 else "reader"
        try:
            found = survivors(traced, images, tmp_path / str(number), role)
        except DetentError as error:
            print(f"\nseed {seed}, cut at line {cut}: {error!r}")
            unreadable += 1
            continue
        gone = sorted(offset for offset, body in expected.items() if found.get(offset) != body)
        if gone:
            print(f"cut at line {cut} ({role}): {len(gone)} are gone, {gone[0]} to {gone[-1]}, of {sorted(images)}")
        lost += len(gone)
        checked += len(expected)
    print(f"\nseed {seed}: {CUTS} power cuts, {checked} acknowledged messages looked for, {lost} lost, "
          f"{unreadable} stores unreadable, {logs} with a commit log")  # fmt: skip
    assert (lost, unreadable) == (0, 0)
    assert logs


def test_a_disk_that_forgets_a_sync_is_found_out(traced: Traced, tmp_path: Path) -> None:
    """The simulation can fail: without the last sync before an acknowledgement, that message is gone."""
    line, offset, body = traced.acknowledged[SINGLE - 1]
    syncs = [call for call in traced.calls if call.makes_durable and is_store(call)]
    last = max(sync.began for sync in syncs if sync.ended < line)
    assert survivors(traced, Disks(traced).images(line, None), tmp_path / "with")[offset] == body
    assert offset not in survivors(traced, Disks(traced).images(last, None), tmp_path / "without")
