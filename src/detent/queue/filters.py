r"""Filters: a CEL expression over a message's headers says whether the message belongs to a queue.

    headers.queue == "orders"
    headers.tier in ["gold", "silver"] && !has(headers.test)
    headers["content-type"].startsWith("image/") || int(headers.priority) > 3

A filter is true, or the message does not match: an error (a header that is missing, `int()` of something that is no
number) counts as no match, also under `!=` and `!`. As everywhere in CEL, `||` and `&&` look past an error on one side
when the other side decides, in either order: `headers.zz == "a" || headers.tier == "gold"` matches gold without `zz`.

Two things guard a text before it runs. The scan here refuses what it can name better than the library, with its place,
and keeps deep nesting from any recursive parser. The library then knows only what is listed below, so a macro that
slipped through the scan would still be an unknown name to it.

Why evaluation is bounded: without macros there are no loops, each operator of the text runs at most once, and there are
at most `FILTER_BYTES_MAX` of them; no operator makes a value larger than a header (`+` is refused, nothing else builds
strings); each one costs time linear in the headers it looks at, except `contains`, whose literal argument makes that
the product of a header and the text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache, lru_cache
from typing import Final, NamedTuple, NoReturn

from cel_expr_python import cel

from detent.errors import Invalid
from detent.settings.queue import default_filter as default_filter

FILTER_BYTES_MAX: Final = 4096
"""Bounds what the worst filter costs: 15 ms to compile, and 70 ms on headers of 64 KB (a usual one: 5 µs)."""

FILTER_DEPTH_MAX: Final = 32
"""The library stops at the same depth, but without a place; and its parser is never asked to go deeper."""

MEMO_MAX: Final = 256
"""Answers a filter remembers: enough for the few values that headers worth filtering by have. Then it starts anew."""

MEMO_CHARS_MAX: Final = 256
"""Header values longer than this together are not remembered, so that a memo stays far below 1 MB."""

_FUNCTIONS: Final = ("double", "has", "int", "size", "string")
_METHODS: Final = ("contains", "endsWith", "size", "startsWith")
_MACROS: Final = ("all", "exists", "exists_one", "existsOne", "filter", "map")
_OPERATORS: Final = (
    *("_==_", "_!=_", "_<_", "_<=_", "_>_", "_>=_", "@in", "_&&_", "_||_", "!_", "_?_:_", "_[_]"),
    *("-_", "_-_", "_*_", "_/_", "_%_"),
)

# Strings as the CEL specification has them: raw and triple-quoted ones, too. What this reads as a string and the
# library does not, the library refuses. Each alternative can end in one way only, so a scan takes linear time.
_TOKEN: Final = re.compile(
    r"""
    (?P<space>[ \t\n\r\f]+|//[^\n]*)
    |(?P<bytes>(?:[bB][rR]?|[rR][bB])["'])
    |(?P<string>[rR](?:\"{3}.*?\"{3}|'{3}.*?'{3}|"[^"\n\r]*"|'[^'\n\r]*')
        |\"{3}(?:\\.|[^\\])*?\"{3}|'{3}(?:\\.|[^\\])*?'{3}
        |"(?:\\[^\n\r]|[^"\\\n\r])*"|'(?:\\[^\n\r]|[^'\\\n\r])*')
    |(?P<number>0[xX][0-9a-fA-F]+[uU]?|(?:[0-9]+(?:\.[0-9]+)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[uU]?)
    |(?P<name>[A-Za-z_][A-Za-z0-9_]*)
    |(?P<mark>&&|\|\||==|!=|<=|>=|[<>!?:.,()\[\]*/%-])
    """,
    re.VERBOSE | re.DOTALL,
)
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b\x0e-\x1f\x7f]")
_PLAIN_STRING: Final = re.compile(r"""(["'])[^"'\\]*\1""")
_LIBRARY_ERROR: Final = re.compile(r"ERROR: <input>:(\d+):(\d+): (.*)")

_CHARACTER_HINTS: Final = {
    "=": "compare with ==",
    "&": "write && for 'and'",
    "|": "write || for 'or'",
    "+": "a filter compares, it does not build values",
    "{": "there are no maps and messages; a list is written [1, 2]",
    '"': "this string is not closed",
    "'": "this string is not closed",
    "`": 'write headers["a-b"]',
}

_DEFAULT: Final = re.compile(r'headers\.queue == "((?:[^"\\]|\\["\\]|\\u[0-9a-f]{4})*)"')
_ESCAPE: Final = re.compile(r'\\(?:u([0-9a-f]{4})|(["\\]))')


class Filter:
    """A compiled filter. It never changes, and several threads may use it."""

    __slots__ = ("_memo", "_names", "_program", "text")

    def __init__(self, text: str) -> None:
        """Compile a filter; `Invalid` says where it is wrong and what to write instead."""
        self.text: Final = text
        self._names: Final = _scan(text)
        self._program: Final = _compile(text)
        self._memo: Final[dict[tuple[str | None, ...], bool]] = {}

    def matches(self, headers: Mapping[str, str]) -> bool:
        """Whether a message with these headers belongs here. It always answers; an error is a no.

        A header that the filter looks at and that has a NUL character in it matches nothing.
        """
        names = self._names
        if names is None:
            return self._evaluate(dict(headers))
        # Only the headers that the filter names are looked at, so an id that differs in each message does not spoil the
        # memo, and the library has less to convert. A lookup takes a tenth of an evaluation.
        key = tuple(map(headers.get, names))
        known = self._memo.get(key)
        if known is not None:
            return known
        named = {name: value for name, value in zip(names, key, strict=True) if value is not None}
        result = self._evaluate(named)
        if sum(map(len, named.values())) <= MEMO_CHARS_MAX:
            if len(self._memo) >= MEMO_MAX:
                self._memo.clear()
            self._memo[key] = result
        return result

    def _evaluate(self, headers: dict[str, str]) -> bool:
        # The library cuts a string at a NUL ("gold\0x" would be gold) and cannot take half a surrogate pair.
        characters = "".join(headers) + "".join(headers.values())
        if "\0" in characters or not (characters.isascii() or _is_unicode(characters)):
            return False
        try:
            result: object = self._program.eval(data={"headers": headers}).value()
        except RuntimeError:
            return False
        return result is True  # what went wrong within the expression comes back as a text

    def __repr__(self) -> str:
        return f"Filter({self.text!r})"


@lru_cache(1024)
def addressed_queue(text: str) -> str | None:
    """The queue whose default filter this is, letter by letter: a router looks it up and need not evaluate."""
    if not (found := _DEFAULT.fullmatch(text)):
        return None
    queue = _ESCAPE.sub(lambda escape: chr(int(escape[1], 16)) if escape[1] else escape[2], found[1])
    return queue if default_filter(queue) == text else None


@cache
def _environment() -> cel.Env:
    """All that an expression can use; made once, as it takes some milliseconds."""
    functions = (*_OPERATORS, *(name for name in _FUNCTIONS if name != "has"), *_METHODS)
    included = ", ".join(f'{{name: "{name}"}}' for name in dict.fromkeys(functions))
    variable = "{name: headers, type_name: map, params: [{type_name: string}, {type_name: string}]}"
    return cel.NewEnv(
        config=cel.NewEnvConfigFromYaml(
            f"stdlib: {{include_macros: [has], include_functions: [{included}]}}\nvariables: [{variable}]\n"
        )
    )


def _compile(text: str) -> cel.Expression:
    try:
        program = _environment().compile(text)
    except RuntimeError as error:
        reason = str(error)
        if "recursion" in reason:
            raise _too_deep(text) from None
        if not (found := _LIBRARY_ERROR.search(reason)):
            raise Invalid(f"the filter {_shown(text)} is wrong: {_cut(reason, 300)}") from None
        hint = ""
        if "no matching overload" in found[3]:
            hint = "; headers are strings: compare them with strings, or write int(headers.x) or double(headers.x)"
        place = f"line {found[1]}, column {found[2]}"
        raise Invalid(f"the filter {_shown(text)} is wrong at {place}: {_cut(found[3], 300)}{hint}") from None
    if program.return_type() != cel.Type.BOOL:
        kind = program.return_type().name().lower()
        raise Invalid(
            f"the filter {_shown(text)} gives a value of type {kind}, not true or false: compare it with something, "
            'as in headers.tier == "gold"'
        )
    return program


class _Token(NamedTuple):
    kind: str
    text: str
    offset: int


_END: Final = _Token("end", "", 0)


def _scan(text: str) -> tuple[str, ...] | None:
    """The headers that a filter names; None if it may look at any. `Invalid` unless the text may go to the library."""
    if not isinstance(text, str):
        raise Invalid(f"a filter is a CEL expression in a str, not {type(text).__name__}")
    if len(text) > FILTER_BYTES_MAX or not _is_unicode(text) or len(text.encode()) > FILTER_BYTES_MAX:
        raise Invalid(f"the filter {_shown(text)} is no Unicode text of at most {FILTER_BYTES_MAX} bytes")
    if control := _CONTROL.search(text):
        _refuse(text, control.start(), f"a control character, {control[0]!r}; in a string, write an escape such as \\n")
    tokens = _tokens(text)
    if not tokens:
        raise Invalid("a filter must not be empty: write true to match every message")
    _check_depth(text, tokens)
    return _check_names(text, tokens)


def _tokens(text: str) -> list[_Token]:
    tokens = []
    offset = 0
    while offset < len(text):
        found = _TOKEN.match(text, offset)
        if not found:
            character = text[offset]
            hint = _CHARACTER_HINTS.get(character, 'only strings and comments hold other text; write headers["a-b"]')
            _refuse(text, offset, f"unexpected {character!r}: {hint}")
        kind = str(found.lastgroup)
        if kind == "bytes":
            _refuse(text, offset, 'headers are strings, not bytes: write "text" without the b')
        if kind != "space":
            tokens.append(_Token(kind, found[0], offset))
        offset = found.end()
    return tokens


def _check_depth(text: str, tokens: list[_Token]) -> None:
    """Refuse what makes a parser recurse: brackets, chains of `?:`, and chains of the operators that nest.

    `&&` and `||` do not count: the library makes a balanced tree of them.
    """
    outer: list[tuple[int, int]] = []
    start = links = 0  # the depth at which this pair of brackets begins, and what its present operand adds to it
    for token in tokens:
        mark = token.text if token.kind in ("mark", "name") else ""
        if mark in ("(", "["):
            outer.append((start, links))
            start, links = start + links + 1, 0
        elif mark in (")", "]"):
            start, links = outer.pop() if outer else (0, 0)
            links += 1
        elif mark == "?":
            start, links = start + 1, 0
        elif mark == ",":
            start, links = sum(outer[-1]) + 1 if outer else 0, 0
        elif mark in (":", "&&", "||"):
            links = 0
        elif mark and (token.kind == "mark" or mark == "in"):
            links += 1
        if start + links > FILTER_DEPTH_MAX:
            raise _too_deep(text, token.offset)


def _check_names(text: str, tokens: list[_Token]) -> tuple[str, ...] | None:
    names: dict[str, None] = {}
    anything = False
    for index, token in enumerate(tokens):
        before = tokens[index - 1] if index else _END
        after, second, third = (tokens[index + 1 : index + 4] + [_END] * 3)[:3]
        if token.text == "." and not _is_operand(before):
            _refuse(text, token.offset, "a name is missing before the dot")
        if token.kind != "name":
            continue
        if before.text == ".":
            if after.text == "(":
                _check_call(text, token, second, third, method=True)
        elif after.text == "(" and token.text != "in":
            _check_call(text, token, second, third, method=False)
        elif token.text == "headers":
            header = _named_header(tokens, index)
            if header is None:
                anything = True
            else:
                names[header] = None
        elif token.text == "null":
            _refuse(text, token.offset, "a header is never null: write !has(headers.x) for one that is missing")
        elif token.text not in ("true", "false", "in"):
            name = _cut(token.text)
            hint = _WORDS.get(name) or f'write headers.{name} for a header, "{name}" for a text'
            _refuse(text, token.offset, f"unknown variable {name!r}: {hint}")
    return None if anything else tuple(names)


def _check_call(text: str, token: _Token, argument: _Token, closing: _Token, *, method: bool) -> None:
    name = token.text
    if name in _MACROS:
        _refuse(text, token.offset, f'{name}() would loop: write the cases with &&, || and in ["a", "b"] instead')
    if name == "matches":
        _refuse(text, token.offset, "no regular expressions here: write startsWith, endsWith, contains or in instead")
    if name not in (_METHODS if method else _FUNCTIONS):
        known = [f"{known}()" for known in _FUNCTIONS] + [f".{known}()" for known in _METHODS]
        _refuse(text, token.offset, f"unknown function {_cut(name)!r}: there are {', '.join(known)}")
    if name == "contains" and (argument.kind != "string" or closing.text != ")"):
        # To look for one header within another takes the product of their sizes: seconds, in the worst filter.
        _refuse(text, token.offset, 'contains() takes one string literal, as in headers.a.contains("text")')


def _named_header(tokens: list[_Token], index: int) -> str | None:
    """The one header that the `headers` at this index is about, if the text names it without escapes."""
    after, second, third = (tokens[index + 1 : index + 4] + [_END] * 3)[:3]
    if after.text == "." and second.kind == "name":
        return second.text if third.text != "(" else None
    literal = _END
    if after.text == "[":
        literal = second if third.text == "]" else _END
    elif index >= 2 and tokens[index - 1].text == "in":
        literal = tokens[index - 2]
    return literal.text[1:-1] if literal.kind == "string" and _PLAIN_STRING.fullmatch(literal.text) else None


def _is_operand(token: _Token) -> bool:
    return (
        token.kind in ("string", "number") or token.text in (")", "]") or (token.kind == "name" and token.text != "in")
    )


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _too_deep(text: str, offset: int | None = None) -> Invalid:
    reason = f"nested more than {FILTER_DEPTH_MAX} deep: join conditions with && and ||, without brackets where you can"
    return Invalid(f"the filter {_shown(text)} is {reason}" if offset is None else _message(text, offset, reason))


def _refuse(text: str, offset: int, reason: str) -> NoReturn:
    raise Invalid(_message(text, offset, reason))


def _message(text: str, offset: int, reason: str) -> str:
    line = text.count("\n", 0, offset) + 1
    column = offset - (text.rfind("\n", 0, offset) + 1) + 1
    return f"the filter {_shown(text)} is wrong at line {line}, column {column}: {reason}"


def _shown(text: str) -> str:
    return repr(_cut(text))


def _cut(text: str, size: int = 80) -> str:
    """So that a message stays readable, whatever it is about."""
    return text if len(text) <= size else text[: size - 3] + "..."


_WORDS: Final = {
    "and": "write && for and",
    "or": "write || for or",
    "not": "write ! for not",
    "is": "write == for is",
    "True": "write true",
    "False": "write false",
    "header": "the variable is called headers",
    "payload": "a filter sees headers only",
    "body": "a filter sees headers only",
}
"""What people write who come from other languages."""
