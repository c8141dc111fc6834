"""`detent queue` and `detent message` as a user runs them: real processes, real pipes, real exit codes."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import detent
from acceptance.test_cli import PATIENCE_S, detent_command, documents, environment, ok, refused
from processes import eventually
from zygote import Forked


@pytest.fixture
def url(store_dir: Path) -> str:
    return f"file:{store_dir}"


@pytest.fixture
def store(url: str) -> Iterator[detent.Store]:
    """The store, owned by the test: each command is a client of it."""
    with detent.open(url) as opened:
        opened.queue("q").create(backoff="0s")
        yield opened


def started(*arguments: str) -> subprocess.Popen[bytes]:
    return Forked(
        [sys.executable, "-m", "detent.cli", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
    )


def document(*arguments: str) -> Any:
    return json.loads(ok(*arguments, "--json"))


QUEUE_COMMANDS = [
    "create", "configure", "rm", "ls", "info", "publish", "claim", "ack", "fail", "extend", "messages", "failed",
    "redrive", "purge", "pause", "resume", "stats", "readers", "release",
]  # fmt: skip


@pytest.mark.parametrize("command", [*(f"queue {verb}" for verb in QUEUE_COMMANDS), "message publish", "message show"])
def test_every_command_teaches(command: str) -> None:
    text = ok(*command.split(), "--help").decode()
    assert f"detent {command} file:./data" in text
    assert "--json" in text
    assert "--force" in text


def test_the_groups_teach() -> None:
    assert "detent queue publish orders hello" in ok("queue", "--help").decode()
    assert "detent message show 0" in ok("message", "--help").decode()


# -- one after another, without any owner ----------------------------------------------------------------------------


def test_the_life_of_a_message(url: str) -> None:
    env = environment(DETENT_URL=url)
    assert ok("queue", "create", "orders", env=env) == b"created queue orders\n"
    assert ok("queue", "publish", "orders", "hello", "--header", "priority=7", env=env) == b"published message 0\n"
    (claimed,) = documents(ok("queue", "claim", "orders", "--lease", "1h", "--consumer", "me", "--json", env=env))
    assert (claimed["receipt"], claimed["id"], claimed["attempts"], claimed["priority"]) == ("1-0-1", 0, 1, 7)
    assert (claimed["body"], claimed["headers"]) == ("hello", {"priority": "7", "queue": "orders"})
    assert b"held until 2" in ok("queue", "extend", "1-0-1", "--lease", "2h", env=env)
    assert b"in queue orders: in flight until" in ok("message", "show", "0", env=env)
    assert ok("queue", "fail", "1-0-1", "--reason", "no answer", "--delay", "0s", env=env) == b"failed 1 message\n"
    again = ok("queue", "claim", "orders", "--ack", env=env).decode().splitlines()
    assert again[0] == "receipt:         1-0-2"
    assert again[-1] == "body:            hello"
    assert "header priority: 7" in again
    shown = json.loads(ok("message", "show", "0", "--json", env=env))
    assert [(place["queue"], place["state"], place["attempts"]) for place in shown["queues"]] == [("orders", "done", 2)]
    assert "is over" in refused("queue", "ack", "1-0-2", code=1, env=env)
    assert b"no problem found" in ok("store", "verify", url)


# -- settings --------------------------------------------------------------------------------------------------------


def test_settings(store: detent.Store, url: str) -> None:
    made = document(
        *("queue", "create", url, "all/of-it", "--filter", "true", "--max-attempts", "3", "--lease", "5s"),
        *("--max-lease", "1m", "--backoff", "2s", "--max-backoff", "1h", "--done-retention", "forever"),
        *("--failed", "discard", "--priority-header", "prio", "--paused", "--description", "takes\nall"),
        *("--label", "team=mail", "--label", "note=a=b"),
    )
    assert made["new"] is True
    expected = {
        "filter": "true", "max_attempts": 3, "lease_ms": 5000, "max_lease_ms": 60_000, "backoff_ms": 2000,
        "max_backoff_ms": 3_600_000, "done_retention_ms": None, "failed_policy": "discard", "priority_header": "prio",
        "paused": True, "description": "takes\nall", "labels": {"team": "mail", "note": "a=b"},
    }  # fmt: skip
    assert {name: made[name] for name in expected} == expected
    text = ok("queue", "info", url, "all/of-it").decode()
    assert "description:      takes\\nall\n" in text
    assert "done retention:   forever\n" in text
    assert "state:            paused\n" in text
    assert "label note:       a=b\n" in text

    changed = document("queue", "configure", url, "all/of-it", "--done-retention", "0s", "--no-paused")
    assert (changed["done_retention_ms"], changed["paused"], changed["max_attempts"]) == (0, False, 3)
    assert ok("queue", "pause", url, "all/of-it") == b"queue all/of-it is paused\n"
    assert store.queue("all/of-it").info().paused
    assert document("queue", "resume", url, "all/of-it")["paused"] is False
    assert "say what to change" in refused("queue", "configure", url, "q", code=2)
    assert document("queue", "configure", url, "q", "--group-header", "g")["group_header"] == "g"
    assert "group header:     g\n" in ok("queue", "info", url, "q").decode()
    assert document("queue", "configure", url, "q", "--group-header", "")["group_header"] == ""
    assert "create it first" in refused("queue", "configure", url, "q", "--dead-letter", "nowhere", code=1)
    assert document("queue", "configure", url, "q", "--dead-letter", "all/of-it")["dead_letter"] == "all/of-it"
    assert "dead letters:     to all/of-it\n" in ok("queue", "info", url, "q").decode()
    assert document("queue", "configure", url, "q", "--dead-letter", "")["dead_letter"] == ""
    assert document("queue", "configure", url, "all/of-it", "--label", "only=one")["labels"] == {"only": "one"}
    assert document("queue", "configure", url, "all/of-it", "--no-labels")["labels"] == {}
    for wrong in (["--label", "x"], ["--label", "=x"], ["--label", "a=1", "--label", "a=2"]):
        assert "label" in refused("queue", "configure", url, "q", *wrong, code=2)
    assert "give one of them" in refused("queue", "configure", url, "q", "--no-labels", "--label", "a=b", code=2)

    assert "there is a queue 'q' already" in refused("queue", "create", url, "q", code=1)
    assert document("queue", "create", url, "q", "--exist-ok")["new"] is False


def test_earliest(store: detent.Store, url: str) -> None:
    store.publish(b"before", headers={"tier": "gold"})
    ok("queue", "create", url, "gold", "--filter", 'headers.tier == "gold"', "--earliest")
    assert ok("queue", "claim", url, "gold", "--wait", "20s", "--ack", "--format", "bodies") == b"before\n"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--filter", 'headers.a == "b" && x'], "line 1, column 21: unknown variable 'x'"),
        (["--filter", ""], "must not be empty"),
        (["--lease", "soon"], "'soon' is no duration"),
        (["--done-retention", "ever"], "'ever' is no duration"),
    ],
)
def test_a_wrong_setting_makes_no_store(url: str, store_dir: Path, options: list[str], expected: str) -> None:
    assert expected in refused("queue", "create", url, "q", *options, code=1)
    assert not store_dir.exists()


def test_a_store_that_does_not_exist_is_not_created(url: str, store_dir: Path) -> None:
    for arguments in (["ls"], ["info", "q"], ["publish", "q", "x"], ["claim", "q"], ["ack", "1-2-3"], ["stats"]):
        verb, *rest = arguments
        assert "detent queue create" in refused("queue", verb, url, *rest, code=1)
    assert "detent queue create" in refused("message", "show", url, "0", code=1)
    assert not store_dir.exists()


def test_unknown_queues(store: detent.Store, url: str) -> None:
    for arguments in (
        ["publish", "nope", "x"], ["claim", "nope"], ["info", "nope"], ["stats", "nope"], ["pause", "nope"],
        ["failed", "nope"], ["redrive", "nope", "--all"], ["redrive", "q", "--all", "--to", "nope"],
        ["purge", "nope", "--yes"], ["rm", "nope", "--yes"], ["configure", "nope", "--lease", "1s"],
    ):  # fmt: skip
        verb, *rest = arguments
        assert "there is no queue 'nope'" in refused("queue", verb, url, *rest, code=1)
    assert "no queue name" in refused("queue", "create", url, "no good", code=1)
    assert store.unmatched() == 0


# -- publishing ------------------------------------------------------------------------------------------------------


def awkward_messages() -> list[detent.Outgoing]:
    rng = random.Random(7)
    return [
        detent.Outgoing(b""),
        detent.Outgoing("grüße \U0001f600 \u2028 \x00".encode(), {"name": "ä\n\t\x00", "": ""}),
        detent.Outgoing(bytes(range(256)), {"priority": "3"}, retention="0s"),
        detent.Outgoing(b"\xed\xa0\x80", retention="90s"),
        detent.Outgoing(uri="s3://bucket/key"),
        *(detent.Outgoing(rng.randbytes(rng.randrange(2000))) for _ in range(1200)),
    ]


def test_claim_and_publish_round_trip(store: detent.Store, url: str) -> None:
    store.queue("other").create()
    store.queue("q").publish_many(awkward_messages())
    lines = ok("queue", "claim", url, "q", "--count", "5000", "--json")
    published = documents(ok("queue", "publish", url, "other", "--format", "ndjson", "--json", stdin=lines))
    assert len(published) == len(awkward_messages())
    assert all(line["duplicate_of"] is None for line in published)

    first = documents(lines)
    again = store.queue("other").claim(5000)
    store.queue("q").ack(line["receipt"] for line in first)
    sent = [(m.body, m.uri or "") for m in awkward_messages()]
    assert sorted((m.body, m.uri or "") for m in again) == sorted(sent)
    assert {m.retention_s for m in again} == {0, 90, 4 * 86_400}
    assert [m.headers for m in again if "name" in m.headers] == [{"name": "ä\n\t\x00", "": "", "queue": "other"}]
    assert [m.priority for m in again].count(3) == 1
    assert sorted(m.created.isoformat(timespec="milliseconds") for m in again) == sorted(
        line["created"].replace("Z", "+00:00") for line in first
    )


def test_lines_and_files(store: detent.Store, url: str, tmp_path: Path) -> None:
    text = ok("queue", "publish", url, "q", "--header", "from=lines", stdin=b"one\n\nthr\xffee").decode()
    assert text == "published 3 messages (0 to 2)\n"
    assert [(m.body, m.headers["from"]) for m in store.queue("q").claim(9)] == [
        (b"one", "lines"),
        (b"", "lines"),
        (b"thr\xffee", "lines"),
    ]
    blob = tmp_path / "blob"
    blob.write_bytes(b"a\nb\xff")
    assert ok("queue", "publish", url, "q", "--file", str(blob)) == b"published message 3\n"
    ok("queue", "publish", url, "q", "--file", str(blob), "--format", "lines")
    ok("queue", "publish", url, "q", "--format", "whole", stdin=b"c\nd\n")
    ok("queue", "publish", url, "q", "")
    ok("queue", "publish", url, "q", "--uri", "https://example.com/x")
    assert [(m.body, m.uri) for m in store.queue("q").claim(9)] == [
        (b"a\nb\xff", None), (b"a", None), (b"b\xff", None), (b"c\nd\n", None), (b"", None),
        (b"", "https://example.com/x"),
    ]  # fmt: skip
    assert ok("queue", "publish", url, "q") == b"published 0 messages\n"


def test_times_and_duplicates(store: detent.Store, url: str) -> None:
    assert ok("queue", "publish", url, "q", "x", "--dedup-key", "k") == b"published message 0\n"
    assert ok("queue", "publish", url, "q", "x", "--dedup-key", "k") == b"duplicate of 0: nothing was published\n"
    assert document("queue", "publish", url, "q", "x", "--dedup-key", "k") == {"id": 0, "duplicate_of": 0}
    keyed = b'{"body": "a", "dedup_key": "k"}\n\n{"body": "b", "dedup_key": "l"}\n{"body": "c"}\n'
    assert ok("queue", "publish", url, "q", "--format", "ndjson", stdin=keyed) == (
        b"published 2 messages (1 to 2), and left out 1 duplicates\n"
    )
    ok("queue", "publish", url, "q", "late", "--delay", "3600", "--retention", "forever")
    ok("queue", "publish", url, "q", "later", "--visible-at", "2100-01-01T00:00:00")
    mixed = b'{"body": "own", "delay": 0, "retention": 60.5}\n{"body": "shared"}\n'
    ok("queue", "publish", url, "q", "--format", "ndjson", "--visible-at", "2100-01-01T01:00:00+01:00", stdin=mixed)
    info = store.queue("q").info()
    assert (info.available, info.delayed) == (4, 3)
    assert store.message(3).retention is None
    shown = document("message", "show", url, "6")
    assert (shown["visible"], shown["queues"][0]["state"]) == ("2100-01-01T00:00:00.000Z", "delayed")


def test_what_was_published_before_a_wrong_line(store: detent.Store, url: str) -> None:
    lines = b'{"body": "a"}\n' * 2500 + b"oops\n" + b'{"body": "a"}\n'
    text = refused("queue", "publish", url, "q", "--format", "ndjson", code=1, stdin=lines)
    assert "line 2501 is not a message" in text
    assert "2000 messages (0 to 1999) published before it" in text
    assert store.queue("q").info().available == 2000
    for line in (b"[]", b"{}", b'{"body": "a", "uri": "b:c"}', b'{"payload": "a"}', b'{"body": {"base64": "?"}}',
                 b'{"body": "x", "visible_at": "2026-01-01T00:00:00"}', b'{"body": "\\ud800"}'):  # fmt: skip
        text = refused("queue", "publish", url, "q", "--format", "ndjson", code=1, stdin=b'{"body": "a"}\n' + line)
        assert "line 2" in text
        assert "nothing published" in text


def test_what_cannot_be_published(store: detent.Store, url: str) -> None:
    def wrong(*options: str, code: int) -> str:
        return refused("queue", "publish", url, "q", *options, code=code)

    assert "NAME=VALUE" in wrong("x", "--header", "y", code=2)
    assert "'a' is given twice" in wrong("x", "--header", "a=1", "--header", "a=2", code=2)
    assert "the argument QUEUE says" in wrong("x", "--header", "queue=r", code=2)
    assert "put it in quotes" in wrong("two", "words", code=2)
    assert "give the body once" in wrong("x", "--uri", "s3://b/k", code=2)
    assert "--format says" in wrong("x", "--format", "lines", code=2)
    assert "belongs to one message" in wrong("--dedup-key", "k", code=2)
    assert "give one of them" in wrong("x", "--delay", "1s", "--visible-at", "2026-01-01", code=2)
    assert "'noon' is not a time" in wrong("x", "--visible-at", "noon", code=2)
    assert "is no duration" in wrong("x", "--delay", "noon", code=1)
    assert "is no URI" in wrong("--uri", "nowhere", code=1)
    wrong("--file", "/nowhere", code=2)
    assert "the header 'priority' is a priority" in wrong("x", "--header", "priority=high", code=1)
    text = refused("queue", "publish", url, "q", code=1, stdin=b"small\n" + b"x" * ((16 << 20) + 1))
    assert "over the limit" in text
    store.queue("gold").create(filter='headers.tier == "gold"')
    assert 'it takes headers.tier == "gold"' in refused("queue", "publish", url, "gold", "x", code=1)
    assert "line 1: the filter" in refused("queue", "publish", url, "gold", code=1, stdin=b"x\n")
    ok("queue", "publish", url, "gold", "x", "--header", "tier=gold")
    assert store.queue("q").info().total_routed == 0
    assert store.unmatched() == 0


def test_publishing_to_whoever_wants_it(store: detent.Store, url: str) -> None:
    store.queue("gold").create(filter='headers.tier == "gold"')
    store.queue("all").create(filter="true", paused=True)
    assert ok("message", "publish", url, "x", "--header", "tier=gold") == b"published message 0 to gold\n"
    assert ok("message", "publish", url, "x") == b"published message 1, which is in no queue yet\n"
    assert ok("message", "publish", url, "--header", "queue=q", stdin=b"a\nb\n") == b"published 2 messages (2 to 3)\n"
    assert document("message", "publish", url, "x") == {"id": 4, "duplicate_of": None}
    assert store.queue("q").info().available == 2


# -- claiming, and what becomes of it --------------------------------------------------------------------------------


def test_claiming(store: detent.Store, url: str) -> None:
    done = detent_command("queue", "claim", url, "q")
    assert (done.returncode, done.stdout) == (0, b"")
    assert b"nothing to claim: 0 available" in done.stderr
    assert ok("queue", "claim", url, "q", "--json", "--wait", "100ms") == b""
    store.queue("q").publish_many([b"\x00\xff", b"two\nlines", detent.Outgoing(uri="s3://b/k")])
    text = ok("queue", "claim", url, "q", "--count", "3", "--consumer", "me").decode()
    assert "body:         AP8= (base64)\n\nreceipt:" in text
    assert "body:         two\nlines\n" in text
    assert text.endswith("uri:          s3://b/k\n")
    assert store.message(0).places[0].consumer == "me"
    assert "add --ack" in refused("queue", "claim", url, "q", "--format", "bodies", code=2)
    assert "is no duration" in refused("queue", "claim", url, "q", "--wait", "long", code=1)
    assert "1 to 10000 messages" in refused("queue", "claim", url, "q", "--count", "20000", code=1)
    refused("queue", "claim", url, "q", "--count", "0", code=2)


def test_waiting_for_a_message(store: detent.Store, url: str) -> None:
    with started("queue", "claim", url, "q", "--wait", "60s", "--json") as process:
        assert process.stdout is not None
        store.queue("q").publish(b"now")
        assert json.loads(process.stdout.readline())["body"] == "now"
        assert process.wait(PATIENCE_S) == 0


def test_a_waiting_claim_owns_the_store_for_others_and_ends_with_an_interrupt(url: str) -> None:
    ok("queue", "create", url, "q")
    with started("queue", "claim", url, "q", "--wait", "60s", "--ack", "--format", "bodies") as process:
        eventually(lambda: document("store", "info", url)["owner"])
        ok("queue", "publish", url, "q", "through the claimer")
        assert process.stdout is not None
        assert process.stdout.read() == b"through the claimer\n"
        assert process.wait(PATIENCE_S) == 0
    assert document("queue", "info", url, "q")["total_acked"] == 1
    with started("queue", "claim", url, "q", "--wait", "60s") as process:
        eventually(lambda: document("store", "info", url)["owner"])
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_S) == 130
        assert process.stderr is not None
        assert process.stderr.read().strip() == b""


def test_what_nobody_could_read_is_not_acknowledged(store: detent.Store, url: str) -> None:
    store.queue("q").publish_many([b"x" * 1000] * 500)
    with started("queue", "claim", url, "q", "--count", "500", "--ack", "--json") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.wait(PATIENCE_S) == 128 + signal.SIGPIPE
        assert process.stderr.read() == b""
    info = store.queue("q").info()
    assert (info.in_flight, info.total_acked) == (500, 0)


def test_receipts(store: detent.Store, url: str) -> None:
    store.queue("other").create()
    store.queue("q").publish_many([b"a", b"b", b"c"])
    store.queue("other").publish(b"d")
    a, b, c = (str(message.receipt) for message in store.queue("q").claim(3))
    d = str(store.queue("other").claim()[0].receipt)
    assert "is over" in refused("queue", "ack", url, a, "1-1-77", code=1)
    assert store.queue("q").info().in_flight == 3
    assert ok("queue", "ack", url, a, d, a) == b"acknowledged 2 messages\n"
    assert document("queue", "fail", url, b, "--reason", "r") == {"failed": [b]}
    extended = document("queue", "extend", url, c, "--lease", "1h")["extended"]
    assert [line["receipt"] for line in extended] == [c]
    for verb, bad in (("ack", "x"), ("fail", "1-2"), ("extend", "1--2")):
        assert f"'{bad}' is no receipt" in refused("queue", verb, url, bad, code=1)
        assert "is over" in refused("queue", verb, url, a, code=1)
        assert "RECEIPT is missing" in refused("queue", verb, url, code=2)
    assert "DETENT_URL" in refused("queue", "ack", a, code=2)
    assert "nothing to --delay" in refused("queue", "fail", url, c, "--final", "--delay", "1s", code=2)
    assert "is no duration" in refused("queue", "extend", url, c, "--lease", "1y", code=1)
    assert ok("queue", "ack", c, env=environment(DETENT_URL=url)) == b"acknowledged 1 message\n"


# -- what failed -----------------------------------------------------------------------------------------------------


def fail_some(store: detent.Store, count: int) -> None:
    queue = store.queue("q")
    queue.publish_many([detent.Outgoing(b"%d" % n, {"tier": "gold" if n % 2 else "tin"}) for n in range(count)])
    for message in queue.claim(count, consumer="me"):
        message.fail("first", delay="0s")
    for message in queue.claim(count, consumer="me"):
        message.fail(f"bad\x1b[2J {message.id}", final=True)


def test_messages_are_listed_without_a_claim(store: detent.Store, url: str) -> None:
    fail_some(store, 3)
    store.queue("q").publish(b"a\x1b[2Jb" + b"c" * 100, headers={"tier": "gold"})
    store.queue("q").claim(consumer="me")
    listed = document("queue", "messages", url, "q", "--body-bytes", "10")
    assert [(one["id"], one["state"]) for one in listed["messages"]] == [
        (3, "in flight"), (0, "failed"), (1, "failed"), (2, "failed"),
    ]  # fmt: skip
    assert (listed["messages"][0]["body"], listed["messages"][0]["size"]) == ("a\x1b[2Jbcccc", 106)
    first = document("queue", "messages", url, "q", "--limit", "2")
    rest = document("queue", "messages", url, "q", "--cursor", first["cursor"], "--state", "failed")
    assert ([one["id"] for one in rest["messages"]], rest["cursor"]) == ([1, 2], None)
    text = ok("queue", "messages", url, "q", "--filter", 'headers.tier == "gold"', "--state", "in flight").decode()
    assert "in flight" in text
    assert "a\\x1b[2Jb" in text
    assert len(text.splitlines()) == 2
    assert "has no state" in refused("queue", "messages", url, "q", "--state", "lost", code=1)


def test_dead_letters_tell_where_they_came_from(store: detent.Store, url: str) -> None:
    store.queue("dead").create(max_attempts=1)
    store.queue("q").configure(dead_letter="dead")
    fail_some(store, 1)
    (claimed,) = documents(ok("queue", "claim", url, "dead", "--json"))
    assert (claimed["attempts"], claimed["total_attempts"]) == (1, 3)
    assert [move["queue"] for move in claimed["dead_letters"]] == ["q"]
    ok("queue", "fail", url, claimed["receipt"], "--reason", "here too")
    text = ok("queue", "failed", url, "dead").decode()
    assert ", 1 attempt: here too\n  claimed 2" in text
    assert "\n  given up by q 2" in text
    assert ", 2 attempts: bad\\x1b[2J 0\n    claimed 2" in text
    assert "\n  given up by q 2" in ok("message", "show", url, "0").decode()
    assert document("queue", "info", url, "q")["total_dead_lettered"] == 1


def test_failed_and_redrive(store: detent.Store, url: str) -> None:
    fail_some(store, 6)
    listed = documents(ok("queue", "failed", url, "q", "--json"))
    assert [(line["id"], line["body"], line["attempts"]) for line in listed] == [(n, str(n), 2) for n in range(6)]
    assert [attempt["reason"] for attempt in listed[3]["history"]] == ["first", "bad\x1b[2J 3"]
    text = ok("queue", "failed", url, "q", "--limit", "1").decode()
    assert text.startswith("message 0: 2")
    assert ", 2 attempts: bad\\x1b[2J 0\n  claimed 2" in text
    assert text.count(" by me, ended 2") == 2
    shown = ok("message", "show", url, "0").decode()
    assert "in queue q: failed since 2" in shown
    assert shown.count(" by me, ended 2") == 2

    for options in ([], ["--all", "1"], ["--all", "--filter", "true"], ["--filter", "true", "1"]):
        assert "say which failed messages" in refused("queue", "redrive", url, "q", *options, code=2)
    assert "message 77 is not among the failed" in refused("queue", "redrive", url, "q", "0", "77", code=1)
    assert "'x' is not a message" in refused("queue", "redrive", url, "q", "x", code=2)
    assert "column 8" in refused("queue", "redrive", url, "q", "--filter", "headers=", code=1)
    assert ok("queue", "redrive", url, "q", "0", "1") == b"2 messages of q can be claimed again\n"
    store.queue("careful").create()
    moved = document("queue", "redrive", url, "q", "--filter", 'headers.tier == "gold"', "--to", "careful")
    assert moved == {"queue": "q", "to": "careful", "messages": 2}
    assert ok("queue", "redrive", url, "q", "--all") == b"2 messages of q can be claimed again\n"
    assert [m.id for m in store.queue("q").claim(9)] == [0, 1, 2, 4]
    assert [m.id for m in store.queue("careful").claim(9)] == [3, 5]


def test_purge(store: detent.Store, url: str) -> None:
    fail_some(store, 3)
    store.queue("q").publish_many([b"x"] * 4)
    store.queue("q").publish(b"y", delay="1h")
    store.queue("q").claim()
    assert "removes 3 available, 1 delayed and 3 failed messages" in refused("queue", "purge", url, "q", code=2)
    assert ok("queue", "purge", url, "q", "--dry-run") == b"would remove 7 messages from queue q\n"
    assert "all of a kind" in refused("queue", "purge", url, "q", "--failed", "--message", "0", code=2)
    assert "message 4 is not among" in refused("queue", "purge", url, "q", "--message", "4", "--yes", code=1)
    assert ok("queue", "purge", url, "q", "--message", "0", "--yes") == b"removed 1 message from queue q\n"
    assert ok("queue", "purge", url, "q", "--failed", "--yes") == b"removed 2 messages from queue q\n"
    assert document("queue", "purge", url, "q", "--available", "--yes") == {"queue": "q", "messages": 4, "purged": True}
    info = store.queue("q").info()
    assert (info.available, info.delayed, info.failed, info.in_flight) == (0, 0, 0, 1)


def answered(answer: bytes, *arguments: str) -> int:
    """The exit code of a command that asks somebody at a terminal."""
    ours, theirs = os.openpty()
    try:
        os.write(ours, answer)
        command = [sys.executable, "-m", "detent.cli", *arguments]
        return subprocess.run(
            command, stdin=theirs, capture_output=True, timeout=PATIENCE_S, env=environment(), check=False
        ).returncode
    finally:
        os.close(ours)
        os.close(theirs)


def test_rm_asks(store: detent.Store, url: str) -> None:
    store.queue("q").publish(b"x")
    assert "deletes queue q with 1 available" in refused("queue", "rm", url, "q", code=2)
    assert b"would delete queue q with 1 available" in ok("queue", "rm", url, "q", "--dry-run")
    assert answered(b"n\n", "queue", "rm", url, "q") == 1
    assert store.queue("q").info().available == 1
    assert answered(b"y\n", "queue", "rm", url, "q") == 0
    assert store.queues() == []
    store.queue("q").create()
    assert document("queue", "rm", url, "q", "--yes")["deleted"] is True


# -- looking ---------------------------------------------------------------------------------------------------------


def test_ls_and_stats(store: detent.Store, url: str) -> None:
    store.queue("other/one").create(paused=True)
    store.queue("q").publish_many([detent.Outgoing(b"x", {"priority": str(n % 2)}) for n in range(5)])
    store.queue("q").claim()[0].ack()
    lines = ok("queue", "ls", url).decode().splitlines()
    assert lines[0].split("  ")[0] == "NAME"
    assert [line.split() for line in lines[1:]] == [
        ["other/one", "0", "0", "0", "0", "paused"],
        ["q", "4", "0", "0", "0", "running"],
    ]
    store.publish(b"for nobody")
    done = detent_command("queue", "ls", url)
    assert b"1 message matched no queue" in done.stderr
    listed = document("queue", "ls", url, "--prefix", "other/")
    assert ([info["name"] for info in listed["queues"]], listed["unmatched"]) == (["other/one"], 1)

    (stats,) = document("queue", "stats", url, "q")
    assert (stats["available"], stats["done"], stats["total_routed"], stats["total_acked"]) == (4, 1, 5, 1)
    assert stats["available_by_priority"] == {"0": 2, "1": 2}
    assert 0 <= stats["oldest_age_ms"] < 600_000
    assert "available at priority 1: 2\n" in ok("queue", "stats", url, "q").decode()
    table = ok("queue", "stats", url).decode().splitlines()
    assert [line.split()[:2] for line in table] == [["NAME", "AVAILABLE"], ["other/one", "0"], ["q", "4"]]
    with started("queue", "stats", url, "--watch", "0.1", "--json") as process:
        assert process.stdout is not None
        first, second = (json.loads(process.stdout.readline()) for _ in range(2))
        assert first["time_ms"] < second["time_ms"]
        assert [info["available"] for info in second["queues"]] == [0, 4]
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_S) == 130


def test_a_message_that_is_nowhere(store: detent.Store, url: str) -> None:
    number = store.publish(b"\xff", headers={"a": "b"}).message
    text = ok("message", "show", url, str(number)).decode()
    assert "header a:     b\nbody:         /w== (base64)\nin no queue\n" in text
    assert "there is no message 77" in refused("message", "show", url, "77", code=1)
    for bad in ("x", "1.5", "99999999999999999999"):
        assert f"'{bad}' is not a message" in refused("message", "show", url, bad, code=2)
    assert "ID is missing" in refused("message", "show", url, code=2)
