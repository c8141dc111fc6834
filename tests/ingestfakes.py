"""A world for one pipeline without Spark.

The queue has visibility, on a clock that the test moves; S3 is a dictionary; the job writes down which files it was
given. The database, the committer and the fetching of files are the real ones.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from botocore.exceptions import ClientError
from pyspark.sql.types import StructType
from sqlalchemy import select, update

from detent.ingest import metastore, ownership, steering
from detent.ingest.commit_manifest import ManifestCommitter
from detent.ingest.committer import BatchOutput
from detent.ingest.config import IngestConfig
from detent.ingest.coordinator import QueueCoordinator
from detent.ingest.job import BatchFailed
from detent.ingest.local_state import HeldFile
from detent.ingest.objects import FileObjects
from detent.ingest.shard_sql import FILES, SHARDS
from detent.ingest.shared_state import QueueSharedState
from detent.ingest.staging import Staging
from detent.tables.files import WrittenFile
from detent.transports.contract import Delivery

RECEIVE_S, EXTENSION_S, LAST_S, GRACE_S, RETRY_S = 180, 60, 120, 120, 10
MARGIN_S = 4


@dataclass
class Entry:
    body: bytes
    visible_at: float = 0.0
    receipt: str = ""
    deliveries: int = 0


class Queue:
    """Delivers again what was not acknowledged in time; a receipt is worth nothing from then on."""

    name = "landing"
    visibility_max_s = 43_200.0

    def __init__(self, world: World) -> None:
        self._world = world
        self.entries: dict[str, Entry] = {}
        self.acknowledged: list[str] = []
        self.unreachable = False

    def send(self, body: bytes) -> str:
        name = f"m{len(self.entries) + len(self.acknowledged)}"
        self.entries[name] = Entry(body)
        return name

    def receive(self, limit: int, wait_s: float, visibility_s: float) -> Sequence[Delivery]:
        found = []
        for name, entry in self.entries.items():
            if entry.visible_at <= self._world.now and len(found) < limit:
                entry.deliveries += 1
                entry.visible_at = self._world.now + visibility_s
                entry.receipt = f"{name}/{entry.deliveries}"
                found.append(Delivery(name, entry.receipt, entry.body, entry.deliveries))
        return found

    def _current(self, delivery: Delivery) -> Entry | None:
        entry = self.entries.get(delivery.message_id)
        is_current = entry is not None and entry.receipt == delivery.receipt and entry.visible_at > self._world.now
        return entry if is_current and not self.unreachable else None

    def extend(self, deliveries: Sequence[Delivery], visibility_s: float) -> Sequence[Delivery]:
        failed = [one for one in deliveries if self._current(one) is None]
        for one in deliveries:
            if one not in failed:
                self.entries[one.message_id].visible_at = self._world.now + visibility_s
        return failed

    def give_back(self, deliveries: Sequence[Delivery]) -> None:
        failed = self.extend(deliveries, 0)
        for one in deliveries:
            if one not in failed:
                self.entries[one.message_id].deliveries -= 1

    def acknowledge(self, deliveries: Sequence[Delivery]) -> Sequence[Delivery]:
        failed = [one for one in deliveries if self._current(one) is None]
        for one in deliveries:
            if one not in failed:
                del self.entries[one.message_id]  # a second time in one call is an error
                self.acknowledged.append(one.message_id)
        return failed

    def retention_s(self) -> float | None:
        return 4 * 86_400.0

    def close(self) -> None:
        """Nothing to let go of."""


class Bucket:
    """What of S3's client is used, in memory."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.answers = True

    def put(self, key: str, content: str) -> str:
        self.objects[key] = content.encode()
        return hashlib.md5(self.objects[key]).hexdigest()

    def _get(self, key: str) -> bytes:
        if not self.answers:
            raise ClientError({"Error": {"Code": "SlowDown"}}, "GetObject")
        if key not in self.objects:
            raise ClientError({"Error": {"Code": "404"}}, "GetObject")
        return self.objects[key]

    def head_object(self, *, Bucket: str, Key: str) -> dict[str, Any]:
        content = self._get(Key)
        return {"ContentLength": len(content), "ETag": f'"{hashlib.md5(content).hexdigest()}"'}

    def get_object(self, *, Bucket: str, Key: str, IfMatch: str = "") -> dict[str, Any]:
        content = self._get(Key)
        if IfMatch and IfMatch.strip('"') != hashlib.md5(content).hexdigest():
            raise ClientError({"Error": {"Code": "412"}}, "GetObject")
        return {"Body": Body(content)}


class Body(io.BytesIO):
    def iter_chunks(self, size: int) -> Iterator[bytes]:
        return iter(lambda: self.read(size), b"")


class Job:
    """Fetches files as the real one does, and writes their names down instead of their rows."""

    def __init__(self, world: World, committer: ManifestCommitter, objects: FileObjects) -> None:
        self._world, self._committer, self._objects = world, committer, objects
        self.runs: list[list[str]] = []
        self.poison: set[str] = set()
        self.names_suspects = False
        self.fatal: BaseException | None = None
        self.meanwhile: Callable[[], None] = lambda: None

    def check_working(self) -> None:
        """Nothing is wrong with this one, unless a test says so."""

    def run(self, batch: str, files: Sequence[HeldFile]) -> BatchOutput:
        self.runs.append(sorted(name_of(file.shard.uri) for file in files))
        folder = Path(self._committer.folder_of(batch))
        with Staging(self._world.folder / "staging" / batch, files, self._objects) as staging:
            staging.fetch()
        if self.fatal is not None:
            raise self.fatal
        poison = [file for file in files if name_of(file.shard.uri) in self.poison]
        if poison:
            raise BatchFailed("the file is no gzip", poison if self.names_suspects else [])
        folder.mkdir(parents=True)
        path = folder / "part.parquet"
        path.write_text(json.dumps(self.runs[-1]))
        meanwhile, self.meanwhile = self.meanwhile, lambda: None
        meanwhile()
        return BatchOutput(
            batch, str(folder), (WrittenFile(f"data/{batch}/part.parquet", 1, len(files), {}, 0, "{}"),), StructType([])
        )


class Pipeline(QueueCoordinator):
    """A pipeline that is stepped by hand."""

    def __init__(self, world: World, token: str) -> None:
        shared = QueueSharedState(world.engine, world.config.name, token, round(world.config.grace_s * 1000))
        committer = ManifestCommitter(world.config.location, shared)
        objects = FileObjects(world.config.identity, allow=world.config.allow)
        objects._client = world.bucket
        self.job = Job(world, committer, objects)
        super().__init__(
            world.config, world.queue, shared, committer, objects, self.job, clock=lambda: world.now  # type: ignore[arg-type]
        )  # fmt: skip

    def begin(self) -> list[HeldFile]:
        return self.next_batch(is_draining=True)

    def work(self) -> None:
        """All that can be done now."""
        self.poll(0)
        while files := self.begin():
            self.run_batch(files)


class World:
    """A queue, a bucket, a database, and the time."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.folder, self.now = folder, 1_000.0
        given = {"name": "orders", "queue": "sqs:landing", "table": "table", "folder": str(folder), **settings}
        self.config = IngestConfig(**given)
        self.queue, self.bucket = Queue(self), Bucket()
        self.engine = metastore.connect(self.config.state_url)
        ownership.register(self.engine, self.config)

    def pipeline(self, token: str = "p1") -> Pipeline:
        return Pipeline(self, token.ljust(32, "0"))

    def sleep(self, seconds: float) -> None:
        """Time passes, in the database as well."""
        self.now += seconds
        with self.engine.begin() as connection:
            connection.execute(update(SHARDS).values(updated_at=SHARDS.c.updated_at - round(seconds * 1000)))

    def tell(self, *names: str) -> str:
        """A notification of objects as they are now."""
        records = [
            {
                "eventSource": "aws:s3",
                "eventName": "ObjectCreated:Put",
                "s3": {
                    "bucket": {"name": "landing"},
                    "object": {"key": name, "size": 1, "eTag": hashlib.md5(self.bucket.objects[name]).hexdigest()},
                },
            }
            for name in names
        ]
        return self.queue.send(json.dumps({"Records": records}).encode())

    def put(self, *names: str) -> list[str]:
        """Objects, each with a notification of its own."""
        for name in names:
            self.bucket.put(name, f"content of {name}")
        return [self.tell(name) for name in names]

    def landed(self) -> list[str]:
        """What readers of the table see; a listed file that was deleted is an error."""
        with self.engine.connect() as connection:
            paths = connection.execute(select(FILES.c.path)).scalars().all()
        return sorted(name for path in paths for name in json.loads(Path(path).read_text()))

    def states(self) -> dict[str, tuple[str, int]]:
        """State and attempts of each file."""
        return {
            f"{name_of(one.uri)}{'?' if one.version == 'missing' else ''}": (one.state, one.attempts)
            for one in steering.files(self.engine, "orders")
        }

    def outputs(self) -> int:
        """Folders that Spark's output is in."""
        return len(list((Path(self.config.location) / "data").glob("*/")))


def name_of(uri: str) -> str:
    return uri.rpartition("/")[2]
