"""A store that is shared with a container: process numbers mean nothing there, and the lock does."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import detent
from detent.errors import Unavailable
from detent.kv.ownership import end_owner, read_owner

UNSHARE = ["unshare", "--pid", "--fork", "--mount-proc"]


def _unshare_works() -> bool:
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        return False
    return subprocess.run([*UNSHARE, "true"], capture_output=True, check=False).returncode == 0


pytestmark = pytest.mark.skipif(not _unshare_works(), reason="a PID namespace needs root and unshare")

CLIENT = """
import sys
import detent
from detent.kv.ownership import end_owner, is_owned, read_owner
from pathlib import Path
with detent.open("file:" + sys.argv[1], role=sys.argv[2], timeout="10s") as store:
    print(store.is_owner, store.journal("j").append(b"from elsewhere").offset)
"""


@pytest.mark.parametrize("role", ["client", "auto"])
def test_client_in_another_pid_namespace_finds_the_owner(store_dir: Path, role: str) -> None:
    with detent.open(f"file:{store_dir}") as store:
        store.journal("j").append(b"first")
        command = [*UNSHARE, sys.executable, "-c", CLIENT, str(store_dir), role]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        assert done.stdout == "False 1\n", done.stderr
        assert [message.body for message in store.journal("j").read()] == [b"first", b"from elsewhere"]


OWNER = """
import sys
import detent
store = detent.open("file:" + sys.argv[1])
store.journal("j").append(b"first")
print("owns", flush=True)
sys.stdin.read()
"""


def test_owner_in_another_pid_namespace_is_found_and_not_killed(store_dir: Path) -> None:
    """Its number may be that of any process here."""
    command = [*UNSHARE, "--kill-child", sys.executable, "-c", OWNER, str(store_dir)]
    with subprocess.Popen(command, stdin=-1, stdout=-1, text=True) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline() == "owns\n"
        known = read_owner(store_dir)
        assert known is not None
        assert known.is_elsewhere
        with detent.open(f"file:{store_dir}", role="client") as store:
            assert store.journal("j").append(b"second").offset == 1
        with pytest.raises(Unavailable, match="PID namespace"):
            end_owner(store_dir, known)
        process.stdin.close()
        assert process.wait(30) == 0
    assert read_owner(store_dir) is None
    with detent.open(f"file:{store_dir}") as store:
        assert store.journal("j").append(b"third").offset == 2


def test_process_with_the_number_of_another_namespaces_process_is_told_so(store_dir: Path) -> None:
    """The first process of every container has the number 1."""
    owner = [*UNSHARE, "--kill-child", sys.executable, "-c", OWNER, str(store_dir)]
    with subprocess.Popen(owner, stdin=-1, stdout=-1, text=True) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline() == "owns\n"
        client = [*UNSHARE, sys.executable, "-c", CLIENT, str(store_dir), "client"]
        done = subprocess.run(client, check=False, capture_output=True, text=True)
        assert "another process with the number 1, of another PID namespace" in done.stderr
        assert "detent serve" in done.stderr
        process.stdin.close()
