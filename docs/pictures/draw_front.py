"""Draws front.svg, the README's picture: what goes in, where kill -9 strikes, what comes out.

The counts are those of one `make demo`, kept in demo.json: the kills from the lines that it prints while it runs, the
rest from its last lines. Run it with any Python 3.11.
"""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

from svg import Drawing

WIDTH, HEIGHT = 940, 236
TOP, BOX_HEIGHT = 96, 78
BOLT = [(6, 0), (-5, 15), (1, 15), (-4, 30), (9, 11), (3, 11), (8, 0)]
"""A lightning bolt, around the middle of its top."""


def main() -> None:
    """Draw it."""
    run = json.loads(Path(__file__).with_name("demo.json").read_text())
    kills = run["kills"]
    drawing = Drawing(WIDTH, HEIGHT, f"{run['orders']:,} orders, {sum(kills.values())} kills, none lost or doubled")
    orders = f"{run['orders']:,} orders"
    verdict = f"lost {run['lost']}, duplicated {run['duplicated']}"
    stages = [
        (16, 170, ["Producers, a clerk", orders], "box", kills["producers"] + kills["clerk"]),
        (236, 186, ["Detent's store", "durable journals and queues"], "strong", kills["owner"]),
        (472, 176, ["Spark, a worker", "check and split orders"], "box", kills["driver"] + kills["worker"]),
        (698, 226, [f"{run['rows']:,} orders, each once", verdict], "good", 0),
    ]
    for (x, width, *_), (next_x, *_) in pairwise(stages):
        drawing.arrow((x + width, TOP + BOX_HEIGHT / 2), (next_x, TOP + BOX_HEIGHT / 2))
    for x, width, lines, kind, struck in stages:
        drawing.box(x, TOP, width, BOX_HEIGHT, lines, kind)
        if struck:
            left = x + width / 2 - 54
            drawing.shape([(left + dx, TOP - 38 + dy) for dx, dy in BOLT], "kill")
            drawing.text(left + 20, TOP - 18, f"kill -9, {struck} times", "killed")
    drawing.text(16, 30, "What goes in", "title")
    drawing.text(236, 30, "While it runs, every part is killed and started again", "title")
    drawing.text(698, 30, "What comes out", "title")
    note = "Counted by another process, which looks for every order in the journals and in the Delta table."
    drawing.text(16, 212, note, "note")
    drawing.save(__file__)


main()
