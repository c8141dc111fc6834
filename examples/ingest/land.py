"""Write files of orders into landing/files of the clone, and announce each at a queue, some twice, one torn."""

from __future__ import annotations

import gzip
import json
import random
import time
from pathlib import Path

import detent

FILES, ORDERS = 20, 100
LANDING = Path(__file__).resolve().parents[2] / "landing"
"""In the clone, wherever this is run: the paths in orders.toml begin in its own folder, too."""


def main() -> None:
    """Land one round of files."""
    folder = LANDING / "files"
    folder.mkdir(parents=True, exist_ok=True)
    start = time.time_ns() // 1_000_000
    with detent.open("file:" + str(LANDING / "queue").replace("%", "%25")) as store:
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
                queue.publish(str(path).encode())  # absolute: the reader runs somewhere else
    print(f"{FILES} files announced: {(FILES - 1) * (ORDERS - 1)} orders worth something, and one torn file")


if __name__ == "__main__":
    main()
