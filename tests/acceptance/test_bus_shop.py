"""The example shop: run with processes killed on the way, and its books checked by somebody who can find mistakes."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

from acceptance.test_cli import environment
from processes import Io, Processes, session_of

SHOP = Path(__file__).resolve().parents[2] / "examples" / "shop"
SECONDS = 120
ORDERS, KILLS = 24, 3


def start(*command: str, **env: str) -> subprocess.Popen[str]:
    """A program of the example, which begins a session of its own: so that nothing of it can be left over."""
    return subprocess.Popen(
        [sys.executable, *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        env=environment(**env),
    )  # fmt: skip


def finished(child: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Its exit code and what it said; nothing that it has started runs on."""
    with child:
        try:
            said, errors = child.communicate(timeout=SECONDS)
            left = session_of(child.pid)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
    assert left == []
    return child.returncode, said, errors


def test_processes_are_killed_and_the_books_balance(tmp_path: Path, processes: Processes) -> None:
    folder = tmp_path / "shop"
    options = ["--orders", str(ORDERS), "--kills", str(KILLS), "--workers", "1", "--seed", "7", "--json"]
    code, said, errors = finished(start(str(SHOP / "run.py"), *options, "--folder", str(folder)))
    assert (code, errors) == (0, "")
    found = json.loads(said)
    assert found["wrong"] == []
    assert len(found["killed"]) == KILLS
    assert (found["orders"], found["invoices"], found["mails"], found["mails_kept"]) == (ORDERS,) * 4
    assert found["mails_asked"] >= ORDERS
    assert len(set(found["cents"].values())) == 1
    assert "Traceback" not in (folder / "log.txt").read_text()
    checker = processes.start(balances, folder=str(folder), damages=list(DAMAGES))
    for damage, complaints in DAMAGES.items():
        wrong = checker.expect("wrong")["said"]
        assert all(any(one in said for said in wrong) for one in complaints), (damage, wrong)
        assert bool(wrong) == bool(complaints), (damage, wrong)
    assert checker.wait() == 0, checker.errors()


# -- a proof that cannot fail is none ----------------------------------------------------------------------------------

DAMAGES = {
    "SELECT 1": [],
    "DELETE FROM invoices WHERE number = 1": ["has no invoice", "for the invoice 1, which does not exist", "the sums"],
    'INSERT INTO invoices ("order", cents) SELECT "order", cents FROM invoices WHERE number = 2': [
        "has 2 invoices", "has no mail", "the sums differ",
    ],
    "INSERT INTO mails (invoice, cents, key) SELECT invoice, 0, key FROM mails WHERE number = 3": ["has 2 mails"],
    "UPDATE mails SET key = 'mail:other' WHERE number = 4": ["the mail server has"],
    "UPDATE invoices SET cents = cents + 1 WHERE number = 5": ["the sums differ"],
    "DELETE FROM detent_handled WHERE rowid = (SELECT min(rowid) FROM detent_handled)": ["has marked"],
    "INSERT INTO detent_outbox (lane, message_id, headers, body, saved_at) VALUES ('queue:x', 'x', '{}', '', 0)": [
        "1 messages are left in the outbox",
    ],
}  # fmt: skip
"""What is done to the books, and what whoever checks them has to say about it."""


def balances(io: Io, folder: str, damages: list[str]) -> None:
    """In a process of its own: what is wrong with the books, after each change to them, which is then taken back."""
    os.environ["SHOP_DATA"] = folder
    sys.path.insert(0, str(SHOP))
    books: Any = importlib.import_module("books")
    shop: Any = importlib.import_module("shop")
    file = Path(folder) / "shop.db"
    whole = file.read_bytes()
    for damage in damages:
        with contextlib.closing(sqlite3.connect(file)) as database, database:
            database.execute(damage)
        io.say("wrong", said=books.balance().wrong)
        shop.engine.dispose()
        file.write_bytes(whole)
