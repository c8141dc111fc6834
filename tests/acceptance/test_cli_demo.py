"""`detent demo`, as a person runs it: real processes, killed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import sparkling

for module in ("pyspark", "deltalake", "duckdb", "matplotlib"):
    pytest.importorskip(module)

pytestmark = sparkling.PROCESS_MARKS

PNG = b"\x89PNG\r\n\x1a\n"


def processes_in(folder: Path) -> list[str]:
    """Processes of the demo that are still there; their folder is among their arguments."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_bytes().decode(errors="replace")
        except OSError:  # it ended meanwhile
            continue
        if str(folder) in command:
            found.append(command.replace("\0", " "))
    return found


@pytest.mark.timeout(600)  # Spark starts twice, which takes minutes on a machine that has much else to do
def test_every_order_takes_effect_once_although_owner_and_driver_are_killed(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    done = subprocess.run(
        [sys.executable, "-m", "detent.cli", "demo", "--messages", "3000", "--kills", "2", "--seconds", "15", "--json",
         "--folder", str(folder)],
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert summary.keys() == {"messages", "kills", "finished", "lost", "duplicated", "seconds", "rows_per_second"}
    assert summary["finished"]
    assert (summary["messages"], summary["kills"], summary["lost"], summary["duplicated"]) == (3000, 2, 0, 0)
    assert "kill -9 for the owner" in done.stderr
    assert "kill -9 for the driver" in done.stderr
    assert (folder / "demo.png").read_bytes().startswith(PNG)
    assert not (folder / "store").exists()
    assert processes_in(folder) == []
