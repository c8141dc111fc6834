"""Where a pipeline's store, its owner and its checkpoints are, before any Spark runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import detent
from detent.errors import Invalid
from detent.spark.pipeline import Pipeline, queue
from detent.spark.pipeline_stream import TableEnd
from detent.spark.store_place import StorePlace, checkpoint_folder, place_of, reachable, set_manager
from s3server import s3_store_url

BUCKET = "s3://bucket/store"
SERVER = "http://127.0.0.1:7410"


def pipeline_of(**options: Any) -> Pipeline:
    pipeline = Pipeline("shop", **options)
    pipeline.stream(read=queue("mails"), write="sent", name="sent")(lambda mails: mails)
    return pipeline


def test_pipeline_names_the_server_of_its_own_store() -> None:
    mine = Pipeline("p", store=BUCKET, server=SERVER)
    assert place_of(mine, None, None) == StorePlace(BUCKET, SERVER)
    assert place_of(mine, None, "https://other:1") == StorePlace(BUCKET, "https://other:1")
    assert place_of(mine, "s3://bucket/another", None) == StorePlace("s3://bucket/another"), "that store has its own"
    assert place_of(mine, None, None).owner_url == SERVER
    assert place_of(mine, None, None).options == {"server": SERVER}
    assert StorePlace(BUCKET).options == {}


@pytest.mark.parametrize("store", ["file:/data", SERVER])
def test_server_is_refused_beside_a_store_that_has_its_owner(store: str) -> None:
    with pytest.raises(Invalid, match="object store"):
        place_of(Pipeline("p", store=store, server=SERVER), None, None)


def test_server_is_a_servers_url() -> None:
    with pytest.raises(Invalid, match="HOST:PORT"):
        place_of(Pipeline("p", store=BUCKET), None, "7410")


def test_checkpoints_on_s3_are_named_as_hadoop_does() -> None:
    assert checkpoint_folder(Pipeline("p"), "s3://bucket/cp/", BUCKET) == "s3a://bucket/cp"
    assert checkpoint_folder(Pipeline("p"), "s3a://bucket/cp", BUCKET) == "s3a://bucket/cp"
    with pytest.raises(Invalid, match="volume"):
        checkpoint_folder(Pipeline("p"), None, BUCKET)


def test_table_has_the_pipelines_storage_options_unless_it_names_its_own() -> None:
    pipeline = Pipeline("p", storage_options={"aws_region": "one"})
    pipeline.table(read="j", path="s3://bucket/a", name="a")(lambda j: j)
    pipeline.table(read="j", path="s3://bucket/b", name="b", storage_options={"aws_region": "two"})(lambda j: j)
    tables = [stream.outputs[0] for stream in pipeline.streams]
    assert [dict(one.options.storage) for one in tables if isinstance(one, TableEnd)] == [
        {"aws_region": "one"},
        {"aws_region": "two"},
    ]
    assert "'one'" not in repr(tables), "there may be secrets"


@pytest.mark.s3
def test_driver_that_owns_a_store_on_an_object_store_answers_at_a_socket() -> None:
    pytest.importorskip("slatedb")
    url = s3_store_url()
    with detent.open(url) as store:
        store.queue("mails").create()
        place = reachable(store, StorePlace(url), [], is_local=True)
        assert place.url == url
        assert place.server is not None
        socket = Path(place.server.removeprefix("unix:"))
        assert socket.parent.stat().st_mode & 0o777 == 0o700
        assert reachable(store, StorePlace(url), [], is_local=True) == place, "the second pipeline finds the same one"
        with detent.open(place.server) as client:
            assert not client.is_owner
            client.journal("j").append(b"x")
            client.queue("mails").publish(b"y")
            assert [message.body for message in client.queue("mails").claim()] == [b"y"], (
                "contents come with the answer"
            )
            assert [message.body for message in client.journal("j").read()] == [b"x"]
        streams = pipeline_of(store=url).streams
        with pytest.raises(Invalid, match="reads the queue mails"):
            reachable(store, StorePlace(url), streams, is_local=False)
    assert not socket.exists()


def test_folder_of_the_driver_is_no_store_for_a_cluster(tmp_path: Path) -> None:
    url = f"file:{tmp_path}/store"
    with detent.open(url) as store:
        assert reachable(store, StorePlace(url), [], is_local=True) == StorePlace(url)
        with pytest.raises(Invalid, match="run on others"):
            reachable(store, StorePlace(url), [], is_local=False)


class Java:
    """As much of a session as `set_manager` asks."""

    def __init__(self, *known: str) -> None:
        self.known = known
        self.settings: dict[str, str] = {}
        self.conf = self._jvm = self.org = self.apache = self.spark = self.util = self.Utils = self

    def classForName(self, name: str, *_: object) -> None:
        if name not in self.known:
            raise RuntimeError(f"java.lang.ClassNotFoundException: {name}")

    def set(self, key: str, value: str) -> None:
        self.settings[key] = value

    def unset(self, key: str) -> None:
        self.settings[key] = ""


def test_checkpoints_on_s3_need_its_jars_and_take_the_manager_that_is_there() -> None:
    from detent.spark.settings import CHECKPOINTS
    from detent.spark.store_place import ABORTING_MANAGER, S3A_CLASS

    with pytest.raises(Invalid, match="hadoop-aws"):
        set_manager(Java(), "s3a://bucket/cp")
    plain, cloud, disk = Java(S3A_CLASS), Java(S3A_CLASS, ABORTING_MANAGER), Java()
    for java, folder in ((plain, "s3a://bucket/cp"), (cloud, "s3a://bucket/cp"), (disk, "/volume")):
        set_manager(java, folder)
    assert (plain.settings, cloud.settings, disk.settings) == ({CHECKPOINTS: ""}, {CHECKPOINTS: ABORTING_MANAGER}, {})
