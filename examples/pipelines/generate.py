"""Orders for the examples: a thousand in ten minutes, one in twenty sent twice, one in a hundred not readable.

python examples/pipelines/generate.py file:./data
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import detent

ORDERS = 1_000
BEGIN = datetime(2026, 1, 31, 12, tzinfo=UTC)


def orders(seed: int) -> Iterator[bytes]:
    """What a producer sends, the same for the same seed."""
    chance = random.Random(seed)
    for number in range(ORDERS):
        order = {
            "id": f"{seed}-{number}",
            "customer": chance.choice(["ada", "bob", "cyd", "dee"]),
            "amount": chance.randrange(100, 10_000) / 100,
            "at": (BEGIN + timedelta(hours=seed, seconds=number * 0.6)).isoformat(),
        }
        body = json.dumps(order).encode()
        yield body[: len(body) // 2] if number % 100 == 99 else body
        if number % 20 == 0:
            yield body


def main(url: str, seed: int) -> None:
    """Append them to the journal orders."""
    with detent.open(url) as store:
        appended = store.journal("orders").append_many(list(orders(seed)))
    print(f"{appended.count} messages are in the journal orders of {url}, from offset {appended.offset} on")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "file:./data", int(sys.argv[2]) if len(sys.argv) > 2 else 0)
