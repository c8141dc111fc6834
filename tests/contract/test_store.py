"""What every store promises, whatever is below it: on memory, file, a client of the owner, a server, s3."""

from __future__ import annotations

import asyncio
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest

import detent
from contract.backends import OWNERS
from detent import Store
from detent.journal import operations as ops
from processes import eventually


def bodies(store: Store, journal: str = "j") -> list[bytes]:
    return [message.body for message in store.journal(journal).read()]


class TestJournals:
    def test_one_after_another(self, store: Store) -> None:
        journal = store.journal("j")
        for i in range(5):
            assert journal.append(b"%d" % i).offset == i
        assert bodies(store) == [b"0", b"1", b"2", b"3", b"4"]
        assert [m.offset for m in journal.read(1, 3)] == [1, 2]
        assert journal.next_offset() == 5

    def test_many_keys_and_headers(self, store: Store) -> None:
        journal = store.journal("j")
        journal.append_many([b"a", (b"b", b"key"), (b"c", None, {"h": "ü"}), (b"", b"", {})])
        for wrong in ((), (b"d", b"key", {}, 4)):
            with pytest.raises(detent.Invalid):
                journal.append_many([wrong])
        found = [(m.body, m.key, m.headers) for m in journal.read()]
        assert found == [(b"a", None, {}), (b"b", b"key", {}), (b"c", None, {"h": "ü"}), (b"", b"", {})]

    def test_uuids_are_unique_and_say_when(self, store: Store) -> None:
        before = datetime.now(UTC) - timedelta(seconds=2)
        journal = store.journal("j")
        journal.append_many([b"x"] * 100)
        messages = list(journal.read())
        assert len({message.uuid for message in messages}) == 100
        assert {message.uuid.version for message in messages} == {1}
        assert before < messages[0].published_at < datetime.now(UTC) + timedelta(seconds=2)

    def test_arrow_in_and_out(self, store: Store) -> None:
        journal = store.journal("j")
        table = pa.table({"body": ["text", "is", "cast"], "key": [b"k", None, b"l"]})
        assert journal.append_table(table).committed == 3
        out = pa.Table.from_batches(list(journal.read_batches()))
        assert out.column("body").to_pylist() == [b"text", b"is", b"cast"]
        assert out.column("key").to_pylist() == [b"k", None, b"l"]
        for bad in (pa.table({"x": [1]}), pa.table({"body": [None]}, schema=pa.schema([("body", pa.binary())])), 7):
            with pytest.raises(detent.Invalid):
                journal.append_table(bad)

    def test_a_range_that_is_not_all_there_is_refused(self, store: Store) -> None:
        journal = store.journal("j")
        journal.append_many([b"0", b"1", b"2"])
        for start, end in ((0, 4), (3, 4), (4, None), (4, 5)):
            with pytest.raises(detent.NotFound):
                list(journal.read(start, end))
        for start, end in ((2, 1), (-1, 2)):
            with pytest.raises((detent.Invalid, detent.NotFound)):
                list(journal.read(start, end))
        assert list(journal.read(3)) == []
        journal.trim(2)
        with pytest.raises(detent.NotFound):
            list(journal.read(1))
        assert bodies(store) == [b"2"]

    def test_listing_and_info(self, store: Store) -> None:
        for name in ("b", "a/1", "a/2"):
            store.journal(name).append(b"x")
        assert store.journals() == ["a/1", "a/2", "b"]
        assert store.journals("a/") == ["a/1", "a/2"]
        info = store.journal("b").info()
        assert (info.name, info.messages, info.lag(0)) == ("b", 1, 1)

    def test_where_journals_begin_and_end(self, store: Store) -> None:
        for name, messages in (("a/1", 3), ("a/2", 1), ("b", 2)):
            store.journal(name).append_many([b"x"] * messages)
        store.journal("a/1").trim(before=2)
        assert store.reader.extents("a/") == {"a/1": (2, 3), "a/2": (0, 1)}
        assert store.reader.extents() == {"a/1": (2, 3), "a/2": (0, 1), "b": (0, 2)}
        assert store.reader.extents("c") == {}
        assert store.reader.extent("b") == (0, 2)

    def test_a_journal_that_does_not_exist(self, store: Store) -> None:
        journal = store.journal("nothing")
        assert journal.next_offset() == 0
        for call in (journal.info, lambda: list(journal.read()), lambda: journal.trim(0), journal.delete):
            with pytest.raises(detent.NotFound):
                call()

    def test_settings(self, store: Store) -> None:
        journal = store.journal("j")
        journal.create(retention="7d", retention_bytes=1 << 30, transaction_deadline="5m")
        with pytest.raises(detent.Exists):
            journal.create()
        journal.create(exist_ok=True)
        journal.configure(retention=timedelta(hours=1))
        info = journal.info()
        assert (info.retention_ms, info.retention_bytes, info.span_deadline_ms) == (3_600_000, 1 << 30, 300_000)
        with pytest.raises(detent.Invalid, match="duration"):
            journal.configure(retention="soon")
        journal.delete()
        assert store.journals() == []

    def test_orphans_are_swept_and_adopted_fragments_stay(self, url: str, store: Store) -> None:
        journal = store.journal("j")
        adopted = journal.write_fragment(pa.table({"body": [b"1"]}))
        journal.adopt([adopted])
        journal.write_fragment(pa.table({"body": [b"orphan"]}))
        owner = OWNERS.get(url, store)
        assert owner.sweep(grace="1d") == 0
        while not owner.sweep(grace="0s"):  # the horizon is a whole millisecond
            pass
        assert owner.sweep(grace="0s") == 0
        assert [message.body for message in journal.read()] == [b"1"]

    def test_fragments(self, store: Store) -> None:
        journal = store.journal("j")
        journal.append(b"0")
        ref = journal.write_fragment(pa.table({"body": [b"1", b"2"]}))
        assert bodies(store) == [b"0"]
        assert journal.adopt([ref]).committed == 2
        journal.append(b"3")
        assert bodies(store) == [b"0", b"1", b"2", b"3"]
        with pytest.raises(detent.Exists):
            journal.adopt([ref])

    def test_offset_at(self, store: Store) -> None:
        journal = store.journal("j")
        journal.append(b"0")
        time.sleep(0.01)
        middle = datetime.now(UTC)
        time.sleep(0.01)
        journal.append(b"1")
        assert journal.offset_at(middle) == 1
        assert journal.offset_at(middle - timedelta(days=1)) == 0
        assert journal.offset_at(middle + timedelta(days=1)) == 2

    @pytest.mark.parametrize("body", ["text", None, 7, ["x"]])
    def test_bodies_are_bytes(self, store: Store, body: object) -> None:
        with pytest.raises(detent.Invalid, match="bytes"):
            store.journal("j").append(body)  # type: ignore[arg-type]
        with pytest.raises(detent.Invalid, match="bytes"):
            store.journal("j").append(b"x", key=7)  # type: ignore[arg-type]
        with pytest.raises(detent.Invalid, match="text"):
            store.journal("j").append(b"x", headers={"a": 7})  # type: ignore[dict-item]
        assert store.journals() == []


class TestTransactions:
    def test_all_or_nothing(self, store: Store) -> None:
        with store.transaction() as t:
            t.append("a", b"1")
            t.append_many("b", [b"2", b"3"])
            t.set_registers("a", {"owner": "me"})
        assert (bodies(store, "a"), bodies(store, "b")) == ([b"1"], [b"2", b"3"])
        assert [type(result).__name__ for result in t.results] == ["Appended", "Appended", "Done"]
        with pytest.raises(detent.Conflict), store.transaction() as t:
            t.append("a", b"no")
            t.append("new", b"no")
            t.check_registers("a", {"owner": "you"})
        with pytest.raises(detent.Conflict), store.transaction() as t:
            t.check_next_offset("a", 7)
            t.append("a", b"no")
        assert bodies(store, "a") == [b"1"]
        assert store.journals() == ["a", "b"]

    def test_an_exception_in_the_block_applies_nothing(self, store: Store) -> None:
        with pytest.raises(ZeroDivisionError), store.transaction() as t:
            t.append("a", b"no")
            raise ZeroDivisionError
        assert store.journals() == []

    def test_registers_race(self, store: Store) -> None:
        journal = store.journal("counter")
        journal.set_registers({"n": "0"})
        lost = []

        def count() -> None:
            for _ in range(10):
                while True:
                    now = journal.registers()["n"]
                    try:
                        journal.set_registers({"n": str(int(now) + 1)}, expect={"n": now})
                        break
                    except detent.Conflict:
                        lost.append(1)

        threads = [threading.Thread(target=count) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert journal.registers() == {"n": "30"}


class TestPublishers:
    def test_pending_messages_appear_with_their_acknowledgement(self, store: Store) -> None:
        publisher = store.publisher()
        publisher.publish_uncommitted("a", [b"1", b"2"])
        publisher.publish_uncommitted("b", [b"3"])
        store.journal("a").append(b"0")
        assert (bodies(store, "a"), store.journal("b").next_offset()) == ([b"0"], 0)
        intents = publisher.build_ack_intents()
        assert [intent.journal for intent in intents] == ["a", "b"]
        publisher.acknowledge(intents)
        publisher.acknowledge(intents)  # again, as after a crash: nothing changes
        assert (bodies(store, "a"), bodies(store, "b")) == ([b"0", b"1", b"2"], [b"3"])

    def test_promised_messages_outlive_the_journals_deadline(self, store: Store) -> None:
        """Those of a publisher that asked for a longer one, and those that a checkpoint in the store has promised."""
        patient, held, hasty = store.publisher(deadline="1h"), store.publisher(), store.publisher()
        patient.publish_uncommitted("a", [b"patient"])
        held.publish_uncommitted("a", [b"held"])
        (promise,) = held.build_ack_intents()
        store.commit([ops.Append("log", [promise.to_bytes()]), promise.hold("log")])
        hasty.publish_uncommitted("a", [b"hasty"])
        store.journal("a").configure(transaction_deadline="1ms")
        eventually(lambda: store.journal("a").info().aborted_spans, what="the roll back")
        with pytest.raises(detent.Fenced):
            hasty.acknowledge(hasty.build_ack_intents())
        older = msgspec.structs.replace(promise, clock=promise.begun - 1, begun=0)
        with pytest.raises((detent.RollBackHeld, detent.ProducerTaken)):  # a server asks for its seal first
            store.commit([older.operation()])
        patient.acknowledge(patient.build_ack_intents())
        store.publisher().acknowledge([promise])
        assert bodies(store, "a") == [b"patient", b"held"]

    def test_publisher_gives_up_what_is_pending(self, store: Store) -> None:
        publisher = store.publisher()
        publisher.publish_uncommitted("a", [b"kept"])
        publisher.acknowledge(publisher.build_ack_intents())
        publisher.publish_uncommitted("a", [b"dropped"])
        publisher.publish_uncommitted("b", [b"dropped"])
        intents = publisher.build_ack_intents()
        assert publisher.last_promised() == intents
        publisher.roll_back()
        publisher.roll_back()
        assert (store.journal("a").info().open_spans, store.journal("b").info().open_spans) == (0, 0)
        with pytest.raises(detent.Fenced):
            store.publisher().acknowledge(intents)
        publisher.publish_uncommitted("a", [b"new"])
        publisher.roll_back()
        publisher.publish("a", [b"after"])
        publisher.publish_uncommitted("b", [b"after"])
        publisher.acknowledge(publisher.build_ack_intents())
        assert (bodies(store, "a"), bodies(store, "b")) == ([b"kept", b"after"], [b"after"])
        raw = list(store.journal("a").read(isolation="uncommitted"))
        assert [message.body for message in raw if message.body] == [b"kept", b"dropped", b"new", b"after"]

    def test_promised_messages_are_not_given_up(self, store: Store) -> None:
        publisher = store.publisher()
        publisher.publish_uncommitted("a", [b"held"])
        (promise,) = publisher.build_ack_intents()
        store.commit([ops.Append("log", [promise.to_bytes()]), promise.hold("log")])
        with pytest.raises(detent.RollBackHeld) as found:
            publisher.roll_back()
        assert found.value.holder == "log"
        publisher.acknowledge([promise])
        assert bodies(store, "a") == [b"held"]

    def test_what_the_publisher_forbids(self, store: Store) -> None:
        publisher = store.publisher()
        publisher.publish("a", [b"0"])
        publisher.publish_uncommitted("a", [b"1"])
        with pytest.raises(detent.Invalid, match="pending"):
            publisher.publish("a", [b"mixed"])
        intents = publisher.build_ack_intents()
        with pytest.raises(detent.Invalid, match="acknowledge"):
            publisher.publish_uncommitted("a", [b"too early: would be rolled back"])
        publisher.acknowledge(intents)
        publisher.publish("a", [b"2"])
        assert bodies(store, "a") == [b"0", b"1", b"2"]

    def test_a_second_publisher_is_another_producer(self, store: Store) -> None:
        one, two = store.publisher(), store.publisher()
        assert one.producer != two.producer
        one.publish_uncommitted("a", [b"one"])
        two.publish_uncommitted("a", [b"two"])
        two.acknowledge(two.build_ack_intents())
        assert bodies(store, "a") == [b"two"]

    def test_threads_of_one_publisher_never_lose_a_message(self, store: Store) -> None:
        publisher = store.publisher()

        def publish(number: int) -> None:
            for i in range(20):
                publisher.publish("a", [b"%d-%d" % (number, i)])

        threads = [threading.Thread(target=publish, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(bodies(store, "a")) == len(set(bodies(store, "a"))) == 80


class TestTailing:
    def test_a_tail_waits_and_wakes(self, store: Store) -> None:
        journal = store.journal("j")
        got: list[bytes] = []
        ready = threading.Event()

        def follow() -> None:
            ready.set()
            for message in journal.tail(0, timeout="20s"):
                got.append(message.body)
                if len(got) == 5:
                    return

        thread = threading.Thread(target=follow)
        thread.start()
        ready.wait()
        for i in range(5):
            journal.append(b"%d" % i)
            time.sleep(0.005)
        thread.join(20)
        assert got == [b"0", b"1", b"2", b"3", b"4"]

    def test_a_journal_that_is_deleted_under_a_tail(self, store: Store) -> None:
        """The one that is made in its place has offsets of its own: going on would skip its first messages."""
        journal = store.journal("j")
        journal.append_many([b"0", b"1"])
        tail = journal.tail(0, timeout="5s")
        assert [next(tail).body, next(tail).body] == [b"0", b"1"]
        journal.delete()
        journal.append_many([b"a", b"b", b"c"])
        with pytest.raises(detent.NotFound, match="deleted"):
            next(tail)
        tail = journal.tail(2, timeout="100ms")
        assert next(tail).body == b"c"
        journal.delete()
        with pytest.raises(detent.NotFound):
            list(tail)

    def test_a_tail_may_begin_before_its_journal(self, store: Store) -> None:
        tail = store.journal("later").tail(timeout="5s")
        writer = threading.Timer(0.1, lambda: store.journal("later").append(b"x"))
        writer.start()
        assert next(tail).body == b"x"
        writer.join()  # its message can be seen before it has its answer, which a closed store gives nobody

    def test_a_timeout_ends_it(self, store: Store) -> None:
        journal = store.journal("j")
        journal.append(b"x")
        assert [m.body for m in journal.tail(0, timeout="50ms")] == [b"x"]
        with pytest.raises(detent.Unavailable):
            journal.wait(1, timeout="50ms")
        journal.wait(0, timeout="1s")


class TestAsync:
    def test_the_same_calls_awaited(self, url: str) -> None:
        async def scenario() -> None:
            async with detent.open_async(url) as store:
                journal = store.journal("j")
                await journal.create(retention="1d")
                results = await asyncio.gather(*(journal.append(b"%d" % i) for i in range(50)))
                assert sorted(result.offset for result in results) == list(range(50))
                await journal.append_many([b"x", (b"y", b"k")])
                await journal.append_table(pa.table({"body": [b"z"]}))
                ref = await journal.write_fragment(pa.table({"body": [b"f"]}))
                await journal.adopt([ref])
                assert [m.body async for m in journal.read(50)] == [b"x", b"y", b"z", b"f"]
                assert sum([batch.num_rows async for batch in journal.read_batches()]) == 54
                async with store.transaction() as t:
                    t.append("j", b"t")
                    t.append("k", b"t")
                with pytest.raises(detent.Conflict):
                    async with store.transaction() as t:
                        t.append("k", b"no")
                        t.check_next_offset("k", 9)
                await journal.set_registers({"a": "1"}, expect={"a": None})
                assert await journal.registers() == {"a": "1"}
                assert await store.journals() == ["j", "k"]
                await journal.trim(50)
                assert (await journal.info()).first_offset == 50
                await journal.configure(retention="2d")
                await journal.wait(0, timeout="1s")
                assert await journal.next_offset() == 55
                await store.journal("k").delete()
                with pytest.raises(detent.NotFound):
                    await store.journal("k").info()

        asyncio.run(scenario())

    def test_tailing(self, url: str) -> None:
        async def scenario() -> list[bytes]:
            async with detent.open_async(url) as store:
                journal = store.journal("j")
                got: list[bytes] = []

                async def follow() -> None:
                    async for message in journal.tail(0, timeout="20s"):
                        got.append(message.body)
                        if len(got) == 3:
                            return

                task = asyncio.create_task(follow())
                for i in range(3):
                    await asyncio.sleep(0.01)
                    await journal.append(b"%d" % i)
                await asyncio.wait_for(task, 20)
                assert [m async for m in journal.tail(timeout="20ms")] == []
                return got

        assert asyncio.run(scenario()) == [b"0", b"1", b"2"]

    def test_a_cancelled_append_leaves_the_store_well(self, url: str) -> None:
        async def scenario() -> None:
            async with detent.open_async(url) as store:
                journal = store.journal("j")
                tasks = [asyncio.create_task(journal.append(b"%d" % i)) for i in range(30)]
                await asyncio.sleep(0)
                for task in tasks[::2]:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                kept = {b"%d" % i for i in range(1, 30, 2)}
                found = [m.body async for m in journal.read()]
                assert kept <= set(found)
                assert len(found) == len(set(found))
                assert (await journal.append(b"end")).offset == len(found)

        asyncio.run(scenario())


class TestOpening:
    def test_closed(self, url: str) -> None:
        store = detent.open(url)
        journal = store.journal("j")
        journal.append(b"x")
        store.close()
        store.close()
        for call in (lambda: journal.append(b"y"), journal.info, lambda: list(journal.read())):
            with pytest.raises(detent.DetentError):
                call()

    def test_reopening_finds_everything(self, url: str) -> None:
        if url == "memory:":
            pytest.skip("a memory store ends with its last user")
        for round_ in range(3):
            with detent.open(url) as store:
                assert store.journal("j").append(b"%d" % round_).offset == round_
        with detent.open(url, role="reader") as reader:
            assert bodies(reader) == [b"0", b"1", b"2"]
            assert not reader.is_owner
            with pytest.raises(detent.Invalid, match="reader"):
                reader.journal("j").append(b"no")

    @pytest.mark.parametrize("url", ["nonsense", "ftp://x", "file:", "s3://", "s3://u:p@b/x", "", "x" * 5000])
    def test_bad_urls(self, url: str) -> None:
        with pytest.raises(detent.Invalid):
            detent.open(url)

    def test_a_reader_of_nothing(self, tmp_path: Path) -> None:
        with pytest.raises(detent.NotFound):
            detent.open(f"file:{tmp_path / 'none'}", role="reader")
        assert not (tmp_path / "none").exists()
