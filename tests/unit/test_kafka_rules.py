"""What a bridge to Kafka maps, goes on from, and refuses: rules that need no broker."""

from __future__ import annotations

import base64
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

import detent
from detent.errors import Conflict, Corrupt, DetentError, Invalid, Unavailable
from detent.journal.message import Message
from detent.kafka import FromTopic, ToTopic, cluster, mapping, place, sharing
from detent.kafka.mapping import Record
from detent.kafka.place import JOURNAL_PLACE, TOPIC_PLACE, JournalPlace, Mark, Topic, TopicPlace


def record(**changes: Any) -> Record:
    return Record("orders", 3, 7, b"k", b"v", (), 1_700_000_000_000)._replace(**changes)


def message(entry: mapping.Entry, **changes: Any) -> Message:
    about = {"producer": bytes(6), "clock": 1, "offset": 5, "published_ms": 9, "journal": "orders"}
    return Message(body=entry.body, key=entry.key, headers=entry.headers, **{**about, **changes})


# -- mapping ----------------------------------------------------------------------------------------------------


def test_origin_and_time_of_a_record_are_headers() -> None:
    entry = mapping.entry_of(record(headers=[("colour", b"red")]), origin=True)
    assert entry.headers == {
        "colour": "red",
        "kafka.topic": "orders",
        "kafka.partition": "3",
        "kafka.offset": "7",
        "kafka.timestamp": "1700000000000",
    }
    bare = mapping.entry_of(record(timestamp_ms=None), origin=False)
    assert (bare.body, bare.key, bare.headers) == (b"v", b"k", {})


@pytest.mark.parametrize(
    "headers",
    [
        [("a", b"1"), ("a", b"2"), ("b", b"3")],
        [("a", b"\xff\x00"), ("b", b"text")],
        [("a", None), ("", b"")],
        [("kafka.offset", b"99"), ("queue", b"elsewhere"), ("detent.x", b"1")],
    ],
)
def test_headers_that_are_more_than_text_come_back_exactly(headers: list[tuple[str, bytes | None]]) -> None:
    entry = mapping.entry_of(record(headers=headers), origin=True)
    assert entry.headers["kafka.offset"] == "7", "a record does not say where it is from: the bridge does"
    assert "queue" not in entry.headers, "a record does not say to which queue it goes"
    assert mapping.record_of(message(entry), origin=False).headers == headers


@pytest.mark.parametrize("value", [b"", None, b"v"])
@pytest.mark.parametrize("key", [None, b"", b"\xff"])
def test_empty_and_absent_keys_and_values_come_back_as_they_were(key: bytes | None, value: bytes | None) -> None:
    entry = mapping.entry_of(record(key=key, value=value), origin=True)
    produced = mapping.record_of(message(entry), origin=True)
    assert (produced.key, produced.value, produced.timestamp_ms) == (key, value, 1_700_000_000_000)
    assert produced.headers == [("detent.journal", b"orders"), ("detent.offset", b"5")]


def test_message_that_was_never_a_record_takes_the_time_at_which_it_was_stored() -> None:
    entry = mapping.Entry(b"x", None, {"kafka.timestamp": "soon", "kafka.tombstone": "1"})
    assert mapping.record_of(message(entry), origin=False)[1:] == (b"x", [], 9), "a body is not dropped for a header"


@pytest.mark.parametrize("bad", ["", "{}", '[["a", "%"]]', '[["a"]]', "[[1, null]]"])
def test_header_list_that_a_stranger_wrote_is_refused(bad: str) -> None:
    with pytest.raises(Invalid, match=r"kafka\.headers"):
        mapping.record_of(message(mapping.Entry(b"", None, {"kafka.headers": bad})), origin=False)


def test_key_of_a_queue_message_is_a_header() -> None:
    assert mapping.with_key(mapping.Entry(b"", b"k", {})) == {"kafka.key": "k"}
    assert mapping.with_key(mapping.Entry(b"", b"\xff", {})) == {"kafka.key64": base64.b64encode(b"\xff").decode()}
    assert mapping.with_key(mapping.Entry(b"", None, {"a": "b"})) == {"a": "b"}


# -- inward -----------------------------------------------------------------------------------------------------


def topic(identity: str = "id", **extents: tuple[int, int]) -> Topic:
    return Topic("orders", identity, {int(name[1:]): extent for name, extent in extents.items()})


READ = TopicPlace("orders", "id", ((0, 10), (1, 20)), taken=30)


def test_bridge_starts_where_it_is_told_and_goes_on_where_it_was() -> None:
    now = topic(p0=(5, 30), p1=(0, 20))
    assert place.resumed(None, now, "earliest", ()).offsets == {0: 5, 1: 0}
    assert place.resumed(None, now, "latest", ()).offsets == {0: 30, 1: 20}
    assert place.resumed(READ, now, "latest", ()) == READ


def test_partition_that_came_later_is_read_from_its_first_record() -> None:
    now = topic(p0=(0, 30), p1=(0, 20), p2=(4, 9))
    assert place.resumed(READ, now, "latest", ()).offsets == {0: 10, 1: 20, 2: 4}


def test_partition_that_a_broker_does_not_name_yet_is_not_forgotten() -> None:
    with pytest.raises(Unavailable, match="does not name partition 1 "):
        place.resumed(READ, topic(p0=(0, 30)), "earliest", ())


def test_records_deleted_before_they_were_read_are_named_and_never_skipped_silently() -> None:
    now = topic(p0=(15, 30), p1=(20, 20))
    with pytest.raises(Conflict, match=r"partition 0 .*up to offset 10, and begins at 15: 5 .*--accept gap"):
        place.resumed(READ, now, "earliest", {"compacted", "new-topic"})
    found = place.resumed(READ, now, "earliest", {"gap"})
    assert (found.offsets, found.skipped) == ({0: 15, 1: 20}, 5)


def test_topic_made_anew_is_refused_by_its_id_and_by_its_end() -> None:
    with pytest.raises(Conflict, match=r"made anew.*--accept new-topic"):
        place.resumed(READ, topic("other", p0=(0, 50), p1=(0, 50)), "latest", {"gap"})
    anew = place.resumed(READ, topic("other", p0=(3, 50)), "latest", {"new-topic"})
    assert (anew.id, anew.offsets, anew.taken) == ("other", {0: 3}, 30)
    with pytest.raises(Conflict, match=r"up to offset 10, and ends at 9: Kafka has lost records"):
        place.resumed(READ, topic(p0=(0, 9), p1=(0, 20)), "earliest", set(place.ACCEPTED))


def test_bridge_that_was_reset_takes_the_topic_that_is_there() -> None:
    reset = msgspec.structs.replace(READ, id="", places=(), begin="latest")
    found = place.resumed(reset, topic("other", p0=(3, 50)), "earliest", ())
    assert (found.id, found.offsets, found.taken) == ("other", {0: 50}, 30)


def test_offsets_without_a_record_are_counted() -> None:
    after = place.taken(READ, {0: 14}, 2)
    assert (after.offsets, after.taken, after.absent) == ({0: 14, 1: 20}, 32, 2)


def test_compacted_topic_is_refused_until_it_is_accepted() -> None:
    with pytest.raises(Conflict, match="--accept compacted"):
        place.refuse_compaction("orders", {"gap"})
    place.refuse_compaction("orders", {"compacted"})


# -- outward ----------------------------------------------------------------------------------------------------

NEW = JournalPlace("paid", 3, 1000, "out", "id", "detent.paid", 0)
BEGUN = msgspec.structs.replace(NEW, next=50, begun=True)
OUT = Topic("out", "id", {})
OURS = place.mark_text(NEW)


def test_kafka_says_how_far_a_journal_is() -> None:
    assert place.decided(BEGUN, Mark(70, OURS), OUT, ()).next == 70, "a commit whose note was lost"
    assert place.decided(BEGUN, Mark(50, OURS), OUT, ()) == BEGUN
    crashed = place.decided(NEW, Mark(0, OURS), OUT, ())
    assert crashed.begun, "it ended between its first mark and the note of it"


def test_new_bridge_without_a_mark_begins() -> None:
    assert place.decided(NEW, None, OUT, ()) == NEW


def test_mark_that_kafka_has_forgotten_is_not_taken_for_one_that_never_was() -> None:
    with pytest.raises(Conflict, match=r"up to 50 .*expired.*--accept lost-mark"):
        place.decided(BEGUN, None, OUT, {"gap"})
    found = place.decided(BEGUN, None, OUT, {"lost-mark"})
    assert (found.next, found.begun) == (50, False), "a mark is written before anything else"


@pytest.mark.parametrize("text", ["", "detent journal=paid number=4 created=1000", "x"])
def test_mark_of_something_else_is_refused(text: str) -> None:
    with pytest.raises(Conflict, match="is not of this bridge"):
        place.decided(BEGUN, Mark(70, text), OUT, set(place.ACCEPTED))


def test_mark_that_went_back_is_refused() -> None:
    with pytest.raises(Conflict, match="set back"):
        place.decided(BEGUN, Mark(49, OURS), OUT, set(place.ACCEPTED))


def test_other_topic_of_the_same_name_is_refused_outward_too() -> None:
    other = Topic("out", "other", {})
    with pytest.raises(Conflict, match="--accept new-topic"):
        place.decided(BEGUN, None, other, {"lost-mark"})
    assert place.decided(BEGUN, None, other, {"new-topic"}).id == "other"


def test_after_a_reset_an_old_mark_says_nothing() -> None:
    reset = msgspec.structs.replace(BEGUN, id="", next=0, begun=False)
    found = place.decided(reset, Mark(70, OURS), OUT, ())
    assert (found.next, found.id, found.begun) == (0, "id", False)


# -- what is kept, and what can be declared -----------------------------------------------------------------------


def test_places_survive_and_damage_is_noticed() -> None:
    assert TOPIC_PLACE.decode(TOPIC_PLACE.encode(READ)) == READ
    assert JOURNAL_PLACE.decode(JOURNAL_PLACE.encode(BEGUN)) == BEGUN
    damaged = bytearray(TOPIC_PLACE.encode(READ))
    damaged[5] ^= 1
    for bad in (bytes(damaged), b"", JOURNAL_PLACE.encode(BEGUN)):
        with pytest.raises(Corrupt):
            TOPIC_PLACE.decode(bad)


@pytest.mark.parametrize(
    "make",
    [
        lambda: FromTopic("a", topic="t"),
        lambda: FromTopic("a", topic="t", journal="j", queue="q"),
        lambda: FromTopic("a", topic="t", journal="no name"),
        lambda: FromTopic("a", topic="", journal="j"),
        lambda: FromTopic("a", topic="t", journal="j", accept=["anything"]),
        lambda: FromTopic("a", topic="t", journal="j", start="now"),
        lambda: FromTopic("a", topic="t", journal="j", batch=0),
        lambda: FromTopic("a", topic="t", journal="j", config={"enable.auto.commit": True}),
        lambda: ToTopic("a", journal="j", topic="t", shards=2),
        lambda: ToTopic("a", journal="j", topic="t", config={"transactional.id": "mine"}),
    ],
)
def test_bridge_that_could_not_keep_its_promise_is_refused(make: Any) -> None:
    with pytest.raises(Invalid):
        make()


def test_brokers_and_passwords_come_from_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    bridge = FromTopic("a", topic="t", journal="j/{partition}")
    assert bridge.journal_of(4) == "j/4"
    monkeypatch.delenv("DETENT_KAFKA_BROKERS", raising=False)
    with pytest.raises(Invalid, match="--brokers"):
        bridge.cluster()
    monkeypatch.setenv("DETENT_KAFKA_BROKERS", "127.0.0.1:1")
    assert bridge.cluster().brokers == "127.0.0.1:1"
    path = tmp_path / "kafka.properties"
    path.write_text("# secret\nsasl.password = a=b\n\n")
    assert cluster.read_config(path) == {"sasl.password": "a=b"}
    path.write_text("group.id=mine\n")
    monkeypatch.setenv("DETENT_KAFKA_CONFIG", str(path))
    with pytest.raises(Invalid, match=r"group\.id"):
        bridge.cluster()


SECURE = (
    "security.protocol=SASL_SSL",
    "sasl.mechanism=SCRAM-SHA-512",
    "sasl.username=bridge",
    "sasl.password=p=w",
    "ssl.endpoint.identification.algorithm=https",
)
CLIENTS: dict[str, Callable[[cluster.Cluster], Any]] = {
    "consumer": lambda one: one.consumer("g"),
    "producer": lambda one: one.producer("t", 1_000),
    "admin": lambda one: one._admin,
}


def secured(folder: Path, *lines: str) -> cluster.Cluster:
    """A cluster that nothing answers for, with settings of a file. The client library checks them when a client is
    made."""
    pytest.importorskip("confluent_kafka")
    path = folder / "kafka.properties"
    path.write_text("\n".join(lines))
    return cluster.Cluster("127.0.0.1:1", cluster.check_config(cluster.read_config(path)))


@pytest.mark.parametrize("client", CLIENTS)
def test_settings_of_tls_and_logins_reach_every_client(tmp_path: Path, client: str) -> None:
    assert CLIENTS[client](secured(tmp_path, *SECURE)) is not None
    for line, said in (
        ("ssl.ca.location=/absent.pem", r"ssl\.ca\.location"),
        ("sasl.mechanism=NO-SUCH", "NO-SUCH"),
        ("no.such=1", r"no\.such"),
    ):
        with pytest.raises(DetentError, match=said):
            CLIENTS[client](secured(tmp_path, *SECURE, line))


# -- sharing ----------------------------------------------------------------------------------------------------


def test_standby_and_paused_bridge_ask_the_store_no_more_than_heartbeats_do(monkeypatch: pytest.MonkeyPatch) -> None:
    bridge = FromTopic("orders", topic="orders", journal="orders", brokers="nowhere:1")
    with detent.open("memory:") as store:
        holder, standby = sharing.BridgeShare(store, bridge), sharing.BridgeShare(store, bridge)
        holder.register()
        assert holder.take(0) is None
        standby.beat(lambda _: ("standby", ""))
        commits: list[Any] = []
        commit = store.commit
        monkeypatch.setattr(store, "commit", lambda operations: commits.append(operations) or commit(operations))
        assert [standby.take(0).status for _ in range(3)] == ["standby"] * 3  # type: ignore[union-attr]
        assert commits == []
        holder.leave()
        standby.beat(lambda _: ("standby", ""))
        assert standby.take(0) is None, "a heartbeat says that it is free"
        store.consumer(bridge.consumer).pause()
        assert standby.beat(lambda _: ("running", "")) == [0]
        standby.take(0)
        commits.clear()
        assert standby.take(0).status == "paused"  # type: ignore[union-attr]
        assert commits == []
        store.consumer(bridge.consumer).resume()
        standby.beat(lambda _: ("paused", ""))
        assert standby.take(0) is None


def test_holder_that_died_on_this_machine_is_followed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    bridge = FromTopic("orders", topic="orders", journal="orders", brokers="nowhere:1")
    with detent.open("memory:") as store:
        holder, standby = sharing.BridgeShare(store, bridge), sharing.BridgeShare(store, bridge)
        holder.register()
        holder.take(0)
        standby.beat(lambda _: ("standby", ""))
        for module in ("detent.kafka.sharing", "detent.stream.membership"):
            monkeypatch.setattr(f"{module}.has_died", lambda member: member == holder.member)
        assert standby.take(0) is None
