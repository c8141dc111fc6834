"""Message attributes of SQS: digests as AWS computes them, and their way through Detent's headers and back."""

from __future__ import annotations

import string

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from detent.queue.operations import check_headers
from detent.server.sqs import attributes
from detent.server.sqs.attributes import ADDRESS, BODY, Attribute
from detent.server.sqs.errors import Refused

TRACE = "Root=1-5759e988-bd862e3fe1be46a994272793;Parent=53995c3f42cd8ad8;Sampled=1"

# Digests that AWS itself and the tests of its other implementations give for these attributes.
DIGESTS = [
    ({"timestamp": Attribute("Number", "1493147359900")}, "235c5c510d26fb653d073faed50ae77c"),
    ({"timestamp": Attribute("Number.java.lang.Long", "1493147359900")}, "2e2e4876d8e0bd6b8c2c8f556831c349"),
    ({"SOME_Valid.attribute-Name": Attribute("Number", "1493147359900")}, "36655e7e9d7c0e8479fa3f3f42247ae7"),
    (
        {
            "test_attribute_name_2": Attribute("String", "test_attribute_value_2"),
            "test_attribute_name_1": Attribute("String", "test_attribute_value_1"),
        },
        "d53f3b558fe951154770f25cb63dbba9",
    ),
    ({"test_attribute_name": Attribute("Binary", None, b"test_attribute_value")}, "23f6bd27ea87aab7dfeadcc9aebee495"),
    ({"AWSTraceHeader": Attribute("String", TRACE)}, "5ae4d5d7636402d80f4eb6d213245a88"),
]


@pytest.mark.parametrize(("given_attributes", "digest"), DIGESTS)
def test_digests_are_those_of_aws(given_attributes: dict[str, Attribute], digest: str) -> None:
    assert attributes.digest(given_attributes) == digest


REFUSED = {
    "a name with a space": ("a b", Attribute("String", "x")),
    "an empty name": ("", Attribute("String", "x")),
    "a name that begins with a dot": (".a", Attribute("String", "x")),
    "a name that ends with a dot": ("a.", Attribute("String", "x")),
    "a name with two dots in a row": ("a..b", Attribute("String", "x")),
    "a name of AWS": ("aws.a", Attribute("String", "x")),
    "a name of Amazon": ("AMAZON.a", Attribute("String", "x")),
    "a name that is too long": ("a" * 257, Attribute("String", "x")),
    "no type": ("a", Attribute("", "x")),
    "an unknown type": ("a", Attribute("Text", "x")),
    "a type that only begins like one": ("a", Attribute("Strings", "x")),
    "an empty label": ("a", Attribute("String.", "x")),
    "a type that is too long": ("a", Attribute("String." + "x" * 250, "x")),
    "an empty text": ("a", Attribute("String", "")),
    "no value": ("a", Attribute("String")),
    "bytes in a String": ("a", Attribute("String", None, b"x")),
    "a text in a Binary": ("a", Attribute("Binary", "x")),
    "both values": ("a", Attribute("String", "x", b"x")),
    "no bytes": ("a", Attribute("Binary", None, b"")),
    "a list": ("a", Attribute("String", "x", None, True)),
    "a Number that is none": ("a", Attribute("Number", "ten")),
    "a Number with too many digits": ("a", Attribute("Number", "1" * 39)),
    "a Number that is too large": ("a", Attribute("Number", "1e127")),
    "a Number that is far too large": ("a", Attribute("Number", "-1e9999")),
    "a Number that is too small": ("a", Attribute("Number", "-9e-129")),
    "a character that XML has not": ("a", Attribute("String", "\x00")),
}


@pytest.mark.parametrize("case", REFUSED)
def test_attributes_that_sqs_refuses_are_refused(case: str) -> None:
    name, attribute = REFUSED[case]
    with pytest.raises(Refused):
        attributes.check({name: attribute})


def test_an_eleventh_attribute_is_refused() -> None:
    ten = {f"a{index}": Attribute("String", "x") for index in range(10)}
    attributes.check(ten)
    assert attributes.size(ten) == 10 * (2 + 6 + 1)
    with pytest.raises(Refused):
        attributes.check({**ten, "b": Attribute("String", "x")})


@pytest.mark.parametrize(
    "text", ["0", "-1", "+1.5", ".5", "5.", "1e10", "1E-10", "1" * 38, "1e126", "-1e-128", "0e9999"]
)
def test_numbers_are_numbers(text: str) -> None:
    attributes.check({"a": Attribute("Number", text)})


SQS_TEXT = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\ufffe\uffff").filter(
        lambda c: ord(c) >= 32 or c in "\t\n\r"
    ),
    min_size=1,
    max_size=40,
)
NAMES = st.one_of(
    st.text(string.ascii_letters + string.digits + "_-", min_size=1, max_size=12),
    st.sampled_from(
        ["queue", "sqs-type-a", "sqs-value-a", "sqs-binary-a", "sqs-body", "sqs-group", "priority", "a", "a.b"]
    ),
)
LABELS = st.one_of(st.just(""), SQS_TEXT.map(lambda text: "." + text[:20]))
ONE = st.one_of(
    st.builds(lambda label, text: Attribute("String" + label, text), LABELS, SQS_TEXT),
    st.builds(lambda label, number: Attribute("Number" + label, str(number)), LABELS, st.integers(-(10**20), 10**20)),
    st.builds(lambda label, data: Attribute("Binary" + label, None, data), LABELS, st.binary(min_size=1, max_size=40)),
    st.builds(lambda size: Attribute("String", "x" * size), st.integers(1, 9_000)),
    st.builds(lambda size: Attribute("Binary", None, bytes(size)), st.integers(1, 9_000)),
)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=50), st.dictionaries(NAMES, ONE, max_size=10))
def test_body_and_attributes_come_back_bit_by_bit(body: bytes, sent: dict[str, Attribute]) -> None:
    attributes.check(sent)
    headers = {ADDRESS: "orders", attributes.GROUP: "g" * 128, attributes.DEDUP: "d" * 128}
    content = attributes.pack(body, sent, headers)
    check_headers(headers)
    assert headers[ADDRESS] == "orders"
    assert attributes.unpack(content, headers) == (body, sent)


def test_a_text_attribute_is_a_header_of_its_own_name() -> None:
    headers: dict[str, str] = {}
    sent = {
        "tier": Attribute("String", "gold"),
        "priority": Attribute("Number", "5"),
        "b": Attribute("Binary", None, b"1"),
    }
    assert attributes.pack(b"body", sent, headers) == b"body"
    assert headers == {
        "tier": "gold",
        "priority": "5",
        "sqs-type-priority": "Number",
        "sqs-binary-b": "MQ==",
        "sqs-type-b": "Binary",
    }


def test_the_largest_attributes_go_behind_the_body_when_the_headers_are_full() -> None:
    headers: dict[str, str] = {}
    sent = {"large": Attribute("String", "x" * 9_000), "tier": Attribute("String", "gold")}
    content = attributes.pack(b"body", sent, headers)
    assert content.startswith(b"body")
    assert headers == {"tier": "gold", BODY: "4"}
    assert attributes.unpack(content, headers) == (b"body", sent)


@pytest.mark.parametrize(
    "headers",
    [
        {BODY: "2"},
        {BODY: "x"},
        {BODY: "999"},
        {"sqs-binary-a": "no base64!"},
        {"sqs-type-a": "x"},
        {"": "x"},
        {"a": ""},
    ],
)
def test_headers_of_other_producers_stop_nobody(headers: dict[str, str]) -> None:
    assert attributes.unpack(b"body", headers)[0] == b"body"


@pytest.mark.parametrize(
    "behind", [b"\x91\x94\xa1\xff\xa1t\xa1v\xc0", b"\x91\x94\xa1n\xa1t", b"\xc1", b"\x91" * 10_000], ids=len
)
def test_contents_of_other_producers_stop_nobody(behind: bytes) -> None:
    assert attributes.unpack(b"body" + behind, {BODY: "4"}) == (b"body" + behind, {})


def test_consumers_choose_attributes_by_name_and_by_beginning() -> None:
    have = {name: Attribute("String", "x") for name in ("a", "foo.a", "foo.b", "food")}
    assert set(attributes.wanted(have, [])) == set()
    assert set(attributes.wanted(have, ["All"])) == set(have)
    assert set(attributes.wanted(have, [".*"])) == set(have)
    assert set(attributes.wanted(have, ["a", "nothing"])) == {"a"}
    assert set(attributes.wanted(have, ["foo.*"])) == {"foo.a", "foo.b", "food"}
