"""Conditions on rows as they are written: `log.parquet where day < 20220506 and tab in (0, 1)`.

    condition   = terms joined by `and` and `or`; `not`; parentheses
    term        = column op value | column [not] in (value, …) | column [not] between value and value
                | column is [not] null | hash(column) % n op value | hash(row()) % n op value
    op          = < <= > >= = == != <>
    value       = 3, -1.5, 'text', 2022-05-06, 2022-05-06T12:30, true, false

A null is in no range, as in SQL: a row of which a condition can say neither is left out. Columns whose
names are no words stand in backquotes. `hash` is the XXH64 of the value as text, so that it cuts users,
items or rows (`row()` is the number of a row in its file) into lasting shares.
"""

from __future__ import annotations

import os
import re
from typing import Any, NamedTuple, NoReturn

from recgrad.data.readers.where import (
    OPERATORS,
    Both,
    Compare,
    Condition,
    Date,
    Either,
    HashShare,
    IsIn,
    IsNull,
    Not,
)
from recgrad.errors import DataError

_WHERE = re.compile(r"\s+where\s+", re.IGNORECASE)
_TOKEN = re.compile(
    r"\s*(?:(?P<date>\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?)?)"
    r"|(?P<number>[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)"
    r"|(?P<text>'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\")"
    r"|`(?P<quoted>[^`]+)`|(?P<word>[^\W\d]\w*)|(?P<sign><=|>=|==|!=|<>|[<>=(),%]))"
)
_SAME = {"==": "=", "<>": "!="}


def split_where(input_path: str) -> tuple[str, str | None]:
    """The files of an input path, and the condition on their rows, if it has one.

    A file whose own name has a `where` in it is that file.
    """
    found = _WHERE.search(input_path)
    if found is None or os.path.exists(input_path):
        return input_path, None
    return input_path[: found.start()], input_path[found.end() :].strip()


class _Token(NamedTuple):
    kind: str
    text: str
    at: int


def parse_where(text: str) -> Condition:
    """The condition that a text after `where` says.

    Raises:
        DataError: with the place that cannot be understood.
    """
    return _Parser(text).whole()


class _Parser:
    """A parser by recursive descent; `or` binds least, then `and`, then `not`."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens: list[_Token] = []
        self.at = 0
        at = 0
        while text[at:].strip():
            found = _TOKEN.match(text, at)
            if found is None:
                at += len(text[at:]) - len(text[at:].lstrip())
                self._fail(at, f"'{text[at]}' has no meaning here")
            kind = str(found.lastgroup)
            self.tokens.append(_Token(kind, found.group(kind), found.start(kind)))
            at = found.end()

    def whole(self) -> Condition:
        found = self._either()
        if self.at < len(self.tokens):
            token = self.tokens[self.at]
            self._fail(token.at, f"'{token.text}' is one too many; join conditions by and, or")
        return found

    def _either(self, depth: int = 0) -> Condition:
        parts = [self._both(depth)]
        while self._take("or"):
            parts.append(self._both(depth))
        return parts[0] if len(parts) == 1 else Either(tuple(parts))

    def _both(self, depth: int) -> Condition:
        parts = [self._term(depth)]
        while self._take("and"):
            parts.append(self._term(depth))
        return parts[0] if len(parts) == 1 else Both(tuple(parts))

    def _term(self, depth: int) -> Condition:
        if depth > 50:
            self._fail(0, "conditions are nested too deep")
        if self._take("not"):
            return Not(self._term(depth + 1))
        if self._take("("):
            found = self._either(depth + 1)
            self._expect(")")
            return found
        token = self._next("a column")
        if token.kind not in ("word", "quoted"):
            self._fail(
                token.at, f"a column's name is wanted, not {token.text}; odd names stand in backquotes"
            )
        if token.kind == "word" and token.text.lower() == "hash" and self._take("("):
            return self._hash()
        return self._of_column(token.text)

    def _of_column(self, column: str) -> Condition:
        if self._take("is"):
            absent = self._take("not")
            self._expect("null")
            return Not(IsNull(column)) if absent else IsNull(column)
        negated = self._take("not")
        if self._take("in"):
            self._expect("(")
            values = [self._value()]
            while self._take(","):
                values.append(self._value())
            self._expect(")")
            return Not(IsIn(column, tuple(values))) if negated else IsIn(column, tuple(values))
        if self._take("between"):
            low = self._value()
            self._expect("and")
            inside = Both((Compare(column, ">=", low), Compare(column, "<=", self._value())))
            return Not(inside) if negated else inside
        if negated:
            self._fail(self._place(), "after `column not` comes in or between")
        return Compare(column, self._operator(), self._value())

    def _hash(self) -> Condition:
        token = self._next("a column or row()")
        column = token.text
        if token.kind == "word" and column.lower() == "row" and self._take("("):
            self._expect(")")
            column = ""
        self._expect(")")
        self._expect("%")
        place = self._place()
        modulo = self._value()
        if not isinstance(modulo, int) or not 1 <= modulo < 2**31:
            self._fail(place, f"hash(…) % n needs a whole n of at least 1, got {modulo}")
        op = self._operator()
        place = self._place()
        value = self._value()
        if not isinstance(value, (int, float)):
            self._fail(place, f"hash(…) % {modulo} is compared with a number, got '{value}'")
        return HashShare(column, modulo, op, value)

    def _operator(self) -> str:
        token = self._next("one of < <= > >= = !=")
        op = _SAME.get(token.text, token.text)
        if op not in OPERATORS:
            self._fail(token.at, f"one of < <= > >= = !=, in, between, is null is wanted, not '{token.text}'")
        return op

    def _value(self) -> Any:
        token = self._next("a value")
        if token.kind == "number":
            return float(token.text) if re.search(r"[.eE]", token.text) else int(token.text)
        if token.kind == "text":
            quote = token.text[0]
            return token.text[1:-1].replace(quote * 2, quote)
        if token.kind == "date":
            return Date(token.text)
        if token.text.lower() in ("true", "false"):
            return token.text.lower() == "true"
        return self._fail(token.at, f"a value is wanted, not {token.text}; texts stand in quotes")

    def _take(self, word: str) -> bool:
        if self.at < len(self.tokens):
            token = self.tokens[self.at]
            if token.kind in ("word", "sign") and token.text.lower() == word:
                self.at += 1
                return True
        return False

    def _expect(self, word: str) -> None:
        if not self._take(word):
            self._fail(self._place(), f"'{word}' is missing")

    def _next(self, what: str) -> _Token:
        if self.at >= len(self.tokens):
            self._fail(len(self.text), f"{what} is missing")
        self.at += 1
        return self.tokens[self.at - 1]

    def _place(self) -> int:
        return self.tokens[self.at].at if self.at < len(self.tokens) else len(self.text)

    def _fail(self, at: int, what: str) -> NoReturn:
        raise DataError(f"data: where {self.text}: {what} (after '{self.text[:at].strip()[-40:]}')")
