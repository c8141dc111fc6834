"""Counts the words of a journal. The counts are kept in the store, beside the journals, so a transaction is one commit.

    python examples/consumers/word_count.py            # fills the journal `lines` of file:./data, counts, shows

    echo 'to be or not to be' | detent journal append file:./data lines
    detent run examples/consumers/word_count.py:app --once
    detent consumer state file:./data word-count --prefix word/to
    detent journal read file:./data word-counts

Kill it whenever you like: the counts, the offset up to which lines were read and the messages in `word-counts` are one
commit, so each line counts once. Run it again without new lines, and nothing changes.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import detent
from detent.consumer import Consumer, ConsumerTransaction, Publish

LINES, COUNTS = "lines", "word-counts"
TEXT = [
    "to be or not to be that is the question",
    "whether tis nobler in the mind to suffer",
    "the slings and arrows of outrageous fortune",
    "or to take arms against a sea of troubles",
]

app = Consumer("word-count", store="file:./data", read=LINES)


@app.consume
def count(message: detent.Message, state: Any, publish: Publish) -> None:
    """One line: raise the count of each of its words, and note which ones have changed."""
    del publish
    changed = state.setdefault("changed", {})
    for word in message.body.decode(errors="replace").lower().split():
        key = f"word/{word[:80]}"
        state[key] = changed[key] = state.get(key, 0) + 1


@app.finalize
def publish_changed(transaction: ConsumerTransaction) -> None:
    """Once a transaction, however many lines it had: publish the counts that it changed. What is put into the state and
    taken out of it in one transaction is never written."""
    for key, number in transaction.state.pop("changed", {}).items():
        word = key.removeprefix("word/")
        transaction.publish(COUNTS, json.dumps({"word": word, "count": number}).encode(), key=word.encode())


def make_input(store: detent.Store) -> int:
    """Lines to count, unless there are some already; how many there are."""
    lines = store.journal(LINES)
    lines.create(exist_ok=True)
    if not lines.next_offset():
        lines.append_many([line.encode() for line in TEXT])
    return lines.next_offset()


def counts(store: detent.Store) -> dict[str, int]:
    """What the state says."""
    return {key.removeprefix("word/"): number for key, number in store.consumer("word-count").state().items("word/")}


def published(store: detent.Store) -> dict[str, int]:
    """The last count of each word that a reader of the journal has seen. It is what the state says."""
    found = (message.json() for message in store.journal(COUNTS).read())
    return {one["word"]: one["count"] for one in found}


def main(url: str) -> int:
    """Fill the journal, count, show."""
    with detent.open(url) as store:
        lines = make_input(store)
        app.run(store=store, once=True)
        found = counts(store)
        often = sorted(found.items(), key=lambda item: (-item[1], item[0]))[:5]
        print(f"{lines} lines have {sum(found.values())} words, {len(found)} different ones")
        print("most often: " + ", ".join(f"{word} {number}" for word, number in often))
        is_same = published(store) == found
        print(f"the journal {COUNTS} says {'the same' if is_same else 'something else'}")
        return 0 if is_same else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else "file:./data"))
