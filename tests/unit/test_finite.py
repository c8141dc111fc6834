"""Infinity and NaN in a message are an error wherever it becomes JSON, and never null."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from pydantic import BaseModel, ConfigDict

from busworld import app
from detent.bus import JsonSerializer, MsgpackSerializer
from detent.errors import Invalid
from detent.finite import encode_json
from detent.processor import outcome
from detent.processor.sink_base import bytes_of
from detent.server import jsonbody
from detent.spark.outgoing import as_json

ODD = (math.inf, -math.inf, math.nan)


@dataclass
class Measured:
    value: float
    others: dict[str, list[float | None]] = field(default_factory=dict)


class Struct(msgspec.Struct):
    value: float


class Model(BaseModel):
    value: float
    missing: str | None = None


class ModelOfConstants(BaseModel):
    model_config = ConfigDict(ser_json_inf_nan="constants")
    value: float


class ModelOfTexts(BaseModel):
    model_config = ConfigDict(ser_json_inf_nan="strings")
    value: float


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize(
    "kind", [Measured, Struct, lambda value: Model(value=value), lambda v: ModelOfConstants(value=v)]
)
def test_bus_refuses_message_with_number_that_json_has_not(kind: Any, odd: float) -> None:
    with pytest.raises(Invalid, match=r"not a number of JSON .*value"):
        JsonSerializer().encode(kind(odd))
    assert b"1.5" in JsonSerializer().encode(kind(1.5))


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize(
    "place",
    [
        lambda odd: odd,
        lambda odd: [None, {"a": (1, odd)}],
        lambda odd: {odd: 1},
        lambda odd: {1.0, odd},
        lambda odd: Measured(1.0, {"x": [None, odd]}),
    ],
)
def test_number_is_found_wherever_it_is(place: Any, odd: float) -> None:
    with pytest.raises(Invalid, match="not a number of JSON"):
        encode_json(place(odd))
    encode_json(place(1.5))


def test_null_and_text_that_looks_like_such_a_number_are_written() -> None:
    assert encode_json({"a": None, "nan": "inf", "raw": msgspec.Raw(b"null")}) == b'{"a":null,"nan":"inf","raw":null}'
    assert JsonSerializer().encode(Measured(1.0, {"x": [None]})) == b'{"value":1.0,"others":{"x":[null]}}'
    assert JsonSerializer().encode(ModelOfTexts(value=math.nan)) == b'{"value":"NaN"}'


def test_message_pack_keeps_such_numbers() -> None:
    pack = MsgpackSerializer()
    assert pack.decode(pack.encode(Struct(math.inf)), Struct) == Struct(math.inf)


@pytest.mark.parametrize("body", [b'{"value": NaN}', b'{"value": Infinity}', b'{"value": 1e999}'])
@pytest.mark.parametrize("cls", [Measured, Struct, Model])
def test_bus_refuses_bytes_with_such_a_number(cls: type, body: bytes) -> None:
    with pytest.raises(Invalid, match="bytes are no"):
        JsonSerializer().decode(body, cls)


def test_send_refuses_such_a_number_before_anything_is_sent() -> None:
    with app() as bus:
        bus.handler(Measured)(lambda message: None)
        bus.prepare()
        with pytest.raises(Invalid, match="inf is not a number of JSON"):
            bus.send_local(Measured(math.inf))
        assert bus.drain() == []


@pytest.mark.parametrize("write", [outcome.encoded, lambda value: bytes_of(value, "line"), encode_json])
def test_graphs_and_their_sinks_refuse_such_a_number(write: Any) -> None:
    for odd in ODD:
        with pytest.raises(Invalid, match="not a number of JSON"):
            write({"value": odd})
    assert write({"value": None}) == b'{"value":null}'


def test_row_of_spark_with_such_a_number_is_refused() -> None:
    with pytest.raises(Invalid, match="nan is not a number of JSON"):
        as_json(pa.RecordBatch.from_pydict({"value": [1.0, math.nan]}))
    (row,) = as_json(pa.RecordBatch.from_pydict({"value": [1.5]})).to_pylist()
    assert row == b'{"value":1.5}'


@pytest.mark.parametrize("number", [b"NaN", b"Infinity", b"-Infinity", b"1e999"])
def test_server_refuses_such_a_number_in_a_request(number: bytes) -> None:
    with pytest.raises(Invalid):
        jsonbody.decode(b'{"value": ' + number + b"}", msgspec.json.Decoder())
