"""Records of CSV with ends of lines in quotes, cut as Spark's parser cuts them, wherever the bytes come apart."""

from __future__ import annotations

import csv
import io
import random
from typing import Any

import pytest

from detent.errors import Invalid
from detent.ingest import records
from detent.ingest.lines import recoded
from detent.ingest.records import RecordStyle, cut_records


def cut(data: bytes, size: int = 1 << 20, **options: str) -> list[bytes]:
    pieces = [data[start : start + size] for start in range(0, len(data), size)]
    return [record for some in cut_records(pieces, RecordStyle(options)) for record in some]


CASES: list[tuple[bytes, dict[str, str], list[bytes]]] = [
    (b'1,"a\nb"\n2,c\n', {}, [b'1,"a\nb"', b"2,c"]),
    (b'\xef\xbb\xbf1,"a\r\nb"\r\n2,c', {}, [b'1,"a\r\nb"', b"2,c"]),
    (b'"a\\"\nb",1\n"c\\\\",2\n', {}, [b'"a\\"\nb",1', b'"c\\\\",2']),
    (b'"a""\nb",1\n2\n', {"escape": '"'}, [b'"a""\nb",1', b"2"]),
    (b'say "hi",1\n2\n', {}, [b'say "hi",1', b"2"]),
    (b'1, "a\nb"\n', {}, [b'1, "a', b'b"']),
    (b'1, "a\nb"\n', {"ignoreLeadingWhiteSpace": "true"}, [b'1, "a\nb"']),
    (b"1;'a\nb' ;x\n2\n", {"sep": ";", "quote": "'"}, [b"1;'a\nb' ;x", b"2"]),
    (b'1||"a\nb||"||x\n', {"sep": "||"}, [b'1||"a\nb||"||x']),
    (b'# it\'s "so\n1,"a\nb"\n', {"comment": "#"}, [b"# it's \"so", b'1,"a\nb"']),
    (b'1,"a\nb"\n', {"quote": ""}, [b'1,"a', b'b"']),
    (b"1\r2\r", {}, [b"1", b"2"]),
    (b'1,"a"\n\n2\n', {}, [b'1,"a"', b"", b"2"]),
    (b'1|"a\nb"|2|', {"linesep": "|"}, [b"1", b'"a\nb"', b"2"]),
    (b"", {}, []),
    (b'""', {}, [b'""']),
]


@pytest.mark.parametrize(("data", "options", "expected"), CASES)
def test_records_are_cut_outside_of_quotes(data: bytes, options: dict[str, str], expected: list[bytes]) -> None:
    for size in (1, 2, 3, 5, 1 << 20):
        assert cut(data, size, **options) == expected, size


@pytest.mark.parametrize("data", [b'1,"a\n2,b\n', b'1,"a"b",c\n', b'"a" b\n'])
def test_file_whose_quotes_are_ambiguous_is_refused(data: bytes) -> None:
    for size in (1, 4, 1 << 20):
        with pytest.raises(Invalid, match="cannot be told apart"):
            cut(data, size)


def test_record_that_has_no_end_is_refused_before_it_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "LINE_BYTES_MAX", 100)
    with pytest.raises(Invalid, match="longer than 100 bytes"):
        cut(b'"' + b"x\n" * 200, 10)


def test_what_a_writer_of_csv_wrote_is_cut_into_its_rows() -> None:
    chance = random.Random(3)
    letters = 'ab,"\n\r;\\ \u00e4'
    for _ in range(200):
        rows = [["".join(chance.choices(letters, k=chance.randrange(6))) for _ in range(3)] for _ in range(5)]
        out = io.StringIO()
        csv.writer(out, quoting=csv.QUOTE_ALL, lineterminator="\n").writerows(rows)
        data = out.getvalue().encode()
        if b"\r" in data.split(b"\n", 1)[0]:
            continue  # then a carriage return ends a record
        found = cut(data, chance.choice([1, 7, 1000]), escape='"')
        assert [next(csv.reader([record.decode()])) for record in found] == rows


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-32", "shift_jis"])
def test_bytes_of_other_encodings_become_utf8_wherever_they_come_apart(encoding: str) -> None:
    text = "id,\u8a9e\n1,\u30c6\n" * 50
    data = text.encode(encoding)
    for size in (1, 3, 1000):
        pieces: Any = [data[start : start + size] for start in range(0, len(data), size)]
        assert b"".join(recoded(pieces, encoding)).decode() == text
