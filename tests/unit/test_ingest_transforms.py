"""Where the function of an ingest is found, and what is known to be wrong with it before Spark is started."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from detent.errors import Invalid, NotFound
from detent.ingest.config import IngestConfig
from detent.ingest.job import find_transform

SPARK: Any = SimpleNamespace(sparkContext=SimpleNamespace(environment={}))
"""As much of a session as is needed to load a file."""


def config(folder: Path, transform: Any) -> IngestConfig:
    return IngestConfig(name="orders", queue="sqs:orders", table="lake", transform=transform, folder=str(folder))


def test_none_and_a_function_are_what_they_are(tmp_path: Path) -> None:
    assert find_transform(config(tmp_path, None))(SPARK) is None
    assert find_transform(config(tmp_path, config))(SPARK) is config


def test_a_function_of_a_module(tmp_path: Path) -> None:
    import json

    assert find_transform(config(tmp_path, "json:loads"))(SPARK) is json.loads


def test_a_file_is_run_when_it_is_loaded_and_no_module_is_hidden_by_it(tmp_path: Path) -> None:
    import json

    (tmp_path / "json.py").write_text("from pathlib import Path\nPath(__file__ + '.ran').touch()\ndef clean(x): pass\n")
    load = find_transform(config(tmp_path, "json.py:clean"))
    assert not (tmp_path / "json.py.ran").exists()
    found = load(SPARK)
    assert (tmp_path / "json.py.ran").exists()
    assert callable(found)
    assert sys.modules["json"] is json
    assert sys.modules.get(found.__module__) is None  # workers of Spark get it by value: they could not import it


@pytest.mark.parametrize("wanted", ["", "clean", "a:b:c", ":", "clean.py", 7])
def test_what_names_no_function(tmp_path: Path, wanted: Any) -> None:
    with pytest.raises(Invalid):
        find_transform(config(tmp_path, wanted))


def test_what_is_wrong_is_known_before_spark_runs(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"there is no file .*clean\.py"):
        find_transform(config(tmp_path, "clean.py:clean"))
    (tmp_path / "clean.py").write_text("def clean(:\n")
    with pytest.raises(Invalid, match=r"clean\.py:1: this is not Python"):
        find_transform(config(tmp_path, "clean.py:clean"))
    (tmp_path / "clean.py").write_bytes(b"x = 1\0")
    with pytest.raises(Invalid, match=r"not Python"):
        find_transform(config(tmp_path, "clean.py:clean"))
    for module in ("no_such_module", "no_such_package.module", "json.no_such", ".."):
        with pytest.raises(Invalid, match="there is no module"):
            find_transform(config(tmp_path, f"{module}:clean"))


def test_what_is_wrong_with_a_file_is_told_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "clean.py").write_text("clean = 1\n")
    with pytest.raises(Invalid, match=r"no function clean in clean\.py"):
        find_transform(config(tmp_path, "clean.py:clean"))(SPARK)
    (tmp_path / "clean.py").write_text("x = 1\nimport no_such_module\n")
    with pytest.raises(Invalid, match=r"clean\.py:2: there is no module no_such_module"):
        find_transform(config(tmp_path, "clean.py:clean"))(SPARK)
    (tmp_path / "clean.py").write_text("x = 1\n\nx / 0\n")
    with pytest.raises(Invalid, match=r"clean\.py:3: ZeroDivisionError"):
        find_transform(config(tmp_path, "clean.py:clean"))(SPARK)
    (tmp_path / "broken_module.py").write_text("import no_such_module\n")
    sys.path.insert(0, str(tmp_path))
    try:
        with pytest.raises(Invalid, match="broken_module, which the transform is in, cannot be imported"):
            find_transform(config(tmp_path, "broken_module:clean"))(SPARK)
    finally:
        sys.path.remove(str(tmp_path))


@pytest.mark.parametrize(
    "content",
    [
        b"from dataclasses import dataclass\n@dataclass\nclass A:\n    x: int\ndef clean(x): return A(1)\n",
        b"from __future__ import annotations\nfrom dataclasses import dataclass\n@dataclass\nclass A:\n    x: int\n"
        b"def clean(x): return A(1)\n",
        b"\xef\xbb\xbfdef clean(x): pass\n",
        b"# -*- coding: latin-1 -*-\nword = '\xe9'\ndef clean(x): return word\n",
    ],
    ids=["a dataclass", "a dataclass of the future", "a mark of the byte order", "another encoding"],
)
def test_a_file_may_be_written_as_any_python_is(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "clean.py").write_bytes(content)
    found: Any = find_transform(config(tmp_path, "clean.py:clean"))(SPARK)
    found(None)


def test_annotations_of_a_file_are_not_made_texts(tmp_path: Path) -> None:
    (tmp_path / "clean.py").write_text("def clean(x: int) -> int: pass\n")
    found: Any = find_transform(config(tmp_path, "clean.py:clean"))(SPARK)
    assert found.__annotations__ == {"x": int, "return": int}


def test_a_function_of_the_program_that_runs(tmp_path: Path) -> None:
    main: Any = sys.modules["__main__"]
    main.cleaned_here = config
    try:
        assert find_transform(config(tmp_path, "__main__:cleaned_here"))(SPARK) is config
    finally:
        del main.cleaned_here


def test_workers_find_what_lies_beside_the_file(tmp_path: Path) -> None:
    (tmp_path / "clean.py").write_text("def clean(x): pass\n")
    spark: Any = SimpleNamespace(sparkContext=SimpleNamespace(environment={"PYTHONPATH": "/of/the/user"}))
    find_transform(config(tmp_path, "clean.py:clean"))(spark)
    assert spark.sparkContext.environment == {"PYTHONPATH": f"{tmp_path.resolve()}:/of/the/user"}
