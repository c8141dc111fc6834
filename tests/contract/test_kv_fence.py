"""Two writers, other processes, and any sequence of steps, on every kv engine."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from contract.kvengine import VISIBLE_SECONDS, Engine, eventually, everything, get, heard, put
from detent.errors import Fenced
from detent.kv import View, Writer

SOAK = bool(os.environ.get("DETENT_SOAK"))
KEY_ALPHABET = [0x01, 0x02, 0x61, 0xFE, 0xFF]


class Committer(threading.Thread):
    """Counts up in the store, one commit a number, until a commit fails, or none has failed for too long."""

    def __init__(self, writer: Writer) -> None:
        super().__init__(daemon=True)
        self.writer = writer
        self.acknowledged = 0
        self.error: BaseException | None = None

    def run(self) -> None:
        deadline = time.monotonic() + VISIBLE_SECONDS
        try:
            while time.monotonic() < deadline:
                put(self.writer, (b"n", b"%d" % (self.acknowledged + 1)))
                self.acknowledged += 1
        except BaseException as error:
            self.error = error

    def is_under_way(self) -> bool:
        assert self.error is None, self.error
        return self.acknowledged > 3


class TestFence:
    def test_a_replaced_writer_changes_nothing(self, kv_engine: Engine) -> None:
        first = kv_engine.writer()
        put(first, (b"k", b"1"))
        second = kv_engine.writer()
        reader = kv_engine.reader()
        with pytest.raises(Fenced):
            put(first, (b"k", b"2"), (b"x", b"2"))
        assert everything(second) == everything(reader) == {b"k": b"1"}
        with contextlib.suppress(Fenced):  # it says that it was replaced, or shows only what is durable
            assert everything(first) == {b"k": b"1"}
        put(second, (b"k", b"3"))
        for _ in range(2):
            with pytest.raises(Fenced):
                put(first, (b"y", b"4"))
        with contextlib.suppress(Fenced):
            assert everything(first) in ({b"k": b"1"}, {b"k": b"3"})
        eventually(lambda: everything(reader) == {b"k": b"3"})
        first.close()
        second.close()
        assert everything(kv_engine.writer()) == {b"k": b"3"}

    def test_the_fence_outlives_who_raised_it(self, kv_engine: Engine) -> None:
        first = kv_engine.writer()
        kv_engine.writer().close()
        with pytest.raises(Fenced):
            put(first, (b"k", b"1"))
        assert everything(kv_engine.writer()) == {}

    def test_every_acknowledged_commit_survives_a_takeover(self, kv_engine: Engine) -> None:
        """The first writer commits as fast as it can: what it was told is exactly what its successor finds."""
        for _ in range(max(1, kv_engine.pace // 2)):
            url = kv_engine.fresh_url()
            first = Committer(kv_engine.writer(url))
            first.start()
            eventually(first.is_under_way)
            second = kv_engine.writer(url)
            found = get(second, b"n")
            first.join()
            assert type(first.error) is Fenced, first.error
            assert found == get(second, b"n") == b"%d" % first.acknowledged

    def test_another_process_takes_over(self, kv_engine: Engine) -> None:
        if not kv_engine.survives_process:
            pytest.skip("a memory store belongs to one process")
        first = kv_engine.writer()
        put(first, (b"k", b"1"))
        reader = kv_engine.reader()
        other = kv_engine.process("w = kv.open_writer(url); w.commit(batch(k='2')); say(w.epoch); sys.stdin.readline()")
        assert int(heard(other)) > first.epoch
        with pytest.raises(Fenced):
            put(first, (b"k", b"3"), (b"x", b"3"))
        eventually(lambda: everything(reader) == {b"k": b"2"})
        third = kv_engine.writer()
        assert everything(third) == {b"k": b"2"}


class TestOtherProcesses:
    @pytest.fixture(autouse=True)
    def _durable_engines_only(self, kv_engine: Engine) -> None:
        if not kv_engine.survives_process:
            pytest.skip("a memory store belongs to one process")

    def test_a_killed_writer_loses_nothing_it_committed(self, kv_engine: Engine) -> None:
        other = kv_engine.process(
            "w = kv.open_writer(url)\n"
            "w.objects.put('o', [b'object'])\n"
            "for n in range(10): w.commit(batch(k=str(n), **{f'k{n}': 'v'})); say(n)\n"
            "sys.stdin.readline()"
        )
        assert [heard(other) for _ in range(10)] == [str(n) for n in range(10)]
        os.kill(other.pid, signal.SIGKILL)
        other.wait()
        writer = kv_engine.writer()
        assert everything(writer) == {b"k": b"9"} | {b"k%d" % n: b"v" for n in range(10)}
        assert writer.objects.get("o") == b"object"
        put(writer, (b"k", b"10"))

    def test_a_reader_in_another_process(self, kv_engine: Engine) -> None:
        writer = kv_engine.writer()
        put(writer, (b"k", b"0"))
        other = kv_engine.process(
            "import time\n"
            "r = kv.open_reader(url); seen = None\n"
            "while seen != b'5':\n"
            "    with r.view() as view: now = view.get(b'k')\n"
            "    if now != seen: say(now.decode())\n"
            "    seen = now; time.sleep(0.005)\n"
        )
        assert heard(other) == "0"
        for number in range(1, 6):
            put(writer, (b"k", b"%d" % number))
        while (line := heard(other)) != "5":
            assert line.isdigit()
        assert other.wait(VISIBLE_SECONDS) == 0


KEYS = st.lists(st.sampled_from(KEY_ALPHABET), min_size=1, max_size=3).map(bytes)
PAIRS = st.lists(st.tuples(KEYS, st.one_of(st.none(), st.binary(max_size=6))), max_size=6)
STEPS = st.one_of(
    st.tuples(st.just("commit"), PAIRS),
    st.tuples(st.just("commit"), PAIRS),
    st.tuples(st.just("scan"), st.tuples(KEYS, st.one_of(st.none(), KEYS), st.booleans(), st.integers(0, 4))),
    st.tuples(st.just("commit much"), PAIRS),
    st.tuples(st.just("maintain"), st.none()),
    st.tuples(st.just("keep a view"), st.none()),
    st.tuples(st.just("reopen"), st.none()),
    st.tuples(st.just("take over"), PAIRS),
)


class Comparison:
    """One store beside a dictionary that says what it must hold."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.url = engine.fresh_url()
        self.writer = engine.writer(self.url)
        self.model: dict[bytes, bytes] = {}
        self.views = contextlib.ExitStack()
        self.kept: list[tuple[View, dict[bytes, bytes]]] = []

    def step(self, name: str, argument: object) -> None:
        getattr(self, name.replace(" ", "_"))(argument)
        assert everything(self.writer) == self.model

    def commit(self, pairs: list[tuple[bytes, bytes | None]]) -> None:
        put(self.writer, *pairs)
        for key, value in pairs:
            if value is None:
                self.model.pop(key, None)
            else:
                self.model[key] = value

    def commit_much(self, pairs: list[tuple[bytes, bytes | None]]) -> None:
        """Engines may take small and large commits different ways."""
        self.commit([*pairs, (b"much", b"%d" % len(pairs) * 300_000)])

    def maintain(self, _: None) -> None:
        self.writer.maintain()

    def scan(self, argument: tuple[bytes, bytes | None, bool, int]) -> None:
        start, end, reverse, limit = argument
        inside = [(k, v) for k, v in self.model.items() if start <= k and (end is None or k < end)]
        expected = sorted(inside, reverse=reverse)[:limit]
        with self.writer.view() as view:
            assert list(view.scan(start, end, reverse=reverse, limit=limit)) == expected

    def keep_a_view(self, _: None) -> None:
        self.kept.append((self.views.enter_context(self.writer.view()), dict(self.model)))

    def drop_views(self) -> None:
        for view, then in self.kept:
            assert dict(view.scan(b"")) == then
            assert all(view.get(key) == then.get(key) for key in self.model.keys() | then.keys())
        self.kept.clear()
        self.views.close()

    def reopen(self, _: None) -> None:
        self.drop_views()
        self.writer.close()
        self.writer = self.engine.writer(self.url)

    def take_over(self, pairs: list[tuple[bytes, bytes | None]]) -> None:
        self.drop_views()
        replaced, self.writer = self.writer, self.engine.writer(self.url)
        with pytest.raises(Fenced):
            put(replaced, (b"fenced", b"x"), *pairs)
        replaced.close()


def test_any_sequence_of_steps_matches_a_dictionary(kv_engine: Engine) -> None:
    @settings(
        max_examples=kv_engine.pace * (100 if SOAK else 6),
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    @given(st.lists(STEPS, max_size=25))
    def compare(steps: list[tuple[str, object]]) -> None:
        comparison = Comparison(kv_engine)
        try:
            for name, argument in steps:
                comparison.step(name, argument)
            comparison.drop_views()
        finally:
            comparison.views.close()
            comparison.writer.close()
        reader = kv_engine.reader(comparison.url)
        eventually(lambda: everything(reader) == comparison.model)
        reader.close()

    compare()
