"""`detent run` as a person uses it: the examples, twice; a runner that is killed; and what it says of what is wrong."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import detent
import sparkling
import zygote
from detent.extras import install_command
from processes import eventually, session_of, terminate_session

EXAMPLES = Path(__file__).parents[2] / "examples" / "pipelines"
PATIENCE_S = 240
"""Several Javas start in these tests, on machines that do other things too."""

pytestmark = sparkling.PROCESS_MARKS

CHAIN = """
from detent.spark import Pipeline
pipeline = Pipeline("chain")

@pipeline.stream(read="numbers", write="doubled", json="n BIGINT NOT NULL", max_messages=20)
def doubled(numbers):
    return numbers.selectExpr("n * 2 AS n")

@pipeline.stream(read="doubled", write="kept", max_messages=40)
def kept(messages):
    return messages
"""


def run(*arguments: str, cwd: Path, **options: Any) -> subprocess.CompletedProcess[str]:
    """A command, to its end."""
    return zygote.run(
        [sys.executable, "-m", "detent.cli", *arguments],
        timeout=PATIENCE_S,
        text=True,
        cwd=cwd,
        with_spark=True,
        **options,
    )


def events(said: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in said.splitlines()]


def bodies(folder: Path, journal: str) -> list[Any]:
    with detent.open(f"file:{folder / 'data'}", role="reader") as store:
        return [json.loads(message.body) for message in store.journal(journal).read()]


def test_an_example_runs_and_has_nothing_to_do_the_second_time(tmp_path: Path) -> None:
    made = subprocess.run([sys.executable, EXAMPLES / "generate.py"], cwd=tmp_path, check=False, capture_output=True)
    assert made.returncode == 0, made.stderr
    command = ("run", str(EXAMPLES / "dedup.py"), "--once", "--json", "--quick")
    first = run(*command, cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    assert "Traceback" not in first.stderr
    summary = events(first.stdout)[-1]
    assert (summary["event"], summary["ok"]) == ("summary", True)
    assert summary["streams"][0]["offsets"] == {"orders": 1050}
    assert summary["streams"][0]["lag"] == 0
    counted = Counter(order["id"] for order in bodies(tmp_path, "orders/unique"))
    assert counted == dict.fromkeys((f"0-{number}" for number in range(1000) if number % 100 != 99), 1)
    second = run(*command, cwd=tmp_path)
    assert second.returncode == 0, second.stderr
    assert [stream["messages"] for stream in events(second.stdout)[-1]["streams"]] == [0]
    assert len(bodies(tmp_path, "orders/unique")) == 990
    listed = run("quarantine", "ls", "file:./data", "--json", cwd=tmp_path)
    assert json.loads(listed.stdout) == [{"name": "dedup/unique.quarantine", "waiting": 10, "redriven": 0}]
    shown = run("quarantine", "show", "file:./data", "dedup/unique.quarantine", "--limit", "1", cwd=tmp_path)
    assert "the body is no JSON" in shown.stdout
    refused = run("quarantine", "redrive", "file:./data", "dedup/unique.quarantine", cwd=tmp_path)
    assert (refused.returncode, "--yes" in refused.stderr) == (2, True)
    back = run("quarantine", "redrive", "file:./data", "dedup/unique.quarantine", "--yes", "--json", cwd=tmp_path)
    assert json.loads(back.stdout) == {"name": "dedup/unique.quarantine", "redriven": 10}


class Running:
    """A runner that goes on until it is told to stop."""

    def __init__(self, path: Path) -> None:
        self.process = zygote.Forked(
            [sys.executable, "-m", "detent.cli", "run", path.name, "--store", "file:./data", "--json", "--quick"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=path.parent,
            start_new_session=True,
            with_spark=True,
        )
        assert self.process.stdout is not None
        self.lines = self.process.stdout

    def until(self, kind: str, count: int = 1, **fields: Any) -> None:
        """Read events until so many of a kind have come."""
        wanted = {"event": kind, **fields}
        for line in self.lines:
            event = json.loads(line)
            count -= {name: event.get(name) for name in wanted} == wanted
            if not count:
                return
        raise AssertionError(self.process.communicate()[1])

    def end(self) -> None:
        """Whatever is left of it, Java and all, goes."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)  # it leads a group of its own
        self.process.communicate()


@pytest.fixture
def runners() -> Iterator[list[Running]]:
    started: list[Running] = []
    yield started
    for runner in started:
        runner.end()


def test_a_runner_that_is_killed_goes_on_where_it_was(tmp_path: Path, runners: list[Running]) -> None:
    path = tmp_path / "chain.py"
    path.write_text(CHAIN)
    numbers = range(240)
    with detent.open(f"file:{tmp_path / 'data'}") as store:
        store.journal("numbers").append_many([b'{"n": %d}' % number for number in numbers])
    killed = Running(path)
    runners.append(killed)
    killed.until("progress", 3)
    killed.process.kill()
    killed.process.wait()
    before = len(bodies(tmp_path, "doubled"))
    assert 0 < before < len(numbers), "it was killed in the middle"

    headless = Running(path)
    runners.append(headless)
    headless.until("started", 2)
    (java,) = (pid for pid in session_of(headless.process.pid) if Path(f"/proc/{pid}/comm").read_text() == "java\n")
    os.kill(java, signal.SIGKILL)
    _, errors = headless.process.communicate(timeout=PATIENCE_S)
    assert headless.process.returncode == 1
    assert f"Spark's Java (process {java}) was ended by the signal SIGKILL" in errors
    assert "Traceback" not in errors
    assert "Error" not in errors

    stopped = Running(path)
    runners.append(stopped)
    stopped.until("progress", offsets={"doubled": len(numbers)})
    (seen,) = json.loads(run("ls", f"file:{tmp_path / 'data'}", "--json", cwd=tmp_path).stdout)
    assert (seen["name"], seen["state"]) == ("chain", "running"), "another process sees it"
    terminate_session(stopped.process.pid)
    said, errors = stopped.process.communicate(timeout=PATIENCE_S)
    assert stopped.process.returncode == 0, errors
    summary = events(said)[-1]
    assert summary["ok"] is True
    assert [stream["phase"] for stream in summary["streams"]] == ["stopped", "stopped"]
    for journal in ("doubled", "kept"):
        counted = Counter(message["n"] for message in bodies(tmp_path, journal))
        assert counted == {number * 2: 1 for number in numbers}, journal
    for runner in (killed, stopped):
        eventually(lambda runner=runner: not session_of(runner.process.pid), what="the end of a runner's processes")


# -- without Spark --------------------------------------------------------------------------------------------------


def test_checking_starts_nothing(tmp_path: Path) -> None:
    path = tmp_path / "chain.py"
    path.write_text(CHAIN)
    checked = run("run", path.name, "--check", cwd=tmp_path)
    assert checked.returncode == 0, checked.stderr
    assert "doubled  numbers -> doubled  (what does not match: chain/doubled.quarantine)" in checked.stdout
    assert "flowchart LR" in checked.stdout
    graph = json.loads(run("run", path.name, "--check", "--json", cwd=tmp_path).stdout)
    assert [stream["name"] for stream in graph["streams"]] == ["doubled", "kept"]
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("name", sorted(path.name for path in EXAMPLES.glob("*.py") if path.name != "generate.py"))
def test_the_examples_declare_pipelines(tmp_path: Path, name: str) -> None:
    checked = run("run", str(EXAMPLES / name), "--check", cwd=tmp_path)
    assert checked.returncode == 0, checked.stderr
    assert "# try:" in (EXAMPLES / name).read_text()


@pytest.mark.parametrize(
    ("text", "arguments", "code", "says"),
    [
        (None, [], 1, "there is no file"),
        ("x = 1", [], 1, "declares no task"),
        (CHAIN, [], 1, "has no store"),
        (CHAIN, ["--store", "file:./data", "--only", "nobody"], 1, "there are doubled, kept"),
        (CHAIN, ["--store", "http://127.0.0.1:1"], 1, "--checkpoints"),
        (CHAIN, ["--conf", "x"], 2, "KEY=VALUE"),
    ],
)
def test_what_is_wrong_is_said_in_a_line(
    tmp_path: Path, text: str | None, arguments: list[str], code: int, says: str
) -> None:
    if text is not None:
        (tmp_path / "chain.py").write_text(text)
    environment = {name: value for name, value in os.environ.items() if name != "DETENT_URL"}
    refused = run("run", "chain.py", *arguments, cwd=tmp_path, env=environment)
    assert (refused.returncode, refused.stdout) == (code, "")
    assert says in refused.stderr
    assert "Traceback" not in refused.stderr
    assert not (tmp_path / "data").exists()


def test_without_spark_it_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "chain.py").write_text(CHAIN)
    (tmp_path / "nospark").mkdir()
    (tmp_path / "nospark" / "sitecustomize.py").write_text("import sys; sys.modules['pyspark'] = None")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "nospark")}
    refused = run("run", "chain.py", "--store", "file:./data", cwd=tmp_path, env=environment)
    assert (refused.returncode, install_command("spark") in refused.stderr) == (1, True)
