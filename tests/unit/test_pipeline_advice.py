"""What is said of a stream that was given up: what died, what is damaged, and commands that work as printed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import detent
from detent.errors import Fenced, NotFound, Unavailable
from detent.spark.advice import completed, completing
from detent.spark.pipeline import Pipeline, queue
from detent.spark.stream_failure import Advisor, JavaWatch, damage, failure_of, is_connection
from detent.store import Store


@pytest.fixture
def store() -> Iterator[Store]:
    with detent.open("memory:") as opened:
        yield opened


# -- commands -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "complete"),
    [
        ("do `detent ledger reset 'my stream'`", "do `detent ledger reset file:/d 'my stream' --yes`"),
        ("`detent queue release q r`, and", "`detent queue release file:/d q r --yes`, and"),
        ("`detent queue release file:/e q r --yes`", "`detent queue release file:/d q r --yes`"),
        ("`detent ledger ls`, `detent store verify`", "`detent ledger ls`, `detent store verify`"),
    ],
)
def test_a_command_gets_what_it_lacks(text: str, complete: str) -> None:
    assert completed(text, "file:/d") == complete


def test_a_reader_that_is_released_needs_its_ledger_reset_too() -> None:
    with pytest.raises(NotFound, match="detent ledger reset file:/d NAME --yes") as caught, completing("file:/d"):
        raise NotFound("gone: `detent queue release q r`")
    assert "`detent ledger ls file:/d`" in str(caught.value)


# -- checkpoints ----------------------------------------------------------------------------------------------------


def checkpoint(folder: Path) -> Path:
    """As Spark leaves one after two batches."""
    for log, lines in {"offsets": ["v1", '{"batchWatermarkMs":0}', '{"a": 2}'], "commits": ["v1", "{}"]}.items():
        (folder / log).mkdir(parents=True)
        for number in (0, 1):
            (folder / log / str(number)).write_text("\n".join(lines))
    (folder / "metadata").write_text('{"id":"1c9e"}')
    return folder


def remove_offsets(folder: Path) -> None:
    (folder / "offsets" / "1").unlink()


@pytest.mark.parametrize(
    ("harm", "said", "says"),
    [
        (lambda at: (at / "metadata").write_text(""), "No content to map", "metadata is not what Spark writes"),
        (lambda at: (at / "metadata").write_text("{}"), "no id", "metadata is not what Spark writes"),
        (lambda at: (at / "offsets" / "1").write_text("v1\nxx"), "Unrecognized token", "offsets/1 is not what Spark"),
        (lambda at: (at / "commits" / "1").write_text(""), "Incomplete log file", "commits/1 is not what Spark"),
        (remove_offsets, "assertion failed", "offsets/1 is missing"),
        (lambda at: None, "batch 0 doesn't exist", "offsets/0 is missing"),
        (lambda at: None, "[STREAMING_CHECKPOINT_MISSING_METADATA_FILE] x", "metadata is missing"),
        (lambda at: None, "Failed to read log file file:/c/offsets/7. Incomplete", "/c/offsets/7 cannot be read"),
        (lambda at: None, "Checksum error: file:/c/offsets/7 at 1024", "/c/offsets/7 cannot be read"),
    ],
)
def test_a_damaged_checkpoint_is_found(tmp_path: Path, harm: Callable[[Path], object], said: str, says: str) -> None:
    folder = checkpoint(tmp_path / "c")
    assert damage(str(folder), "some other error") == ""
    harm(folder)
    for path in (str(folder), folder.as_uri()):
        assert says in damage(path, said)


def test_a_checkpoint_that_is_not_there_or_elsewhere_is_not_damaged(tmp_path: Path) -> None:
    assert damage(str(tmp_path / "none"), "no") == damage("s3://bucket/checkpoints", "no") == ""
    assert "offsets/3" in damage("s3://bucket/c", "Failed to read log file s3://bucket/c/offsets/3. Incomplete")


# -- streams --------------------------------------------------------------------------------------------------------


def test_how_to_start_over_names_all_that_stands_in_the_way(store: Store, tmp_path: Path) -> None:
    store.queue("mails").create()
    pipeline = Pipeline("p")
    pipeline.stream(read=queue("mails"), write="b", name="s")(lambda mails: mails)
    (stream,) = pipeline.streams
    advisor = Advisor(store, "file:/d", str(tmp_path))
    assert advisor.start_over(stream).endswith(f": `mv {tmp_path}/p/s {tmp_path}/p/s.old`")
    store.queue("mails").reader("p/s").open()
    with store.transaction() as transaction:
        transaction.enter_ledger("p/s", 0, query="q", run="r")
    fenced = Fenced("the ledger 'p/s' is another's: `detent ledger reset p/s`")
    reason = advisor.explained(stream, fenced, failure_of(fenced, starting=False)).reason
    commands = ("detent queue release file:/d mails p/s --yes", "detent ledger reset file:/d p/s --yes", "mv ")
    assert reason.index(commands[0]) < reason.rindex(commands[1]) < reason.index(commands[2])
    assert "`detent ledger reset p/s`" not in reason


def test_two_drivers_and_damage_are_said_in_our_words(store: Store, tmp_path: Path) -> None:
    pipeline = Pipeline("p")
    pipeline.stream(read="a", write="b", name="s")(lambda frame: frame)
    (stream,) = pipeline.streams
    advisor = Advisor(store, "file:/d", str(tmp_path))

    def explained(text: str) -> tuple[str, bool]:
        error = RuntimeError(text)
        return advisor.explained(stream, error, failure_of(error, starting=False))[:2]

    reason, is_final = explained("[CONCURRENT_STREAM_LOG_UPDATE] Concurrent update to the log.")
    assert (reason.startswith("another driver runs this stream"), is_final) == (True, True)
    checkpoint(tmp_path / "p" / "s")
    assert explained("disk full") == ("RuntimeError: disk full", False)
    (tmp_path / "p" / "s" / "offsets" / "1").write_text("")
    reason, is_final = explained("An error occurred while calling o1.start.\n: a.b.JsonError: no")
    assert (reason.startswith("the checkpoint of this stream is damaged"), is_final) == (True, True)
    assert "JsonError" not in reason


def test_an_error_of_java_is_said_without_its_trace() -> None:
    class Py4JJavaError(Exception):
        """Called like py4j's."""

    error = Py4JJavaError("An error occurred while calling o1.start.\n: com.x.NoDisk: it is full\n\tat com.x.Y(Z.java)")
    assert failure_of(error, starting=True).reason == "NoDisk: it is full"


# -- Java -----------------------------------------------------------------------------------------------------------


def test_a_java_that_has_died_is_named_with_what_to_do() -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        watch = JavaWatch(process)
        assert watch.ended() == ""
        process.kill()
        with pytest.raises(
            Unavailable, match=rf"Java \(process {process.pid}\) was ended by the signal SIGKILL"
        ) as died:
            watch.check()
        assert "Start the pipeline again" in str(died.value)
    finally:
        process.kill()
        process.communicate()
    ended = subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"])
    ended.wait()
    assert JavaWatch(ended).ended() == "ended with exit code 3"
    assert JavaWatch(None).ended() == ""
    assert [is_connection(error) for error in (ConnectionRefusedError(), OSError(), ValueError())] == [
        True,
        False,
        False,
    ]
