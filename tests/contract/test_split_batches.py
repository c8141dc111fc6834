"""A batch that is split over several transactions, on every kind of store: all of it is published once, in order."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, StructField, StructType

from detent.errors import AlreadyEntered
from detent.spark import queue_outgoing
from detent.spark.once_batch import Share
from detent.spark.queue_outgoing import RowsToPublish, pack, whole_room
from detent.spark.queue_splitting import settle
from detent.store import Store
from detent.tables.marks import BatchKey

SCHEMA = StructType([StructField("body", BinaryType())])


def write(store: Store, key: BatchKey, values: list[bytes]) -> None:
    """What a driver does with a batch."""
    batch = pa.RecordBatch.from_arrays([pa.array(values, pa.binary())], names=["body"])
    transaction = store.transaction()
    transaction.enter_ledger(key.name, key.batch, query=key.query, run=key.run)
    packed = [pack(RowsToPublish.of(SCHEMA, "mail"), [batch])]
    settle(store, transaction, packed, Share(key, "", whole_room()))
    transaction.commit()


def test_a_split_batch_is_published_once_and_in_order(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_outgoing, "PUBLISHED_MAX", 3)
    store.queue("mail").create()
    values = [b"%d" % number for number in range(10)]
    key = BatchKey("shop", "query", 0, "run-1")
    write(store, key, values)
    assert [name for name in store.journals() if name.startswith("spark-parts/")] == []
    with pytest.raises(AlreadyEntered):
        write(store, key._replace(run="run-2"), values)
    write(store, key._replace(batch=1), [b"next"])
    assert [message.body for message in store.queue("mail").claim(100)] == [*values, b"next"]
    assert store.ledger("shop").entries == 2
