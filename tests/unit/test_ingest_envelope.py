"""What a message announces: every shape, and everything that can be wrong with one."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from detent.errors import Invalid
from detent.ingest import announcements
from detent.ingest.announcements import Announced, Malformed, announced, canonical_uri


def record(key: str = "in/a.json", event: str = "ObjectCreated:Put", **about: Any) -> dict[str, Any]:
    """One record as S3 writes it."""
    return {
        "eventVersion": "2.1",
        "eventSource": "aws:s3",
        "eventName": event,
        "s3": {"bucket": {"name": "landing"}, "object": {"key": key, "size": 12, "eTag": "abc", **about}},
    }


def notification(*records: Any) -> bytes:
    return json.dumps({"Records": list(records)}).encode()


def event(key: str = "in/a.json", kind: str = "Object Created", source: str | None = "aws.s3", **about: Any) -> bytes:
    """One event as EventBridge writes it."""
    detail = {"version": "0", "bucket": {"name": "landing"}, "object": {"key": key, "size": 12, "etag": "abc", **about}}
    return json.dumps({"version": "0", "detail-type": kind, "source": source, "detail": detail}).encode()


def sns(message: bytes, kind: str = "Notification") -> bytes:
    return json.dumps({"Type": kind, "MessageId": "1", "TopicArn": "arn:t", "Message": message.decode()}).encode()


def files_of(body: bytes, kind: str = "auto") -> list[Announced]:
    """The files of a message that has no malformed record."""
    found = announced(body, kind=kind, name="q/1")
    assert found.malformed == []
    return found.files


def uris(body: bytes, kind: str = "auto") -> list[str]:
    return [file.uri for file in files_of(body, kind)]


def refused(body: bytes, why: str = ".", kind: str = "auto") -> None:
    with pytest.raises(Invalid, match=why):
        announced(body, kind=kind, name="q/1")


def malformed(wrong: Any, kind: str = "auto") -> Malformed:
    """What is said of a record that stands between two good ones, which are understood."""
    found = announced(notification(record("a"), wrong, record("b")), kind=kind, name="q/1")
    assert [file.uri for file in found.files] == ["s3://landing/a", "s3://landing/b"]
    (bad,) = found.malformed
    return bad


# -- notifications of S3 -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["auto", "s3", "sns"])
def test_a_notification_says_all_that_is_known_of_the_file(kind: str) -> None:
    body = notification(record(eTag='"abc"', versionId="v1", sequencer="0055AED6DCD90281E5"))
    assert files_of(body, kind) == [Announced("s3://landing/in/a.json", 12, "abc", "v1", "0055AED6DCD90281E5")]


def test_a_notification_may_say_little() -> None:
    body = notification({"eventName": "ObjectCreated:Put", "s3": {"bucket": {"name": "b"}, "object": {"key": "k"}}})
    assert files_of(body) == [Announced("s3://b/k")]


def test_all_records_count_and_one_file_counts_once() -> None:
    body = notification(record("a"), record("b"), record("a"), record("c", "ObjectCreated:CompleteMultipartUpload"))
    assert uris(body) == ["s3://landing/a", "s3://landing/b", "s3://landing/c"]


def test_two_contents_of_one_file_are_two() -> None:
    files = files_of(notification(record(eTag="1", sequencer="1"), record(eTag="2", sequencer="2")))
    assert [file.etag for file in files] == ["1", "2"]


def test_what_creates_nothing_announces_nothing() -> None:
    gone = ["ObjectRemoved:Delete", "ObjectRestore:Completed", "ObjectTagging:Put", "ReducedRedundancyLostObject"]
    assert uris(notification(*(record(event=name) for name in gone))) == []
    assert uris(notification(record("a"), record("b", "ObjectRemoved:Delete"))) == ["s3://landing/a"]
    assert uris(notification()) == []


@pytest.mark.parametrize("kind", ["auto", "s3", "sns"])
def test_the_test_event_announces_nothing(kind: str) -> None:
    test_event = json.dumps({"Service": "Amazon S3", "Event": "s3:TestEvent", "Bucket": "landing"}).encode()
    assert uris(test_event, kind) == []
    assert uris(sns(test_event)) == []
    refused(b'{"Event": "s3:OtherEvent"}')


@pytest.mark.parametrize(
    ("encoded", "key"),
    [
        ("a+b.json", "a b.json"),
        ("a%2Bb.json", "a+b.json"),
        ("100%25.json", "100%.json"),
        ("%E2%82%AC/gr%C3%BC%C3%9Fe", "€/grüße"),
        ("a%3Fb%23c%26d%3De", "a?b#c&d=e"),
        ("x//y/../z", "x//y/../z"),
        ("/leading", "/leading"),
        ("a%0Ab%0D%09%01%7F%C2%85c", "a\nb\r\t\x01\x7f\x85c"),
    ],
)
def test_keys_of_notifications_are_decoded(encoded: str, key: str) -> None:
    assert uris(notification(record(encoded))) == [f"s3://landing/{key}"]


@pytest.mark.parametrize("letter", ["k", "ü", "€", "🚀"])
def test_keys_of_1024_bytes(letter: str) -> None:
    key = letter * (1024 // len(letter.encode()))
    assert uris(notification(record(quote_plus(key)))) == [f"s3://landing/{key}"]


def test_control_characters_of_a_key_are_kept_in_an_event() -> None:
    assert uris(event("a\nb\x01")) == ["s3://landing/a\nb\x01"]
    refused(event("a\x00b"), "NUL")


def test_a_key_that_is_no_utf8_is_malformed() -> None:
    assert "UTF-8" in malformed(record("%ff%fe")).reason


def test_folders_of_the_console_announce_nothing() -> None:
    assert uris(notification(record("folder/", size=0))) == []
    assert uris(notification(record("odd/", size=3))) == ["s3://landing/odd/"]


def test_the_version_of_suspended_versioning_says_nothing() -> None:
    (file,) = files_of(notification(record(versionId="null")))
    assert file.version == ""


def test_stores_that_speak_like_s3() -> None:
    minio = {**record("a"), "eventSource": "minio:s3", "eventName": "s3:ObjectCreated:Put"}
    body = json.dumps({"EventName": "s3:ObjectCreated:Put", "Key": "landing/a", "Records": [minio]}).encode()
    assert uris(body) == ["s3://landing/a"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"eventName": "ObjectCreated:Put"},
        {"s3": record()["s3"]},
        {**record(), "eventName": 7},
        {**record(), "eventSource": "aws:dynamodb", "eventName": "INSERT"},
        {**record(), "eventSource": None},
        {**record(), "s3": []},
        {**record(), "s3": {"bucket": {"name": "landing"}}},
        {**record(), "s3": {"bucket": {}, "object": {"key": "k"}}},
        {**record(), "s3": {"bucket": {"name": ""}, "object": {"key": "k"}}},
        {**record(), "s3": {"bucket": {"name": "a/b"}, "object": {"key": "k"}}},
        record(""),
        record("a%00b"),
        record(size=-1),
        record(size=True),
        record(size="12"),
        record(eTag=5),
        record(versionId={}),
        record("k" * announcements.URI_BYTES_MAX),
        None,
        "text",
        [],
    ],
)
@pytest.mark.parametrize("kind", ["auto", "s3", "sns"])
def test_malformed_record_says_nothing_about_its_neighbours(wrong: Any, kind: str) -> None:
    assert json.loads(malformed(wrong, kind).record) == wrong


def test_malformed_record_counts_once() -> None:
    found = announced(notification(None, None, "text"), name="q/1")
    assert (found.files, [bad.record for bad in found.malformed]) == ([], ["null", '"text"'])


def test_what_is_no_notification() -> None:
    for body in (b"{}", b"[]", b"null", b'{"Records": null}', b'{"Records": {}}', b'"s3://b/k"', b"{", b"", b"\xff"):
        refused(body, kind="s3")
        refused(body)
    refused(event(), kind="s3")
    refused(sns(notification(record())), kind="s3")


def test_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    many = notification(*(record(str(number)) for number in range(announcements.RECORDS_MAX)))
    assert len(files_of(many)) == announcements.RECORDS_MAX
    refused(notification(*[record()] * (announcements.RECORDS_MAX + 1)), "records")
    refused(b" " * (announcements.BODY_BYTES_MAX + 1), "bytes")
    assert uris(b"s3://b/k" + b" " * (announcements.BODY_BYTES_MAX - 8)) == ["s3://b/k"]
    monkeypatch.setattr(announcements, "DATA_BYTES_MAX", 4)
    assert files_of(b"1234", "data")
    refused(b"12345", "limit", "data")


@pytest.mark.parametrize("opening", [b"[", b'{"Records":', b'{"Records":[{"s3":', b'{"Type":"Notification","Message":'])
def test_deep_nesting_is_refused(opening: bytes) -> None:
    refused(opening * 20_000)


# -- SNS and EventBridge -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["auto", "sns"])
def test_an_envelope_of_sns_holds_any_other_shape(kind: str) -> None:
    for inner in (notification(record("a+b")), event("a b"), b"s3://landing/a b"):
        assert uris(sns(inner), kind) == ["s3://landing/a b"]
        assert uris(sns(sns(inner)), kind) == ["s3://landing/a b"]
        assert uris(inner, kind) == ["s3://landing/a b"]
        refused(sns(sns(sns(inner))), "envelopes", kind)


def test_what_sns_says_of_subscriptions() -> None:
    refused(sns(b"please", "SubscriptionConfirmation"), "confirm")
    assert uris(sns(b"bye", "UnsubscribeConfirmation")) == []


def test_wrong_envelopes() -> None:
    refused(b'{"Type": "Notification"}', "Message")
    refused(b'{"Type": "Notification", "Message": {"Records": []}}', "Message")
    refused(b'{"Type": "Notification", "Message": ""}', "Message")
    refused(b'{"Type": ["Notification"], "Message": "s3://b/k"}')
    refused(sns(b"hello"))


@pytest.mark.parametrize("kind", ["auto", "eventbridge"])
def test_an_event_of_eventbridge(kind: str) -> None:
    body = event("a+b %41.json", **{"version-id": "v1", "sequencer": "00"})
    assert files_of(body, kind) == [Announced("s3://landing/a+b %41.json", 12, "abc", "v1", "00")]
    assert uris(event(kind="Object Deleted"), kind) == []
    assert uris(event("folder/", size=0), kind) == []
    assert uris(event(source="my.relay"), kind) == ["s3://landing/in/a.json"]
    refused(event(kind="Order Placed", source="my.shop"), "not of S3", kind)
    refused(event(""), "key", kind)
    refused(b'{"detail-type": "Object Created"}', "detail", kind)
    refused(b'{"detail-type": 1}', "detail-type", kind)


# -- URIs and data -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["auto", "uri", "sns"])
@pytest.mark.parametrize(
    ("text", "uri"),
    [
        ("s3://b/k", "s3://b/k"),
        (" s3://b/a+b%20c?d#e \r\n", "s3://b/a+b%20c?d#e"),
        ("S3://b/K", "s3://b/K"),
        ("s3a://b/k", "s3://b/k"),
        ("gs://b/k", "gs://b/k"),
        ("az://c/k", "az://c/k"),
        ("abfss://c@a.dfs.core.windows.net/k", "abfss://c@a.dfs.core.windows.net/k"),
        ("https://host:1/a%20b?sig=x", "https://host:1/a%20b?sig=x"),
        ("/a/b c", "file:///a/b c"),
        ("/a/b%20c", "file:///a/b%20c"),
        ("//a/./b", "file:///a/b"),
        ("file:///a/b%20c%25", "file:///a/b c%"),
        ("file:///%C3%BC", "file:///ü"),
        ("file://localhost/a", "file:///a"),
        ("file:/a", "file:///a"),
        ("file:///a%0Ab%01", "file:///a\nb\x01"),
    ],
)
def test_uris(text: str, uri: str, kind: str) -> None:
    assert uris(text.encode(), kind) == [uri]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "  ",
        "a.json",
        "./a.json",
        "../a",
        "C:\\a",
        "s3:",
        "s3://",
        "s3://b",
        "s3://b/",
        "s3:///k",
        "s3:b/k",
        "https://host/",
        "ftp://h/k",
        "http://h/k",
        "javascript:x",
        "/",
        "/a/",
        "/a/../b",
        "file:///",
        "file:a",
        "file://host/a",
        "file:///a/%2e%2e/b",
        "file:///a%00",
        "file:///%ff",
        "/a\0b",
        "/a\nb",
        "s3://b/a\x00",
        "s3://b/k\ns3://b/l",
        "s3://b/a\x85b",
        pytest.param("s3://b/" + "k" * announcements.URI_BYTES_MAX, id="long"),
    ],
)
def test_what_is_no_uri(text: str) -> None:
    refused(text.encode(), kind="uri")
    refused(text.encode())


def test_a_uri_that_is_no_utf8() -> None:
    refused(b"s3://b/\xff", "UTF-8", "uri")


def test_signatures_are_not_repeated() -> None:
    with pytest.raises(Invalid) as caught:
        announced(b"https://host?signature=hush", name="q/1")
    assert "hush" not in str(caught.value)


def test_data() -> None:
    assert files_of(b'{"Records": []}', "data") == [Announced("q/1", 15, data=b'{"Records": []}')]
    assert files_of(b"", "data") == [Announced("q/1", 0, data=b"")]
    with pytest.raises(Invalid, match="name"):
        announced(b"x", kind="data", name="")


def test_an_unknown_kind() -> None:
    refused(b"s3://b/k", "eventbridge, uri", "csv")


# -- anything ------------------------------------------------------------------------------------------------------

NAMES = ["Records", "Event", "eventName", "s3", "bucket", "name", "object", "key", "size", "eTag", "Type", "Message"]
NAMES += ["detail-type", "detail", "source", "sequencer", "versionId"]
TEXTS = ["ObjectCreated:Put", "Notification", "Object Created", "aws.s3", "s3:TestEvent", "s3://b/k", "%ff", "/", "{}"]
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(TEXTS) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES) | st.text(max_size=3), inner, max_size=5)
    ),
    max_leaves=20,
)
KINDS = st.sampled_from([kind for kind in announcements.KINDS if kind != "data"])


def checked(body: bytes, kind: str) -> None:
    """Only ever a list of files with names in order, or `Invalid`."""
    try:
        files, bad, _ = announced(body, kind=kind, name="q/1")
    except Invalid:
        return
    assert all(one.reason and json.dumps(json.loads(one.record)) == one.record for one in bad)
    assert len(set(files)) == len(files)
    for file in files:
        assert file.uri.partition(":")[0] in announcements.SCHEMES
        assert "\0" not in file.uri
        assert file.data is None
        assert file.size is None or file.size >= 0


@given(body=st.binary(max_size=200), kind=KINDS)
@example(body=b'{"Type":"Notification","Message":"\\ud800"}', kind="auto")
def test_any_bytes(body: bytes, kind: str) -> None:
    checked(body, kind)


@given(value=VALUES, kind=KINDS, wrapped=st.booleans())
def test_any_json(value: Any, kind: str, wrapped: bool) -> None:
    body = json.dumps(value).encode()
    checked(sns(body) if wrapped else body, kind)


@given(value=VALUES, field=st.sampled_from(["eventName", "eventSource", "s3"]))
def test_any_field_of_a_record(value: Any, field: str) -> None:
    checked(notification({**record(), field: value}), "s3")


@given(value=VALUES, field=st.sampled_from(["key", "size", "eTag", "versionId", "sequencer"]))
def test_any_field_of_an_object(value: Any, field: str) -> None:
    checked(notification(record(**({"key": "k"} | {field: value}))), "s3")


@given(key=st.text(min_size=1, max_size=40).filter(lambda key: "\0" not in key))
def test_any_key_comes_back_as_it_was(key: str) -> None:
    """With a size: a key that ends in a slash is a file then, and no folder."""
    wanted = [f"s3://landing/{key}"]
    assert uris(notification(record(quote_plus(key), size=1))) == wanted
    assert uris(event(key, size=1)) == wanted


@given(text=st.text(max_size=40))
def test_any_text_as_a_uri(text: str) -> None:
    try:
        uri = canonical_uri(text)
    except Invalid:
        return
    assert canonical_uri(f"file:{quote(uri[5:])}" if uri.startswith("file:") else uri) == uri


@pytest.mark.parametrize(
    "wrong", [{"size": 2**63}, {"eTag": "a\x00b"}, {"versionId": "v" * 2_000}, {"sequencer": "line\nbreak"}]
)
def test_what_no_database_could_keep_of_a_file_is_refused(wrong: dict[str, object]) -> None:
    about = {"key": "a.json", "size": 1, "eTag": "e", **wrong}
    record = {
        "eventSource": "aws:s3",
        "eventName": "ObjectCreated:Put",
        "s3": {"bucket": {"name": "b"}, "object": about},
    }
    assert malformed(record)
