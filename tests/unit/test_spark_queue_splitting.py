"""A batch that is published in parts, and a driver that dies between two of them: what a later driver finds and does.

How a batch is cut, and that its order is kept, is in `test_spark_queue_writing.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, StructField, StructType

import detent
from detent import crash
from detent.errors import AlreadyEntered, Conflict, Corrupt, Denied, Fenced, OtherInput
from detent.ledger.operations import BATCH_MAX
from detent.server.access import Grant
from detent.spark import queue_outgoing, queue_splitting, to_journal, to_queue
from detent.spark.advice import completing
from detent.spark.once_batch import EngineSink, Share, is_entered
from detent.spark.once_writing import _shared
from detent.spark.queue_outgoing import RowsToPublish, pack, unpacked, whole_room
from detent.spark.queue_splitting import settle
from detent.spark.queue_writing import RowsMessage, commit
from detent.spark.stream_query import _StoreResult
from detent.tables.marks import BatchKey
from remoteserver import TOKENS, serving

BODY = StructType([StructField("body", BinaryType())])
TEN = [b"%d" % number for number in range(10)]
KEY = BatchKey("send", "query", 0, "run-1", bytes([1] * 16))
BEHIND_PARTS = "spark.split.after_part"


class Died(Exception):
    """The driver's end."""


@pytest.fixture(autouse=True)
def small_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """A transaction that publishes three messages."""
    monkeypatch.setattr(queue_outgoing, "PUBLISHED_MAX", 3)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[detent.Store]:
    with detent.open(f"file:{tmp_path / 'store'}") as owned:
        owned.queue("mail").create()
        owned.queue("sms").create()
        yield owned


def packed(values: list[bytes], queue: str = "mail") -> list[bytes]:
    batch = pa.RecordBatch.from_arrays([pa.array(values, pa.binary())], names=["body"])
    return [pack(RowsToPublish.of(BODY, queue), [batch])]


def write(store: detent.Store, key: BatchKey, values: list[bytes]) -> bool:
    """What a driver does with a batch; False when it is entered already."""
    return commit(store, [RowsMessage(0, Any, packed(values)[0])], key)  # type: ignore[arg-type]


def write_all(store: detent.Store, key: BatchKey, *sinks: tuple[EngineSink, list[Any]]) -> None:
    """What `once` does with a batch that several sinks have staged."""
    transaction = store.transaction()
    transaction.enter_ledger(key.name, key.batch, query=key.query, run=key.run, input=key.input)
    for sink, staged, share in _shared(key, list(sinks)):
        sink.add(store, transaction, staged, share)
    transaction.commit()


def die(function: Callable[..., Any], *arguments: Any, behind_part: int = 2) -> None:
    """Let a driver die when so many parts are published."""
    left = [behind_part]

    def point(name: str) -> None:
        left[0] -= name == BEHIND_PARTS
        if not left[0]:
            raise Died

    with pytest.MonkeyPatch.context() as patch, pytest.raises(Died):
        patch.setattr(crash, "point", point)
        function(*arguments)


def die_staged(store: detent.Store, key: BatchKey, values: list[bytes]) -> None:
    """Let a driver die before the first part is published."""

    def point(name: str) -> None:
        if name == "spark.split.after_stage":
            raise Died

    with pytest.MonkeyPatch.context() as patch, pytest.raises(Died):
        patch.setattr(crash, "point", point)
        write(store, key, values)


def claimed(store: detent.Store, queue: str = "mail") -> list[bytes]:
    return [message.body for message in store.queue(queue).claim(100)]


def test_batches_with_room_need_no_rights_on_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = (Grant("publish", "queue", "mail"), Grant("publish", "ledger", "send"))
    more = (Grant("consume", "ledger", "send"), Grant("admin", "journal", "spark-parts/*"), Grant("publish", "*", "*"))
    monkeypatch.setitem(TOKENS, "small", base)
    monkeypatch.setitem(TOKENS, "large", (*base, *more))
    url = f"file:{tmp_path / 'store'}"
    with detent.open(url) as store:
        store.queue("mail").create()
    with serving(url, guarded=True) as server:
        monkeypatch.setenv("DETENT_TOKEN", "small")
        with detent.open(server.url) as store:
            assert write(store, KEY, TEN[:3])
            with pytest.raises(Denied, match=r"consume:ledger:send and admin:journal:spark-parts/\*, and over"):
                write(store, KEY._replace(batch=1), TEN)
        monkeypatch.setenv("DETENT_TOKEN", "large")
        with detent.open(server.url) as store:
            assert write(store, KEY._replace(batch=1), TEN)
    with detent.open(url) as store:
        assert claimed(store) == [*TEN[:3], *TEN]


def test_missing_right_to_delete_is_told_before_first_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    grants = [Grant("publish", "*", "*"), Grant("consume", "ledger", "*"), Grant("consume", "journal", "*")]
    monkeypatch.setitem(TOKENS, "halfway", tuple(grants))
    url = f"file:{tmp_path / 'store'}"
    with detent.open(url) as store:
        store.queue("mail").create()
    monkeypatch.setenv("DETENT_TOKEN", "halfway")
    refused = pytest.raises(Denied, match=r"admin:journal:spark-parts/\*")
    with serving(url, guarded=True) as server, detent.open(server.url) as store, refused:
        write(store, KEY, TEN)
    with detent.open(url) as store:
        assert (claimed(store), list(store.journals())) == ([], [])


def test_split_goes_on_when_another_sink_comes_first(store: detent.Store) -> None:
    mail = to_queue("mail"), packed(TEN)
    die(write_all, store, KEY, mail)
    write_all(store, KEY._replace(run="run-2"), (to_journal("audit"), []), mail)
    assert claimed(store) == TEN


def test_split_goes_on_when_sinks_are_swapped(store: detent.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_outgoing, "PUBLISHED_MAX", 6)
    texts = [b"s" + value for value in TEN]
    mail, sms = (_StoreResult(to_queue("mail")), packed(TEN)), (_StoreResult(to_queue("sms")), packed(texts, "sms"))
    die(write_all, store, KEY, mail, sms)
    write_all(store, KEY._replace(run="run-2"), sms, mail)
    assert (claimed(store), claimed(store, "sms")) == (TEN, texts)


def test_two_sinks_of_one_queue_are_split_apart(store: detent.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_outgoing, "PUBLISHED_MAX", 6)
    again = [b"again" + value for value in TEN]
    sinks = [(to_queue("mail"), packed(TEN)), (to_queue("mail"), packed(again))]
    die(write_all, store, KEY, *sinks, behind_part=4)
    write_all(store, KEY._replace(run="run-2"), *sinks)
    assert sorted(claimed(store)) == sorted([*TEN, *again])


def test_replaced_driver_leaves_batch_of_live_one(store: detent.Store) -> None:
    stale, live = KEY._replace(batch=5), KEY._replace(query="another", run="run-2")
    write(store, stale._replace(batch=4), TEN)
    store.reset_ledger("send")
    claimed(store)
    die(write, store, live, TEN)
    for values in ([b"small"], TEN):
        with pytest.raises(Fenced, match="was replaced"):
            write(store, stale, values)
    write(store, live._replace(run="run-3"), TEN)
    assert claimed(store) == TEN


def test_two_drivers_publish_each_part_once(store: detent.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    point, others = crash.point, [1, 2]

    def interrupted(name: str) -> None:
        point(name)
        if others and name == ("spark.split.before_stage" if len(others) == 2 else "spark.split.before_part"):
            die(write, store, KEY._replace(run=f"run-{others.pop()}"), TEN, behind_part=1)

    monkeypatch.setattr(crash, "point", interrupted)
    assert write(store, KEY, TEN)
    assert (claimed(store), others) == (TEN, [])


def test_driver_that_stages_after_batch_is_entered_publishes_nothing(
    store: detent.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    late, others = KEY._replace(run="run-2"), [KEY]

    def entered_meanwhile(name: str) -> None:
        if others and name == "spark.split.before_stage":
            write(store, others.pop(), TEN)

    monkeypatch.setattr(crash, "point", entered_meanwhile)
    assert not write(store, late, TEN)
    assert claimed(store) == TEN
    write(store, late._replace(batch=1), [b"small"])
    assert (claimed(store), list(store.journals())) == ([b"small"], [])


def test_messages_staged_too_late_are_not_published_by_third_driver(
    store: detent.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    late, third = KEY._replace(run="run-2"), KEY._replace(run="run-3")

    def entered_meanwhile(of: detent.Store, key: BatchKey) -> bool:
        found = is_entered(of, key)
        if key == third and not store.ledgers():
            assert write(store, KEY, TEN)
            queue_splitting._Split(store, Share(late, "", whole_room()))._stage(unpacked(packed(TEN)))
        return found

    monkeypatch.setattr(queue_splitting, "is_entered", entered_meanwhile)
    assert not write(store, third, TEN)
    assert claimed(store) == TEN


def test_earlier_version_waits_for_one_that_is_published_in_part(store: detent.Store) -> None:
    write(store, BatchKey("load", "", 5, ""), [])
    die(write, store, BatchKey("load", "", 8, ""), TEN)
    for version in (7, 9):
        for values in ([b"a"], [b"a", b"b", b"c", b"d"]):
            with pytest.raises(Conflict, match="6 of 10 messages of batch 8") as refused, completing(store.url):
                write(store, BatchKey("load", "", version, ""), values)
            assert "`detent journal rm file:" in str(refused.value)
    assert not write(store, BatchKey("load", "", 5, ""), TEN), "one that is entered is done"
    assert write(store, BatchKey("load", "", 8, ""), TEN)
    assert claimed(store) == TEN


def test_batch_of_which_nothing_is_published_gives_way(store: detent.Store) -> None:
    die_staged(store, BatchKey("load", "", 8, ""), TEN)
    assert write(store, BatchKey("load", "", 7, ""), [b"small"])
    die_staged(store, BatchKey("load", "", 8, ""), TEN)
    assert write(store, BatchKey("load", "", 9, ""), TEN[::-1])
    assert (claimed(store), list(store.journals())) == ([b"small", *TEN[::-1]], [])


@pytest.mark.parametrize("version", [1 << 43, 20261119141305, BATCH_MAX])
def test_any_version_can_be_split(store: detent.Store, version: int) -> None:
    key = BatchKey("load", "", version, "")
    die(write, store, key, TEN)
    assert write(store, key, TEN)
    assert (claimed(store), store.ledger("load").batch) == (TEN, version)


def test_nothing_is_left_of_entered_batch(store: detent.Store) -> None:
    write(store, KEY, TEN)
    assert ([info.name for info in store.ledgers()], list(store.journals())) == (["send"], [])
    store.delete_ledger("send")
    assert (store.ledgers(), list(store.journals())) == ([], [])


@pytest.mark.parametrize("end", ["reset_ledger", "delete_ledger"])
@pytest.mark.parametrize("values", [TEN, [b"small"]])
def test_reset_ledger_forgets_batch_published_in_part(store: detent.Store, end: str, values: list[bytes]) -> None:
    write(store, KEY, [])
    die(write, store, KEY._replace(batch=1), TEN)
    getattr(store, end)("send")
    claimed(store)
    assert write(store, BatchKey("send", "another", 0, "run-2"), values)
    assert (claimed(store), list(store.journals())) == (values, [])


def test_other_query_is_told_of_batch_published_in_part(store: detent.Store) -> None:
    die(write, store, KEY, TEN)
    other = BatchKey("send", "another", 0, "run-2")
    with pytest.raises(Fenced, match=r"6 of 10 messages .* query 'query', and this is query 'another'"):
        write(store, other, TEN)
    (journal,) = store.journals()
    store.journal(journal).delete()
    claimed(store)
    assert write(store, other, TEN)
    assert claimed(store) == TEN


def test_other_input_is_told_what_is_published_and_where_the_rest_is(store: detent.Store) -> None:
    die(write, store, KEY, TEN)
    (journal,) = store.journals()
    with pytest.raises(OtherInput, match=f"6 of 10 messages .* wait in the journal '{journal}', from offset 6") as told:
        write(store, KEY._replace(run="run-2", input=bytes([2] * 16)), [*TEN, b"new"])
    assert "ledger reset" not in str(told.value)
    assert [message.body for message in store.journal(journal).read(6, 10)] == TEN[6:]
    assert write(store, KEY._replace(run="run-3"), TEN)
    assert claimed(store) == TEN


@pytest.mark.parametrize("room", [2, 100])
def test_split_goes_on_with_another_room(store: detent.Store, monkeypatch: pytest.MonkeyPatch, room: int) -> None:
    die(write, store, KEY, TEN)
    monkeypatch.setattr(queue_outgoing, "PUBLISHED_MAX", room)
    assert write(store, KEY._replace(run="run-2"), TEN[::-1])
    assert claimed(store) == TEN


def test_foreign_registers_are_refused_in_words(store: detent.Store) -> None:
    die(write, store, KEY, TEN)
    (journal,) = store.journals()
    registers = store.journal(journal).registers()
    for change in ({"next": None}, {"next": "soon"}):
        store.journal(journal).set_registers({**registers, **change})
        with pytest.raises(Corrupt, match=r"do not say how far .*`detent journal rm spark-parts/"):
            write(store, KEY, TEN)
    store.journal(journal).set_registers(registers)
    store.journal(journal).trim(7)
    with pytest.raises(Corrupt, match=r"0 messages from offset 6 to 10, so not all of batch 0"):
        write(store, KEY, TEN)


def test_entered_batch_adds_nothing_to_its_transaction(store: detent.Store) -> None:
    write(store, KEY, TEN)
    transaction = store.transaction()
    transaction.enter_ledger(KEY.name, KEY.batch, query=KEY.query, run="run-2")
    settle(store, transaction, packed(TEN), Share(KEY._replace(run="run-2"), "", whole_room()))
    with pytest.raises(AlreadyEntered):
        transaction.commit()
    assert claimed(store) == TEN
