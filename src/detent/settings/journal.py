"""The settings of journals: what each is, and the three forms in which they are held. Zero means: no limit.

A new setting is a line in each of the three classes and its description in `JOURNAL`, all of them below.
"""

from __future__ import annotations

from typing import Final, NamedTuple, TypedDict

import msgspec

from detent.durations import Duration
from detent.settings.setting import Milliseconds, Settings, Size

SPAN_DEADLINE_MS: Final = 3600 * 1000
"""How long a transaction may stay unacknowledged before it is rolled back and its producer refused."""

PRODUCER_HORIZON_MS: Final = 24 * 3600 * 1000
"""How long, on the journal's own clock, an idle producer is remembered one by one."""


class JournalSettings(TypedDict, total=False):
    """The settings of a journal, as `create` and `configure` take them. A duration is a `timedelta` or text such as
    "7d"; zero means: no limit.

    - `retention`: how long committed messages are kept;
    - `retention_bytes`: how many bytes of them are kept;
    - `transaction_deadline` ("1h"): how long messages may stay pending before they are rolled back and their producer
      refused;
    - `producer_horizon` ("1d"): how long an idle producer is remembered, on the journal's own clock.
    """

    retention: Duration
    retention_bytes: int
    transaction_deadline: Duration
    producer_horizon: Duration


class StoredJournal(NamedTuple):
    """What a journal's name leads to: its number, and its settings. A setting that came later has the default 0.

    `created_ms` tells it from another journal with its number. A restore of the store changes it, and keeps when the
    journal was made as `born_ms`.
    """

    journal: int
    created_ms: int
    retention_ms: int = 0
    retention_bytes: int = 0
    span_deadline_ms: int = SPAN_DEADLINE_MS
    producer_horizon_ms: int = PRODUCER_HORIZON_MS
    born_ms: int = 0


class ConfiguredJournal(msgspec.Struct, frozen=True, kw_only=True):
    """A journal and its settings, as `info` shows them."""

    name: str
    id: int
    created_ms: int
    retention_ms: int
    retention_bytes: int
    span_deadline_ms: int
    producer_horizon_ms: int


JOURNAL: Final = Settings(
    "journal",
    retention=Milliseconds(
        key="retention_ms",
        shown_as="retention_ms",
        unlimited=True,
        help="Forget messages older than this, such as 7d.",
        label="retention",
        absent="no limit",
    ),
    retention_bytes=Size(
        unlimited=True,
        given_from=1,
        help="Forget the oldest beyond so many bytes.",
        label="retention",
    ),
    transaction_deadline=Milliseconds(
        key="span_deadline_ms",
        shown_as="span_deadline_ms",
        unlimited=True,
        help="Roll back transactions left open so long.",
        label="transaction deadline",
        absent="no limit",
    ),
    producer_horizon=Milliseconds(
        key="producer_horizon_ms",
        shown_as="producer_horizon_ms",
        unlimited=True,
        help="Remember idle producers for so long.",
        label="producers remembered",
        absent="no limit",
    ),
)
"""What each setting is."""
