"""Filters: what they match, what is refused and why, and that no text and no headers do more than that."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from types import MappingProxyType

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from detent.errors import Invalid
from detent.queue.filters import (
    FILTER_BYTES_MAX,
    FILTER_DEPTH_MAX,
    MEMO_CHARS_MAX,
    MEMO_MAX,
    Filter,
    _environment,
    addressed_queue,
    default_filter,
)

HEADERS = {"queue": "orders", "tier": "gold", "n": "5", "bad": "abc", "content-type": "image/png", "empty": ""}

MATCHING = [
    "true",
    'headers.queue == "orders"',
    "headers.queue == 'orders' // a comment with ) and \"",
    'headers.queue == r"orders"',
    'headers.queue == """orders"""',
    "headers.queue\n  ==\t'''orders'''\r\n",
    'headers["queue"] == "orders"',
    'headers["content-type"].startsWith("image/")',
    'headers["content-type"].endsWith("png")',
    'headers["content\\x2dtype"] == "image/png"',
    'headers.tier != "silver"',
    'headers.tier in ["gold", "silver"]',
    '!(headers.tier in ["silver"])',
    '"tier" in headers',
    '!("zz" in headers)',
    "has(headers.tier)",
    "!has(headers.zz)",
    "has(headers.empty)",
    'headers.tier.contains("ol")',
    'headers.tier >= "gold" && headers.tier < "h"',
    "size(headers.tier) == 4",
    "headers.tier.size() == 4",
    "size(headers) == 6",
    "headers.size() == 6",
    "int(headers.n) > 3",
    "int(headers.n) > -3 && int(headers.n) % 2 == 1",
    "double(headers.n) <= 5.0",
    "string(5) == headers.n",
    'has(headers.zz) ? headers.zz == "a" : headers.tier == "gold"',
    'headers[headers.tier == "gold" ? "n" : "zz"] == "5"',
    '"(((" != headers.tier && "]]" != headers.tier && "{all(x)}" != headers.tier',
    "1 in [1, 2]",
    "0x1F == 31 && 1.5e3 == 1500.0 && .5 < 1.0",
    "!!!false",
    # an error on one side does not matter when the other side decides, in either order
    'headers.zz == "a" || headers.tier == "gold"',
    'headers.tier == "gold" || headers.zz == "a"',
    'int(headers.bad) > 3 || headers.tier == "gold"',
    '!(headers.zz == "a" && headers.tier == "silver")',
    '!(headers.tier == "silver" && headers.zz == "a")',
]

NOT_MATCHING = [
    "false",
    'headers.queue == "other"',
    'headers.queue == "Orders"',
    # an error is no match, whatever is made of it
    'headers.zz == "a"',
    'headers.zz != "a"',
    '!(headers.zz == "a")',
    'headers["z-z"] != "a"',
    '!(headers.zz in ["a"])',
    "headers.zz == headers.zz",
    'headers.zz == "a" ? true : true',
    'headers.zz == "a" || headers.tier == "silver"',
    'headers.tier == "gold" && headers.zz == "a"',
    "int(headers.bad) > 3",
    "int(headers.bad) <= 3",
    "int(headers.empty) == 0",
    "double(headers.bad) < 1.0",
    "int(headers.n) / 0 == 1",
    "int(1e300) == 1",
    "9223372036854775807 * int(headers.n) > 0",
    "[true][int(headers.n)]",
]

REFUSED = [
    ("", "write true"),
    (" \n// nothing\n", "write true"),
    ("headers.tier", "type string"),
    ("5", "type int"),
    ('[true, "a"][0]', "type dyn"),
    ('headers.tier == "gold" ? 1 : 2', "type int"),
    ('headers.tier == "gold', "column 17: .*not closed"),
    ("headers.tier == 'go\nld'", "column 17: .*not closed"),
    ('headers.tier = "gold"', "column 14: .*=="),
    ('headers.a == "x" & true', "column 18: .*&&"),
    ('headers.a == "x" | true', "column 18: .*||"),
    ('headers.a + "b" == "ab"', "column 11: .*does not build"),
    ('headers.a == {"a": 1}', "column 14: .*no maps"),
    ("headers.`a-b` == 'c'", 'column 9: .*headers\\["a-b"\\]'),
    ("headers.é == 'c'", "column 9: .*headers"),
    ('headers.a ==\n  b"x"', "line 2, column 3: .*not bytes"),
    ("headers.a == rb'x'", "column 14: .*not bytes"),
    ('true ||\n  tier == "gold"', "line 2, column 3: unknown variable 'tier': write headers.tier .*\"tier\""),
    ("headers.tier == gold", "column 17: unknown variable 'gold'"),
    ("headers.tier == null", "column 17: .*never null: write !has"),
    ('.headers.a == "b"', "column 1: .*before the dot"),
    ("headers.a == .headers.b", "column 14: .*before the dot"),
    ("headers.tier in .headers", "column 17: .*before the dot"),
    ('type(headers.a) == "b"', "column 1: unknown function 'type': there are double\\(\\), has"),
    ('headers.a.lowerAscii() == "b"', "column 11: unknown function 'lowerAscii'"),
    ("headers.a.int() == 1", "column 11: unknown function 'int'"),
    ("startsWith(headers.a)", "column 1: unknown function 'startsWith'"),
    ("timestamp(headers.a) == timestamp('')", "column 1: unknown function 'timestamp'"),
    ("headers.all(k, true)", r"column 9: all\(\) would loop: .*in \[\"a\", \"b\"\]"),
    ("headers.exists(k, k == 'a')", r"column 9: exists\(\) would loop"),
    ("headers.exists_one(k, k == 'a')", r"column 9: exists_one\(\) would loop"),
    ("[1].map(x, x) == [1]", r"column 5: map\(\) would loop"),
    ("[1].filter (x, true) == [1]", r"column 5: filter\(\) would loop"),
    ("[1]. // a comment\n filter(x, true)", r"line 2, column 2: filter\(\) would loop"),
    ("headers.a.matches('(a+)+$')", "column 11: no regular expressions"),
    ("matches(headers.a, 'a')", "column 1: no regular expressions"),
    ("headers.a.contains(headers.b)", "column 11: contains.. takes one string literal"),
    ("headers.a.contains('a', 'b')", "column 11: contains"),
    ("headers.a.contains(true ? headers.b : 'x')", "column 11: contains"),
    ("headers.a == 'b' headers", "line 1, column 18: "),
    ("headers.a == ", "line 1, column 14: "),
    ("(headers.a == 'b'", "line 1, column 18: "),
    ("headers.a == 'b')", "line 1, column 17: "),
    ("headers.a == 'x\\q'", "line 1, column "),
    ("headers.a == '\\ud800'", "line 1, column 14: "),
    ("headers.tier == 5", "column 14: .*headers are strings: .*int"),
    ("headers.n > 3", "column 11: .*headers are strings"),
    ("headers.a.b == 'c'", "column 10: "),
    ("headers.in == 'c'", "column 9: "),
    ("has(headers)", "column "),
    ("99999999999999999999 == 1", "column 1: "),
    ("headers.a\0 == 'b'", "column 10: a control character"),
    ("headers.a == 'b\x1bc'", "column 16: a control character"),
    ("headers.a == '\ud800'", "no Unicode text"),
    ("headers[?'a'] == 'b'", "line 1, column "),
    ("headers.?a == 'b'", "line 1, column "),
]


@pytest.mark.parametrize("text", MATCHING)
def test_matches(text: str) -> None:
    assert Filter(text).matches(HEADERS) is True


@pytest.mark.parametrize("text", NOT_MATCHING)
def test_does_not_match(text: str) -> None:
    assert Filter(text).matches(HEADERS) is False


@pytest.mark.parametrize(("text", "reason"), REFUSED)
def test_refuses_with_place_and_reason(text: str, reason: str) -> None:
    with pytest.raises(Invalid, match=reason):
        Filter(text)


@pytest.mark.parametrize("text", [None, b"true", 5, True, ["true"]])
def test_refuses_what_is_no_text(text: object) -> None:
    with pytest.raises(Invalid, match="CEL expression in a str"):
        Filter(text)  # type: ignore[arg-type]


def test_says_what_it_is() -> None:
    assert repr(Filter("true")) == "Filter('true')"
    assert Filter(" true ").text == " true "


def test_the_library_itself_knows_no_more_than_is_allowed() -> None:
    """The scan comes first, but does not stand alone."""
    for text in ("[1].all(x, true)", "[1].map(x, x) == [1]", "'a'.matches('a')", "'a' + 'b' == 'ab'", "dyn(1) == 1"):
        with pytest.raises(RuntimeError, match="undeclared reference"):
            _environment().compile(text)


# -- limits and hostile texts ------------------------------------------------------------------------------------------


def test_length_is_limited_in_bytes() -> None:
    def text(size: int, letter: str) -> str:
        start = 'headers.a == "'
        return start + letter * ((size - len(start) - 1) // len(letter.encode())) + '"'

    longest = text(FILTER_BYTES_MAX, "x")
    assert len(longest) == FILTER_BYTES_MAX
    assert Filter(longest).matches({"a": longest[14:-1]})
    for long in (text(FILTER_BYTES_MAX + 1, "x"), text(FILTER_BYTES_MAX * 2, "é"), "x" * 10_000_000):
        with pytest.raises(Invalid, match=f"at most {FILTER_BYTES_MAX} bytes") as refused:
            Filter(long)
        assert len(str(refused.value)) < 300


def test_depth_is_limited() -> None:
    def nested(depth: int) -> str:
        return "(" * depth + "true" + ")" * depth

    assert Filter(nested(FILTER_DEPTH_MAX - 1)).matches({})
    with pytest.raises(Invalid, match=f"column {FILTER_DEPTH_MAX + 1}: nested more than {FILTER_DEPTH_MAX} deep"):
        Filter(nested(FILTER_DEPTH_MAX + 1))


def test_brackets_within_strings_and_comments_do_not_count() -> None:
    strings = ['"' + "(" * 99 + '"', "'" + "[" * 99 + "'", 'r"\\' + "(" * 99 + '"', '"""' + '("' * 99 + ' """']
    text = f"headers.a in [{', '.join(strings)}] // {'(' * 99}"
    for value in ("(" * 99, "[" * 99, "\\" + "(" * 99, '("' * 99 + " "):
        assert Filter(text).matches({"a": value})


def test_a_string_ends_where_the_library_ends_it() -> None:
    """A macro can hide in nothing that only one of the two takes for a string."""
    macro = "[1].all(x, true)"
    for opening in ('r"\\"', "r'\\'", '""', "''", '""""""', "''''''", '"\\\\"', 'r"""\\"""', "'\"'", '"\'"', 'R"\\\\"'):
        with pytest.raises(Invalid, match="would loop"):
            Filter(f"{opening} == headers.a || {macro}")
    for opening, closing in (('"\\"', '"'), ('"""""', '"""'), ('"""\\"""', '"""'), ("'''\"\"\"", "'''")):
        assert not Filter(f"{opening}{macro}{closing} == headers.a").matches({"a": ""})


def test_many_conditions_need_no_depth() -> None:
    """A long || is balanced by the library: it does not recurse into its length."""
    text = "||".join(f'headers.a=="{number}"' for number in range(200))
    assert len(text) < FILTER_BYTES_MAX
    for joined in (text, "||".join(["false"] * 500 + ["true"]), "&&".join(["true"] * 600)):
        assert Filter(joined).matches({"a": "199"})
    assert not Filter(text).matches({"a": "200"})


HOSTILE = {
    "brackets": "(" * 10_000 + "true" + ")" * 10_000,
    "open brackets": "(" * 4096,
    "closing brackets": ")" * 4096,
    "mixed brackets": "([" * 2048,
    "lists": "[" * 2000 + "1" + "]" * 2000 + " == []",
    "indexes": "headers.a" + "[0]" * 1300,
    "index within index": "headers[" * 500,
    "calls": "size(" * 600 + "headers" + ")" * 600 + " == 1",
    "has": "has(" * 1000,
    "not": "!" * 4096,
    "not true": "!" * 4092 + "true",
    "not, apart": "! " * 2000 + "true",
    "minus": "-" * 4000 + "1 == 1",
    "minus, apart": "- " * 2000 + "1 == 1",
    "not and minus": "!-" * 2000 + "1",
    "not within brackets": "!(" * 1000 + "true" + ")" * 1000,
    "conditionals": "true?true:" * 400 + "true",
    "conditionals within": "(true?" * 400 + "true" + ":true)" * 400,
    "open conditionals": "true?" * 800,
    "question marks": "?" * 4096,
    "equals": "true" + "==true" * 680,
    "less": "1" + "<1" * 2000,
    "products": "1" + "*1" * 2000 + " == 1",
    "differences": "1" + "-1" * 2000 + " == 1",
    "in": "1 in " * 800 + "[1]",
    "members": "headers" + ".a" * 2000 + " == ''",
    "methods": "headers.a" + ".size()" * 580 + " == 1",
    "strings": "string(" * 30 + "headers.a" + ")" * 30 + ' == "x"',
    "and within brackets": "(true&&" * 500 + "true" + ")" * 500,
    "braces": "{" * 4096,
    "quotes": '"' * 4095,
    "apostrophes": "'" * 4096,
    "raw quotes": 'r"' * 2048,
    "triples": '"""' * 1365,
    "backslashes": '"' + "\\" * 4090,
    "commas": "," * 4096,
    "dots": "." * 4096,
    "slashes": "/" * 4096,
    "spaces": " " * 4096,
    "NULs": "\0" * 4096,
    "a long name": "a" * 4096,
    "a long function": "a" * 4094 + "()",
    "a long number": "9" * 4096,
    "a long fraction": "1." + "9" * 4000 + " > 0.0",
    "a long exponent": "1e" + "9" * 4000 + " > 0.0",
    "a big list": "headers.a in [" + "1," * 2000 + "1]",
    "nested loops": "[1,2].all(a," * 300,
    "a regular expression": 'headers.a.matches("' + "(a*)*" * 700 + '")',
    "unknown letters": "§" * 2000,
    "errors": "x " * 2000,
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_hostile_texts_are_filters_or_refused(text: str) -> None:
    """On a thread with a small stack, where deep recursion would end the process."""
    outcomes: list[object] = []

    def run() -> None:
        try:
            outcomes.append(Filter(text).matches({"a": "x"}))
        except Invalid as refused:
            outcomes.append(str(refused))

    before = threading.stack_size(256 << 10)
    try:
        thread = threading.Thread(target=run)
        thread.start()
    finally:
        threading.stack_size(before)
    thread.join()
    (outcome,) = outcomes
    assert isinstance(outcome, bool | str)
    assert len(str(outcome)) < 1000


def test_hostile_headers_are_answered() -> None:
    needle = "a" * 20 + "b"
    text = "||".join(f'headers.a.contains("{needle}")' for _ in range(80))
    assert not Filter(text).matches({"a": "a" * (64 << 10)})
    assert not Filter("int(headers.a) > 0").matches({"a": "9" * (64 << 10)})
    assert not Filter("size(headers) == 0").matches({f"h{number}": "x" * 256 for number in range(255)})


PIECES = (
    *("headers", "headers.a", 'headers["a"]', "headers[", ".", "a", "b", '"a"', "'b'", 'r"\\"', '"""', "''", "\\", '"'),
    *("true", "false", "null", "in", "has(", "size(", "int(", "double(", "string(", ".size()", ".startsWith(", ".all("),
    *(".contains(", ".matches(", "x,", "(", ")", "[", "]", "{", "}", ",", "?", ":", "!", "-", "+", "*", "/", "%", "//"),
    *(
        "==",
        "!=",
        "<",
        "<=",
        ">",
        ">=",
        "&&",
        "||",
        "&",
        "|",
        "=",
        "1",
        "2.5",
        "7u",
        ".5",
        "0x1",
        "1e9",
        " ",
        "\n",
        "é",
    ),
    *("\0", "\u2028", "\ud800", "r", "b'", "`", "@", "$", "§"),
)


def outcome(text: str, headers: dict[str, str]) -> bool | None:
    try:
        return Filter(text).matches(headers)
    except Invalid:
        return None


@settings(max_examples=1500, deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=60).map("".join))
def test_any_pieces_make_a_filter_or_are_refused(text: str) -> None:
    assert outcome(text, {"a": "b"}) in (True, False, None)


@settings(max_examples=500, deadline=None)
@given(st.text(max_size=200))
def test_any_text_is_a_filter_or_refused(text: str) -> None:
    assert outcome(text, {"a": "b"}) in (True, False, None)


# -- the memo changes nothing ------------------------------------------------------------------------------------------

OPERANDS = st.sampled_from(
    ['headers.a == "x"', 'headers["b-b"] != "y"', '"c" in headers', "has(headers.a)", "true"]
) | (
    st.sampled_from(['headers["\\x61"] == "x"', "size(headers) > 1", 'headers[headers.a] == "x"', "int(headers.c) < 3"])
)
EXPRESSIONS = st.recursive(
    OPERANDS,
    lambda inner: (
        st.tuples(inner, st.sampled_from(["&&", "||", "==", "? false :"]), inner).map(
            lambda parts: f"({parts[0]}) {parts[1]} ({parts[2]})"
        )
        | inner.map(lambda text: f"!({text})")
    ),
    max_leaves=6,
)
VALUES = st.sampled_from(["x", "y", "1", "c", "", "a", "x" * (MEMO_CHARS_MAX + 1), "x\0", "\ud800", "é"])


@settings(max_examples=400, deadline=None)
@given(EXPRESSIONS, st.lists(st.dictionaries(st.sampled_from(["a", "b-b", "c", "x", "other"]), VALUES), min_size=1))
@example('headers["\\x61"] == "x"', [{"a": "x"}])
def test_the_answer_depends_on_the_headers_alone(text: str, messages: list[dict[str, str]]) -> None:
    program = _environment().compile(text)
    used = Filter(text)
    for headers in messages + messages:
        if not any(set(value) & {"\0", "\ud800"} for value in headers.values()):
            assert used.matches(headers) is (program.eval(data={"headers": headers}).value() is True)
        assert used.matches(MappingProxyType(headers)) is Filter(text).matches(headers)


def test_the_memo_is_bounded() -> None:
    used = Filter('headers.a == "5"')
    for number in range(5 * MEMO_MAX):
        assert used.matches({"a": str(number), "id": str(number)}) is (number == 5)
        assert 0 < len(used._memo) <= MEMO_MAX
    used = Filter('headers.a != "5"')
    assert used.matches({"a": "x" * (MEMO_CHARS_MAX + 1)})
    assert used._memo == {}


def test_headers_that_a_filter_does_not_name_cost_no_place_in_the_memo() -> None:
    used = Filter('headers.tier == "gold" || "vip" in headers')
    for number in range(100):
        assert used.matches({"tier": "gold", "id": str(number)})
    assert len(used._memo) == 1


def test_a_header_with_a_nul_or_half_a_surrogate_pair_matches_nothing() -> None:
    """The library would cut `gold\\0x` down to gold."""
    for value in ("gold\0x", "gold\ud800"):
        for text in ('headers.tier == "gold"', 'headers.tier != "gold"', "size(headers) == 1"):
            assert not Filter(text).matches({"tier": value})
        assert Filter('headers.tier == "gold"').matches({"tier": "gold", "other": value})
    assert not Filter("size(headers) == 1").matches({"a\0": "b"})


def test_unicode_is_compared_as_it_is() -> None:
    assert Filter('headers.a == "Grüße 🎉" && size(headers.a) == 7').matches({"a": "Grüße 🎉"})
    assert Filter('headers["ключ"] == "значение"').matches({"ключ": "значение"})


def test_threads_share_a_filter() -> None:
    used = Filter('headers.queue == "orders" && int(headers.n) > 3')

    def check(worker: int) -> bool:
        return all(
            used.matches({"queue": "orders", "n": str(number)}) is (number > 3)
            for number in range(worker, worker + 3 * MEMO_MAX)
        )

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(check, range(0, 80, 10)))


# -- default filters ---------------------------------------------------------------------------------------------------

NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=50)


@given(NAMES)
@example('a"b')
@example("a\\")
@example('\\"')
@example("a/b/c-d.e:f")
@example("\\u0041")
@example("line\nbreak\x7f")
@example("")
def test_a_default_filter_addresses_its_queue(queue: str) -> None:
    text = default_filter(queue)
    assert addressed_queue(text) == queue
    used = Filter(text)
    assert used.matches({"queue": queue}) is ("\0" not in queue)
    assert not used.matches({"queue": queue + "x"})
    assert not used.matches({})


def test_a_default_filter_reads_well() -> None:
    assert default_filter("orders/eu") == 'headers.queue == "orders/eu"'


@pytest.mark.parametrize(
    "text",
    [
        "",
        "true",
        'headers.queue=="a"',
        'headers.queue == "a" ',
        "headers.queue == 'a'",
        'headers.queue == "a" || headers.queue == "b"',
        'headers.queue == "a" || "b" == "b"',
        'headers.tier == "a"',
        'headers.queue != "a"',
        'headers.queue == "\\u0041"',
        'headers.queue == "a\nb"',
        'headers.queue == "\\x41"',
        'headers.queue == "a\\"',
    ],
)
def test_other_filters_address_no_queue(text: str) -> None:
    assert addressed_queue(text) is None


@given(st.lists(st.sampled_from(['"', "\\", "u0041", "u000a", "a", "\n", " || "]), max_size=12).map("".join))
def test_only_default_filters_address_a_queue(inner: str) -> None:
    text = f'headers.queue == "{inner}"'
    queue = addressed_queue(text)
    assert queue is None or default_filter(queue) == text
