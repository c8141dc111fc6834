"""Keys of a server: their file, bearer tokens, and signatures as SQS clients make them."""

from __future__ import annotations

import fcntl
import os
import string
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from hypothesis import given
from hypothesis import strategies as st

from detent.errors import Denied, Exists, Invalid, LimitExceeded, NotFound, Unavailable
from detent.server import keys, sigv4
from detent.server.access import UNCHECKED, UNKNOWN, Caller
from detent.server.http import HttpRequest
from detent.server.keys import Key, KeyRing, Unauthenticated, new_key, parse_grant

NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)


def key(name: str = "somebody", *grants: str, **options: Any) -> Key:
    return new_key(name, grants or ("admin:*:*",), now=NOW, **options)


# -- grants -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("grant", "right", "kind", "name", "allowed"),
    [
        ("publish:queue:orders", "publish", "queue", "orders", True),
        ("publish:queue:orders", "publish", "queue", "orders2", False),
        ("publish:queue:orders", "consume", "queue", "orders", False),
        ("publish:queue:orders", "publish", "journal", "orders", False),
        ("publish:queue:orders*", "publish", "queue", "orders/eu", True),
        ("consume:*:eu-?", "consume", "journal", "eu-1", True),
        ("consume:*:eu-?", "consume", "journal", "eu-12", False),
        ("admin:queue:*", "publish", "queue", "x", True),
        ("admin:queue:*", "consume", "journal", "x", False),
        ("consume:queue:[ab]", "consume", "queue", "a", False),
        ("consume:queue:[ab]", "consume", "queue", "[ab]", True),
        ("consume:queue:ORDERS", "consume", "queue", "orders", False),
    ],
)
def test_a_grant_allows_what_it_says(grant: str, right: Any, kind: Any, name: str, allowed: bool) -> None:
    caller = Caller("c", (parse_grant(grant),))
    assert caller.may(right, kind, name) == allowed
    if not allowed:
        with pytest.raises(Denied, match=r"c may not .* on the"):
            caller.require(right, kind, name)


def test_what_concerns_the_whole_store_needs_a_right_on_everything() -> None:
    Caller("c", (parse_grant("consume:*:*"),)).require_everywhere("consume")
    UNCHECKED.require_everywhere("admin")
    for grant in ("consume:queue:*", "consume:*:a*", "publish:*:*"):
        with pytest.raises(Denied):
            Caller("c", (parse_grant(grant),)).require_everywhere("consume")
    with pytest.raises(Denied):
        UNKNOWN.require_everywhere("consume")


@pytest.mark.parametrize("text", ["", "publish", "publish:queue", "publish:queue:", "look:queue:x", "publish:topic:x"])
def test_what_is_no_grant_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(Invalid, match="consume:queue:orders"):
        parse_grant(text)


# -- the file -----------------------------------------------------------------------------------------------------


def test_keys_come_back_from_their_file_and_nobody_else_may_read_it(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    first, second = key("first", "publish:queue:a"), key("second", expires=NOW + timedelta(days=1))
    keys.add_key(path, first)
    keys.add_key(path, second)
    assert path.stat().st_mode & 0o777 == 0o600
    assert keys.read_keys(path) == [first, second]
    assert keys.remove_key(path, "first") == first
    assert keys.remove_key(path, second.id) == second
    assert keys.read_keys(path) == []
    assert list(tmp_path.iterdir()) == [path]


def test_names_are_given_once(tmp_path: Path) -> None:
    keys.add_key(tmp_path / "k", key("a"))
    with pytest.raises(Exists, match="'a'"):
        keys.add_key(tmp_path / "k", key("a"))
    with pytest.raises(NotFound, match="token ls"):
        keys.remove_key(tmp_path / "k", "b")
    with pytest.raises(NotFound, match="token create"):
        keys.read_keys(tmp_path / "none")


def test_a_file_that_others_may_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    keys.add_key(path, key())
    path.chmod(0o640)
    with pytest.raises(Invalid, match="chmod 600"):
        KeyRing(path=path)


root_only = pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
SOMEBODY, SOME_GROUP = 12345, 23456


@root_only
def test_a_file_that_somebody_else_owns_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    keys.add_key(path, key())
    os.chown(path, SOMEBODY, SOME_GROUP)
    for read in (keys.read_keys, lambda path: KeyRing(path=path)):
        with pytest.raises(Invalid, match=r"belongs to user 12345.*chown 0"):
            read(path)
    assert len(keys.read_keys(path, managing=True)) == 1


def test_the_file_that_is_checked_is_the_file_that_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever swaps the file behind the check gets what was checked."""
    path, other = tmp_path / "keys.json", tmp_path / "other.json"
    keys.add_key(path, key("checked"))
    keys.add_key(other, key("swapped in"))
    other.chmod(0o644)

    def swapping(function: Any) -> Any:
        def checked(*arguments: Any) -> Any:
            found = function(*arguments)
            if os.path.exists(other):
                os.replace(other, path)
            return found

        return checked

    monkeypatch.setattr(keys.os, "fstat", swapping(os.fstat))
    monkeypatch.setattr(Path, "stat", swapping(Path.stat))
    assert [found.name for found in keys.read_keys(path)] == ["checked"]
    assert not os.path.exists(other)


@root_only
def test_a_file_that_root_changes_still_belongs_to_whom_it_belonged(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    keys.add_key(path, key("first"))
    os.chown(path, SOMEBODY, SOME_GROUP)
    keys.add_key(path, key("second"))
    keys.remove_key(path, "first")
    found = path.stat()
    assert (found.st_uid, found.st_gid, found.st_mode & 0o777) == (SOMEBODY, SOME_GROUP, 0o600)
    assert [left.name for left in keys.read_keys(path, managing=True)] == ["second"]


def test_a_link_to_the_file_stays_one(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "linked").mkdir()
    target, link = tmp_path / "real" / "keys.json", tmp_path / "linked" / "keys.json"
    link.symlink_to("../real/keys.json")
    keys.add_key(link, key("first"))
    keys.add_key(link, key("second"))
    keys.remove_key(link, "first")
    assert link.is_symlink()
    assert [found.name for found in keys.read_keys(target)] == ["second"]
    assert list(target.parent.iterdir()) == [target]
    assert list(link.parent.iterdir()) == [link]


def test_what_a_process_that_died_has_left_is_in_nobodys_way(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    for left in (f"keys.json.{os.getpid()}.new", "keys.json.lock"):
        (tmp_path / left).write_bytes(b"half")
    keys.add_key(path, key("a"))
    keys.add_key(path, key("b"))
    assert len(keys.read_keys(path)) == 2


def test_a_write_that_fails_leaves_the_file_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "keys.json"
    keys.add_key(path, key("a"))

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    for step in ("fsync", "replace"):
        with monkeypatch.context() as patched:
            patched.setattr(keys.os, step, full)
            with pytest.raises(Unavailable, match="No space left"):
                keys.add_key(path, key("b"))
        assert [found.name for found in keys.read_keys(path)] == ["a"]
        assert list(tmp_path.iterdir()) == [path]


def test_the_folder_is_synced_after_the_file_is_in_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[str] = []
    replace, fsync = os.replace, os.fsync
    monkeypatch.setattr(keys.os, "replace", lambda *names: (steps.append("replace"), replace(*names)))

    def noted(descriptor: int) -> None:
        steps.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    monkeypatch.setattr(keys.os, "fsync", noted)
    keys.write_keys(tmp_path / "keys.json", [key()])
    assert steps[0].startswith(f"{tmp_path.resolve()}/keys.json.")
    assert steps[1:] == ["replace", str(tmp_path.resolve())]


def test_where_no_file_can_be_is_said(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"no folder .*/nowhere for the file of keys"):
        keys.add_key(tmp_path / "nowhere" / "keys.json", key())
    (tmp_path / "file").touch()
    for path in (tmp_path / "file" / "keys.json", tmp_path / ("x" * 250)):
        with pytest.raises(Unavailable, match="cannot be changed"):
            keys.add_key(path, key())
    with pytest.raises(Unavailable, match="cannot be read"):
        keys.add_key(tmp_path, key())


def test_a_change_waits_for_another_one_but_not_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys, "LOCK_WAIT_S", 0.05)
    path = tmp_path / "keys.json"
    with (tmp_path / "keys.json.lock").open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(Unavailable, match=r"another process has held .*keys\.json\.lock"):
            keys.add_key(path, key())
    keys.add_key(path, key())


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"{}",
        b'{"keys": 1}',
        b'{"keys": [{"id": "x"}]}',
        b"\xff\xfe",
        b'{"keys": [], "more": 1}',
        b"[" * 9999,
    ],
)
def test_a_file_that_holds_no_keys_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "keys.json"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(Invalid, match="holds no keys"):
        keys.read_keys(path)


@pytest.mark.parametrize(
    "wrong",
    [
        {"secret": "short"},
        {"id": "with.dot"},
        {"id": "ümlaut"},
        {"grants": ["everything"]},
        {"created": "2026-01-01T00:00:00"},
        {"more": 1},
    ],
)
def test_a_key_that_is_none_is_refused_and_its_secret_is_not_told(tmp_path: Path, wrong: dict[str, Any]) -> None:
    import msgspec

    fields = msgspec.to_builtins(key()) | wrong
    with pytest.raises(Invalid) as refused:
        keys.decode_keys(msgspec.json.encode({"keys": [fields]}), "here")
    assert fields["secret"] not in str(refused.value) or len(fields["secret"]) < 10


def test_limits_of_keys_hold() -> None:
    with pytest.raises(LimitExceeded):
        keys.decode_keys(b" " * (keys.FILE_BYTES_MAX + 1), "here")
    with pytest.raises(LimitExceeded):
        parse_grant("publish:queue:" + "x" * 2000)
    for name in ("", "x" * 300, "a\nb"):
        with pytest.raises(Invalid):
            key(name)
    with pytest.raises(Invalid, match="expired already"):
        key(expires=NOW)
    with pytest.raises(Invalid, match="grants"):
        new_key("x", [], now=NOW)


# -- bearer tokens ------------------------------------------------------------------------------------------------


def test_a_token_says_who_comes() -> None:
    one, other = key("one", "publish:queue:a"), key("other")
    ring = KeyRing([one, other])
    assert ring.by_token(f"{one.id}.{one.secret}").name == "one"
    for token in (
        "",
        ".",
        one.id,
        f"{one.id}.",
        f"{one.id}.{other.secret}",
        f"x.{one.secret}",
        f"{one.id}.{one.secret}x",
    ):
        with pytest.raises(Unauthenticated, match="not known"):
            ring.by_token(token)


@given(st.text(max_size=80))
def test_no_text_is_a_token_by_chance(text: str) -> None:
    with pytest.raises(Unauthenticated):
        KeyRing([key()]).by_token(text)


def test_an_expired_key_is_refused() -> None:
    old = new_key("old", ["admin:*:*"], now=NOW, expires=datetime(2026, 5, 2, tzinfo=UTC))
    with pytest.raises(Unauthenticated):
        KeyRing([old]).by_token(f"{old.id}.{old.secret}")


def test_a_running_server_notices_new_and_revoked_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys, "LOOK_S", 0.0)
    path = tmp_path / "keys.json"
    first, second = key("first"), key("second")
    keys.add_key(path, first)
    ring = KeyRing(path=path)
    assert ring.by_token(f"{first.id}.{first.secret}").name == "first"
    keys.add_key(path, second)
    assert ring.by_token(f"{second.id}.{second.secret}").name == "second"
    keys.remove_key(path, "first")
    with pytest.raises(Unauthenticated):
        ring.by_token(f"{first.id}.{first.secret}")
    path.write_bytes(b"nonsense")
    with pytest.raises(Invalid):
        ring.by_token(f"{second.id}.{second.secret}")
    with pytest.raises(Invalid):
        ring.by_token(f"{second.id}.{second.secret}")
    path.unlink()
    with pytest.raises(NotFound):
        ring.by_token(f"{second.id}.{second.secret}")


def test_keys_come_from_the_environment_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DETENT_KEYS_FILE", raising=False)
    monkeypatch.delenv("DETENT_KEYS", raising=False)
    assert keys.open_ring(None) is None
    keys.add_key(tmp_path / "k", key("a"))
    monkeypatch.setenv("DETENT_KEYS", (tmp_path / "k").read_text())
    ring = keys.open_ring(None)
    assert ring is not None
    assert len(ring) == 1
    keys.add_key(tmp_path / "k", key("b"))
    monkeypatch.setenv("DETENT_KEYS_FILE", str(tmp_path / "k"))
    ring = keys.open_ring(None)
    assert ring is not None
    assert len(ring) == 2


# -- signatures ---------------------------------------------------------------------------------------------------


def signed(
    made: Key,
    body: bytes = b'{"QueueUrl": "x"}',
    path: str = "/",
    query: str = "",
    headers: dict[str, str] | None = None,
) -> HttpRequest:
    """A request that botocore has signed, as it arrives here."""
    url = f"http://localhost:7410{path}" + (f"?{query}" if query else "")
    request = AWSRequest("POST", url, data=body, headers={"X-Amz-Target": "AmazonSQS.SendMessage", **(headers or {})})
    SigV4Auth(Credentials(made.id, made.secret), "sqs", "eu-central-1").add_auth(request)
    arrived = [(name.lower().encode(), value.encode()) for name, value in request.headers.items()]
    arrived.append((b"host", b"localhost:7410"))
    return as_request("POST", path, query, arrived)


def as_request(method: str, path: str, query: str, headers: list[tuple[bytes, bytes]]) -> HttpRequest:
    async def receive() -> dict[str, Any]:
        raise AssertionError("the body is given")

    raw = path.encode()
    scope = {"method": method, "path": path, "raw_path": raw, "query_string": query.encode(), "headers": headers}
    return HttpRequest(scope, receive)


BODIES = st.binary(max_size=100)
PATHS = st.text(string.ascii_letters + "0123456789-_.", min_size=1, max_size=20).map(
    lambda name: f"/000000000000/{name}"
)
VALUES = st.text(string.ascii_letters + " ", min_size=1, max_size=20)


@given(BODIES, PATHS, VALUES)
def test_what_botocore_signs_is_recognised(body: bytes, path: str, value: str) -> None:
    if path.rsplit("/", 1)[1].strip(".") == "":
        return  # a client that normalises paths would send another one
    made = key("boto")
    request = signed(made, body, path, headers={"X-Amz-Meta": value})
    assert sigv4.caller_of(request, body, KeyRing([made]), datetime.now(UTC)).name == "boto"


@given(st.integers(0, 300), st.integers(1, 255))
def test_a_changed_request_is_not_what_was_signed(at: int, change: int) -> None:
    made, body = key(), b"the body that was signed"
    request = signed(made, body)
    ring = KeyRing([made])
    assert sigv4.caller_of(request, body, ring, datetime.now(UTC)).name == "somebody"
    changed = bytearray(body)
    changed[at % len(body)] ^= change
    with pytest.raises(Unauthenticated, match="does not match"):
        sigv4.caller_of(request, bytes(changed), ring, datetime.now(UTC))


@pytest.mark.parametrize("header", ["host", "x-amz-date", "x-amz-target"])
def test_each_signed_header_counts(header: str) -> None:
    made = key()
    request = signed(made)
    request.headers[header] += "0"
    with pytest.raises(Unauthenticated):
        sigv4.caller_of(request, b'{"QueueUrl": "x"}', KeyRing([made]), datetime.now(UTC))
    del request.headers[header]
    with pytest.raises(Unauthenticated):
        sigv4.caller_of(request, b'{"QueueUrl": "x"}', KeyRing([made]), datetime.now(UTC))


def test_method_path_and_query_are_signed() -> None:
    made, body = key(), b""
    for change in ({"method": "GET"}, {"raw_path": b"/other"}, {"raw_query": b"a=1"}):
        request = signed(made, body, "/here", "a=2&b=1")
        ring = KeyRing([made])
        sigv4.caller_of(request, body, ring, datetime.now(UTC))
        for name, value in change.items():
            setattr(request, name, value)
        with pytest.raises(Unauthenticated, match="does not match"):
            sigv4.caller_of(request, body, ring, datetime.now(UTC))


def test_a_signature_grows_old() -> None:
    made = key()
    request = signed(made)
    for late in (timedelta(minutes=16), -timedelta(minutes=16)):
        with pytest.raises(Unauthenticated, match="clock"):
            sigv4.caller_of(request, b'{"QueueUrl": "x"}', KeyRing([made]), datetime.now(UTC) + late)


def test_a_signature_for_another_service_or_with_another_key_is_refused() -> None:
    made = key()
    request = signed(made)
    body = b'{"QueueUrl": "x"}'
    with pytest.raises(Unauthenticated, match="does not match"):
        sigv4.caller_of(request, body, KeyRing([key()]), datetime.now(UTC))
    request.headers["authorization"] = request.headers["authorization"].replace("/sqs/", "/s3/")
    with pytest.raises(Unauthenticated, match="signed for s3"):
        sigv4.caller_of(request, body, KeyRing([made]), datetime.now(UTC))


@given(st.text(st.characters(codec="latin-1"), max_size=300))
def test_hostile_authorization_headers_are_refused_quickly(text: str) -> None:
    made = key()
    request = signed(made)
    request.headers["authorization"] = f"{sigv4.ALGORITHM} {text}"
    with pytest.raises(Unauthenticated):
        sigv4.caller_of(request, b"", KeyRing([made]), datetime.now(UTC))


def test_the_headers_that_must_be_signed_are_named() -> None:
    made = key()
    request = signed(made)
    given = request.headers["authorization"]
    for wrong in ("host", "x-amz-date", "x-amz-date;host", "host;host;x-amz-date"):
        start, _, rest = given.partition("SignedHeaders=")
        request.headers["authorization"] = f"{start}SignedHeaders={wrong}, {rest.partition(', ')[2]}"
        with pytest.raises(Unauthenticated, match="must cover"):
            sigv4.caller_of(request, b"", KeyRing([made]), datetime.now(UTC))


def test_the_ring_does_not_look_at_the_file_for_every_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "k"
    made = key()
    keys.add_key(path, made)
    ring = KeyRing(path=path)
    ring.find(made.id)
    looks: list[Path] = []
    monkeypatch.setattr(keys, "_stamp", lambda path: looks.append(path) or (0, 0, 0))
    monkeypatch.setattr(time, "monotonic", lambda: ring._looked + 0.5)
    for _ in range(10):
        ring.find(made.id)
    assert not looks


def test_a_header_that_says_what_is_asked_must_be_signed() -> None:
    """Else whoever overhears a signed read could send it again as a deletion."""
    made = key()
    request = signed(made)
    request.headers["x-amz-added"] = "AmazonSQS.DeleteQueue"
    with pytest.raises(Unauthenticated, match="must cover"):
        sigv4.claim_of(request, KeyRing([made]), datetime.now(UTC))
