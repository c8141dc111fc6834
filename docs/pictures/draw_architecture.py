"""Draws architecture.svg: the five steps, the layers, and where data goes. Run it with any Python 3.11."""

from __future__ import annotations

from svg import Drawing

STEPS = [
    ["1  identify", "give the work a name", "that never changes"],
    ["2  claim", "a lease, a shard,", "an assignment"],
    ["3  commit", "effect + progress,", "if the fence allows it"],
    ["4  acknowledge", "only after", "the commit"],
    ["5  recover", "read the progress,", "finish or drop the rest"],
]
LAYER_LINES = [
    (["cli · server · demo", "commands, HTTP and SQS endpoints"], "box"),
    (["ingest · spark · testing", "files into tables, Spark's sources and sinks, suites for tests"], "box"),
    (["consumer · processor · bus · state", "the runners: read, call your function, commit"], "box"),
    (["store.py", "detent.open(url): the API, sync and async"], "strong"),
    (["remote", "names each call, and serves other processes"], "box"),
    (["journal · queue · ledger · shard", "the state machines"], "box"),
    (["engine", "one order of transactions, one synced commit for a group"], "warm"),
    (["message · codec · kv", "rules, bytes, the one fenced writer"], "box"),
]
WIDTH = 1000
LEFT, LAYERS = 16, 560


def steps(drawing: Drawing) -> None:
    """The five steps, in a row."""
    drawing.text(LEFT, 30, "Whatever Detent does, it does in five steps", "title")
    for number, lines in enumerate(STEPS):
        x = LEFT + number * 198
        drawing.box(x, 44, 176, 66, lines, "warm" if number == 2 else "box")
        if number:
            drawing.arrow((x - 22, 77), (x, 77))


def owner(drawing: Drawing) -> None:
    """The layers in the process that owns the store."""
    drawing.text(LEFT, 150, "The layers; imports point down only", "title")
    drawing.frame(LEFT, 164, LAYERS, 476, "the process that owns the store")
    x, width = LEFT + 16, LAYERS - 32
    for number, (lines, kind) in enumerate(LAYER_LINES):
        drawing.box(x, 196 + number * 55, width, 46, lines, kind)


def others(drawing: Drawing) -> None:
    """Other processes, and the disk."""
    x, width = 690, WIDTH - 690 - LEFT
    drawing.frame(x, 164, width, 226, "any other process")
    drawing.box(x + 16, 196, width - 32, 52, ["the same API, as a client", "Spark tasks, workers, scripts"])
    drawing.box(x + 16, 260, width - 32, 52, ["remote", "calls under a name, sent until answered"])
    drawing.box(x + 16, 324, width - 32, 52, ["reader", "needs no owner"])
    drawing.box(
        x,
        540,
        width,
        100,
        ["the store", "records: LMDB and a commit log,", "or SlateDB on an object store;", "fragments: Arrow files"],
    )
    right = LEFT + LAYERS - 16
    drawing.arrow((x + 16, 286), (633, 286), (633, 439), (right, 439))
    drawing.text(641, 432, "calls, over a socket", "note")
    drawing.arrow((right, 604), (x, 604))
    drawing.text(625, 596, "one writer", "note", "middle")
    drawing.arrow((x + width - 60, 376), (x + width - 60, 540))
    drawing.text(x + width - 70, 490, "reads go straight there", "note", "end")


def main() -> None:
    """Draw it."""
    drawing = Drawing(WIDTH, 656, "Detent: five steps, and the layers")
    steps(drawing)
    owner(drawing)
    others(drawing)
    drawing.save(__file__)


main()
