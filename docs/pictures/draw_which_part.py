"""Draws which-part.svg: from what you have to the part that you need. Run it with any Python 3.11."""

from __future__ import annotations

from svg import Drawing

ROW, GAP = 62, 14
TOP = 62
INPUT_X, WISH_X, PART_X, COMMIT_X = 16, 222, 516, 706
INPUT_W, WISH_W, PART_W, COMMIT_W = 172, 260, 150, 278

ROWS = [
    (
        ["An effect in the store", "or elsewhere, guarded by a number"],
        ["Worker", "detent.Worker"],
        ["effect in the store", "+ acknowledgement"],
    ),
    (
        ["An effect in my SQL database", "and messages sent with it"],
        ["Handler", "detent.bus"],
        ["rows", "+ handled mark + messages to send"],
    ),
    (
        ["New messages from old ones", "nothing is remembered between them"],
        ["Processor graph", "detent.processor"],
        ["output messages", "+ how far it has read"],
    ),
    (
        ["Counts, balances, sessions", "something is remembered"],
        ["Consumer", "detent.consumer"],
        ["state", "+ how far it has read + messages"],
    ),
    (
        ["DataFrames, windows, tables", "work for a Spark cluster"],
        ["Spark pipeline", "detent.spark"],
        ["messages of a batch", "+ the batch's row in the ledger"],
    ),
    (
        ["Their rows in a table", "Delta, Iceberg or Parquet"],
        ["Ingest", "detent.ingest"],
        ["data files of a batch", "+ which files are finished"],
    ),
]
INPUTS = [
    (["A queue", "tasks, one by one"], [0, 1]),
    (["A journal", "a stream, in order"], [2, 3]),
    (["Much of either", "journals or queues"], [4]),
    (["Files", "announced by a queue"], [5]),
]


def middle(row: float) -> float:
    """The height of a row's middle."""
    return TOP + row * (ROW + GAP) + ROW / 2


def main() -> None:
    """Draw it."""
    drawing = Drawing(1000, TOP + 6 * (ROW + GAP) + 6, "Which part of Detent do I need?")
    for x, width, title in [
        (INPUT_X, INPUT_W, "I have"),
        (WISH_X, WISH_W, "I want"),
        (PART_X, PART_W, "I use"),
        (COMMIT_X, COMMIT_W, "One commit holds"),
    ]:
        drawing.text(x + width / 2, 36, title, "title", "middle")
    for lines, rows in INPUTS:
        center = sum(map(middle, rows)) / len(rows)
        drawing.box(INPUT_X, center - ROW / 2, INPUT_W, ROW, lines)
        for row in rows:
            bend = (INPUT_X + INPUT_W + WISH_X) / 2
            corners = [] if middle(row) == center else [(bend, center), (bend, middle(row))]
            drawing.arrow((INPUT_X + INPUT_W, center), *corners, (WISH_X, middle(row)))
    for row, (wish, part, commit) in enumerate(ROWS):
        top = middle(row) - ROW / 2
        drawing.box(WISH_X, top, WISH_W, ROW, wish)
        drawing.box(PART_X, top, PART_W, ROW, part, "strong")
        drawing.box(COMMIT_X, top, COMMIT_W, ROW, commit, "warm")
        drawing.arrow((WISH_X + WISH_W, middle(row)), (PART_X, middle(row)))
        drawing.arrow((PART_X + PART_W, middle(row)), (COMMIT_X, middle(row)))
    drawing.save(__file__)


main()
