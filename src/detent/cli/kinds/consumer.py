"""Consumers: applications with state that read journals."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from detent.durations import Duration, milliseconds
from detent.errors import Invalid
from detent.runtime.target import Sought, find

if TYPE_CHECKING:
    from detent.consumer import Consumer

MODULE: Final = "__detent_consumer__"
"""The name of a file as a module. It stays imported: classes that are declared in it may look for it at any time."""


def sought() -> Sought[Consumer]:
    """What a file is to declare."""
    from detent.consumer import Consumer

    return Sought(
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
    found = find(target, sought(), kept_as=MODULE)
    _ = found.consume_function  # which says what to do if there is none
    return found


def adjust(
    consumer: Consumer, *, shards: int | None = None, standbys: int | None = None, lease: Duration | None = None
) -> None:
    """Replace what was declared by what the command that runs it says."""
    from detent.consumer.application import LEASE_MS_MIN, STANDBYS_MAX, checked_number
    from detent.shard.operations import SHARDS_MAX

    if shards is not None:
        consumer.shards = checked_number(shards, 1, SHARDS_MAX, "shards")
    if standbys is not None:
        consumer.standbys = checked_number(standbys, 0, STANDBYS_MAX, "standbys")
    if lease is not None:
        consumer.lease_ms = milliseconds(lease)
        if consumer.lease_ms < LEASE_MS_MIN:
            raise Invalid(f"a lease lasts at least {LEASE_MS_MIN} ms, not {lease}")
