"""Byte formats: order-preserving keys, little-endian values, and every record of a store.

`docs/format.md` shows each record byte by byte. What all records are made of:

    keys.py        keys whose bytes compare as their values do
    values.py      values: a cursor that reads them, a builder that writes them
    settings.py    settings at the end of a record, as pairs of key and value
    log.py         the log's records: entries, sequence blocks, segments

Journals:

    journal.py     the journal's records
    block.py       blocks of messages in columns, as Arrow
    single.py      blocks of one message, from templates
    parts.py       an Arrow stream, taken in parts while it is written
    foreign/       Arrow bytes that others have sent, checked before Arrow reads them

Queues:

    queue.py       the queue's records
    published.py   body and metadata of published messages
    origin.py      which queues gave a dead letter up, and why
    statelog.py    what happened to messages since the last checkpoint
    reader.py      the record of a queue's reader
    group.py       the name of a group

Others:

    ledger.py      ledger rows and pins
    shard.py       consumers and their shards
    schedule.py    schedules
"""

from __future__ import annotations

from detent.codec.keys import (
    SUBSYSTEM_ENGINE,
    SUBSYSTEM_JOURNAL,
    SUBSYSTEM_LEDGER,
    SUBSYSTEM_LOG,
    SUBSYSTEM_QUEUE,
    SUBSYSTEM_SCHEDULE,
    SUBSYSTEM_SHARD,
    SUBSYSTEMS,
    KeyReader,
    Prefix,
    decode_terminated,
    decode_var_u32,
    decode_var_u64,
    sortable_f64,
    sortable_i64,
    terminated,
    var_u32,
    var_u64,
)
from detent.codec.log import (
    EntryKey,
    SegmentMeta,
    SeqBlock,
    SequenceAllocator,
)
from detent.codec.values import (
    ARRAY_COUNT_MAX,
    U8_MAX,
    U16_MAX,
    U32_MAX,
    U64_MAX,
    UTF8_BYTES_MAX,
    VAR_BYTES_MAX,
    ByteCursor,
    ByteReader,
    Bytes,
    ByteWriter,
)

__all__ = [
    "ARRAY_COUNT_MAX",
    "SUBSYSTEMS",
    "SUBSYSTEM_ENGINE",
    "SUBSYSTEM_JOURNAL",
    "SUBSYSTEM_LEDGER",
    "SUBSYSTEM_LOG",
    "SUBSYSTEM_QUEUE",
    "SUBSYSTEM_SCHEDULE",
    "SUBSYSTEM_SHARD",
    "U8_MAX",
    "U16_MAX",
    "U32_MAX",
    "U64_MAX",
    "UTF8_BYTES_MAX",
    "VAR_BYTES_MAX",
    "ByteCursor",
    "ByteReader",
    "ByteWriter",
    "Bytes",
    "EntryKey",
    "KeyReader",
    "Prefix",
    "SegmentMeta",
    "SeqBlock",
    "SequenceAllocator",
    "decode_terminated",
    "decode_var_u32",
    "decode_var_u64",
    "sortable_f64",
    "sortable_i64",
    "terminated",
    "var_u32",
    "var_u64",
]
