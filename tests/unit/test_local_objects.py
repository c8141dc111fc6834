"""Objects on a disk that is full or fails: an error of ours, with words, and a store that goes on afterwards."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from detent.errors import Invalid, NotFound, Unavailable
from detent.kv.localobjects import LocalObjects, make_directories

DISK_ERRORS = [errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EROFS]


def failing(number: int) -> Callable[..., Any]:
    def fail(*_: object, **__: object) -> Any:
        raise OSError(number, os.strerror(number))

    return fail


def has_words(error: BaseException, number: int) -> bool:
    return os.strerror(number) in str(error) and "could not be" in str(error)


@pytest.mark.parametrize("number", DISK_ERRORS)
@pytest.mark.parametrize("call", ["os.mkdir", "os.fsync", "os.link", "os.open", "os.chmod"])
def test_put_on_disk_that_fails_is_unavailable_and_succeeds_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, number: int
) -> None:
    data = tmp_path / "data.mdb"
    data.touch(0o600)
    objects = LocalObjects(tmp_path / "objects", data)
    with monkeypatch.context() as patch:
        patch.setattr(call, failing(number))
        with pytest.raises(Unavailable) as caught:
            objects.put("fragments/ab/one", [b"one"])
    assert has_words(caught.value, number)
    assert list(objects.list()) == []
    assert objects.put("fragments/ab/one", [b"one"]) == 3
    assert objects.get("fragments/ab/one") == b"one"


@pytest.mark.parametrize("number", DISK_ERRORS)
def test_folder_that_cannot_be_synced_is_unavailable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    objects = LocalObjects(tmp_path / "objects")
    objects.put("a/one", [b"1"])
    again = LocalObjects(tmp_path / "objects")  # of a process that has not synced the folder
    monkeypatch.setattr("os.fsync", failing(number))
    with pytest.raises(Unavailable) as caught:
        again.put("a/two", [b"2"])
    assert has_words(caught.value, number)


@pytest.mark.parametrize("number", [errno.EIO, errno.EMFILE])
def test_object_that_cannot_be_read_is_unavailable_and_not_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    objects = LocalObjects(tmp_path)
    objects.put("one", [b"1"])
    with pytest.raises(NotFound):
        objects.get("two")
    monkeypatch.setattr(Path, "open", failing(number))
    monkeypatch.setattr(Path, "stat", failing(number))
    for use in (objects.get, objects.size, objects.delete):
        with pytest.raises(Unavailable) as caught:
            use("one")
        assert has_words(caught.value, number)


@pytest.mark.parametrize("number", [errno.ENOTDIR, errno.EACCES, errno.ENAMETOOLONG])
def test_place_that_cannot_have_a_folder_is_invalid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.setattr("os.mkdir", failing(number))
    with pytest.raises(Invalid, match="cannot be a folder"):
        make_directories(tmp_path / "a" / "b")
