"""`detent completion`: what shells are given, and what they are offered for stores and names."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner

import detent
from detent.cli import cli
from detent.cli._complete import NAMES_MAX
from detent.cli.completion import VARIABLE
from detent.shard import operations as shards


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A store at ./data that no process has open."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DETENT_URL", raising=False)
    with detent.open("file:./data") as store:
        store.queue("orders").create()
        store.queue("mails/eu").create()
        store.journal("events").append(b"x")
        store.journal("errors").append(b"x")
        store.commit([shards.RegisterConsumer("totals", 1, ["events"])])
    (tmp_path / "shop.py").touch()
    (tmp_path / "docs").mkdir()
    return "file:./data"


def offered(*words: str) -> list[str]:
    """What a shell is offered for the last word."""
    found = ShellComplete(cli, {}, "detent", VARIABLE).get_completions(list(words[:-1]), words[-1])
    return [one.value for one in found]


def test_names_of_a_folder_are_offered_without_an_owner(url: str) -> None:
    assert offered("queue", "info", url, "") == ["mails/eu", "orders"]
    assert offered("queue", "publish", "./data", "ma") == ["mails/eu"]
    assert offered("journal", "read", url, "e") == ["errors", "events"]
    assert offered("queue", "info", "--url", url, "or") == ["orders"]


def test_names_follow_the_store_of_the_environment(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DETENT_URL", url)
    assert offered("queue", "info", "or") == ["orders"]
    assert offered("journal", "info", "ev") == ["events"]
    monkeypatch.setenv("DETENT_URL", "file:./nothing")
    assert offered("queue", "info", "or") == []


def test_stores_and_files_are_offered_as_places(url: str) -> None:
    assert offered("queue", "ls", "da") == ["data"]
    assert offered("queue", "ls", "file:d") == ["file:data", "file:docs/"]
    assert offered("serve", "d") == ["data", "docs/"]
    assert offered("show", "sh") == ["shop.py"]
    assert offered("queue", "ls", "--url", "da") == ["data"]


def test_consumers_and_tasks_are_those_of_a_running_owner(url: str) -> None:
    assert offered("consumer", "state", url, "to") == []
    with detent.open(url) as store:
        assert offered("consumer", "state", url, "to") == ["totals"]
        assert offered("show", url, "con") == ["consumer/totals"]
        for number in range(NAMES_MAX + 5):
            store.queue(f"many-{number:04}").create()
    assert len(offered("queue", "info", url, "many-")) == NAMES_MAX


def test_nothing_is_offered_and_nothing_said_where_no_store_answers(url: str) -> None:
    assert offered("queue", "info", "http://127.0.0.1:9", "") == []
    assert offered("queue", "info", "s3://bucket/store", "") == []
    assert offered("queue", "info", "file:./docs", "") == []
    assert not list(Path("docs").iterdir())


def test_commands_and_options_are_offered() -> None:
    assert "queue" in offered("que")
    assert offered("queue", "ls", "--wi") == ["--wide"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_takes_its_script(shell: str) -> None:
    done = CliRunner().invoke(cli, ["completion", shell], prog_name="detent")
    assert done.exit_code == 0
    assert VARIABLE in done.output
    if shutil.which(shell) is not None:
        subprocess.run([shell, "-n"], input=done.output.encode(), check=True, timeout=60)


def test_bash_completes_a_name(url: str, tmp_path: Path) -> None:
    program = tmp_path / "bin" / "detent"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m detent.cli "$@"\n')
    program.chmod(0o755)
    script = """
    PATH="$PWD/bin:$PATH"
    source <(detent completion bash)
    COMP_WORDS=(detent queue info ./data or) COMP_CWORD=4
    _detent_completion detent
    echo "${COMPREPLY[@]}"
    """
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "orders", done.stderr
