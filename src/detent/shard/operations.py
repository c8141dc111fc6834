"""The operations on consumers and their shards that a transaction can hold, and what they answer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Final

import msgspec

from detent import names
from detent.codec.shard import BY_JOURNAL, BY_KEY, PARTITIONS
from detent.engine import Operation, Result
from detent.engine.operation import OPERATION_WEIGHT
from detent.errors import Invalid, LimitExceeded

CONSUMERS_MAX: Final = 10_000
SHARDS_MAX: Final = 1_024
STORE_SHARDS_MAX: Final = 100_000
"""Consumers, shards of one, and shards of a whole store: all of them are kept in memory, about 1 KiB each."""

JOURNALS_PER_CONSUMER_MAX: Final = 10_000
"""They are one record, and travel whole in each answer that shows a consumer."""

KEYED_POSITIONS_MAX: Final = 100_000
"""Shards times journals of a consumer that is divided by key: each shard reports how far it is in each journal."""

PUBLISHED_JOURNALS_MAX: Final = 1_000
"""Journals of which a shard's report says how far it has written them; those that were reported last are kept."""

MEMBERS_MAX: Final = 4_096
"""Members of one consumer that are alive, several for each shard."""

MEMBER_BYTES_MAX: Final = 128
"""A member's id is made by itself, mostly from a machine, a process and something random."""

INFO_BYTES_MAX: Final = 1_024
STATUS_BYTES_MAX: Final = 64
ERROR_CHARACTERS_MAX: Final = 2_048
"""What is kept of an error's text: enough to know it again. The rest is in the log of the process that had it."""

TTL_MS_MAX: Final = 24 * 3_600_000
"""The longest lease: no other member can take the shard of a dead one before it ends."""

STATE_KEY_BYTES_MAX: Final = 400
"""A key and what stands before it fit into the kv's key limit."""

STATE_VALUE_BYTES_MAX: Final = 1 << 20
CHECKPOINT_BYTES_MAX: Final = 16 << 20
"""About 300,000 producers of raw sources, or 200,000 journals: a checkpoint is written with every transaction."""

CHANGES_MAX: Final = 100_000
"""Entries of state that one commit changes: it is applied whole while all other callers wait."""

COMMIT_BYTES_MAX: Final = 64 << 20
"""Checkpoint, keys and values of one commit: as much as an append has."""

KEYS_MAX: Final = 10_000
"""Entries of state that are asked for at once."""

PAGE_MAX: Final = 1_000
"""Consumers or entries in one answer; all other callers wait while it is made."""

PAGE_BYTES: Final = 4 << 20
"""An answer ends when it has about so many bytes."""

OFFSET_MAX: Final = 1 << 62
TIME_MS_MAX: Final = 253_402_300_799_999
"""The end of the year 9999, the last that has dates."""

Offset = Annotated[int, msgspec.Meta(ge=0, le=OFFSET_MAX)]
Ttl = Annotated[int, msgspec.Meta(ge=1, le=TTL_MS_MAX)]
Index = Annotated[int, msgspec.Meta(ge=0, lt=SHARDS_MAX)]


# -- what can be asked ------------------------------------------------------------------------------------------------


class RegisterConsumer(Operation, frozen=True, tag=True, array_like=True):
    """A consumer with so many shards reads these journals. Answers `ConsumerPlan`: which shard reads which.

    Makes the consumer, or adds the journals that it does not read yet to the shards that have the fewest. A journal
    stays with its shard for ever, also when it is not named any more: its progress would have to be moved.
    `Conflict` if the consumer is divided otherwise.
    """

    consumer: str
    shards: int
    journals: list[str]
    partition: str = BY_JOURNAL

    def weight(self) -> int:
        return OPERATION_WEIGHT + sum(map(len, self.journals)) + 8 * len(self.journals)


class Heartbeat(Operation, frozen=True, tag=True, array_like=True):
    """A member of a consumer is alive for this long, and keeps the shards that it holds. Answers the
    `ConsumerDescription`. Nothing is written."""

    consumer: str
    member: str
    ttl_ms: Ttl
    info: str = ""


class LeaseShard(Operation, frozen=True, tag=True, array_like=True):
    """A member takes a shard, or keeps it, for this long. Answers `Leased`; `Conflict` while another one holds it.

    A lease says who should work. What keeps two from it is the fence: see `OpenShard`.
    """

    consumer: str
    shard: Index
    member: str
    ttl_ms: Ttl


class ReleaseShards(Operation, frozen=True, tag=True, array_like=True):
    """A member gives these shards back; or, with None, all that it has, and leaves."""

    consumer: str
    member: str
    shards: list[Index] | None = None


class OpenShard(Operation, frozen=True, tag=True, array_like=True):
    """Raise the fence of a shard, and then answer what it has committed (`ShardOpened`): a process that opened it
    earlier commits nothing any more."""

    consumer: str
    shard: Index


class FindShard(Operation, frozen=True, tag=True, array_like=True):
    """What a shard has committed (`ShardOpened`), and the resets after the generation `since`. Changes nothing: the
    process that has it open goes on."""

    consumer: str
    shard: Index
    since: Annotated[int, msgspec.Meta(ge=0)] = 0


class CommitShard(Operation, frozen=True, tag=True, array_like=True):
    """Replace the checkpoint of a shard and change its state, with the rest of the transaction. `Fenced` unless `fence`
    is the one that the shard was last opened with.

    `processed` says how far each journal is done: the offset after the last message.
    """

    consumer: str
    shard: Index
    fence: int
    checkpoint: bytes
    puts: dict[str, bytes] = msgspec.field(default_factory=dict)
    deletes: list[str] = msgspec.field(default_factory=list)
    processed: dict[str, Offset] = msgspec.field(default_factory=dict)

    def weight(self) -> int:
        return OPERATION_WEIGHT + content_bytes(self)


class ReadShardState(Operation, frozen=True, tag=True, array_like=True):
    """The values of these keys of a shard's state (`StateValues`). Changes nothing."""

    consumer: str
    shard: Index
    keys: list[str]

    def weight(self) -> int:
        return OPERATION_WEIGHT + sum(map(len, self.keys))


class ScanShardState(Operation, frozen=True, tag=True, array_like=True):
    """Entries of a shard's state whose keys begin with `prefix` and come after `after`, by key (`StatePage`). Changes
    nothing."""

    consumer: str
    shard: Index
    prefix: str = ""
    after: str = ""
    limit: int = PAGE_MAX


class ReportShard(Operation, frozen=True, tag=True, array_like=True):
    """How a shard is doing: how far each journal is done (the offset after the last message), and how far it has
    written others. Nothing is written, and an owner that takes over knows it when it is reported again; unless it is to
    `keep` how far the shard is, by this report and those before it.

    A report from before the last reset of the shard (of a lower `generation`) counts for nothing; nor does one of a
    shard with another `number`, which belongs to a consumer that was deleted. 0: who reports does not know it yet.
    `numbers` are those of the journals that it reads: one that is deleted and made anew has another.
    """

    consumer: str
    shard: Index
    generation: int
    status: str = ""
    error: str = ""
    processed: dict[str, Offset] = msgspec.field(default_factory=dict)
    published: dict[str, Offset] = msgspec.field(default_factory=dict)
    keep: bool = False
    number: Annotated[int, msgspec.Meta(ge=0)] = 0
    numbers: dict[str, Annotated[int, msgspec.Meta(ge=1, lt=1 << 32)]] = msgspec.field(default_factory=dict)

    def weight(self) -> int:
        named = (*self.processed, *self.published, *self.numbers)
        return OPERATION_WEIGHT + sum(len(journal) + 16 for journal in named)


class PauseConsumer(Operation, frozen=True, tag=True, array_like=True):
    """Say that the members of a consumer should rest, or go on."""

    consumer: str
    paused: bool


class ResetShards(Operation, frozen=True, tag=True, array_like=True):
    """Read these journals from these offsets on: the shards that read them begin a new generation."""

    consumer: str
    offsets: dict[str, Offset]

    def weight(self) -> int:
        return OPERATION_WEIGHT + sum(len(journal) + 16 for journal in self.offsets)


class DescribeConsumers(Operation, frozen=True, tag=True, array_like=True):
    """Consumers whose names begin with `prefix` and come after `after`, by name; or the one with a `name`. Changes
    nothing."""

    prefix: str = ""
    after: str = ""
    limit: int = PAGE_MAX
    name: str = ""


class DeleteConsumer(Operation, frozen=True, tag=True, array_like=True):
    """Forget a consumer, its progress and its state. `Conflict` while a member holds a shard of it, unless forced."""

    consumer: str
    force: bool = False


class ReapShard(Operation, frozen=True, tag=True, array_like=True):
    """Housekeeping: remove some of what a shard of a deleted consumer has left."""

    number: int


# -- what is answered -------------------------------------------------------------------------------------------------


class ConsumerPlan(Result, frozen=True, tag=True, array_like=True):
    """How a consumer is divided. `sources` says which shard reads a journal; divided by key all of them read it."""

    shards: int
    partition: str
    sources: dict[str, int]
    paused: bool


class Leased(Result, frozen=True, tag=True, array_like=True):
    """The shard is the member's; how often it was reset."""

    generation: int


class ShardOpened(Result, frozen=True, tag=True, array_like=True):
    """What a shard has committed. `checkpoint` is None if it never has. `generation` is the newest reset; `resets` says
    from where journals are to be read that were reset after the generation that was asked about."""

    number: int
    fence: int
    checkpoint: bytes | None
    generation: int
    resets: dict[str, int]


class StateValues(Result, frozen=True, tag=True, array_like=True):
    """The values of keys in the order in which they were asked for, None where there is none.

    They may be fewer than the keys, and are at least one: an answer ends when it has `PAGE_BYTES`. Ask again for the
    rest.
    """

    values: list[bytes | None]


class StatePage(Result, frozen=True, tag=True, array_like=True):
    """Some entries by key, and whether there are more after them."""

    items: list[tuple[str, bytes]]
    more: bool


class MemberDescription(msgspec.Struct, frozen=True, array_like=True):
    """A member that is alive, what it says of itself, and until when it counts as alive without another word."""

    member: str
    info: str
    expires_ms: int


class ShardDescription(msgspec.Struct, frozen=True, array_like=True):
    """One shard, as its owner sees it. `holder` is empty if no member holds it or the lease is over, `lease_ms` what is
    left of the lease."""

    index: int
    number: int
    fence: int
    holder: str
    lease_ms: int
    generation: int
    resets: dict[str, int]
    status: str
    error: str
    processed: dict[str, int]
    published: dict[str, int]
    numbers: dict[str, int] = msgspec.field(default_factory=dict)


class ConsumerDescription(Result, frozen=True, tag=True, array_like=True):
    """One consumer, as its owner sees it: its shards by index, its members by id."""

    name: str
    shards: int
    partition: str
    paused: bool
    sources: dict[str, int]
    created_ms: int
    members: list[MemberDescription]
    states: list[ShardDescription]

    def shards_of(self, journal: str) -> list[ShardDescription]:
        """The shards that read a journal; none if the consumer does not."""
        shard = self.sources.get(journal)
        if shard is None:
            return []
        return self.states if self.partition == BY_KEY else [self.states[shard]]

    def journals_of(self, index: int) -> list[str]:
        """The journals that a shard reads, by name."""
        return sorted(j for j, shard in self.sources.items() if self.partition == BY_KEY or shard == index)


class ConsumerDescriptions(Result, frozen=True, tag=True, array_like=True):
    """Some consumers by name, and whether there are more after them."""

    consumers: list[ConsumerDescription]
    more: bool


# -- checks -----------------------------------------------------------------------------------------------------------


def check_consumer(name: str) -> None:
    """`Invalid` unless this can be the name of a consumer."""
    names.check_text_name(name, "consumer")


def check_register(op: RegisterConsumer) -> None:
    """Refuse a consumer that cannot be."""
    check_consumer(op.consumer)
    if type(op.shards) is not int or op.shards < 1:
        raise Invalid(f"a consumer has 1 to {SHARDS_MAX} shards, not {op.shards!r}")
    if op.shards > SHARDS_MAX:
        raise LimitExceeded(f"a consumer has at most {SHARDS_MAX} shards, not {op.shards}")
    if op.partition not in PARTITIONS:
        raise Invalid(f"a consumer is divided by {BY_JOURNAL!r} or by {BY_KEY!r}, not by {op.partition!r}")
    if not isinstance(op.journals, list):
        raise Invalid(f"the journals of a consumer are a list of names, not {type(op.journals).__name__}")
    for journal in op.journals:
        names.check_name(journal, "journal")


def check_member(member: str, ttl_ms: Any = 1, info: Any = "") -> None:
    """Refuse what cannot be a member, or a time that it may live without a word."""
    if not names.is_text(member, MEMBER_BYTES_MAX) or not member:
        raise Invalid(
            f"{member!r} is not a member: use 1 to {MEMBER_BYTES_MAX} bytes of text without control characters"
        )
    if type(ttl_ms) is not int or not 1 <= ttl_ms <= TTL_MS_MAX:
        raise Invalid(f"a lease lasts 1 to {TTL_MS_MAX} ms, not {ttl_ms!r}")
    if not names.is_text(info, INFO_BYTES_MAX):
        raise Invalid(f"what a member says of itself is up to {INFO_BYTES_MAX} bytes of text, not {info!r}")


def check_index(shard: Any) -> None:
    """`Invalid` unless a shard could have this number."""
    if type(shard) is not int or not 0 <= shard < SHARDS_MAX:
        raise Invalid(f"{shard!r} is not a shard: shards are numbered from 0 to {SHARDS_MAX - 1}")


def check_indexes(shards: Any) -> None:
    """`Invalid` unless this says which shards: some, or with None all of them."""
    if shards is None:
        return
    if not isinstance(shards, list) or len(shards) > SHARDS_MAX:
        raise Invalid(f"shards are a list of at most {SHARDS_MAX} numbers")
    for shard in shards:
        check_index(shard)


def check_reset(op: ResetShards) -> None:
    """Refuse what does not say where to read on."""
    check_offsets(op.offsets)
    if not op.offsets:
        raise Invalid("say which journals to read again, and from which offset")


def check_offsets(offsets: Any) -> None:
    """Refuse what does not say an offset for each journal."""
    if not isinstance(offsets, dict):
        raise Invalid(f"offsets are a dictionary, one for each journal, not {type(offsets).__name__}")
    if len(offsets) > JOURNALS_PER_CONSUMER_MAX:
        raise LimitExceeded(f"at most {JOURNALS_PER_CONSUMER_MAX} journals at once, not {len(offsets)}")
    for journal, offset in offsets.items():
        names.check_name(journal, "journal")
        if type(offset) is not int or not 0 <= offset <= OFFSET_MAX:
            raise Invalid(f"{offset!r} is not an offset of {journal!r}: offsets are numbered from 0 on")


def check_commit(op: CommitShard) -> None:
    """Refuse what cannot be committed, before anything is changed."""
    if not isinstance(op.checkpoint, bytes):
        raise Invalid(f"a checkpoint is bytes, not {type(op.checkpoint).__name__}")
    if len(op.checkpoint) > CHECKPOINT_BYTES_MAX:
        raise LimitExceeded(f"a checkpoint of {len(op.checkpoint)} bytes is over the limit of {CHECKPOINT_BYTES_MAX}")
    if not isinstance(op.puts, dict) or not isinstance(op.deletes, list):
        raise Invalid("state is put with a dictionary, and deleted with a list of keys")
    changes = len(op.puts) + len(op.deletes)
    if changes > CHANGES_MAX:
        raise LimitExceeded(f"a commit changes at most {CHANGES_MAX} entries of state, not {changes}")
    check_keys(op.puts)
    check_keys(op.deletes)
    for key, value in op.puts.items():
        if type(value) is bytes and len(value) <= STATE_VALUE_BYTES_MAX:
            continue
        if not isinstance(value, bytes):
            raise Invalid(f"the state of {key!r} is bytes, not {type(value).__name__}")
        if len(value) > STATE_VALUE_BYTES_MAX:
            raise LimitExceeded(f"the state of {key!r} has {len(value)} bytes, over {STATE_VALUE_BYTES_MAX}")
    if not op.puts.keys().isdisjoint(op.deletes):
        raise Invalid("a key is both put and deleted: say one of the two")
    size = content_bytes(op)
    if size > COMMIT_BYTES_MAX:
        raise LimitExceeded(f"a commit of {size} bytes is over the limit of {COMMIT_BYTES_MAX}: process fewer at once")
    check_offsets(op.processed)


def content_bytes(op: CommitShard) -> int:
    """About how many bytes a commit brings along."""
    size = len(op.checkpoint) + sum(map(len, op.puts)) + sum(map(len, op.puts.values())) + sum(map(len, op.deletes))
    return size + sum(len(journal) + 16 for journal in op.processed)


def check_keys(keys: Iterable[str]) -> None:
    """`Invalid` unless state can be kept under all of these."""
    for key in keys:
        if type(key) is str and 0 < len(key) <= STATE_KEY_BYTES_MAX and key.isascii():
            continue  # nearly all of them, at a glance
        if not isinstance(key, str):
            raise Invalid(f"state is kept under text, not under {type(key).__name__}")
        if not key:
            raise Invalid("state is kept under text of at least one character")
        if len(_utf8(key)) > STATE_KEY_BYTES_MAX:
            raise LimitExceeded(f"state is kept under at most {STATE_KEY_BYTES_MAX} bytes, not under {len(_utf8(key))}")


def check_read(op: ReadShardState) -> None:
    """Refuse keys that cannot be asked for."""
    if not isinstance(op.keys, list) or not op.keys:
        raise Invalid("say in a list which keys to read")
    if len(op.keys) > KEYS_MAX:
        raise LimitExceeded(f"at most {KEYS_MAX} keys are read at once, not {len(op.keys)}")
    check_keys(op.keys)


def check_scan(op: ScanShardState) -> None:
    """Refuse what does not say which entries to list."""
    check_keys(part for part in (op.prefix, op.after) if part != "")
    check_limit(op.limit)


def check_report(op: ReportShard) -> None:
    """Refuse what does not say how a shard is doing."""
    if type(op.generation) is not int or op.generation < 0:
        raise Invalid(f"{op.generation!r} is not a generation")
    if not names.is_text(op.status, STATUS_BYTES_MAX) or not isinstance(op.error, str):
        raise Invalid(f"a status is up to {STATUS_BYTES_MAX} bytes of text, and an error is text")
    check_offsets(op.processed)
    check_offsets(op.published)
    check_numbers(op.numbers)


def check_numbers(numbers: Any) -> None:
    """Refuse what does not say a number for each journal."""
    check_offsets(numbers)
    if not all(0 < number < 1 << 32 for number in numbers.values()):
        raise Invalid("journals are numbered from 1 on")


def check_page(prefix: Any, after: Any, limit: Any) -> None:
    """`Invalid` unless this says which names to list."""
    if not isinstance(prefix, str) or not isinstance(after, str):
        raise Invalid("names are listed by a prefix, and after a name, which are text")
    check_limit(limit)


def check_limit(limit: Any) -> None:
    """`Invalid` unless a page can be this long."""
    if type(limit) is not int or not 1 <= limit <= PAGE_MAX:
        raise Invalid(f"a page has 1 to {PAGE_MAX} entries, not {limit!r}")


def _utf8(key: str) -> bytes:
    try:
        return key.encode()
    except UnicodeEncodeError as error:
        raise Invalid(f"the key {key!r} has no UTF-8 form: {error.reason}") from None


def description_bytes(found: ConsumerDescription) -> int:
    """About how many bytes a consumer takes in an answer."""
    maps = [found.sources, *(m for s in found.states for m in (s.resets, s.processed, s.published, s.numbers))]
    return 128 * (1 + len(found.states) + len(found.members)) + sum(len(journal) + 9 for m in maps for journal in m)
