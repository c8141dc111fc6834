"""Runs the shop, kills its processes at random with kill -9, and balances the books.

    python examples/shop/run.py --orders 200 --kills 10

A web process and workers for each app run in a folder that goes at the end (or stays, with --folder). Customers place
orders over HTTP, and ask again until they are answered. Meanwhile processes die: those that come in their place finish.
At the end each order has one invoice and one mail, or the exit code is 1.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import random
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

if TYPE_CHECKING:
    from books import Books

HERE = Path(__file__).resolve().parent
CUSTOMERS = 4
PATIENCE_S = 120.0
"""How long nothing may happen before this gives up: never reached, unless something is lost."""

LOOK_S = 0.02
GRACE_S = 20.0

Orders = dict[str, int]


# -- processes --------------------------------------------------------------------------------------------------------


@dataclass
class Part:
    """A process that is started again when it dies."""

    name: str
    command: list[str]
    fds: tuple[int, ...] = ()
    process: subprocess.Popen[bytes] | None = None

    def start(self, log: Path) -> None:
        """Start it. What it says goes to a file: processes that are killed leave complaints of others behind."""
        with log.open("ab") as out:
            self.process = subprocess.Popen(
                [sys.executable, *self.command], stdin=subprocess.DEVNULL, stdout=out, stderr=out, pass_fds=self.fds
            )

    @property
    def runs(self) -> bool:
        """Whether it is there."""
        return self.process is not None and self.process.poll() is None

    def tell(self, number: signal.Signals) -> None:
        """Send it a signal, by its id."""
        if self.process is not None and self.runs:
            self.process.send_signal(number)


@dataclass
class Shop:
    """All processes of the shop, and who of them was killed."""

    folder: Path
    door: socket.socket
    workers: int
    parts: list[Part] = field(default_factory=list)
    killed: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.parts.append(Part("web", [str(HERE / "web.py"), "--fd", str(self.door.fileno())], (self.door.fileno(),)))
        for app in ("invoices", "mail"):
            self.parts += [Part(app, [str(HERE / "shop.py"), app]) for _ in range(self.workers)]

    @property
    def log(self) -> Path:
        """What the processes say."""
        return self.folder / "log.txt"

    def keep_running(self) -> None:
        """Start what is not there."""
        for part in self.parts:
            if not part.runs:
                part.start(self.log)

    def kill_one(self, chance: random.Random) -> None:
        """Kill one of them, as a machine that fails would."""
        part = chance.choice([one for one in self.parts if one.runs])
        assert part.process is not None
        part.tell(signal.SIGKILL)
        part.process.wait()
        self.killed.append(part.name)

    def stop(self) -> None:
        """End all: gently, and then by kill."""
        for part in self.parts:
            part.tell(signal.SIGTERM)
        deadline = time.monotonic() + GRACE_S
        for part in self.parts:
            if part.process is not None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    part.process.wait(max(0.1, deadline - time.monotonic()))
                part.tell(signal.SIGKILL)
                part.process.wait()


# -- customers --------------------------------------------------------------------------------------------------------


def place(client: httpx.Client, order: str, cents: int, stopping: threading.Event) -> None:
    """Place an order, and ask again until there is an answer: whether it was heard the last time is not known."""
    while not stopping.is_set():
        with contextlib.suppress(httpx.TransportError):
            answer = client.post("/orders", json={"id": order, "cents": cents})
            if answer.status_code < 500:
                answer.raise_for_status()
                return
        stopping.wait(0.05)


@contextlib.contextmanager
def customers(port: int, orders: Orders) -> Iterator[None]:
    """Place all orders, several at once, while the block runs."""
    stopping = threading.Event()
    with (
        httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=10) as client,
        ThreadPoolExecutor(CUSTOMERS) as pool,
    ):
        placing = [pool.submit(place, client, order, cents, stopping) for order, cents in orders.items()]
        try:
            yield
            for one in placing:
                one.result()
        finally:
            stopping.set()


# -- the run ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Counts:
    """How far the shop is: rows of the business, and messages that wait."""

    rows: int = 0
    waiting: int = 0  # in the outbox


def look(file: Path) -> Counts | None:
    """Look into the database from outside; None if it cannot be read just now."""
    try:
        with contextlib.closing(sqlite3.connect(file, timeout=5)) as database:
            tables = ("orders", "invoices", "mails", "detent_outbox")
            *rows, waiting = (database.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in tables)
    except sqlite3.OperationalError:  # another process tidies up after one that was killed
        return None
    return Counts(sum(rows), waiting)


def trade(shop: Shop, orders: Orders, kills: int, chance: random.Random, show: Callable[[int], None]) -> None:
    """Run the shop until every order is through, and kill processes on the way, as evenly as the work goes on."""
    whole, seen, moved = 3 * len(orders), Counts(), time.monotonic()
    while seen.rows < whole or seen.waiting:
        shop.keep_running()
        time.sleep(LOOK_S)
        found = look(shop.folder / "shop.db") or seen
        if found != seen:
            seen, moved = found, time.monotonic()
        if len(shop.killed) < kills and seen.rows * (kills + 1) >= whole * (len(shop.killed) + 1):
            shop.kill_one(chance)
        show(seen.rows)
        if time.monotonic() - moved > PATIENCE_S:
            break


def empty_queues() -> bool:
    """Whether no message is left of a process that was killed. The books do not change any more, if all is well."""
    from books import APPS
    from shop import STORE

    import detent

    with detent.open(STORE) as store:
        infos = [store.queue(app).info() for app in APPS]
    return not any(info.available + info.in_flight for info in infos)


def run(folder: Path, options: argparse.Namespace, show: Callable[[int], None]) -> tuple[Books, list[str]]:
    """All of it: set up, trade, stop, balance. The books, and who was killed."""
    os.environ["SHOP_DATA"] = str(folder)  # for the processes, and for what is imported here from now on
    import books
    import shop as parts

    chance = random.Random(options.seed)
    orders = {f"o-{number}": chance.randrange(100, 100_000) for number in range(options.orders)}
    parts.setup()
    with contextlib.ExitStack() as stack:
        door = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=64))
        shop = Shop(folder, door, options.workers)
        stack.callback(parts.engine.dispose)
        stack.callback(shop.stop)
        with customers(door.getsockname()[1], orders):
            trade(shop, orders, options.kills, chance, show)
        deadline = time.monotonic() + PATIENCE_S
        while not empty_queues() and time.monotonic() < deadline:
            shop.keep_running()
            time.sleep(LOOK_S)
        shop.stop()
        return books.balance(orders), shop.killed


def report(console: Console, found: Books, killed: list[str]) -> None:
    """The books as a table."""
    table = Table("", "count", "euros")
    for name in ("orders", "invoices", "mails"):
        table.add_row(name, str(getattr(found, name)), f"{found.cents[name] / 100:,.2f}")
    table.add_row("mails of the mail server", str(found.mails_kept), "")
    table.add_row("  it was asked for", str(found.mails_asked), "")
    table.add_row("processes killed", str(len(killed)), "")
    console.print(table)
    console.print("\n".join(found.wrong) or "the books balance")


def main() -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--orders", type=int, default=200, help="orders to place (200)")
    parser.add_argument("--kills", type=int, default=10, help="processes to kill (10)")
    parser.add_argument("--workers", type=int, default=2, help="processes for each app (2)")
    parser.add_argument("--seed", type=int, help="for the same orders and the same victims again")
    parser.add_argument("--folder", type=Path, help="where to keep everything; it has to be new")
    parser.add_argument("--json", action="store_true", help="say what was found in one line of JSON")
    options = parser.parse_args()
    console = Console()
    with contextlib.ExitStack() as stack:
        folder = options.folder or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="detent-shop-")))
        folder.mkdir(parents=True, exist_ok=options.folder is None)
        is_shown = console.is_terminal and not options.json
        progress = stack.enter_context(Progress(console=console, disable=not is_shown, transient=True))
        task = progress.add_task("orders, invoices, mails", total=3 * options.orders)
        found, killed = run(folder.resolve(), options, lambda rows: progress.update(task, completed=rows))
        progress.stop()
        if options.json:
            print(json.dumps({**asdict(found), "killed": killed}))
        else:
            report(console, found, killed)
    return 1 if found.wrong else 0


if __name__ == "__main__":
    if importlib.util.find_spec("fastapi") is None:
        sys.exit("the shop's door needs FastAPI: pip install fastapi")
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
