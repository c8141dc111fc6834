"""A stream of Redis as the queue that announces files: a consumer group, whose pending entries have deadlines.

Redis remembers of a delivered entry whose it is, when it was delivered and how often, but not until when it stays away
from others: each reader compares how long an entry is idle with a limit of its own. Here the limit is the same for all,
`VISIBILITY_S_MAX`, and the time of delivery is moved: an entry that shall come back after a minute is noted as if it
had been delivered a minute less than the limit ago. A consumer that looks for entries that are idle for the limit finds
those whose deadline has passed, by the clock of the server, whatever each deadline is.

A delivery is known by its entry, consumer and count. The count rises with each delivery, so of two deliveries of an
entry, even to the same consumer, only the later one is current. What is checked and what follows is one script.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from detent.errors import DetentError, Invalid, LimitExceeded, NotFound, StaleReceipt, Unavailable
from detent.extras import install_command
from detent.transports.contract import Delivery, FailedDeliveries, NewMessage

if TYPE_CHECKING:
    from redis import Redis
    from redis.commands.core import Script

VISIBILITY_S_MAX: Final = 43_200
"""How long an entry can stay away from others. All who share a group must agree on it; it is twelve hours, as in SQS.
An entry that a reader of another make takes stays away for as long."""

BODY: Final = b"body"
"""The field of an entry that is the message; the others are headers."""

RECEIVE_MAX: Final = 1_000
"""Entries that one script takes. Redis does nothing else meanwhile."""

SETTLE_MAX: Final = 1_000
"""Entries that one script extends or acknowledges."""

SEND_BYTES_MAX: Final = 16 << 20
"""The largest message, as in Detent's own queues: Redis has all of them in memory."""

SCAN_MAX: Final = 20_000
"""Pending entries that one script looks at, for some whose deadline has passed; the next one goes on from there."""

WAIT_SLICE_S: Final = 0.5
"""A receive that waits looks again this often: a deadline that passes does not wake it."""

TIMEOUT_S: Final = 10.0
"""How long an answer may take. It is longer than a wait, which is sliced."""

CONNECT_TIMEOUT_S: Final = 5.0
RETRIES: Final = 2
RETRY_FIRST_S: Final = 0.05
RETRY_MAX_S: Final = 1.0

_RECEIVE: Final = """
local stream, group, consumer = KEYS[1], ARGV[1], ARGV[2]
local limit, idle, overdue, cursor, left = tonumber(ARGV[3]), ARGV[4], ARGV[5], ARGV[6], tonumber(ARGV[7])
local found = {}

local function claim(ids, counted)
  local command = {'XCLAIM', stream, group, consumer, 0}
  for _, id in ipairs(ids) do command[#command + 1] = id end
  command[#command + 1] = 'IDLE'
  command[#command + 1] = idle
  if not counted then command[#command + 1] = 'JUSTID' end
  return redis.call(unpack(command))
end

repeat  -- entries whose deadline has passed
  local room = limit - #found
  local overdues = redis.call('XAUTOCLAIM', stream, group, consumer, overdue, cursor, 'COUNT', room, 'JUSTID')
  cursor = overdues[1]
  left = left - 10 * room  -- that many it looks at
  if #overdues[2] > 0 then
    local there = {}
    local entries = claim(overdues[2], true)
    for at = 1, #overdues[2] do
      local entry = entries[at]
      if entry then
        there[entry[1]] = true
        local pending = redis.call('XPENDING', stream, group, entry[1], entry[1], 1)
        found[#found + 1] = {entry[1], tostring(pending[1][4]), entry[2]}
      end
    end
    for _, id in ipairs(overdues[2]) do  -- others removed them from the stream, and no reader can have them
      if not there[id] then redis.call('XACK', stream, group, id) end
    end
  end
until #found >= limit or cursor == '0-0' or left <= 0

if #found < limit then  -- entries that no reader had
  local read = redis.call('XREADGROUP', 'GROUP', group, consumer, 'COUNT', limit - #found, 'STREAMS', stream, '>')
  if read then
    local ids = {}
    for _, entry in ipairs(read[1][2]) do
      ids[#ids + 1] = entry[1]
      found[#found + 1] = {entry[1], '1', entry[2]}
    end
    claim(ids, false)
  end
end

local last = '0-0'
if #found == 0 then  -- where a receive waits from
  for _, about in ipairs(redis.call('XINFO', 'GROUPS', stream)) do
    local fields = {}
    for at = 1, #about, 2 do fields[about[at]] = about[at + 1] end
    if fields['name'] == group then last = fields['last-delivered-id'] end
  end
end
return {cursor, last, found}
"""

_IF_CURRENT: Final = """
local stream, group, idle = KEYS[1], ARGV[1], ARGV[2]
local failed = {}
for at = 3, #ARGV, 3 do
  local id, consumer, count = ARGV[at], ARGV[at + 1], ARGV[at + 2]
  local pending = redis.call('XPENDING', stream, group, id, id, 1)[1]
  local done = false
  if pending and pending[2] == consumer and tostring(pending[4]) == count then
    %s
  end
  if not done then failed[#failed + 1] = tostring((at - 3) / 3) end
end
return failed
"""

_EXTEND: Final = (
    _IF_CURRENT % "done = #redis.call('XCLAIM', stream, group, consumer, 0, id, 'IDLE', idle, 'JUSTID') == 1"
)

_ACKNOWLEDGE: Final = _IF_CURRENT % (
    "done = redis.call('XACK', stream, group, id) == 1; redis.call('XDEL', stream, id)"
)

_LEAVE: Final = """
if #redis.call('XPENDING', KEYS[1], ARGV[1], '-', '+', 1, ARGV[2]) == 0 then
  return redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], ARGV[2])
end
return 0
"""


class RedisQueue:
    """A stream of Redis 6.2 or later, read through a consumer group that is made when it is not there.

    `url` is what redis-py takes, such as ``redis://localhost:6379/0``. Entries that are acknowledged are removed from
    the stream, so it is for this group alone. `consumer` is what this reader is called in the group; without a name it
    is the machine and the process.
    """

    receive_creates: Final = True
    """A reader makes the stream and its group, so that ingest starts before the first entry is there."""

    def __init__(self, url: str, stream: str, *, group: str = "detent", consumer: str | None = None) -> None:
        if not stream or not group:
            raise Invalid("a queue of Redis needs the name of a stream, and that of a consumer group")
        self.name: Final = stream
        self.visibility_max_s: Final = float(VISIBILITY_S_MAX)
        self._group = group
        self._consumer = consumer or f"{socket.gethostname()}:{os.getpid()}"
        self._client = _client(url)
        self._receive: Script = self._client.register_script(_RECEIVE)
        self._extend: Script = self._client.register_script(_EXTEND)
        self._acknowledge: Script = self._client.register_script(_ACKNOWLEDGE)
        self._joining = threading.Lock()
        self._joined = False
        self._cursor: bytes | str = "0-0"

    def __repr__(self) -> str:
        return f"RedisQueue({self.name!r})"

    def receive(self, limit: int, wait_s: float, visibility_s: float) -> Sequence[Delivery]:
        """Up to `limit` entries: first those whose deadline has passed, then new ones."""
        deadline = time.monotonic() + wait_s
        with self._errors():
            while True:
                last, found = self._take(min(limit, RECEIVE_MAX), _idle_ms(visibility_s))
                left_s = deadline - time.monotonic()
                if found or left_s <= 0:
                    return found
                # Reading without the group takes nothing, so what comes stays for the script, which notes a deadline.
                wait_ms = max(int(min(left_s, WAIT_SLICE_S) * 1000), 1)
                self._client.xread({self.name: last}, count=1, block=wait_ms)

    def _take(self, limit: int, idle_ms: int) -> tuple[str, list[Delivery]]:
        """Entries, and if there are none the last one that the group was given."""
        from redis.exceptions import ResponseError

        arguments: list[Any] = [
            self._group,
            self._consumer,
            limit,
            idle_ms,
            VISIBILITY_S_MAX * 1000,
            self._cursor,
            SCAN_MAX,
        ]
        self._join()
        try:
            answer = self._receive([self.name], arguments)
        except ResponseError as error:
            if "NOGROUP" not in str(error):
                raise
            self._joined = False  # another process deleted the stream
            self._join()
            answer = self._receive([self.name], arguments)
        self._cursor, last, found = answer
        return last.decode(), [self._delivery(*entry) for entry in found]

    def _join(self) -> None:
        """Make the group, and the stream, unless they are there. It begins with the oldest entry."""
        from redis.exceptions import ResponseError

        with self._joining:
            if self._joined:
                return
            try:
                self._client.xgroup_create(self.name, self._group, id="0", mkstream=True)
            except ResponseError as error:
                if "BUSYGROUP" not in str(error):
                    raise
            self._joined = True

    def _delivery(self, entry: bytes, count: bytes, pairs: list[bytes]) -> Delivery:
        fields = dict(zip(pairs[::2], pairs[1::2], strict=True))
        body = fields.pop(BODY, b"")
        headers = {_text(name): _text(value) for name, value in fields.items()}
        receipt = f"{entry.decode()} {count.decode()} {self._consumer}"
        return Delivery(entry.decode(), receipt, body, int(count), headers)

    def extend(self, deliveries: Sequence[Delivery], visibility_s: float) -> Sequence[Delivery]:
        """Move deadlines; the deliveries that are not current any more."""
        return self._settle(self._extend, deliveries, _idle_ms(visibility_s))

    def give_back(self, deliveries: Sequence[Delivery]) -> None:
        """Let others have them; Redis goes on counting."""
        self.extend(deliveries, 0)

    def acknowledge(self, deliveries: Sequence[Delivery]) -> Sequence[Delivery]:
        """Remove entries from the stream; the deliveries that are not current any more."""
        return self._settle(self._acknowledge, deliveries, 0)

    def _settle(self, script: Script, deliveries: Sequence[Delivery], idle_ms: int) -> Sequence[Delivery]:
        why: dict[str, DetentError] = {}
        for at in range(0, len(deliveries), SETTLE_MAX):
            batch = deliveries[at : at + SETTLE_MAX]
            arguments: list[Any] = [self._group, idle_ms]
            for delivery in batch:
                entry, count, consumer = delivery.receipt.split(" ", 2)
                arguments += [entry, consumer, count]
            try:
                with self._errors():
                    failed = [batch[int(number)] for number in script([self.name], arguments)]
            except (Unavailable, Invalid) as error:
                why |= {delivery.receipt: error for delivery in batch}
            else:
                why |= {one.receipt: StaleReceipt(f"{one.message_id} is not pending so any more") for one in failed}
        return FailedDeliveries(deliveries, why)

    def send(self, messages: Sequence[NewMessage]) -> Mapping[int, DetentError]:
        """Add entries. Redis answers when it has them in memory: its settings say when they are on a disk."""
        found = {at: error for at, message in enumerate(messages) if (error := _refusal(message)) is not None}
        ready = [at for at in range(len(messages)) if at not in found]
        for start in range(0, len(ready), SETTLE_MAX):
            batch = ready[start : start + SETTLE_MAX]
            pipeline = self._client.pipeline(transaction=False)
            for at in batch:
                fields: Any = {**messages[at].headers, BODY: messages[at].body}
                pipeline.xadd(self.name, fields, nomkstream=True)
            with self._errors():
                answers = pipeline.execute(raise_on_error=True)
            missing = NotFound(f"Redis has no stream {self.name!r}: its reader makes it, or create() of RedisQueue")
            found |= {at: missing for at, answer in zip(batch, answers, strict=True) if answer is None}
        return found

    def create(self) -> None:
        """Make the stream and the group, unless they are there; also if another process deleted them meanwhile."""
        with self._errors():
            self._joined = False
            self._join()

    def retention_s(self) -> float | None:
        """None: Redis keeps entries until a client removes them. `NotFound` if there is no such stream."""
        with self._errors():
            kind = self._client.type(self.name)
        if kind == b"none":
            raise NotFound(f"Redis has no stream {self.name!r}: its reader makes it, or create() of RedisQueue")
        if kind != b"stream":
            raise Invalid(f"{self.name!r} is not a stream in Redis: name another one")
        return None

    def close(self) -> None:
        """Leave the group, unless entries are pending that it would forget then, and close the connections."""
        from redis.exceptions import RedisError

        if self._joined:
            with contextlib.suppress(RedisError, OSError):
                self._client.eval(_LEAVE, 1, self.name, self._group, self._consumer)
        self._client.close()

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        from redis.exceptions import RedisError, ResponseError

        try:
            yield
        except ResponseError as error:
            if "WRONGTYPE" in str(error):
                raise Invalid(f"{self.name!r} is not a stream in Redis: name another one") from error
            raise Unavailable(f"Redis refuses to work on the stream {self.name!r}: {error}") from error
        except (RedisError, OSError) as error:
            raise Unavailable(f"Redis does not answer for the stream {self.name!r}: {error}") from error


def _refusal(message: NewMessage) -> DetentError | None:
    """Why a message cannot be an entry."""
    if BODY.decode() in message.headers:
        return Invalid(f"the header {BODY.decode()!r} is the field of an entry that has the message: call it otherwise")
    if len(message.body) > SEND_BYTES_MAX:
        return LimitExceeded(f"a message of {len(message.body)} bytes is over the limit of {SEND_BYTES_MAX}")
    return None


def _client(url: str) -> Redis:
    try:
        import redis
        from redis.backoff import ExponentialBackoff
        from redis.retry import Retry
    except ModuleNotFoundError as error:
        raise Invalid(f"a queue of Redis needs the package redis: {install_command('redis')}") from error
    try:
        return redis.Redis.from_url(
            url,
            socket_timeout=TIMEOUT_S,
            socket_connect_timeout=CONNECT_TIMEOUT_S,
            retry=Retry(ExponentialBackoff(cap=RETRY_MAX_S, base=RETRY_FIRST_S), RETRIES),
        )
    except (ValueError, TypeError):
        # What is wrong with it is not said: it may be a password with a character that belongs encoded.
        raise Invalid(
            "that is not a URL of Redis: write redis://USER:PASSWORD@HOST:PORT/DATABASE, with special characters "
            "encoded"
        ) from None


def _idle_ms(visibility_s: float) -> int:
    """For how long an entry shall seem to be idle already, to be due after its visibility."""
    visible_s = min(max(visibility_s, 0.0), VISIBILITY_S_MAX)
    return VISIBILITY_S_MAX * 1000 - round(visible_s * 1000)


def _text(field: bytes) -> str:
    return field.decode(errors="replace")
