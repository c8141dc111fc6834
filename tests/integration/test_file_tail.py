"""LMDB counts pages that it gave back before it ever wrote them: a store whose file ends before the last page that LMDB
has counted is whole, and must open; a store whose file lacks a page that is in use must not."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path

from detent import kv


def test_a_file_that_lacks_only_unused_pages_opens(store_dir: Path, tmp_path: Path) -> None:
    """After each of many commits, the files as a killed owner would leave them can be opened."""
    choose = random.Random(1)
    writer = kv.open_writer(f"file:{store_dir}")
    for number in range(60):
        batch = kv.Batch()
        keys = [b"k%06d" % choose.randint(0, 100_000) for _ in range(choose.randint(1, 60))]
        for key in keys:
            batch.put(key, os.urandom(choose.choice([10, 200, 1000, 1500])))
        writer.commit(batch)
        with writer.view() as view:
            oldest = [key for key, _ in view.scan(b"k", limit=choose.randint(0, 90))]
        batch = kv.Batch()
        for key in {*oldest, *keys[: len(keys) // 2]}:
            batch.delete(key)
        writer.commit(batch)
        writer.maintain()
        copy = tmp_path / f"copy {number}"
        shutil.copytree(store_dir, copy)
        reader = kv.open_reader(f"file:{copy}")
        with writer.view() as expected, reader.view() as found:
            assert dict(found.scan(b"k")) == dict(expected.scan(b"k"))
        reader.close()
        shutil.rmtree(copy)
    writer.close()
