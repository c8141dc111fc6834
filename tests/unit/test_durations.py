"""One parser reads durations, wherever one is taken: text with a unit, a number of seconds, a timedelta."""

from __future__ import annotations

import math
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import detent
from detent.bus import QueueTransport, Retries, SqlTracker
from detent.durations import milliseconds, no_shorter_text, span_text
from detent.errors import Invalid
from detent.ingest.config import IngestConfig


@pytest.mark.parametrize(
    ("given", "ms"),
    [
        ("250ms", 250),
        ("30s", 30_000),
        (" 1.5 h ", 5_400_000),
        ("2w", 14 * 86_400_000),
        (timedelta(minutes=5), 300_000),
        (5, 5_000),
        (0, 0),
        (1.5, 1_500),
        (0.0004, 0),
        ("5", 5_000),
        ("1.5", 1_500),
    ],
)
def test_number_is_a_duration_in_seconds(given: Any, ms: int) -> None:
    assert milliseconds(given) == ms


@pytest.mark.parametrize(
    "given",
    [
        *("", "soon", "-5", "5 years", "1e3", "٣", "s", "0x10", "1,5"),
        *(True, False, None, b"5", [5], -1, -0.5, math.nan, math.inf, -math.inf, 10**400, 1 << 52, "9" * 400),
        timedelta(seconds=-1),
    ],
)
def test_what_is_not_a_duration_is_refused(given: Any) -> None:
    with pytest.raises(Invalid, match="duration"):
        milliseconds(given)


def test_python_takes_numbers_wherever_it_takes_durations() -> None:
    with detent.open("memory:", timeout=30) as store:
        queue = store.queue("q")
        queue.create(lease=20, backoff=0, done_retention="60")
        info = queue.info()
        assert (info.lease, info.backoff, info.done_retention) == (
            timedelta(seconds=20),
            timedelta(0),
            timedelta(seconds=60),
        )
        queue.publish(b"x", delay=3600, retention=7200.0)
        assert queue.info().delayed == 1
        assert queue.claim(1, wait=0, lease=1.5) == []
        store.journal("log").create(retention=86_400)
        assert store.journal("log").info().retention_ms == 86_400_000
    assert QueueTransport("memory:", lease=30).extend_every_s == 10
    assert SqlTracker(retention=60).retention_s == 60
    assert Retries(delayed=(10, "20", "1m")).delay_s(4, Exception()) == 20


def test_file_of_settings_takes_numbers(tmp_path: Path) -> None:
    file = tmp_path / "ingest.toml"
    file.write_text('name = "a"\nqueue = "detent:file:./s#q"\ntable = "./t"\nwindow = 1_300_000\n[batch]\nage = 2.5\n')
    config = IngestConfig.read(file)
    assert (config.window_s, config.limits.age_s) == (1_300_000, 2.5)


@pytest.mark.parametrize(
    ("seconds", "text", "longer"),
    [(0, "0s", "0s"), (59.5, "59s 500ms", "60s"), (86_400, "1d", "86400s"), (1_209_630, "14d 30s", "15d")],
)
def test_texts_for_people_and_for_settings(seconds: float, text: str, longer: str) -> None:
    assert span_text(seconds) == text
    assert no_shorter_text(seconds) == longer
    assert span_text(math.inf) == "ever"


# -- paths as stores --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("as_path", [str, Path])
def test_python_takes_a_path_as_a_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, as_path: Any) -> None:
    monkeypatch.chdir(tmp_path)
    with detent.open(as_path(tmp_path / "50% full")) as store:
        store.journal("log").append(b"x")
        assert store.url == f"file:{tmp_path}/50%25 full"
    with detent.open("./50% full", role="reader") as store:
        assert store.journal("log").info().messages == 1
    with detent.open("50% full", role="reader") as store:  # the name of a folder that is there
        assert store.journal("log").info().messages == 1
    assert QueueTransport("./50% full").place == "./50% full#"


def test_name_that_is_not_a_folder_is_not_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for text in ("data", "", "ftp://host/x", "./\x00"):
        with pytest.raises(Invalid):
            detent.open(text)
    assert list(tmp_path.iterdir()) == []
