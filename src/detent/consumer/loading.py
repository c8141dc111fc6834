"""Finding the consumer that a command was told to run.

Every process of a consumer loads it by itself, so that its functions need not travel.
"""

from __future__ import annotations

from typing import Final

from detent.consumer.application import LEASE_MS_MIN, STANDBYS_MAX, Consumer, checked_number
from detent.durations import Duration, milliseconds
from detent.errors import Invalid
from detent.loading import Sought, load, split
from detent.shard.operations import SHARDS_MAX

MODULE: Final = "__detent_consumer__"
"""The name of a file as a module. It stays imported: classes that are declared in it may look for it at any time."""

_SOUGHT: Final = Sought(
    Consumer,
    noun="consumer",
    plural="consumers",
    article="a",
    example="orders.py:app or shop.orders:app",
    lines='from detent.consumer import Consumer; app = Consumer("orders", read="orders")',
)


def load_consumer(target: str) -> Consumer:
    """The consumer that ``package.module:name`` or ``path/to/file.py:name`` means. The name may be left out where there
    is one consumer, or one called `app`. Modules are looked for in the current folder too."""
    place, name = split(target, _SOUGHT)
    loaded = load(place, _SOUGHT, kept_as=MODULE)
    found = loaded.named(name) if name else loaded.only()
    _ = found.consume_function  # which says what to do if there is none
    return found


def adjust(
    consumer: Consumer, *, shards: int | None = None, standbys: int | None = None, lease: Duration | None = None
) -> None:
    """Replace what was declared by what the person who runs it says."""
    if shards is not None:
        consumer.shards = checked_number(shards, 1, SHARDS_MAX, "shards")
    if standbys is not None:
        consumer.standbys = checked_number(standbys, 0, STANDBYS_MAX, "standbys")
    if lease is not None:
        consumer.lease_ms = milliseconds(lease)
        if consumer.lease_ms < LEASE_MS_MIN:
            raise Invalid(f"a lease lasts at least {LEASE_MS_MIN} ms, not {lease}")
