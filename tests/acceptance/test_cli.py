"""The `detent` command as a user runs it: real processes, real pipes, real exit codes."""

from __future__ import annotations

import base64
import json
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import lmdb
import pytest

import detent
import zygote
from detent.codec import journal as records
from detent.kv import Batch, open_writer
from filestore import bytes_of
from processes import Processes

PATIENCE_S = 60
Command = Callable[..., subprocess.CompletedProcess[bytes]]


def environment(**more: str) -> dict[str, str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("DETENT_")}
    return {**clean, **more}


@pytest.fixture
def url(store_dir: Path) -> str:
    return f"file:{store_dir}"


def detent_command(
    *arguments: str, stdin: bytes = b"", env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[bytes]:
    return zygote.run(
        [sys.executable, "-m", "detent.cli", *arguments],
        input=stdin,
        timeout=PATIENCE_S,
        env=environment() if env is None else env,
    )


def ok(*arguments: str, stdin: bytes = b"", env: dict[str, str] | None = None) -> bytes:
    done = detent_command(*arguments, stdin=stdin, env=env)
    assert done.returncode == 0, done.stderr.decode()
    assert done.stderr == b""
    return done.stdout


def refused(*arguments: str, code: int, stdin: bytes = b"", env: dict[str, str] | None = None) -> str:
    """The error text of a command that fails as it should: the right code, one clear message, no traceback."""
    done = detent_command(*arguments, stdin=stdin, env=env)
    text = done.stderr.decode()
    assert done.returncode == code, (done.returncode, text)
    assert "Traceback" not in text
    if code == 1:
        assert text.startswith("error: ")
        assert text.count("\n") == 1
    return text


def documents(output: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in output.splitlines()]


def test_the_installed_command_and_the_module_answer() -> None:
    installed = Path(sys.executable).with_name("detent")
    for command in ([str(installed)], [sys.executable, "-m", "detent"]):
        done = subprocess.run([*command, "--version"], capture_output=True, timeout=PATIENCE_S, check=True)
        assert done.stdout.decode().strip() == f"detent {detent.__version__}"


@pytest.mark.parametrize(
    "command",
    ["journal append", "journal create", "journal info", "journal ls", "journal read", "journal rm", "journal tail",
     "journal trim", "store info", "store sweep", "store verify"],
)  # fmt: skip
def test_every_command_teaches(command: str) -> None:
    text = ok(*command.split(), "--help").decode()
    assert f"detent {command} file:./data" in text
    assert "--json" in text


# -- round trips ------------------------------------------------------------------------------------------------------


def awkward_messages() -> list[tuple[bytes, bytes | None, dict[str, str]]]:
    rng = random.Random(7)
    messages: list[tuple[bytes, bytes | None, dict[str, str]]] = [
        (b"", None, {}),
        (b"", b"", {}),
        (b"text", b"key", {"name": "value", "": "", "ä": "\u2028\n\t\x00"}),
        ("grüße \U0001f600 \u2028 \x00 \x7f".encode(), "schlüssel".encode(), {}),
        (b'{"json": [1, 2]}\nwith a second line\r\n', None, {"a": '"quoted"'}),
        (bytes(range(256)), b"\xff\xfe", {"binary": "yes"}),
        (b"\xed\xa0\x80", None, {}),
    ]
    messages += [(rng.randbytes(rng.randrange(2000)), rng.choice([None, rng.randbytes(5)]), {}) for _ in range(1500)]
    return messages


def test_append_and_read_round_trip_byte_for_byte(tmp_path: Path) -> None:
    messages = awkward_messages()
    first, second = f"file:{tmp_path / 'first'}", f"file:{tmp_path / 'second'}"
    with detent.open(first) as store:
        store.journal("j").append_many(messages)
    exported = ok("journal", "read", first, "j", "--format", "ndjson")
    appended = json.loads(ok("journal", "append", second, "j", "--format", "ndjson", "--json", stdin=exported))
    assert appended == {"journal": "j", "count": len(messages), "first_offset": 0}
    with detent.open(second, role="reader") as store:
        assert [(m.body, m.key, m.headers) for m in store.journal("j").read()] == messages
    again = documents(ok("journal", "read", second, "j", "--json"))
    content = ("offset", "key", "headers", "body")
    assert [{name: line.get(name) for name in content} for line in again] == [
        {name: line.get(name) for name in content} for line in documents(exported)
    ]
    assert b"no problem found" in ok("store", "verify", second)


def test_lines_become_bodies(url: str) -> None:
    assert (
        ok("journal", "append", url, "j", stdin=b"one\n\nthr\xffee\r\nlast")
        == b"appended 4 messages from offset 0 on\n"
    )
    assert ok("journal", "read", url, "j") == b"one\n\nthr\xffee\r\nlast\n"


def test_many_lines_go_in_several_transactions(url: str) -> None:
    lines = b"".join(b"%d\n" % number for number in range(2500))
    ok("journal", "append", url, "j", stdin=lines)
    assert ok("journal", "read", url, "j") == lines
    assert json.loads(ok("journal", "info", url, "j", "--json"))["blocks"] == 3


def test_one_message(url: str, tmp_path: Path) -> None:
    blob = tmp_path / "blob"
    blob.write_bytes(b"\x00\xff\n")
    ok("journal", "append", url, "j", "--body", "hello", "--key", "k", "--header", "a=b=c", "--header", "d=")
    assert ok("journal", "append", url, "j", "--file", str(blob)) == b"appended 1 message at offset 1\n"
    blob.write_bytes(b'{"body": "from a file"}\n')
    ok("journal", "append", url, "j", "--file", str(blob), "--format", "ndjson")
    read = documents(ok("journal", "read", url, "j", "--json"))
    assert read[0]["body"] == "hello"
    assert (read[0]["key"], read[0]["headers"]) == ("k", {"a": "b=c", "d": ""})
    assert base64.b64decode(read[1]["body"]["base64"]) == b"\x00\xff\n"
    assert read[2]["body"] == "from a file"


def test_nothing_to_append(url: str) -> None:
    assert ok("journal", "append", url, "j") == b"appended 0 messages\n"


# -- reading ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def ten(url: str) -> str:
    with detent.open(url) as store:
        store.journal("j").append_many([b"%d" % number for number in range(10)])
    return url


def test_ranges(ten: str) -> None:
    def read(*options: str) -> bytes:
        return b"".join(ok("journal", "read", ten, "j", *options).split())

    assert read() == b"0123456789"
    assert read("--from", "7") == b"789"
    assert read("--from", "7", "--limit", "2") == b"78"
    assert read("--from", "2", "--to", "4") == b"23"
    assert read("--from", "latest") == b""
    assert read("--from", "earliest", "--limit", "1") == b"0"
    assert read("--from", "2000-01-01T00:00:00Z", "--limit", "1") == b"0"
    assert read("--from", datetime.fromtimestamp(1 << 33, UTC).isoformat()) == b""
    assert "does not exist yet" in refused("journal", "read", ten, "j", "--from", "11", code=1)
    assert "does not exist yet" in refused("journal", "read", ten, "j", "--to", "11", code=1)
    assert "is not a place in a journal" in refused("journal", "read", ten, "j", "--from", "x", code=2)


def test_uncommitted_rows(url: str) -> None:
    with detent.open(url) as store:
        publisher = store.publisher()
        publisher.publish_uncommitted("j", [b"pending"])
        publisher.acknowledge(publisher.build_ack_intents())
        publisher.publish_uncommitted("j", [b"open"])
    assert ok("journal", "read", url, "j") == b"pending\n"
    rows = documents(ok("journal", "read", url, "j", "--uncommitted", "--json"))
    assert [(row["position"], row["flags"], row["body"]) for row in rows] == [
        (0, 1, "pending"),
        (1, 2, ""),
        (2, 1, "open"),
    ]
    assert "position" in refused("journal", "read", url, "j", "--uncommitted", "--from", "2020-01-01", code=2)


def test_a_reader_that_goes_away(url: str) -> None:
    with detent.open(url) as store:
        store.journal("j").append_many([b"x" * 1000] * 2000)
    with subprocess.Popen(
        [sys.executable, "-m", "detent.cli", "journal", "read", url, "j"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(PATIENCE_S) == 128 + signal.SIGPIPE


def test_readers_leave_a_running_owner_alone(ten: str) -> None:
    with detent.open(ten) as store:
        before = store.epoch
        ok("journal", "read", ten, "j")
        ok("store", "verify", ten)
        info = json.loads(ok("store", "info", ten, "--json"))
        assert info["owner"] == {"pid": os.getpid(), "epoch": before}
        # A writer finds the owner and goes through it.
        ok("journal", "append", ten, "j", "--body", "through the owner")
        assert store.epoch == before
        assert store.journal("j").next_offset() == 11


# -- following --------------------------------------------------------------------------------------------------------


def test_tail(ten: str) -> None:
    assert ok("journal", "tail", ten, "j", "--from", "8", "--limit", "2") == b"8\n9\n"
    assert ok("journal", "tail", ten, "j", "--timeout", "100ms") == b""
    assert "duration" in refused("journal", "tail", ten, "j", "--timeout", "soon", code=1)


def test_tail_follows_and_ends_with_an_interrupt(ten: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "detent.cli", "journal", "tail", ten, "j", "--from", "9", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert json.loads(process.stdout.readline())["body"] == "9"
        with detent.open(ten) as store:
            store.journal("j").append(b"new")
            assert json.loads(process.stdout.readline())["offset"] == 10
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_S) == 130
        assert process.stderr.read().strip() == b""


# -- looking, trimming, deleting --------------------------------------------------------------------------------------


def test_ls_and_info(ten: str) -> None:
    ok("journal", "create", ten, "other/one", "--retention", "7d")
    listed = json.loads(ok("journal", "ls", ten, "--json"))
    assert [(found["name"], found["messages"]) for found in listed] == [("j", 10), ("other/one", 0)]
    assert json.loads(ok("journal", "ls", ten, "--prefix", "other/", "--json"))[0]["retention_ms"] == 7 * 86_400_000
    lines = ok("journal", "ls", ten).decode().splitlines()
    assert lines[0].split() == ["NAME", "MESSAGES", "FIRST", "NEXT", "SIZE", "UPDATED"]
    assert lines[1].split()[:4] == ["j", "10", "0", "10"]
    assert "retention:            7d" in ok("journal", "info", ten, "other/one").decode()
    info = json.loads(ok("journal", "info", ten, "j", "--json"))
    assert (info["first_offset"], info["next_offset"], info["registers"]) == (0, 10, {})
    assert "there is a journal 'j' already" in refused("journal", "create", ten, "j", code=1)
    ok("journal", "create", ten, "j", "--exist-ok")


def test_trim(ten: str) -> None:
    assert ok("journal", "trim", ten, "j", "--before", "4", "--dry-run") == (
        b"would forget 4 messages: j begins at offset 4\n"
    )
    assert json.loads(ok("journal", "info", ten, "j", "--json"))["first_offset"] == 0
    trimmed = json.loads(ok("journal", "trim", ten, "j", "--before", "4", "--json"))
    assert trimmed == {"journal": "j", "messages": 4, "first_offset": 4, "trimmed": True}
    assert ok("journal", "read", ten, "j", "--limit", "1") == b"4\n"
    assert "now begins at 4" in refused("journal", "read", ten, "j", "--from", "3", code=1)
    assert "does not exist yet" in refused("journal", "trim", ten, "j", "--before", "11", code=1)
    refused("journal", "trim", ten, "j", code=2)


def test_rm(ten: str) -> None:
    assert "say --yes" in refused("journal", "rm", ten, "j", code=2)
    assert ok("journal", "rm", ten, "j", "--dry-run") == b"would delete journal j with 10 messages\n"
    assert json.loads(ok("journal", "rm", ten, "j", "--yes", "--json"))["deleted"] is True
    assert json.loads(ok("journal", "ls", ten, "--json")) == []
    assert "there is no journal 'j'" in refused("journal", "rm", ten, "j", "--yes", code=1)


def test_store_info_and_sweep(ten: str) -> None:
    info = json.loads(ok("store", "info", ten, "--json"))
    assert (info["journals"], info["messages"], info["owner"]) == (1, 10, None)
    assert b"messages:             10\n" in ok("store", "info", ten)
    assert json.loads(ok("store", "sweep", ten, "--json")) == {"deleted": 0}


# -- verify -----------------------------------------------------------------------------------------------------------


def test_verify_names_what_is_wrong(ten: str) -> None:
    healthy = json.loads(ok("store", "verify", ten, "--json"))
    assert (healthy["ok"], healthy["findings"], healthy["counts"]["messages"]) == (True, [], 10)
    writer = open_writer(ten)
    with writer.view() as view:
        key, value = next(iter(view.scan(*records.part_range(1, records.BLOCK))))
    batch = Batch()
    batch.put(key, value[:-1] + bytes([value[-1] ^ 1]))
    writer.commit(batch)
    writer.close()
    done = detent_command("store", "verify", ten)
    assert done.returncode == 1
    assert f"journal 'j', record {key.hex()}: a block does not match its checksum" in done.stdout.decode()
    damaged = json.loads(detent_command("store", "verify", ten, "--json").stdout)
    assert damaged["ok"] is False
    assert damaged["findings"][0]["problem"] == "a block does not match its checksum"
    path = ten.removeprefix("file:")
    with lmdb.open(path, map_size=1 << 30) as environment, environment.begin(write=True) as transaction:
        transaction.put(key, value + bytes(8))  # what the disk makes of a record, below every writer
    damaged = json.loads(detent_command("store", "verify", ten, "--json").stdout)
    assert damaged["counts"]["damaged"] == 1
    assert damaged["findings"][0]["where"] == f"record {key.hex()}"
    assert "does not match its checksum" in damaged["findings"][0]["problem"]
    assert "does not match its checksum" in refused("journal", "read", ten, "j", code=1)


# -- the URL ----------------------------------------------------------------------------------------------------------


def test_the_url_may_come_from_the_environment(ten: str, tmp_path: Path) -> None:
    env = environment(DETENT_URL=ten)
    assert ok("journal", "read", "j", "--limit", "1", env=env) == b"0\n"
    assert ok("journal", "ls", "--json", env=env) == ok("journal", "ls", ten, "--json")
    ok("journal", "append", "j", "--body", "x", env=env)
    other = f"file:{tmp_path / 'other'}"
    ok("journal", "append", other, "j", "--body", "elsewhere", env=env)
    assert ok("journal", "read", other, "j", env=env) == b"elsewhere\n"
    assert "argument NAME is missing" in refused("journal", "read", other, code=2, env=env)
    assert "argument NAME is missing" in refused("journal", "read", code=2, env=env)


def test_without_a_url() -> None:
    assert "DETENT_URL" in refused("journal", "ls", code=2)
    assert "DETENT_URL" in refused("journal", "read", "orders", code=2)
    assert "argument NAME is missing" in refused("journal", "read", "file:./data", code=2)


@pytest.mark.parametrize(
    ("bad", "expected"),
    [
        ("data", "write 'file:data'"),
        ("./nowhere", "there is no store"),
        ("bogus:x", "unknown kind of store"),
        ("file:", "needs the path"),
        ("memory:", "file:PATH"),
        ("s3://", "s3://BUCKET/PREFIX"),
        ("file:/proc/nowhere/store", "there is no store"),
    ],
)
def test_bad_urls(bad: str, expected: str) -> None:
    assert expected in refused("journal", "read", bad, "j", code=1)


def test_a_store_that_does_not_exist_is_not_created(url: str, store_dir: Path) -> None:
    for command in (["read"], ["info"], ["tail"], ["trim", "--before", "1"], ["rm", "--yes"]):
        verb, *options = command
        text = refused("journal", verb, url, "j", *options, code=1)
        assert "there is no store" in text
        assert "detent journal append" in text
    for verb in ("info", "verify", "sweep"):
        assert "there is no store" in refused("store", verb, url, code=1)
    assert not store_dir.exists()


def test_a_directory_that_is_no_store(tmp_path: Path) -> None:
    (tmp_path / "data.mdb").write_bytes(b"not a database" * 1000)
    refused("store", "verify", f"file:{tmp_path}", code=1)
    refused("journal", "append", f"file:{tmp_path}", "j", "--body", "x", code=1)


# -- bad input --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "line",
    [b"no json", b"[]", b"{}", b'{"body": 7}', b'{"bdoy": "x"}', b'{"body": {"base64": "???"}}', b'{"body": "\xff"}',
     b'{"body": "x", "headers": {"a": 1}}', b'{"body": {"base64": "AA==", "x": 1}}', b'{"body": "\\ud800"}'],
)  # fmt: skip
def test_a_malformed_line_is_named(url: str, line: bytes) -> None:
    text = refused("journal", "append", url, "j", "--format", "ndjson", code=1, stdin=b'{"body": "a"}\n' + line)
    assert "line 2" in text
    assert "nothing committed" in text


def test_what_was_committed_before_a_malformed_line(url: str) -> None:
    lines = b'{"body": "a"}\n' * 2500 + b"oops\n" + b'{"body": "a"}\n'
    text = refused("journal", "append", url, "j", "--format", "ndjson", code=1, stdin=lines)
    assert "line 2501" in text
    assert "2000 messages committed before it from offset 0 on" in text
    assert json.loads(ok("journal", "info", url, "j", "--json"))["next_offset"] == 2000


def test_a_message_that_is_too_large(url: str) -> None:
    text = refused("journal", "append", url, "j", code=1, stdin=b"small\n" + b"x" * ((16 << 20) + 1))
    assert "over the limit" in text
    assert "nothing committed" in text


def test_names_and_options(ten: str) -> None:
    assert "there is no journal 'nope'" in refused("journal", "read", ten, "nope", code=1)
    assert "there is no journal 'nope'" in refused("journal", "info", ten, "nope", code=1)
    assert "no journal name" in refused("journal", "append", ten, "no good", "--body", "x", code=1)
    assert "NAME=VALUE" in refused("journal", "append", ten, "j", "--body", "x", "--header", "y", code=2)
    assert "--body" in refused("journal", "append", ten, "j", "--key", "k", code=2)
    assert "neither" in refused("journal", "append", ten, "j", "--body", "x", "--format", "lines", code=2)
    refused("journal", "append", ten, "j", "--file", "/nowhere", code=2)
    refused("journal", "dance", code=2)
    refused("journal", "read", ten, "j", "too", "many", code=2)


def test_debugging_shows_where_an_error_came_from(url: str) -> None:
    done = detent_command("store", "info", url, env=environment(DETENT_DEBUG="1"))
    assert done.returncode == 1
    assert b"Traceback" in done.stderr


# -- stores that were damaged, copied or put in odd places ----------------------------------------------------------


def kill_an_owner(url: str, processes: Processes) -> None:
    """Leave a store with commits in its log."""
    owner = processes.store(url)
    for number in range(5):
        owner.call("append", journal="j", body=f"m{number}")
    owner.kill()


def test_a_damaged_log_is_found_refused_and_given_up_only_on_demand(
    url: str, store_dir: Path, processes: Processes
) -> None:
    kill_an_owner(url, processes)
    (log,) = store_dir.glob("commits-*.log")
    data = bytearray(log.read_bytes())
    data[2 * 4096 + 50] ^= 1
    log.write_bytes(data)
    before = bytes_of(store_dir)
    assert "damaged" in refused("store", "verify", url, code=1)
    assert bytes_of(store_dir) == before
    assert "damaged" in refused("journal", "append", url, "j", "--body", "more", code=1)
    assert "--yes" in refused("store", "abandon-log", url, code=1)
    assert b".abandoned" in ok("store", "abandon-log", url, "--yes")
    ok("store", "verify", url)
    ok("journal", "append", url, "j", "--body", "more")


def test_verify_outlives_a_data_file_that_ends_processes(url: str, store_dir: Path) -> None:
    ok("journal", "append", url, "j", stdin=b"\n".join(b"%d" % number for number in range(3000)))
    with (store_dir / "data.mdb").open("r+b") as data:
        size = data.seek(0, 2)
        for page in range(2, size // 4096):  # all but the meta pages
            data.seek(page * 4096)
            data.write(bytes(4096))
    done = detent_command("store", "verify", url, "--json")
    assert done.returncode == 1, (done.returncode, done.stderr)
    assert b"Traceback" not in done.stderr


def test_a_copy_of_a_store_in_use_has_no_owner(url: str, store_dir: Path, tmp_path: Path, processes: Processes) -> None:
    owner = processes.store(url)
    owner.call("append", journal="j", body="m")
    assert json.loads(ok("store", "info", url, "--json"))["owner"]
    copy = tmp_path / "copy"
    copy.mkdir()
    for file in store_dir.iterdir():
        if file.is_file():
            shutil.copy(file, copy)
    assert not json.loads(ok("store", "info", f"file:{copy}", "--json"))["owner"]


@pytest.mark.parametrize("place", ["file://elsewhere/tmp/store", "file:/dev/null/store", "file:./" + "x" * 300])
def test_places_where_no_store_can_be(place: str) -> None:
    assert "OSError" not in refused("journal", "append", place, "j", "--body", "x", code=1)
