"""Keys that several processes make and revoke at the same moment: none gets lost, and none comes back."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from pathlib import Path

from detent.server import keys
from processes import Child, Io, Processes

MAKERS = 8
ROUNDS = 6
KEYS_EACH = 4
START_S = 0.3
"""Enough for everybody to hear when to begin."""


def changes_keys(io: Io, path: str) -> None:
    """A process that changes a file of keys at a time that it is told."""
    file = Path(path)
    io.say("ready")
    while True:
        work = io.hear()
        while time.time() < work["at"]:
            pass
        for name in work["revoke"]:
            keys.remove_key(file, name)
        for name in work["create"]:
            keys.add_key(file, keys.new_key(name, ["admin:*:*"], now=datetime.now(UTC)))
        io.say("done")


def started(processes: Processes, path: Path, count: int) -> list[Child]:
    children = [processes.start(changes_keys, path=str(path)) for _ in range(count)]
    for child in children:
        child.expect("ready")
    return children


def together(work: list[tuple[Child, list[str], list[str]]]) -> None:
    """Have each process revoke some keys, then create some."""
    at = time.time() + START_S
    for child, revoke, create in work:
        child.tell(at=at, revoke=revoke, create=create)
    for child, _, _ in work:
        child.expect("done")


def names(path: Path) -> set[str]:
    return {key["name"] for key in json.loads(path.read_text())["keys"]}


def test_keys_made_at_the_same_moment_are_all_kept(tmp_path: Path, processes: Processes) -> None:
    path = tmp_path / "keys.json"
    wanted = {number: [f"{number}-{n}" for n in range(KEYS_EACH)] for number in range(MAKERS)}
    together([(child, [], wanted[n]) for n, child in enumerate(started(processes, path, MAKERS))])
    assert names(path) == {name for made in wanted.values() for name in made}
    assert list(tmp_path.iterdir()) == [path]


def test_a_revoked_key_does_not_come_back(tmp_path: Path, processes: Processes) -> None:
    path = tmp_path / "keys.json"
    revoker, *makers = started(processes, path, 4)
    for turn in range(ROUNDS):
        keys.add_key(path, keys.new_key(f"admin-{turn}", ["admin:*:*"], now=datetime.now(UTC)))
        work = [(child, [], [f"{turn}-{n}-{k}" for k in range(KEYS_EACH)]) for n, child in enumerate(makers)]
        together([(revoker, [f"admin-{turn}"], []), *work])
        assert f"admin-{turn}" not in names(path)
    assert len(names(path)) == ROUNDS * len(makers) * KEYS_EACH
