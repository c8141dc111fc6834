"""What an ingest is told, and the small parts that follow from it: batches, times, names, headers, the log of Delta."""

from __future__ import annotations

import gzip
import itertools
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from detent.errors import Invalid, NotFound
from detent.ingest import csv_headers
from detent.ingest.announcements import Announced
from detent.ingest.config import IngestConfig
from detent.ingest.identity import POLICIES, announced_of, check_policy, key_of, missing, shard_of, version_of
from detent.ingest.local_state import BatchLimits, HeldFile, HeldMessage, VisibilitySchedule, next_batch
from detent.ingest.shared_state import FileShard
from detent.ingest.staging import FilesFailed, StagedFile, staged_name
from detent.tables import delta_log
from detent.tables.delta_log import known_applications
from detent.transports.contract import Delivery


def config(**changes: Any) -> IngestConfig:
    return IngestConfig(**{"name": "orders", "queue": "sqs:new", "table": "orders", "folder": "/data", **changes})


# -- configuration ---------------------------------------------------------------------------------------------------


def test_what_is_not_said_has_a_value_that_works() -> None:
    plain = config()
    assert (plain.location, plain.state_url) == ("/data/orders", "sqlite:////data/orders.ingest.db")
    assert str(plain.staging_folder) == "/data/orders.staging"
    assert plain.limits == BatchLimits(10_000, 1 << 30, 10.0)
    assert (plain.commit_timeout_s, plain.grace_s, plain.window_s) == (60.0, 120.0, 15 * 86_400.0)
    assert (plain.evolution, config(schema="id INT").evolution) == ("add", "ignore")
    assert config(schema="id INT", new_columns="fail").evolution == "fail"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"name": "a b"}, "a name is letters"),
        ({"name": ""}, "a name is letters"),
        ({"name": "x" * 101}, "a name is letters"),
        ({"name": "../x"}, "a name is letters"),
        ({"queue": ""}, "needs a queue and a table"),
        ({"table": ""}, "needs a queue and a table"),
        ({"table": "https://bucket/orders"}, "the table is a folder"),
        ({"partition_by": "day"}, "partition_by is a list"),
        ({"merge_on": "id", "newest_by": "at"}, "merge_on is a list"),
        ({"merge_on": ["id", "id"], "newest_by": "at"}, "names a column twice"),
        ({"merge_on": ["id"]}, "merge_on and newest_by go together"),
        ({"newest_by": "at"}, "merge_on and newest_by go together"),
        ({"merge_on": ["id"], "newest_by": "at"}, "rows of a manifest table cannot be replaced"),
        ({"partition_by": ["day", "to_date(at) AS day"]}, "names a column twice"),
        ({"catalog": "http://there"}, "a catalog is for Iceberg"),
        ({"table": 5}, "table is a text, not 5"),
        ({"committer": "hudi"}, "committer is one of manifest, delta, iceberg, not 'hudi'"),
        ({"format": "avro"}, "format is one of"),
        ({"message": "kafka"}, "message is one of"),
        ({"new_columns": "drop"}, "new_columns is one of ignore, rescue, add, fail"),
        ({"identity": "md5"}, "identity is one of"),
        ({"attempts": 0}, "tried once at least"),
        ({"attempts": True}, "attempts is a number"),
        ({"attempts": "3"}, "attempts is a number"),
        ({"batch_files": 0}, "a file and a byte"),
        ({"batch_files": -1}, r"\[batch\] files is a number"),
        ({"batch_bytes": "0B"}, "a file and a byte"),
        ({"batch_bytes": -5}, "a file and a byte"),
        ({"batch_bytes": "1 zebibyte"}, "is not a size"),
        ({"batch_bytes": 1.5}, "is not a size"),
        ({"batch_age": True}, "is no duration"),
        ({"visibility": "soon"}, "is no duration"),
        ({"window": "-1d"}, "is no duration"),
        ({"retry_delay": None}, "is no duration"),
        ({"prune_interval": "1 year"}, "is no duration"),
        ({"orphan_age": "x"}, "is no duration"),
        ({"commit_timeout": "0s"}, "longer than nothing"),
        ({"options": {"header": True}}, "options is a section"),
        ({"spark": ["a"]}, "spark is a section"),
        ({"s3": {"region": "eu", "secret_key": "hush"}}, r"\[s3\] knows region and endpoint, not secret_key"),
    ],
)
def test_what_cannot_be_meant_is_refused_before_anything_is_touched(change: dict[str, Any], why: str) -> None:
    with pytest.raises(Invalid, match=why) as failure:
        config(**change)
    assert "hush" not in str(failure.value)


def test_durations_are_texts_or_timedeltas() -> None:
    assert config(commit_timeout=timedelta(seconds=1.5)).grace_s == 3.0
    assert config(window="2w").window_s == 14 * 86_400
    assert config(batch_age="250ms").limits.age_s == 0.25


def test_a_file_says_it_all_and_its_paths_begin_in_its_folder(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "ingest.toml"
    path.parent.mkdir()
    path.write_text(
        'name = "orders"\nqueue = "detent:file:./q#new"\ntable = "tables/orders"\nstate = "sqlite:///state.db"\n'
        'staging = "scratch"\nattempts = 5\nmetadata = true\n[batch]\nfiles = 7\nbytes = "1MiB"\nage = "3s"\n'
        '[options]\nsep = ";"\n[s3]\nregion = "eu-west-1"\n'
    )
    read = IngestConfig.read(path)
    folder = str(path.parent)
    assert read.location == f"{folder}/tables/orders"
    assert read.state_url == f"sqlite:///{folder}/state.db"
    assert str(read.staging_folder) == f"{folder}/scratch"
    assert read.limits == BatchLimits(7, 1 << 20, 3.0)
    assert (read.attempts, read.metadata, read.options, read.s3_options.region) == (5, True, {"sep": ";"}, "eu-west-1")
    changed = IngestConfig.read(path, attempts=1, table="/elsewhere")
    assert (changed.attempts, changed.location, changed.limits) == (1, "/elsewhere", read.limits)
    assert replace(read, state="postgresql://u@h/d").state_url == "postgresql://u@h/d"
    assert replace(read, state="sqlite:////abs.db").state_url == "sqlite:////abs.db"
    with pytest.raises(Invalid):
        replace(read, attempts=0)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('name = "orders', "is not TOML"),
        ('queue = "sqs:x"\npassword = "hush"', "says password, which is nothing that an ingest knows"),
        ('name = "o"\nqueue = "redis://:hush@h/0#s"', "does not say table"),
        ('name = "o"\nqueue = "sqs:x"\ntable = "t"\nfolder = "/"', "says folder"),
        ('name = "o"\nqueue = "sqs:x"\ntable = "t"\nbatch = 5', "is a section"),
        ('name = "o"\nqueue = "sqs:x"\ntable = "t"\n[batch]\nrows = 5', r"says \[batch\] rows"),
        ('name = "o"\nqueue = "redis://:hush@h/0#s"\ntable = "t"\nstate = "x://u:hush@h"\nformat = "orc"', "format is"),
        ('name = "o"\nqueue = "redis://:hush@h/0#s"\ntable = "t"\nattempts = "many"', "attempts is a number"),
    ],
)
def test_a_file_that_is_wrong_says_what_and_repeats_no_secret(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "ingest.toml"
    path.write_text(text)
    with pytest.raises(Invalid, match=why) as failure:
        IngestConfig.read(path)
    assert "hush" not in str(failure.value)


def test_a_file_that_is_not_there_or_no_text_is_told(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"nothing\.toml"):
        IngestConfig.read(tmp_path / "nothing.toml")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(Invalid, match="not TOML"):
        IngestConfig.read(tmp_path / "binary.toml")


# -- batches ---------------------------------------------------------------------------------------------------------

LIMITS = BatchLimits(files=3, bytes=100, age_s=10.0)


def files(*sizes: int, since: float = 0.0) -> list[HeldFile]:
    return [
        HeldFile(FileShard(bytes([number]), f"s3://b/{number}", "", size), Announced(""), since)
        for number, size in enumerate(sizes)
    ]


@pytest.mark.parametrize(
    ("sizes", "now", "is_draining", "count"),
    [
        ((), 99, True, 0),
        ((1, 1), 9, False, 0),
        ((1, 1), 9, True, 2),
        ((1, 1), 10, False, 2),
        ((1, 1, 1), 0, False, 3),
        ((1, 1, 1, 1), 0, False, 3),
        ((60, 40), 0, False, 2),
        ((60, 41), 0, False, 1),
        ((500,), 0, False, 1),
        ((99,), 0, False, 0),
        ((1, 500, 1), 0, False, 1),
    ],
)
def test_a_batch_is_due_when_it_is_full_or_old_or_nothing_else_comes(
    sizes: tuple[int, ...], now: float, is_draining: bool, count: int
) -> None:
    ready = files(*sizes)
    assert next_batch(ready, LIMITS, now, is_draining=is_draining) == ready[:count]


# -- times -----------------------------------------------------------------------------------------------------------


def test_times_follow_from_the_visibility_and_the_commit_timeout() -> None:
    schedule = VisibilitySchedule(120, 60, 43_200)
    assert (schedule.receive_s, schedule.extension_s, schedule.last_s, schedule.margin_s) == (180, 60, 120, 4)
    short = VisibilitySchedule(6, 1, 43_200)
    assert (short.receive_s, short.extension_s, short.last_s, short.margin_s) == (7, 3, 2, 1)


def test_no_more_is_asked_for_than_the_queue_can_do() -> None:
    schedule = VisibilitySchedule(120, 60, 30)
    assert (schedule.receive_s, schedule.extension_s, schedule.last_s, schedule.margin_s) == (30, 30, 30, 4)


def test_messages_are_due_within_the_margin_unless_lost_or_extended_for_the_last_time() -> None:
    schedule = VisibilitySchedule(120, 60, 43_200)

    def message(deadline: float, **flags: bool) -> HeldMessage:
        return HeldMessage(Delivery("m", "r", b""), deadline, set(), **flags)

    late, due, early = message(90), message(104), message(104.1)
    lost, last = message(90, is_lost=True), message(90, is_last_extended=True)
    assert schedule.due([early, due, late, lost, last], now=100) == [due, late]
    longer = message(220)
    assert schedule.last([early, longer, lost, message(500)], now=100) == [early]
    assert schedule.last([longer], now=100.1) == [longer]


# -- identity --------------------------------------------------------------------------------------------------------

FILE = Announced("s3://b/k:1", 9, "e1", "v1", "s1")


@pytest.mark.parametrize(
    ("policy", "differs_by"),
    [
        ("etag", {"uri", "etag"}),
        ("version", {"uri", "version"}),
        ("sequencer", {"uri", "sequencer", "etag"}),
        ("uri", {"uri"}),
    ],
)
def test_a_policy_says_what_tells_one_file_from_another(policy: str, differs_by: set[str]) -> None:
    changes: dict[str, Any] = {"uri": "s3://b/x", "size": 10, "etag": "e2", "version": "v2", "sequencer": "s2"}
    changes["modified_ms"] = 5
    differs = {
        name
        for name, value in changes.items()
        if shard_of(FILE._replace(**{name: value}), policy).key != shard_of(FILE, policy).key
    }
    assert differs == differs_by


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("version", ["", "null", "v1"])
def test_the_file_of_a_shard_is_the_same_file(policy: str, version: str) -> None:
    """What is adopted without its message is found finished when the message comes after all."""
    file = FILE._replace(version=version, etag="a:b")
    shard = shard_of(file, policy)
    assert shard_of(announced_of(shard), policy) == shard
    assert shard.size == 9


def test_a_bucket_without_versions_falls_back_to_the_etag() -> None:
    for version in ("", "null"):
        assert version_of(FILE._replace(version=version), "version") == version_of(FILE, "etag") == "etag:e1"
    assert version_of(Announced("s3://b/k"), "etag") is None
    assert version_of(Announced("s3://b/k"), "version") is None
    assert version_of(Announced("s3://b/k"), "uri") == ""
    with pytest.raises(Invalid, match="sequencer"):
        version_of(Announced("s3://b/k", etag="e"), "sequencer")
    for policy in POLICIES:
        assert version_of(Announced("message:q/1", data=b""), policy) == "", "a message has its own name"


def test_keys_are_short_and_a_missing_file_has_one_of_its_own() -> None:
    found = {
        key_of(*pair) for pair in itertools.product(("a", "ab", "a\udc80", "x" * 4_000), ("", "b", "bc", "missing"))
    }
    assert (len(found), {len(key) for key in found}) == (16, {16})
    assert missing(FILE).key not in {shard_of(FILE, policy).key for policy in POLICIES}
    assert missing(FILE) == missing(Announced(FILE.uri)), "whatever its announcement said"
    with pytest.raises(Invalid, match="etag, version, sequencer, uri"):
        check_policy("md5")


# -- names and headers -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("uri", "name"),
    [
        ("s3://b/a.json", "f000007.json"),
        ("s3://b/a.csv.gz", "f000007.csv.gz"),
        ("s3://b/v1.2.3.json.gz", "f000007.json.gz"),
        ("s3://b/_hidden", "f000007"),
        ("s3://b/dir.d/plain", "f000007"),
        ("s3://b/a.b c", "f000007"),
        ("s3://b/a.{x,y}", "f000007"),
        ("s3://b/a.gz?x=1", "f000007"),
        (f"s3://b/a.{'x' * 300}", "f000007"),
    ],
)
def test_a_staged_file_keeps_its_ending_and_nothing_else(uri: str, name: str) -> None:
    assert staged_name(7, uri) == name


def staged(folder: Path, **contents: bytes) -> list[StagedFile]:
    found = []
    for name, content in contents.items():
        real = name.replace("_gz", ".gz")
        (folder / real).write_bytes(content)
        found.append(StagedFile(real, HeldFile(FileShard(real.encode(), real, "", 1), Announced(real), 0.0)))
    return found


def test_csv_files_are_grouped_by_their_headers(tmp_path: Path) -> None:
    files = staged(
        tmp_path,
        a=b"id,name\n1,x\n",
        b=b"name,id\r\nx,1\r\n",
        c=b"\xef\xbb\xbfid,name",
        d_gz=gzip.compress(b'"id",name\n1,x\n'),
        empty=b"",
        blank=b"\n1,x\n",
        quoted=b'"a,b",c\n',
    )
    found = csv_headers.groups(tmp_path, files, csv_headers.HeaderStyle.of({}))
    assert found["id", "name"][0] == "id,name"  # the line itself, of the first one
    assert {header: names for header, (_, names) in found.items()} == {
        ("id", "name"): ["a", "c", "d.gz"],
        ("name", "id"): ["b"],
        (): ["empty"],
        ("1", "x"): ["blank"],  # as for Spark, lines without anything do not count
        ("a,b", "c"): ["quoted"],
    }
    semicolon = staged(tmp_path, e="größe;'a;b'\n".encode("latin-1"))
    style = csv_headers.HeaderStyle.of({"sep": ";", "encoding": "latin-1", "quote": "'"})
    assert csv_headers.groups(tmp_path, semicolon, style) == {("größe", "a;b"): ("größe;'a;b'", ["e"])}
    remarked = staged(tmp_path, f=b"# by hand\n\na\tb\n")
    style = csv_headers.HeaderStyle.of({"delimiter": "\\t", "comment": "#"})
    assert csv_headers.groups(tmp_path, remarked, style) == {("a", "b"): ("a\tb", ["f"])}


@pytest.mark.parametrize(
    ("options", "why"),
    [({"sep": "||"}, "one character"), ({"encoding": "none"}, "no encoding"), ({"charset": "utf-16"}, "not in utf-16")],
)
def test_csv_styles_in_which_no_header_can_be_found_are_refused(options: dict[str, str], why: str) -> None:
    with pytest.raises(Invalid, match=why):
        csv_headers.HeaderStyle.of(options)


def test_a_packed_file_of_remarks_is_not_read_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csv_headers, "REMARKS_BYTES_MAX", 5_000)
    files = staged(
        tmp_path,
        few_gz=gzip.compress(b"#\n" * 2_000 + b"id,name\n"),
        many_gz=gzip.compress(b"#\n" * 3_000 + b"id,name\n"),
        empty_gz=gzip.compress(b"\n" * 6_000 + b"id,name\n"),
    )
    with pytest.raises(FilesFailed) as failure:
        csv_headers.groups(tmp_path, files, csv_headers.HeaderStyle.of({"comment": "#"}))
    assert set(failure.value.reasons) == {b"many.gz", b"empty.gz"}


def test_csv_files_without_a_usable_header_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csv_headers, "HEADER_BYTES_MAX", 50)
    files = staged(
        tmp_path,
        good=b"id,name\n",
        twice=b"id,ID\n",
        unnamed=b"id,,name\n",
        long=b"x" * 60,
        encoded=b"\xff\xfe\n",
        plain_gz=b"id,name\n",
        cut_gz=gzip.compress(b"id,name\n")[:12],
    )
    files.append(StagedFile("gone", HeldFile(FileShard(b"gone", "gone", "", 1), Announced(""), 0.0)))
    with pytest.raises(FilesFailed) as failure:
        csv_headers.groups(tmp_path, files, csv_headers.HeaderStyle.of({}))
    wanted = {b"twice", b"unnamed", b"long", b"encoded", b"plain.gz", b"cut.gz", b"gone"}
    assert failure.value.reasons.keys() == wanted


# -- the log of Delta ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("checkpoints", [(), (2,), (2, 5), (6,)])
def test_ids_of_a_delta_table_are_found_as_the_library_finds_them(tmp_path: Path, checkpoints: tuple[int, ...]) -> None:
    place = tmp_path / "table"
    rows = pa.table({"id": [1], "text": ['{"txn":{"appId":"no-id"}}']})
    for number in range(7):
        ids = [Transaction(f"app-{number}-{one}", 1, 0) for one in range(number % 3)]
        write_deltalake(str(place), rows, mode="append", commit_properties=CommitProperties(app_transactions=ids))
        if number in checkpoints:
            DeltaTable(str(place)).create_checkpoint()
    wanted = ["no-id", *[f"app-{number}-{one}" for number in range(8) for one in range(3)]]
    log = place / "_delta_log"
    answers = []
    for version in (None, 6, 4, 1):  # an older version, too: what came later does not count
        table = DeltaTable(str(place), version=version)
        found = known_applications(table, log, wanted)
        answers.append(found)
        assert found == {name for name in wanted if table.transaction_version(name) is not None}
        assert found == known_applications(table, None, wanted)
    assert [len(found) for found in answers] == [6, 6, 4, 1]
    # And it is the log that was read, not the library that was asked for each of them.
    assert delta_log._read(log, 6, wanted) == answers[0]
    assert delta_log._read(log, 6, []) == frozenset()
    for number in range(max(checkpoints, default=-1) + 1):
        (log / f"{number:020d}.json").unlink()  # as Delta does in time with what a checkpoint has
    assert delta_log._read(log, 6, wanted) == answers[0]


def test_a_log_that_cannot_be_read_plainly_is_left_to_the_library(tmp_path: Path) -> None:
    place = tmp_path / "table"
    ids = [Transaction(f"app-{one}", 1, 0) for one in range(4)]
    for _ in range(2):
        write_deltalake(str(place), pa.table({"id": [1]}), mode="append",
                        commit_properties=CommitProperties(app_transactions=ids))  # fmt: skip
    table, log, wanted = DeltaTable(str(place)), place / "_delta_log", [f"app-{one}" for one in range(6)]
    (log / "_last_checkpoint").write_text('{"version": 1, "size": 3, "parts": 2}')
    assert delta_log._read(log, 1, wanted) is None
    assert known_applications(table, log, wanted) == {f"app-{one}" for one in range(4)}
    for damaged in (b"", b"[]", b'{"version": 1', b'{"version": "x"}', b'{"version": "\xff"}', b"[" * 100_000):
        (log / "_last_checkpoint").write_bytes(damaged)
        assert delta_log._read(log, 1, wanted) is None
    (log / "_last_checkpoint").unlink()
    (log / f"{0:020d}.json").rename(log / "elsewhere")
    assert delta_log._read(log, 1, wanted) is None


# -- what new users write --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"window": "banana"}, "window: 'banana' is no duration: write '15d', '30s'"),
        ({"batch_age": -5}, "[batch] age: the duration -5 is negative or too long: write '15d', '30s'"),
        (
            {"orphan_age": timedelta(days=-1)},
            "orphan_age: the duration datetime.timedelta(days=-1) is negative or too long: write '15d', '30s'",
        ),
        ({"batch_bytes": "much"}, "[batch] bytes: 'much' is not a size: write 256MiB, or a number of bytes"),
        ({"batch_files": "7"}, "[batch] files is a number, not '7'"),
    ],
)
def test_what_is_wrong_is_named_as_it_was_written(change: dict[str, Any], text: str) -> None:
    with pytest.raises(Invalid) as failure:
        config(**change)
    assert str(failure.value) == text


@pytest.mark.parametrize(
    ("lines", "meant"),
    [
        (
            'schem = "id INT"',
            "says schem, which is nothing that an ingest knows: did you mean schema? it knows allow, ",
        ),
        ("[batch]\nfile = 5", "says [batch] file, which is nothing that an ingest knows: did you mean [batch] files? "),
        ("files = 5", "did you mean [batch] files? "),
        ("batch_files = 5", "says batch_files, which is nothing that an ingest knows: did you mean [batch] files? "),
        ("Windows = 5\n[batch]\nbyte = 5", "did you mean window or [batch] bytes? "),
        ('[batch]\nformat = "csv"', "did you mean format, which has to stand before the first section? "),
        ("xyz = 5", "says xyz, which is nothing that an ingest knows: it knows allow, "),
    ],
)
def test_keys_that_are_almost_right_are_guessed(tmp_path: Path, lines: str, meant: str) -> None:
    path = tmp_path / "ingest.toml"
    path.write_text(f'name = "o"\nqueue = "sqs:x"\ntable = "t"\n{lines}\n')
    with pytest.raises(Invalid) as failure:
        IngestConfig.read(path)
    assert meant in str(failure.value)
    assert str(failure.value).endswith("and [batch] with files, bytes and age")


def test_a_missing_file_says_where_one_is_shown(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="as `detent ingest --help` shows"):
        IngestConfig.read(tmp_path / "nothing.toml")


@pytest.mark.parametrize(
    ("queue", "url"),
    [
        ("detent:file:./q#files", "detent:file:/data/100%25/q#files"),
        ("detent:file:q#files", "detent:file:/data/100%25/q#files"),
        ("detent:file:../q%20x#files", "detent:file:/data/q x#files"),
        ("detent:file://./q#files", "detent:file:/data/100%25/q#files"),
        ("detent:./q#files", "detent:file:/data/100%25/q#files"),
        ("detent:../a#b#files", "detent:file:/data/a#b#files"),
        ("detent:/q%#files", "detent:file:/q%25#files"),
        ("Detent:q#files", "Detent:file:/data/100%25/q#files"),
        ("detent:file:/q#files", None),
        ("detent:file:///q#files", None),
        ("detent:file://localhost/q#files", None),
        ("detent:file://elsewhere/q#files", None),
        ("detent:file:#files", None),
        ("detent:http://host:7410#files", None),
        ("detent:s3://bucket/store#files", None),
        ("detent:memory:#files", None),
        ("detent:file:./q", None),
        ("detent:#files", None),
        ("sqs:./q#files", None),
        ("redis://host/0#files", None),
    ],
)
def test_a_relative_store_begins_in_the_folder_of_the_file(queue: str, url: str | None) -> None:
    assert config(queue=queue, folder="/data/100%").queue_url == (url or queue)


@pytest.mark.parametrize(
    ("option", "why"),
    [
        ("pathGlobFilter", "--match"),
        ("PATHGLOBFILTER", "names are not those of the files"),
        ("modifiedAfter", "times are not those"),
        ("modifiedBefore", "times are not those"),
        ("recursiveFileLookup", "announced by itself"),
        ("path", "what the queue announces"),
        ("ignoreCorruptFiles", "always off"),
        ("ignoremissingfiles", "always off"),
    ],
)
def test_options_that_cannot_mean_what_they_say_are_refused(option: str, why: str) -> None:
    with pytest.raises(Invalid, match=rf"leave {option} out of \[options\]: .*{why}"):
        config(options={"sep": ";", option: "true"})


@pytest.mark.parametrize("character", "{}[]*?\\")
def test_a_staging_folder_is_no_pattern(character: str) -> None:
    for change in ({"table": f"a{character}b"}, {"staging": f"/x/{character}"}, {"folder": f"/x{character}"}):
        with pytest.raises(Invalid, match="set `staging` to a folder without any of"):
            config(**change)
    assert config(table=f"a{character}b", staging="/scratch").location == f"/data/a{character}b"


def test_what_is_allowed_is_named_as_files_are(tmp_path: Path) -> None:
    assert config().allow == ()
    given = ["s3://bucket/a/", "s3://bucket", "s3://", "/landing/", "file:///x/./y//z", "/100%/", "/"]
    wanted = (
        "s3://bucket/a/",
        "s3://bucket/",
        "s3://",
        "file:///landing/",
        "file:///x/y/z",
        "file:///100%/",
        "file:///",
    )
    assert config(allow=given).allow == wanted
    assert replace(config(allow=given), attempts=1).allow == wanted
    path = tmp_path / "ingest.toml"
    path.write_text('name = "o"\nqueue = "sqs:x"\ntable = "t"\nallow = ["/landing/"]\n')
    assert IngestConfig.read(path).allow == ("file:///landing/",)


@pytest.mark.parametrize("wrong", ["/landing/", 5, None, {"a": "b"}, ["landing/"], [5], ["/a/../b"], ["file:x"], [""]])
def test_what_cannot_be_allowed_is_refused(wrong: Any) -> None:
    with pytest.raises(Invalid, match="allow"):
        config(allow=wrong)


def test_a_table_is_no_file(tmp_path: Path) -> None:
    config(folder=str(tmp_path)).check_place()
    (tmp_path / "orders").mkdir()
    config(folder=str(tmp_path)).check_place()
    (tmp_path / "file").touch()
    with pytest.raises(Invalid, match="/file is a file: name a folder"):
        config(folder=str(tmp_path), table="file").check_place()
