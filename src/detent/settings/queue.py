"""The settings of queues: what each is, and the three forms in which they are held.

A new setting is a line in each of the three classes and its description in `QUEUE`, all of them below.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, NamedTuple, TypedDict

from detent.durations import Duration
from detent.errors import Invalid
from detent.settings.setting import (
    U32_MAX,
    Choice,
    Count,
    Flag,
    Labels,
    Milliseconds,
    Seconds,
    Settings,
    Text,
)

ATTEMPTS_MAX: Final = 65_535
"""The attempts of a message are a u16. In a queue without a limit the count stops here, and the message is tried on."""

LEASE_MS_MIN: Final = 1
LEASE_MS_MAX: Final = 7 * 24 * 3600 * 1000
RETENTION_S_MAX: Final = U32_MAX - 1
DELAY_MS_MAX: Final = 365 * 24 * 3600 * 1000
HEADER_NAME_BYTES_MAX: Final = 255
DESCRIPTION_BYTES_MAX: Final = 4 << 10

MAX_ATTEMPTS: Final = 5
DONE_RETENTION_S: Final = 3600

NOT_KEPT: Final = U32_MAX
"""The done retention of a queue that keeps no done messages. (Zero is: for ever.)"""

LabelPairs = tuple[tuple[str, str], ...]
"""Labels as a record holds them, in the order of their names."""


class QueueSettings(TypedDict, total=False):
    """The settings of a queue, as `create` and `configure` take them.

    - `filter`: a CEL expression over the headers, such as ``headers.tier == "gold"``; ``true`` takes everything, None
      what is published to the queue by name;
    - `max_attempts` (5; 0 is no limit);
    - `lease` ("30s") and `max_lease` ("12h"): how long a claim lasts that does not say it, and how long it may last;
    - `backoff` ("1s", doubling) up to `max_backoff` ("5m"): how long a message waits after a failure;
    - `done_retention` ("1h"; None is for ever): how long the queue remembers which messages are done;
    - `failed` ("keep" or "discard"): what becomes of a message that ran out of attempts;
    - `priority_header` ("priority"): the name of the header with the priority;
    - `paused`: nothing is given out or taken in;
    - `description`, and `labels` (a mapping of text to text, kept for you; setting them replaces all);
    - `dead_letter`: the name of another queue, to which what is given up goes, whatever `failed` says; None for none;
    - `group_header`: the name of a header: messages with the same value are given out one after another, in the order
      in which they came, whatever their priority; None for none;
    - `dead_letter_retention`, of a queue that gets dead letters: how long it keeps each of them at least, from when it
      came; None leaves them the retention that they were published with;
    - `group_overlap`: a message of a group that comes back is given out again while later ones of the group are in
      flight still, as SQS has it;
    - `group_fair`: the groups are tenants without an order: a claim takes messages of the group that has the fewest in
      flight, so that none starves the others.
    """

    filter: str | None
    max_attempts: int
    lease: Duration
    max_lease: Duration
    backoff: Duration
    max_backoff: Duration
    done_retention: Duration | None
    failed: str
    priority_header: str
    paused: bool
    description: str
    labels: Mapping[str, str]
    dead_letter: str | None
    group_header: str | None
    dead_letter_retention: Duration | None
    group_overlap: bool
    group_fair: bool


class StoredQueue(NamedTuple):
    """What the record of a queue says, in the order in which it says it: its settings, and what it is otherwise.

    `bucket_exponent` says how many messages its buckets hold, `generation` counts its filters.
    """

    filter: str
    max_attempts: int
    done_retention_s: int
    number: int
    created_ms: int
    bucket_exponent: int = 3
    lease_ms: int = 30_000
    lease_max_ms: int = 12 * 3600 * 1000
    backoff_ms: int = 1_000
    backoff_max_ms: int = 300_000
    failed_policy: str = "keep"
    priority_header: str = "priority"
    paused: bool = False
    generation: int = 0
    description: str = ""
    labels: LabelPairs = ()
    dead_letter: str = ""
    group_header: str = ""
    dead_letter_retention_s: int = 0
    group_overlap: bool = False
    group_fair: bool = False


@dataclass(frozen=True, slots=True)
class ConfiguredQueue:
    """A queue and its settings, as `info` shows them."""

    name: str
    number: int
    created: datetime
    filter: str
    max_attempts: int
    lease: timedelta
    max_lease: timedelta
    backoff: timedelta
    max_backoff: timedelta
    done_retention: timedelta | None
    failed_policy: str
    priority_header: str
    paused: bool
    description: str
    labels: dict[str, str]
    dead_letter: str
    group_header: str
    dead_letter_retention: timedelta | None
    group_overlap: bool
    group_fair: bool


_TO_ESCAPE: Final = re.compile(r'["\\\x00-\x1f\x7f]')


def default_filter(queue: str) -> str:
    """The filter of a queue that has none of its own: messages whose header `queue` is its name."""
    quoted = _TO_ESCAPE.sub(lambda found: "\\" + (found[0] if found[0] in '"\\' else f"u{ord(found[0]):04x}"), queue)
    return f'headers.queue == "{quoted}"'


_LEASE_LIMIT: Final = f"a lease lasts from {LEASE_MS_MIN} ms to {LEASE_MS_MAX} ms"
_BACKOFF_LIMIT: Final = f"a back-off is at most {DELAY_MS_MAX} ms"

QUEUE: Final = Settings(
    "queue",
    filter=Text(
        unset=default_filter,
        metavar="CEL",
        help="Which messages it gets, by their headers: 'headers.tier == \"gold\"'; 'true' for all. Without a filter, "
        "those that are published to it by name.",
        note="is a CEL expression over the headers (null: what is published to the queue by name)",
        label="filter",
        sqs=True,
    ),
    max_attempts=Count(
        most=ATTEMPTS_MAX,
        limit=f"a message has at most {ATTEMPTS_MAX} attempts",
        help="Give a message up after so many [5]; 0 for never.",
        note="0 is no limit",
        label="attempts",
        words="up to {}",
        absent="no limit",
        sqs=True,
    ),
    lease=Milliseconds(
        key="lease_ms",
        least=LEASE_MS_MIN,
        limit=_LEASE_LIMIT,
        refusal=Invalid,
        help="How long a claim lasts that does not say it [30s].",
        label="lease",
    ),
    max_lease=Milliseconds(
        key="lease_max_ms",
        least=LEASE_MS_MIN,
        most=LEASE_MS_MAX,
        limit=_LEASE_LIMIT,
        refusal=Invalid,
        help="How long a claim may last [12h].",
        label="lease",
        words="at most {}",
        sqs=True,
    ),
    backoff=Milliseconds(
        key="backoff_ms",
        most=DELAY_MS_MAX,
        limit=_BACKOFF_LIMIT,
        help="Wait so long after a first failure, then twice as long [1s].",
        label="back-off",
        sqs=True,
    ),
    max_backoff=Milliseconds(
        key="backoff_max_ms",
        most=DELAY_MS_MAX,
        limit=_BACKOFF_LIMIT,
        help="Wait at most so long after a failure [5m].",
        label="back-off",
        words="at most {}",
        sqs=True,
    ),
    done_retention=Seconds(
        key="done_retention_s",
        zero=NOT_KEPT,
        none_word="forever",
        most=NOT_KEPT,
        limit=f"a retention is below {NOT_KEPT} s",
        help="Remember so long which messages are done [1h]; 'forever' for always, '0s' for never.",
        note="null is for ever",
        label="done retention",
        absent="forever",
        sqs=True,
    ),
    failed=Choice(
        key="failed_policy",
        shown_as="failed_policy",
        in_words={"keep": "kept", "discard": "discarded"},
        subject="what becomes of failed messages",
        help="What becomes of messages given up [keep].",
        note='is "keep" or "discard"',
        label="failed messages",
    ),
    priority_header=Text(
        bytes_max=HEADER_NAME_BYTES_MAX,
        subject="the name of the priority header",
        metavar="NAME",
        help="The header with the priority, 0 (first) to 255 [priority].",
        label="priority header",
        sqs=True,
    ),
    paused=Flag(help="Give nothing out until `detent queue resume`.", sqs=True),
    description=Text(bytes_max=DESCRIPTION_BYTES_MAX, subject="a description", help="What the queue is for."),
    labels=Labels(
        option="--label",
        metavar="NAME=VALUE",
        help="A label to keep with the queue; repeat it for more. They replace all that there were.",
        later=True,
    ),
    dead_letter=Text(
        optional=True,
        metavar="QUEUE",
        help="Messages given up go to this queue instead of being kept or discarded [none]; '' for none.",
        label="dead letters",
        words="to {}",
        absent="none",
        later=True,
    ),
    group_header=Text(
        optional=True,
        bytes_max=HEADER_NAME_BYTES_MAX,
        subject="the name of the group header",
        metavar="NAME",
        help="The header with the group, within which messages are given out one after another, in the order in which "
        "they came [none]; '' for none. It can be changed while the queue is empty.",
        label="group header",
        absent="none",
        later=True,
    ),
    dead_letter_retention=Seconds(
        key="dead_letter_retention_s",
        zero="dead letters are kept for a second at least; None leaves them the retention that they came with",
        none_word="none",
        most=RETENTION_S_MAX,
        limit=f"dead letters are kept for at most {RETENTION_S_MAX} s",
        help="What comes here as a dead letter stays for so long at least [its own retention]; 'none' for that.",
        label="dead letters stay",
        words="at least {}",
        later=True,
    ),
    group_overlap=Flag(
        help="Give a message of a group that comes back out again while later ones of the group are in flight, as SQS "
        "does.",
        later=True,
    ),
    group_fair=Flag(
        help="The groups are tenants without an order: give out messages of the one that has the fewest in flight. It "
        "can be changed while the queue is empty.",
        later=True,
    ),
)
"""What each setting is."""
