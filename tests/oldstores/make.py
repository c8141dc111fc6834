"""Makes the archives beside this file, with the code of the release whose stores had no checksum in each record:

    git archive 9bfe7c7 | tar x -C OLD
    PYTHONPATH=OLD/src:OLD/tests python tests/oldstores/make.py OUTPUT

`file.zip` is a store whose owner was killed, so that its commit log has to be replayed; `s3.zip` are the objects of a
store on an object store. `said.json` says what the public API read of either.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import pyarrow as pa

import detent
from detent.journal import operations as journal_ops
from detent.shard import operations as shard_ops

P1, P2 = bytes.fromhex("010000000001"), bytes.fromhex("010000000002")
OUTSIDE, CONTINUE, ACK = 0, 1, 2
MESSAGES = 14


def stamped(journal: str, *rows: tuple[bytes, int, int]) -> Any:
    producers = b"".join(producer for producer, _, _ in rows)
    clocks, flags = [row[1] for row in rows], [row[2] for row in rows]
    bodies = [b"%d" % clock for clock in clocks]
    return journal_ops.AppendStamped(journal, bodies, None, None, producers, clocks, flags)


def fill_journals(store: detent.Store) -> None:
    plain = store.journal("plain")
    for number in range(5):
        plain.append_many([(b"a%d" % number, b"key", {"h": "v"}), b"b", b"c"])
    plain.append(b"large" * 20_000)
    plain.set_registers({"author": "me"})
    store.commit([stamped("txn", (P1, 100, CONTINUE), (P2, 50, OUTSIDE), (P1, 110, CONTINUE))])
    store.commit([stamped("txn", (P1, 120, ACK), (P2, 60, CONTINUE))])
    store.commit([stamped("txn", (P1, 130, CONTINUE))])
    frag = store.journal("frag")
    frag.append(b"before")
    frag.adopt([frag.write_fragment(pa.table({"body": [b"f%d" % n for n in range(20)]}))])
    store.journal("gone").append(b"x")
    store.journal("gone").delete()


def fill_queues(store: detent.Store) -> None:
    store.queue("orders").create(max_attempts=3, backoff="5ms", done_retention="0s")
    store.queue("grouped").create(filter='headers["to"] == "grouped"', group_header="group")
    store.queue("gone").create()
    store.set_dedup_window("10h")
    orders = store.queue("orders")
    orders.publish_many([detent.Outgoing(b"a%d" % n, retention="0s") for n in range(6)])
    orders.publish(b"once", dedup_key="for ever", retention="0s")
    orders.publish(b"", uri="s3://bucket/key", retention="0s")
    headers = {"to": "grouped", "group": "one"}
    store.publish_many([detent.Outgoing(b"g%d" % n, headers, retention="0s") for n in range(4)])
    store.publish(b"unmatched", retention="0s")
    store.queue("gone").publish(b"x")
    first = orders.claim(4)
    orders.ack([first[0], first[3]])
    first[1].fail("again")
    first[2].fail("no", final=True)
    reader = store.queue("grouped").reader("stream")
    reader.open()
    reader.assign(0, 2)
    store.queue("gone").delete()


def fill_rest(store: detent.Store) -> None:
    with store.transaction() as transaction:
        transaction.enter_ledger("ledger", 0, "q", "r")
        transaction.append("plain", b"entered")
    store.pin("pin", {"plain": 3})
    store.commit([shard_ops.RegisterConsumer("consumer", 2, ["plain"], "key")])
    fence = store.commit([shard_ops.OpenShard("consumer", 0)])[0].fence
    store.commit([shard_ops.CommitShard("consumer", 0, fence, b"checkpoint", {"k": b"1"}, [])])
    store.commit([shard_ops.ReportShard("consumer", 0, 0, "", "", {"plain": 5}, {"far:x": 7}, keep=True)])
    store.commit([shard_ops.LeaseShard("consumer", 1, "member", 1000)])


def _shown(body: bytes) -> str:
    return body.decode() if len(body) < 100 else hashlib.sha256(body).hexdigest()


def contents(store: detent.Store) -> dict[str, Any]:
    found = {}
    for number in range(MESSAGES):
        with contextlib.suppress(detent.NotFound):
            message = store.message(number)
            body: bytes = message.body if hasattr(message, "body") else message.payload  # what that release calls it
            found[str(number)] = [body.decode(), message.uri, message.headers]
    return found


def said(store: detent.Store) -> dict[str, Any]:
    """What is read through the public API."""
    journals = {
        name: {
            "committed": [_shown(message.body) for message in store.journal(name).read()],
            "registers": store.journal(name).registers(),
        }
        for name in store.journals()
    }
    queues = {info.name: [info.available, info.in_flight, info.failed] for info in store.queues()}
    return {
        "journals": journals,
        "queues": queues,
        "unmatched": store.unmatched(),
        "contents": contents(store),
        "failed": [[failed.message, failed.reason] for failed in store.queue("orders").failed()],
        "ledgers": [[row.name, row.batch, row.run] for row in store.ledgers()],
        "pins": [[pin.name, pin.offsets] for pin in store.pins()],
        "consumers": [[found.name, len(found.shards), found.partition] for found in store.consumers()],
    }


def make_file(folder: Path) -> dict[str, Any]:
    url = f"file:{folder}"
    with detent.open(url) as store:
        fill_journals(store)
        fill_queues(store)
    pid = os.fork()
    if not pid:
        store = detent.open(url)
        fill_rest(store)
        (folder / "said.json").write_text(json.dumps(said(store)))
        os.kill(os.getpid(), 9)
    os.waitpid(pid, 0)
    answer: dict[str, Any] = json.loads((folder / "said.json").read_text())
    (folder / "said.json").unlink()
    return answer


def make_s3(output: Path) -> dict[str, Any]:
    import s3server
    from detent.kv.objectstore import open_bucket
    from detent.kv.urls import parse_url

    url = s3server.s3_store_url()
    with detent.open(url) as store:
        fill_journals(store)
        fill_queues(store)
        fill_rest(store)
        answer = said(store)
    import obstore

    bucket = open_bucket(parse_url(url))  # below the store's prefix
    with zipfile.ZipFile(output / "s3.zip", "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for page in obstore.list(bucket):
            for found in page:
                archive.writestr(found["path"], bytes(obstore.get(bucket, found["path"]).bytes()))
    return answer


def main(output: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "store"
        answer = make_file(store)
        with zipfile.ZipFile(output / "file.zip", "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
            for path in sorted(store.rglob("*")):
                if path.is_file() and path.name not in {"lock.mdb", "owner.lock", "owner.json"}:
                    archive.write(path, str(path.relative_to(store)))
    assert make_s3(output) == answer
    (output / "said.json").write_text(json.dumps(answer, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
