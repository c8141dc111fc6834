"""Write files of orders into ./landing/files, and announce each of them at a queue of Detent, some twice, one torn."""

from __future__ import annotations

import gzip
import json
import random
import time
from pathlib import Path

import detent

FILES, ORDERS = 20, 100


def main() -> None:
    """Land one round of files."""
    folder = Path("landing/files").absolute()
    folder.mkdir(parents=True, exist_ok=True)
    start = time.time_ns() // 1_000_000
    with detent.open("file:./landing/queue") as store:
        queue = store.queue("files")
        queue.create(exist_ok=True)
        for number in range(FILES):
            orders = [
                {"id": start * 10_000 + number * ORDERS + order, "customer": f" customer {order} ", "amount": order}
                for order in range(ORDERS)
            ]
            lines = gzip.compress("".join(json.dumps(order) + "\n" for order in orders).encode())
            path = folder / f"{start}-{number}.json.gz"
            path.write_bytes(lines[:-10] if number == FILES - 1 else lines)
            for _ in range(random.choice([1, 1, 2])):
                queue.publish(str(path).encode())
    print(f"{FILES} files announced: {(FILES - 1) * (ORDERS - 1)} orders worth something, and one torn file")


if __name__ == "__main__":
    main()
