"""A disk that fails to write a page of the data file, and is well again: the owner goes on, and its answers hold."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import detent

COMPILER = shutil.which("cc") or shutil.which("gcc")

SCRIPT = """
import json, pathlib, sys
import detent
from detent.errors import DetentError, Unavailable

flag = pathlib.Path(sys.argv[2])
outcomes = []
with detent.open("file:" + sys.argv[1], timeout="2s") as store:
    journal = store.journal("j")

    def append(body):
        try:
            outcomes.append(journal.append(body).offset)
        except DetentError as error:
            outcomes.append([type(error).__name__, str(error)])

    append(b"before")
    flag.touch()
    append(b"large " + bytes(400_000))  # to LMDB at once
    append(b"large " + bytes(400_000))
    flag.unlink()
    append(b"after")
    append(b"large " + bytes(400_000))
    bodies = [message.body[:6].decode() for message in journal.read()]
print(json.dumps([outcomes, bodies]))
"""


@pytest.mark.skipif(COMPILER is None or sys.platform != "linux", reason="needs a C compiler and preloaded libraries")
def test_owner_goes_on_after_a_failed_write_of_a_meta_page(tmp_path: Path) -> None:
    assert COMPILER is not None
    library = tmp_path / "failing.so"
    source = Path(__file__).parent / "failing_meta.c"
    subprocess.run([COMPILER, "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True)
    environment = {**os.environ, "LD_PRELOAD": str(library), "DETENT_FAIL_WHILE": str(tmp_path / "failing")}
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "store"), environment["DETENT_FAIL_WHILE"]]
    done = subprocess.run(command, env=environment, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (first, *failed, after, large), bodies = json.loads(done.stdout)
    assert (first, after, large) == (0, 1, 2), "the owner went on by itself"
    assert [kind for kind, _ in failed] == ["Unavailable"] * 2
    assert all("not applied" in said and "Input/output error" in said for _, said in failed)
    assert "is opened again" in done.stderr
    assert bodies == ["before", "after", "large "]
    with detent.open(f"file:{tmp_path / 'store'}") as store:
        assert [message.body[:6].decode() for message in store.journal("j").read()] == bodies
