"""Stored answers: a transaction that is sent again under its (session, sequence) gets its first answer.

The answers of one group are one record, written in the group's own batch. The rule of expiry:

* an empty answer says that the transaction was undone, because its answer could not be handed over: sent again, it is
  applied as a new one;
* an answer goes as soon as its client says that it has arrived (`answered` in a later request);
* a session's newest record stays, because it carries the floor below which sequences are refused;
* a session that was idle for `SESSION_IDLE_MS` goes altogether, and raises `expired_through`: an unknown session with a
  stamp at or below it is refused with `Fenced`, so that forgetting a session never lets a late retry be applied twice.

Sessions are named by the owner, and a name proves that: it ends with a keyed digest of itself and of whom it was given
to. A client that invents one could else raise that mark beyond all that will ever be, or ask for another client's
answers.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import struct
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final, NamedTuple

from detent.codec.keys import SUBSYSTEM_ENGINE, Prefix, u64
from detent.codec.values import ByteReader, ByteWriter
from detent.engine.operation import SESSION_BYTES, Request
from detent.errors import Corrupt, Fenced, LimitExceeded, Restored, SessionExpired
from detent.kv import Batch, View

ANSWERS: Final = Prefix(SUBSYSTEM_ENGINE, 1, 0x01)
EXPIRED: Final = Prefix(SUBSYSTEM_ENGINE, 1, 0x02)
SECRET: Final = Prefix(SUBSYSTEM_ENGINE, 1, 0x03)
PROVED_SINCE: Final = Prefix(SUBSYSTEM_ENGINE, 1, 0x04)
LINEAGE: Final = Prefix(SUBSYSTEM_ENGINE, 1, 0x06)

SESSION_IDLE_MS: Final = 3600 * 1000
"""How long a client may be silent and still have its unanswered transactions answered."""

SESSIONS_MAX: Final = 100_000
"""About 50 MB of memory; each is one process or connection pool, not one request."""

CROWDED: Final = SESSIONS_MAX * 9 // 10
CROWDED_IDLE_MS: Final = 60 * 1000
"""With so many sessions, those that were idle for a minute go: better than to turn newcomers away. A client that comes
back later still is not served twice, but may not learn the answer that it has missed."""

SECRET_BYTES: Final = 16
RANDOM_BYTES: Final = 3
PROOF_BYTES: Final = 5
"""A name's stamp has 8 bytes, so that all together are 16. 2**40 proofs cannot be tried over a network."""

REPEATED_MAX: Final = 10_000
"""Requests of which it is known that they were sent again; of more than that, the newest ones."""

ANSWERS_PER_SESSION_MAX: Final = 16_384
"""A client with more answers outstanding does not say `answered`."""

LINEAGE_BYTES: Final = 16
FORMER_MAX: Final = 64
"""Former lineages that a store remembers, to tell their clients why they are refused."""

DIGEST_BYTES: Final = 16
"""A digest that is sent beside what it proves, and so may be as long as it should be."""

_ENTRY: Final = struct.Struct("<16sQQ")


class Lineage(NamedTuple):
    """Which life of a store this is. A restore begins a new one: it has the records of the one before, and none of its
    clients. `backup` is the digest of what it was restored from; a store that never was has no such record."""

    current: bytes = bytes(LINEAGE_BYTES)
    restored_ms: int = 0
    backup: bytes = b""
    former: tuple[bytes, ...] = ()

    def encode(self) -> bytes:
        """The record's value."""
        writer = ByteWriter().raw(self.current).i64(self.restored_ms).var_bytes(self.backup)
        return writer.array(self.former, lambda w, one: w.raw(one)).finish()

    @classmethod
    def decode(cls, value: bytes | None) -> Lineage:
        """Read a value back; a store without one was never restored."""
        if value is None:
            return cls()
        reader = ByteReader(value, "lineage")
        current, restored_ms, backup = reader.take(LINEAGE_BYTES), reader.i64(), reader.var_bytes()
        former = tuple(reader.array(lambda r: r.take(LINEAGE_BYTES), element_bytes=LINEAGE_BYTES))
        reader.finish()
        if current in former or not 1 <= len(former) <= FORMER_MAX:
            raise reader.corrupt("a life that is its own former one, or has none or too many before it")
        return cls(current, restored_ms, backup, former)

    def restored(self, current: bytes, restored_ms: int, backup: bytes) -> Lineage:
        """The next life."""
        return Lineage(current, restored_ms, backup, (*self.former, self.current)[-FORMER_MAX:])


class Session:
    """What is remembered of one client."""

    __slots__ = ("active_ms", "answers", "floor", "newest")

    def __init__(self) -> None:
        self.floor = 0
        self.answers: dict[int, tuple[int, bytes]] = {}
        self.newest = -1
        self.active_ms = 0


class Sessions:
    """All sessions, and the answer records that are still needed for them."""

    def __init__(self, random: Callable[[int], bytes] = os.urandom) -> None:
        self._random = random
        self._secret = random(SECRET_BYTES)
        self._secret_dirty = True
        self.proved_since_ms = 0
        """Since when producers are proved; open transactions from before may be those of an earlier release."""
        self._since_dirty = True
        self._lineage = Lineage()
        self._repeated: dict[tuple[bytes, int], None] = {}  # kept when memory is read back: the clients are still there
        self._clear()

    def _clear(self) -> None:
        self._sessions: dict[bytes, Session] = {}
        self._references: dict[int, int] = {}
        self._obsolete: list[int] = []
        self._pending: list[tuple[bytes, int, int, bytes]] = []
        self._group = 0
        self.expired_through = 0
        self._expired_before_ms = 0
        self._expired_dirty = False

    def __len__(self) -> int:
        return len(self._sessions)

    def set_back(self, now_ms: int) -> None:
        """The store's time was set back. Transactions that begin from now on must not be older than proofs are: only
        those of an earlier release are taken without one."""
        self._since_dirty |= self.proved_since_ms > now_ms

    def load(self, view: View) -> None:
        """Read all answers back."""
        self._clear()
        secret = view.get(SECRET.raw)
        self._secret_dirty = secret is None
        if secret is not None:
            self._secret = decode_secret(secret)
        since = view.get(PROVED_SINCE.raw)
        self._since_dirty = since is None
        if since is not None:
            self.proved_since_ms = decode_since(since)
        self._lineage = Lineage.decode(view.get(LINEAGE.raw))
        stored = view.get(EXPIRED.raw)
        if stored is not None:
            self.expired_through, self._expired_before_ms = decode_expired(stored)
        for key, value in view.scan(*ANSWERS.range()):
            record = ANSWERS.reader(key, "answers").u64()
            self._references[record] = 0
            for session, floor, sequence, answer, now_ms in decode_answers(value):
                self._remember(session, floor, sequence, answer, record, now_ms)
            self._group = record + 1
        # A record that one session still needs may hold answers of others that have expired. One whose answers go only
        # now (the wall clock was set back and it came after a "later" expiry) must be remembered as expired.
        through = self.expired_through
        self._forget(self._expired_before_ms)
        self._expired_dirty = self.expired_through > through
        self._obsolete += [record for record, count in self._references.items() if not count]
        for record in self._obsolete:
            self._references.pop(record, None)

    def find(self, request: Request) -> bytes | None:
        """The stored answer of this request, None if it is new; `Fenced` if it is too old to tell."""
        session = self._sessions.get(request.session)
        if session is None:
            if int.from_bytes(request.session[:8], "big") <= self.expired_through:
                raise SessionExpired("this session has expired; open a new one")
            if len(self._sessions) >= SESSIONS_MAX:
                raise LimitExceeded(f"there are {SESSIONS_MAX} sessions already")
            return None
        known = session.answers.get(request.sequence)
        if known is not None:
            return known[1] or None  # an empty answer: the transaction was undone
        if request.sequence < session.floor:
            raise Fenced(f"sequence {request.sequence} of this session was answered before, and its answer forgotten")
        if len(session.answers) >= ANSWERS_PER_SESSION_MAX <= sum(n >= request.answered for n in session.answers):
            raise LimitExceeded(f"{ANSWERS_PER_SESSION_MAX} answers of this session are not acknowledged")
        return None

    def record(self, request: Request, answer: bytes, now_ms: int) -> None:
        """Remember the answer of a request that the group in progress applies."""
        active_ms = self._active_ms(now_ms)
        self._remember(request.session, request.answered, request.sequence, answer, self._group, active_ms)
        self._pending.append((request.session, request.answered, request.sequence, answer))

    def _active_ms(self, now_ms: int) -> int:
        """When a session was last active, for its expiry. A store whose clock was set back has expired sessions "later"
        than now: the next load must not take those of now for older ones."""
        return max(now_ms, self._expired_before_ms)

    def note_repeated(self, request: Request) -> None:
        """A request was answered once more: the client may have any of these answers."""
        self._repeated[request.session, request.sequence] = None
        if len(self._repeated) > REPEATED_MAX:
            del self._repeated[next(iter(self._repeated))]

    def forget_lost(self, request: Request, now_ms: int) -> bool:
        """The answer to a request was lost, and what it did is to be undone. False if the client has asked again, and
        may have that answer; else the request is a new one from now on."""
        if (request.session, request.sequence) in self._repeated:
            return False
        session = self._sessions.get(request.session)
        if session is not None and request.sequence in session.answers:
            self._remember(request.session, session.floor, request.sequence, b"", self._group, self._active_ms(now_ms))
            self._pending.append((request.session, session.floor, request.sequence, b""))
        return True

    def _remember(self, name: bytes, floor: int, sequence: int, answer: bytes, record: int, now_ms: int) -> None:
        session = self._sessions.get(name)
        if session is None:
            session = self._sessions[name] = Session()
        references = self._references
        last = session.newest
        if (
            floor == sequence
            and len(session.answers) == 1
            and references.get(last) == 2
            and record not in references
            and next(iter(session.answers)) < floor
        ):
            # One call after another: its record takes the place of the one before, which is not needed any more. (Not
            # so for a late one, which comes after a higher sequence whose answer its client still waits for.)
            del references[last]
            self._obsolete.append(last)
            references[record] = 2
            session.answers = {sequence: (record, answer)}
            session.newest, session.floor, session.active_ms = record, floor, now_ms
            return
        references[record] = references.get(record, 0) + 1
        undone = session.answers.get(sequence)
        session.answers[sequence] = (record, answer)
        if undone is not None:
            self._release(undone[0])
        if session.newest != record:
            references[record] += 1
            if session.newest >= 0:
                self._release(session.newest)
            session.newest = record
        session.active_ms = now_ms
        if floor > session.floor:
            session.floor = floor
            # Sequences arrive nearly in order. One that hides behind a later one goes when it has come to the front.
            answers = session.answers
            while (known := next(iter(answers), floor)) < floor:
                self._release(answers.pop(known)[0])

    def _release(self, record: int) -> None:
        left = self._references[record] - 1
        if left:
            self._references[record] = left
            return
        del self._references[record]
        self._obsolete.append(record)

    def flush(self, batch: Batch, now_ms: int) -> None:
        """Put the group's answers into its batch, and drop the records that are not needed."""
        for record in self._obsolete:
            batch.delete(ANSWERS.raw + u64(record))
        self._obsolete.clear()
        if self._pending:
            # An obsolete group number is never the one in progress: its own newest reference holds it.
            batch.put(ANSWERS.raw + u64(self._group), encode_answers(self._pending, self._active_ms(now_ms)))
            self._pending.clear()
            self._group += 1
        if self._secret_dirty:
            batch.put(SECRET.raw, self._secret)
            self._secret_dirty = False
        if self._since_dirty:
            self.proved_since_ms = now_ms
            batch.put(PROVED_SINCE.raw, ByteWriter().u64(now_ms).finish())
            self._since_dirty = False
        if self._expired_dirty:
            batch.put(EXPIRED.raw, ByteWriter().u64(self.expired_through).u64(self._expired_before_ms).finish())
            self._expired_dirty = False

    def expire(self, now_ms: int) -> int:
        """Forget the sessions that have been idle too long; the next flush makes it durable. Returns how many."""
        before_ms = now_ms - (SESSION_IDLE_MS if len(self._sessions) < CROWDED else CROWDED_IDLE_MS)
        count = self._forget(before_ms)
        if count:
            # Never back, even if the wall clock went back over a restart: what has expired stays expired.
            self._expired_before_ms = max(self._expired_before_ms, before_ms)
        return count

    def _forget(self, before_ms: int) -> int:
        idle = [name for name, session in self._sessions.items() if session.active_ms < before_ms]
        for name in idle:
            session = self._sessions.pop(name)
            for record, _ in session.answers.values():
                self._release(record)
            self._release(session.newest)
            self.expired_through = max(self.expired_through, int.from_bytes(name[:8], "big"))
            self._expired_dirty = True
        return len(idle)

    @property
    def has_new_secret(self) -> bool:
        """Whether names are proved by something that is in this memory only."""
        return self._secret_dirty or self._since_dirty

    @property
    def dirty(self) -> bool:
        """Whether a flush would write anything."""
        return bool(self._pending or self._obsolete or self._expired_dirty)

    def new_session(self, now_ms: int, holder: str = "") -> bytes:
        """A name for a client: a stamp that no expired session has, randomness, and the proof that it was given to this
        holder."""
        stamp = max(now_ms, self.expired_through + 1)
        name = stamp.to_bytes(8, "big") + self._random(RANDOM_BYTES)
        return name + self._proof(name, holder)

    @property
    def restored_ms(self) -> int:
        """When this life of the store began; 0 for its first one."""
        return self._lineage.restored_ms

    def was_given(self, session: bytes, holder: str) -> bool:
        """Whether an owner of this store has named a session so, for this holder."""
        if len(session) != SESSION_BYTES:
            return False
        return _is_proved(session, self._proof(session[:-PROOF_BYTES], holder))

    def refuse_restored(self, session: bytes, holder: str) -> None:
        """`Restored` for a session that was given before the store was restored from a backup: its client may hold
        receipts, producers and fences of a time that this store knows nothing of."""
        name, lineage = session[:-PROOF_BYTES], self._lineage
        if any(_is_proved(session, self._proof(name, holder, former)) for former in lineage.former):
            raise Restored(
                f"the store was restored from a backup at {_utc(lineage.restored_ms)}, and this process had opened it "
                "before: what it remembers of the store may be gone. Start it anew"
            )

    def digest(self, purpose: bytes, content: bytes) -> bytes:
        """What only an owner of this store can make of some content, for one purpose."""
        return hashlib.blake2b(content, digest_size=DIGEST_BYTES, key=self._secret, person=purpose).digest()

    def _proof(self, name: bytes, holder: str, lineage: bytes | None = None) -> bytes:
        salt = self._lineage.current if lineage is None else lineage
        return hashlib.blake2b(name + holder.encode(), digest_size=PROOF_BYTES, key=self._secret, salt=salt).digest()


def _utc(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="seconds")


def _is_proved(session: bytes, proof: bytes) -> bool:
    return hmac.compare_digest(session[-PROOF_BYTES:], proof)


def decode_expired(value: bytes) -> tuple[int, int]:
    """Through which stamp sessions have expired, and before which time."""
    reader = ByteReader(value, "expired sessions")
    expired = reader.u64(), reader.u64()
    reader.finish()
    return expired


def decode_secret(value: bytes) -> bytes:
    """The secret that sessions are named with."""
    if len(value) != SECRET_BYTES:
        raise Corrupt(f"the secret of sessions has {len(value)} bytes, not {SECRET_BYTES}")
    return value


def decode_since(value: bytes) -> int:
    """Since when the store's owners prove producers."""
    reader = ByteReader(value, "the time since when producers are proved")
    since_ms = reader.u64()
    reader.finish()
    return since_ms


def encode_answers(entries: list[tuple[bytes, int, int, bytes]], now_ms: int) -> bytes:
    """One record: the group's time, then (session, floor, sequence, answer) of each transaction."""
    parts = [now_ms.to_bytes(8, "little")]
    for session, floor, sequence, answer in entries:
        parts += (_ENTRY.pack(session, floor, sequence), len(answer).to_bytes(4, "little"), answer)
    return b"".join(parts)


def decode_answers(value: bytes) -> list[tuple[bytes, int, int, bytes, int]]:
    """The entries of a record, each with the group's time."""
    reader = ByteReader(value, "answers")
    now_ms = reader.u64()
    entries = []
    while reader.remaining:
        session, floor, sequence = reader.unpack(_ENTRY)
        entries.append((session, floor, sequence, reader.var_bytes(), now_ms))
    if not entries:
        raise Corrupt("an answer record without answers")
    return entries
