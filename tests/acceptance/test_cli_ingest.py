"""`detent ingest` as a user runs it, as far as it needs no Spark: real processes, real pipes, real exit codes."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from acceptance.test_cli import PATIENCE_S, detent_command, environment, ok, refused
from detent.ingest import metastore, ownership
from detent.ingest.config import IngestConfig
from detent.ingest.progress import Counters
from detent.ingest.shared_state import FileShard, QueueSharedState

COMMANDS = ["files", "quarantine", "redrive", "prune"]
OLDER = ["run", "status", "reset"]
LONG = "it is torn at byte 7, " * 20 + "and that is all"
PLAIN = 'name = "orders"\nqueue = "detent:./queue#files"\ntable = "lake/orders"\n'


@pytest.fixture
def config(tmp_path: Path) -> str:
    """An ingest with a file that is open, one that is done, and two in quarantine."""
    path = tmp_path / "orders.toml"
    path.write_text(PLAIN)
    settings = IngestConfig.read(path)
    engine = metastore.connect(settings.state_url)
    try:
        ownership.register(engine, settings)
        shared = QueueSharedState(engine, settings.name, "pipeline", 1_000)
        shards = [FileShard(name.encode() * 16, f"file:///landing/{name}.json", "etag:1", 2_048) for name in "abcd"]
        shared.open(shards)
        shared.finish(shards[1:2])
        for shard in shards[2:]:
            shared.fail(shard.key, LONG, 0, attempts_max=1)
    finally:
        engine.dispose()
    return str(path)


def document(*arguments: str) -> Any:
    return json.loads(ok("ingest", *arguments, "--json"))


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_says_what_it_takes(command: str) -> None:
    text = ok("ingest", command, "--help").decode()
    assert f"detent ingest {command} [OPTIONS] CONFIG" in text
    assert "--json" in text


def test_the_group_shows_a_configuration() -> None:
    text = ok("ingest", "--help").decode()
    for part in ('queue = "sqs:new-orders"', "[batch]", "allow = ", "begin in its folder", "absolute paths or URIs"):
        assert part in " ".join(text.split())


def test_what_a_backfill_takes_is_said() -> None:
    text = " ".join(ok("ingest", "run", "--help").decode().split())
    assert "Those in subfolders are included; hidden ones (_x, .x) are left out." in text
    assert "--match PATTERN" in text


def test_status_and_lists(config: str) -> None:
    shown = document("status", config)
    assert (shown["lag"], shown["details"]["open"], shown["details"]["done"]) == (1, 1, 1)
    assert "done:            1 done, 2 quarantined\n" in ok("ingest", "status", config).decode()
    assert [file["uri"] for file in document("files", config, "--state", "done")] == ["file:///landing/b.json"]
    assert [file["attempts"] for file in document("quarantine", config)] == [1, 1]


def test_a_pipe_gets_the_whole_reason(config: str) -> None:
    lines = ok("ingest", "quarantine", config).decode().splitlines()
    assert lines[0].split() == ["FILE", "STATE", "SIZE", "FAILURES", "CHANGED", "REASON"]
    assert len(lines) == 3
    assert all(line.endswith(LONG) for line in lines[1:])


def test_redrive_takes_files_or_all(config: str) -> None:
    assert "say one or the other" in refused("ingest", "redrive", config, "file:///x", "--all", code=2)
    assert "name files, or say --all" in refused("ingest", "redrive", config, code=2)
    assert "not in quarantine: file:///x" in refused("ingest", "redrive", config, "file:///x", code=1)
    assert ok("ingest", "redrive", config, "file:///landing/c.json") == b"1 put back\n"
    assert document("redrive", config, "--all") == {"redriven": 1}
    assert document("status", config)["details"]["redriven"] == 2


def test_redrive_takes_a_name_as_quarantine_shows_it(config: str) -> None:
    engine = metastore.connect(IngestConfig.read(config).state_url)
    shared = QueueSharedState(engine, "orders", "pipeline", 1_000)
    shared.set_aside({FileShard(b"n" * 16, "s3://landing/a\nb\x1b.json", "etag:1", 1): "bad"})
    engine.dispose()
    shown = next(word for word in ok("ingest", "quarantine", config).decode().split() if word.startswith("s3:"))
    assert shown == "s3://landing/a\\nb\\x1b.json"
    assert document("redrive", config, shown) == {"redriven": 1}


def orphan(folder: Path, name: str, age_s: float) -> Path:
    """The data of a batch that a pipeline of that name left."""
    batch = folder / "lake/orders/data" / f"{name * 32}-000001"
    batch.mkdir(parents=True)
    (batch / "part.parquet").write_bytes(b"rows")
    then = time.time() - age_s
    os.utime(batch, (then, then))
    return batch


def test_prune_says_what_it_deletes_and_leaves_young_orphans(config: str, tmp_path: Path) -> None:
    old, young = orphan(tmp_path, "a", 2 * 86_400), orphan(tmp_path, "b", 7_200)
    text = refused("ingest", "prune", config, code=2)
    assert "forgets the files of orders that were finished more than 15d ago; say --yes" in text
    text = refused("ingest", "prune", config, "--orphans", code=2)
    assert "and deletes the data files of batches that were not committed and are older than 1d; say --yes" in text
    assert "older than 3h; say --yes" in refused("ingest", "prune", config, "--orphans", "--older-than", "3h", code=2)
    assert document("prune", config, "--yes") == {"pruned": 0, "swept": 0}
    assert old.exists()
    assert document("prune", config, "--yes", "--orphans") == {"pruned": 0, "swept": 1}
    assert (old.exists(), young.exists()) == (False, True)
    done = ok("ingest", "prune", config, "--yes", "--orphans", "--older-than", "1h")
    assert done == b"0 files forgotten, 1 batches deleted\n"
    assert not young.exists()
    assert "say --orphans too" in refused("ingest", "prune", config, "--older-than", "1h", code=2)
    wrong = refused("ingest", "prune", config, "--orphans", "--older-than", "soon", code=2)
    assert "--older-than: 'soon' is not a duration: write '2h', '1d'" in wrong


def test_reset_forgets_when_the_table_is_gone_and_the_name_is_said(config: str, tmp_path: Path) -> None:
    assert "would come twice" in refused("ingest", "reset", config, "--yes", "orders", code=1)
    shutil.rmtree(tmp_path / "lake")
    text = refused("ingest", "run", config, "--once", "--json", code=1)
    assert "is gone" in text
    assert "`detent reset FILE` forgets these files" in text
    assert "with 0 rows of 0 commits is gone; say --yes orders" in refused("ingest", "reset", config, code=2)
    assert "say --yes orders" in refused("ingest", "reset", config, "--yes", "others", code=2)
    assert document("status", config)["details"]["done"] == 1
    (found,) = document("reset", config, "--yes", "orders")
    table = str(tmp_path / "lake/orders")
    assert found == {"task": "ingest/orders", "to": {"files": 4, "batches": 0, "rows": 0, "table": table}}
    assert document("status", config)["details"]["done"] == 0
    done = detent_command("ingest", "reset", config, "--yes", "orders")
    assert done.stdout.startswith(b"forgot 0 files of orders, whose table ")
    assert b"with 0 rows of 0 commits" in done.stdout
    assert b"--backfill PREFIX` brings them in again" in done.stderr


@pytest.mark.parametrize("command", [*COMMANDS, *OLDER])
def test_a_configuration_that_is_not_there_is_told(command: str, tmp_path: Path) -> None:
    more = {"redrive": ["--all"], "prune": ["--yes"]}.get(command, [])
    text = refused("ingest", command, str(tmp_path / "none.toml"), *more, code=1)
    assert "none.toml: write one, as `detent ingest --help` shows" in text


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        ('window = "banana"', "window: 'banana' is no duration: write '15d', '30s'"),
        ('[batch]\nage = "soon"', "[batch] age: 'soon' is no duration"),
        ('schem = "id INT"', "did you mean schema?"),
        ('[options]\npathGlobFilter = "*.json"', "leave pathGlobFilter out of [options]"),
        ('staging = "a[1]"', "set `staging` to a folder"),
        ('allow = ["landing/"]', "allow has beginnings such as s3://bucket/orders/"),
    ],
)
def test_a_configuration_that_is_wrong_is_refused_before_spark_starts(tmp_path: Path, lines: str, why: str) -> None:
    path = tmp_path / "wrong.toml"
    path.write_text(f"{PLAIN}{lines}\n")
    for command in ("run", "status"):
        assert why in refused("ingest", command, str(path), code=1)
    assert os.listdir(tmp_path) == ["wrong.toml"]


def test_match_is_about_a_backfill(config: str) -> None:
    assert "say --backfill PREFIX too" in refused("ingest", "run", config, "--match", "*.json", code=2)


def test_an_ingest_that_never_ran_is_told(tmp_path: Path) -> None:
    path = tmp_path / "new.toml"
    path.write_text(PLAIN)
    for command in (
        ["status"],
        ["files"],
        ["quarantine"],
        ["redrive", "--all"],
        ["prune", "--yes"],
        ["reset", "--yes", "orders"],
    ):
        verb, *options = command
        assert "no ingest ever ran on sqlite:///" in refused("ingest", verb, str(path), *options, code=1)
    assert os.listdir(tmp_path) == ["new.toml"]


def test_an_ingest_that_never_ran_beside_one_that_did_is_told(config: str) -> None:
    path = Path(config).with_name("other.toml")
    path.write_text(PLAIN.replace('"orders"', '"others"') + 'state = "sqlite:///orders.ingest.db"\n')
    assert "no ingest called 'others' ever ran" in refused("ingest", "status", str(path), code=1)


def test_terminal_shows_whole_reason(config: str) -> None:
    ours, theirs = os.openpty()
    command = [sys.executable, "-m", "detent.cli", "ingest", "quarantine", config]
    with subprocess.Popen(command, stdout=theirs, env=environment(COLUMNS="80", TERM="xterm")) as process:
        os.close(theirs)
        shown = b""
        with suppress(OSError):  # which is how a terminal ends
            while some := os.read(ours, 1 << 16):
                shown += some
        os.close(ours)
        assert process.wait(PATIENCE_S) == 0
    lines = re.sub(r"\x1b\[[\d;]*m", "", shown.decode()).splitlines()
    assert " ".join(" ".join(lines).split()).count(LONG) == 2
    assert max(map(len, lines)) <= 80


class Pipeline:
    """What `run` starts, without Spark: it answers with counters, and remembers how it was called."""

    def __init__(self, counters: Counters) -> None:
        self.counters = counters
        self.asked: dict[str, Any] = {}

    def run(self, **asked: Any) -> Counters:
        self.asked = asked
        return self.counters


@pytest.mark.parametrize(
    ("counters", "plain"),
    [(Counters(), "nothing to ingest\n"), (Counters(received=1, files=1), "received: 1\nfiles:    1\n")],
)
def test_a_run_ends_with_what_it_did(
    config: str, counters: Counters, plain: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = Pipeline(counters)
    cli, kinds = import_module("detent.cli").cli, import_module("detent.cli.kinds.ingest")
    monkeypatch.setattr(kinds, "start", lambda *_: pipeline)
    done = CliRunner().invoke(cli, ["ingest", "run", config, "--once"])
    assert (done.exit_code, done.stdout, done.stderr) == (0, plain, "starting Spark…\n")
    assert pipeline.asked == {"once": True, "backfill": None, "match": None, "signals": True}
    done = CliRunner().invoke(cli, ["ingest", "run", config, "--backfill", "/x", "--match", "*.json", "--json"])
    assert (done.exit_code, done.stderr) == (0, "")
    assert json.loads(done.stdout) == {"event": "summary", **counters.as_json()}
    assert pipeline.asked == {"once": False, "backfill": "/x", "match": "*.json", "signals": True}
