"""How commands are told which store they are for: an argument, `--url`, `DETENT_URL`; a URL, or a path."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from acceptance.test_cli import environment, ok, refused
from detent.cli import cli
from detent.cli._common import as_url


def commands(group: click.Group = cli, path: str = "") -> Iterator[tuple[str, click.Command]]:
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from commands(command, f"{path}{name} ")
        else:
            yield f"{path}{name}", command


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that the commands run in, with a store in it whose queue is `mails/eu`."""
    monkeypatch.chdir(tmp_path)
    ok("queue", "create", "file:./data", "mails/eu")
    ok("queue", "publish", "file:./data", "mails/eu", "hello")
    return tmp_path


def test_every_command_that_takes_a_store_takes_it_as_an_option_too() -> None:
    # The one brings its store, that of the others is in the file that they run.
    other: dict[str, set[str]] = {"demo": set(), "completion": set(), "run": {"url"}}
    # The store of a graph is in its file or an option; the verbs for all kinds tell a store from a task among their
    # arguments.
    other |= {f"graph {verb}": {"url"} for verb in ("trace", "send")}
    # These begin with where backups are, and a restored store is made where it is told.
    other |= {"store backups": set(), "store restore": {"url"}}
    other |= {f"bridge kafka {way}": {"url"} for way in ("in", "out")}
    other |= {verb: {"named"} for verb in ("ls", "show", "pause", "resume", "reset", "rm", "wait")}
    for path, command in commands():
        if command.hidden:  # the options of a verb
            continue
        taken = {param.name for param in command.params} & {"url", "named"}
        expected = (
            set() if path.startswith(("token ", "ingest ", "bus ", "graph ", "spark ", "table ")) else {"url", "named"}
        )
        assert taken == other.get(path, expected), path


def test_the_option_says_the_store(folder: Path) -> None:
    env = environment(DETENT_URL="file:./elsewhere")
    assert b"mails/eu" in ok("queue", "ls", "--url", "file:./data", env=env)
    assert b"mails/eu" in ok("queue", "info", "--url", "./data", "mails/eu", env=env)
    assert ok("queue", "publish", "--url", "data", "mails/eu", "./x", env=env) == b"published message 1\n"
    assert b"published message 2" in ok("message", "publish", "--url", "data", "./any/text", env=env)
    assert ok("queue", "claim", "mails/eu", "--url", str(folder / "data"), env=env).startswith(b"receipt:")
    assert ok("queue", "ack", "--url", "data", "1-0-1", env=env) == b"acknowledged 1 message\n"
    assert b"mails/eu" in ok("queue", "stats", "--url", "data", "mails/eu", env=env)
    assert b"the store can be read" in ok("doctor", "--url", "data", env=env)
    assert "no problem found" in ok("store", "verify", "--url", "data", env=env).decode()
    assert not (folder / "elsewhere").exists()


@pytest.mark.parametrize(
    "command",
    ["queue ls", "queue info mails/eu", "queue publish mails/eu x", "queue ack 1-0-1", "queue stats",
     "message publish x", "doctor", "journal read j"],
)  # fmt: skip
@pytest.mark.parametrize("url", ["file:./data", "HTTP://localhost:1", "./data"])
def test_a_store_is_said_once(folder: Path, command: str, url: str) -> None:
    noun, *verb = command.split()
    said = refused(noun, *verb[:1], "--url", "data", url, *verb[1:], code=2)
    assert "--url says which store, and so does" in said


@pytest.mark.parametrize("path", ["./data", "data", "data/", "../{name}/data", "{folder}/data", "/{folder}/data"])
def test_a_path_is_a_store(folder: Path, path: str) -> None:
    place = path.format(name=folder.name, folder=folder)
    assert b"mails/eu" in ok("queue", "ls", place)
    assert b"mails/eu" in ok("queue", "info", place, "mails/eu")
    assert b"1" in ok("queue", "stats", place, "mails/eu")
    assert b"mails/eu" in ok("queue", "ls", env=environment(DETENT_URL=place))
    assert b"mails/eu" in ok("queue", "ls", place, env=environment(DETENT_URL="file:./elsewhere"))
    assert b"the store can be read" in ok("doctor", place)


def test_names_with_slashes_are_no_paths_where_the_environment_says_the_store(folder: Path) -> None:
    env = environment(DETENT_URL="data")
    (folder / "mails" / "eu").mkdir(parents=True)
    assert b"mails/eu" in ok("queue", "info", "mails/eu", env=env)
    assert b"available" in ok("queue", "stats", "mails/eu", env=env)
    assert ok("queue", "publish", "mails/eu", "/any/text", env=env) == b"published message 1\n"
    assert b"published message 2" in ok("message", "publish", "/any/text", env=env)
    ok("queue", "create", "./other", "q", env=env)
    assert ok("queue", "publish", "./other", "q", "x", env=env) == b"published message 0\n"
    assert b"published message 1" in ok("message", "publish", "./other", "x", env=env)
    assert b"NAME" in ok("queue", "stats", "./other", env=env)


def test_a_word_is_a_store_only_where_there_is_one(folder: Path) -> None:
    assert "write 'file:nothing'" in refused("queue", "create", "nothing", "q", code=1)
    assert os.listdir(folder) == ["data"]


def test_paths_as_urls(folder: Path) -> None:
    for text in ("s3://bucket/a", "http://host:1", "memory:", "file:x", "bogus:x/y", "word", "a:b"):
        assert as_url(text) == text
    assert as_url("data") == "file:data"
    assert as_url("a/b:c") == "file:a/b:c"
    assert as_url("./100%25") == "file:./100%2525"
    assert as_url("//srv/data") == "file:/srv/data"


def test_the_help_says_so() -> None:
    text = " ".join(ok("--help").decode().split())
    assert "with --url" in text
    assert "such as ./data" in text
