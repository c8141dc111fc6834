"""Several servers of one store on an object store, each a process with a line of its own to the bucket.

with cluster(3) as servers:                   # one owns the store, two stand by
    with detent.open(servers.url) as store:   # http://127.0.0.1:P,http://127.0.0.1:Q,...
        servers.leader().kill()
        store.journal("j").append(b"x")       # answered by the next one

`Clients`, in a ``with`` block, write, claim and follow through it all, and check at the end what was lost or doubled.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Self

import detent
import s3server
from detent.errors import StaleReceipt
from detent.kv.leaseobject import LeaseNote, LeaseObject
from processes import PATIENCE_S, eventually
from s3proxy import FaultyS3
from servers import HOST, free_port
from zygote import Forked

STANDING = re.compile(r"detent stands by for ")
SERVING = re.compile(r"detent serves ")
WRITERS, CONSUMERS = 2, 2
OWNER_S = 120.0
"""How long a test waits for the next owner: one that cannot open the store gives it to another after ten seconds."""


class Member:
    """A server of the cluster, which may be killed and started again on its port."""

    def __init__(self, url: str, lease: str, *options: str, host: str = HOST, wrapper: Sequence[str] = ()) -> None:
        self.host = host
        self.port = free_port()
        self.url = f"http://{host}:{self.port}"
        self.bucket = FaultyS3(s3server.shared_server().endpoint)
        self.environment = s3server.environment_for(self.bucket.url)
        self._command = [*wrapper, sys.executable, "-m", "detent.cli", "serve", url, "--port", str(self.port)]
        self._command += ["--lease", lease, "--log-level", "warning", *options]
        self._reading: threading.Thread | None = None
        self.process: Any = None
        self.lines: list[str] = []

    def start(self, pattern: re.Pattern[str] | None = STANDING, **environment: str) -> None:
        """Start it, and wait until it says this."""
        self.lines = []
        self.process = Forked(
            self._command,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            text=True,
            env={**os.environ, **self.environment, **environment},
        )
        self._reading = threading.Thread(target=self._read, args=(self.process, self.lines), daemon=True)
        self._reading.start()
        if pattern is not None:
            self.await_line(pattern)

    @staticmethod
    def _read(process: Any, lines: list[str]) -> None:
        lines.extend(iter(process.stderr.readline, ""))

    def await_line(self, pattern: re.Pattern[str], seconds: float = PATIENCE_S) -> None:
        """Wait until it has said this since it was started."""
        deadline = time.monotonic() + seconds
        while not pattern.search(self.log):
            assert self.process.poll() is None, self.log
            assert time.monotonic() < deadline, f"no {pattern.pattern} in {self.log}"
            time.sleep(0.01)

    @property
    def log(self) -> str:
        return "".join(self.lines)

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        self.process.kill()
        self.wait()

    def wait(self, seconds: float = PATIENCE_S) -> int:
        """Its exit code."""
        code: int = self.process.wait(seconds)
        assert self._reading is not None
        self._reading.join(PATIENCE_S)
        self.process.stderr.close()
        return code

    def close(self) -> None:
        if self.process is not None and self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                self.signal(signal.SIGCONT)
            self.kill()
        self.bucket.close()


class Servers:
    """The members, and what the lease says of them."""

    def __init__(self, store_url: str, members: list[Member]) -> None:
        self.store_url = store_url
        self.members = members
        self._lease = LeaseObject.of(store_url, PATIENCE_S)

    @property
    def url(self) -> str:
        """What clients open."""
        return ",".join(member.url for member in self.members)

    def note(self) -> LeaseNote | None:
        found = self._lease.read()
        return None if found is None else found.note

    def owner(self) -> Member | None:
        """The member that the lease names, once it serves."""
        note = self.note()
        if note is None or note.state != "serving":
            return None
        return next((member for member in self.members if note.addresses == [member.url]), None)

    def leader(self, *, other_than: Member | None = None) -> Member:
        """The member that owns the store, once one does."""

        def found() -> Member | None:
            owner = self.owner()
            return None if owner is other_than else owner

        try:
            return eventually(found, seconds=OWNER_S, what="an owner")  # type: ignore[no-any-return]
        except AssertionError as error:
            logs = "".join(f"\n{member.url}\n{member.log[-2000:]}" for member in self.members)
            raise AssertionError(f"{error}; the lease says {self.note()}; the servers say{logs}") from error


@contextmanager
def cluster(size: int, *, lease: str = "2500ms") -> Iterator[Servers]:
    """So many servers with `--standby`, on a new store. One owns it when the block begins."""
    url = s3server.s3_store_url()
    with serving(url, [Member(url, lease, "--standby") for _ in range(size)]) as servers:
        yield servers


@contextmanager
def serving(url: str, members: list[Member]) -> Iterator[Servers]:
    """These members, started. One owns the store when the block begins."""
    try:
        for member in members:
            member.start()
        servers = Servers(url, members)
        servers.leader()
        yield servers
    finally:
        for member in members:
            member.close()


@dataclass
class Clients:
    """Writers that append and publish in one transaction, consumers that turn each message into one effect, and a
    reader that follows. None of them may meet an error, whatever happens to the servers."""

    url: str
    timeout: str = "120s"
    acked: list[tuple[float, bytes, int]] = field(default_factory=list)
    """When each append was acknowledged, what it was, and its offset."""

    effects: list[bytes] = field(default_factory=list)
    followed: list[bytes] = field(default_factory=list)
    errors: list[BaseException] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._end = threading.Event()
        self._is_abandoned = False
        with detent.open(self.url, timeout=self.timeout) as store:
            store.queue("q").create(lease="5s", backoff="0s", max_attempts=0)
        self._writers = [self._started(self._write, number) for number in range(WRITERS)]
        self._writers.append(self._started(self._write_async))
        self._others = [self._started(self._consume) for _ in range(CONSUMERS)] + [self._started(self._follow)]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Let them go, also when the test has failed."""
        self._is_abandoned = True
        self._end.set()
        for thread in (*self._writers, *self._others):
            thread.join()

    def _started(self, work: Callable[..., None], *arguments: Any) -> threading.Thread:
        def run() -> None:
            try:
                work(*arguments)
            except BaseException as error:  # the test raises it
                self.errors.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        return thread

    def _write(self, writer: int) -> None:
        number = 0
        with detent.open(self.url, timeout=self.timeout) as store:
            while not self._end.is_set():
                body = b"%d-%d" % (writer, number)
                with store.transaction() as t:
                    appended = t.append("written", body)
                    t.publish(body, queue="q")
                self.acked.append((time.monotonic(), body, t.results[appended].offset))
                number += 1
                time.sleep(0.002)

    def _write_async(self) -> None:
        asyncio.run(self._write_on_a_loop())

    async def _write_on_a_loop(self) -> None:
        number = 0
        async with detent.open_async(self.url, timeout=self.timeout) as store:
            while not self._end.is_set():
                body = b"async-%d" % number
                async with store.transaction() as t:
                    appended = t.append("written", body)
                    t.publish(body, queue="q")
                self.acked.append((time.monotonic(), body, t.results[appended].offset))
                number += 1
                await asyncio.sleep(0.002)

    def _consume(self) -> None:
        with detent.open(self.url, timeout=self.timeout) as store:
            while True:
                messages = store.queue("q").claim(20, wait="300ms")
                if not messages and self._end.is_set() and store.queue("q").info().in_flight == 0:
                    return
                for message in messages:
                    try:
                        with store.transaction() as t:
                            t.append("effects", message.body)
                            t.ack(message)
                    except StaleReceipt:  # its lease ended while no server answered, and another consumer has it
                        continue

    def _follow(self) -> None:
        with detent.open(self.url, role="reader", timeout=self.timeout) as store:
            at = 0
            while not (self._end.is_set() and self.followed[-1:] == [b"end"]):
                for message in store.journal("written").tail(at, timeout="1s"):
                    self.followed.append(message.body)
                at = len(self.followed)
                if self._end.is_set() and self._is_abandoned:
                    return

    def gap(self, began: float) -> float:
        """The longest time without an acknowledgement since then, and the one that was waited for then."""
        before = [at for at, *_ in list(self.acked) if at <= began][-1:]
        times = before + [at for at, *_ in list(self.acked) if at > began]
        return max((later - earlier for earlier, later in itertools.pairwise(times)), default=0.0)

    def await_acks(self, count: int = 20) -> None:
        """Wait until so many more were acknowledged: service is back."""
        so_far = len(self.acked)
        eventually(lambda: self.errors or len(self.acked) >= so_far + count, seconds=OWNER_S, what="acknowledgements")
        assert self.errors == []

    def check(self) -> None:
        """Stop them, and look: nothing lost, nothing doubled, and every acknowledgement true of the store that is
        left, as it could not be if two servers had committed."""
        self._end.set()
        for thread in self._writers:
            thread.join()
        with detent.open(self.url, timeout=self.timeout) as store:
            end = store.journal("written").append(b"end").offset
            for thread in self._others:
                thread.join()
            assert self.errors == []
            written = [message.body for message in store.journal("written").read()]
            effects = Counter(message.body for message in store.journal("effects").read())
        assert len(written) == end + 1
        bodies = written[:-1]
        assert len(bodies) == len(set(bodies)), "doubled"
        assert [(body, offset) for _, body, offset in self.acked if written[offset] != body] == [], (
            "not where it was acknowledged"
        )
        assert set(bodies) == {body for _, body, _ in self.acked}, "lost"
        assert effects == Counter(bodies), "a message without its effect, or with two"
        assert self.followed == written
