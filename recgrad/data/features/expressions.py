"""Arithmetic expressions over columns, parsed here and computed with NumPy, whole columns at a time.

Nothing of the user's text is run as Python. Operators, from the loosest: `?:`, `||`, `&&`,
`|`, `&`, comparisons, `+ -`, `* /`, unary `- + !`, `^` (power, from the right). Truth is 1 and 0.
A value is a number for each bag, or a vector for each bag; numbers are broadcast over vectors.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from recgrad.config.values import show
from recgrad.data.features.functions import CONSTANTS, ELEMENTWISE, PARTIAL, REDUCTIONS, Vector, align
from recgrad.errors import nearest

Numbers = npt.NDArray[np.float64]
Value = Numbers | Vector
Node = Callable[[Mapping[str, Value]], Value]

_TOKEN = re.compile(
    r"\s*(?:(\d+\.?\d*(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?)|([A-Za-z_]\w*)|(\|\||&&|[<>=!]=|.))"
)


MAX_DEPTH = 50
"""Operations inside each other; Python's own stack bears some more."""


class LengthMismatchError(ValueError):
    """Vectors of one bag that differ in length."""

    def __init__(self, bags: npt.NDArray[np.int64]) -> None:
        super().__init__("vectors differ in length")
        self.bags = bags


@dataclass(frozen=True)
class Expression:
    """A parsed expression.

    Attributes:
        variables: the names it reads.
        reduces: it uses a function of whole vectors, such as dot.
        partial: it uses a function that has no value for some vectors, such as corr.
    """

    variables: frozenset[str]
    reduces: bool
    partial: bool
    _root: Node

    def evaluate(self, values: Mapping[str, Value]) -> Value:
        """The value for each bag. LengthMismatchError says which bags have vectors that do not fit."""
        with np.errstate(all="ignore"):
            return self._root(values)

    def scalars(self, values: Mapping[str, Numbers]) -> Numbers:
        """The value where every variable is one number for each bag."""
        result = self.evaluate(values)
        assert not isinstance(result, Vector)
        return result


def compile_expression(source: str) -> Expression:
    """Parse an expression; ValueError says what is wrong and where."""
    return _Parser(source).parse()


class _Parser:
    """Recursive descent over the tokens of a source text."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.tokens = _tokens(source)
        self.at = 0
        self.depth = 0
        self.variables: set[str] = set()
        self.reduces = False
        self.partial = False

    def parse(self) -> Expression:
        root = self._ternary()
        if self._peek() != "":
            raise self._error("an operator")
        return Expression(frozenset(self.variables), self.reduces, self.partial, root)

    def _peek(self) -> str:
        return self.tokens[self.at][1]

    def _next(self) -> tuple[str, str]:
        token = self.tokens[self.at]
        self.at += 1
        return token

    def _accept(self, *symbols: str) -> str | None:
        kind, text = self.tokens[self.at]
        if kind == "symbol" and text in symbols:
            self.at += 1
            return text
        return None

    def _expect(self, symbol: str) -> None:
        if self._accept(symbol) is None:
            raise self._error(f"'{symbol}'")

    def _error(self, wanted: str) -> ValueError:
        found = self._peek() or "the end"
        return ValueError(f"expression {show(self.source)}: expected {wanted} before {found!r}")

    @contextmanager
    def _deeper(self) -> Iterator[None]:
        """One more operation around what is parsed in here."""
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise ValueError(f"expression {show(self.source)} is nested more than {MAX_DEPTH} deep")
        yield
        self.depth -= 1

    def _ternary(self) -> Node:
        with self._deeper():
            return self._choice()

    def _choice(self) -> Node:
        condition = self._binary(0)
        if self._accept("?") is None:
            return condition
        yes = self._ternary()
        self._expect(":")
        no = self._ternary()
        return _apply(lambda c, y, n: np.where(c != 0, y, n), [condition, yes, no])

    def _binary(self, level: int) -> Node:
        if level == len(_LEVELS):
            return self._unary()
        first = self._binary(level + 1)
        rest: list[tuple[Callable[..., Any], Node]] = []
        while (symbol := self._accept(*_LEVELS[level])) is not None:
            rest.append((_LEVELS[level][symbol], self._binary(level + 1)))
        return _chain(first, rest) if rest else first

    def _unary(self) -> Node:
        symbol = self._accept("-", "+", "!")
        if symbol is None:
            return self._power()
        with self._deeper():
            return _apply(_UNARY[symbol], [self._unary()])

    def _power(self) -> Node:
        base = self._atom()
        if self._accept("^") is None:
            return base
        with self._deeper():
            return _apply(np.power, [base, self._unary()])

    def _atom(self) -> Node:
        kind, text = self.tokens[self.at]
        if kind == "number":
            self._next()
            number = np.float64(text)
            return lambda _: np.asarray(number)
        if kind == "name":
            self._next()
            if self._accept("(") is not None:
                return self._call(text)
            if text in CONSTANTS:
                constant = np.asarray(CONSTANTS[text])
                return lambda _: constant
            self.variables.add(text)
            return lambda values: values[text]
        if self._accept("(") is not None:
            inner = self._ternary()
            self._expect(")")
            return inner
        raise self._error("a number, a name or '('")

    def _call(self, name: str) -> Node:
        arguments: list[Node] = []
        if self._accept(")") is None:
            arguments.append(self._ternary())
            while self._accept(",") is not None:
                arguments.append(self._ternary())
            self._expect(")")
        if name == "rnd":
            raise ValueError(f"expression {show(self.source)}: rnd is random, and encoding must not be")
        if name not in ELEMENTWISE and name not in REDUCTIONS:
            hint = nearest(name, [*ELEMENTWISE, *REDUCTIONS])
            raise ValueError(f"expression {show(self.source)}: no function '{name}'{hint}")
        self.reduces |= name in REDUCTIONS
        self.partial |= name in PARTIAL
        arity, function = REDUCTIONS[name] if name in REDUCTIONS else ELEMENTWISE[name]
        if len(arguments) != arity if arity else not arguments:
            wanted = arity or "at least 1"
            raise ValueError(
                f"expression {show(self.source)}: {name} takes {wanted} arguments, got {len(arguments)}"
            )
        return _reduce(function, arguments) if name in REDUCTIONS else _apply(function, arguments)


def _tokens(source: str) -> list[tuple[str, str]]:
    tokens: list[tuple[str, str]] = []
    at = 0
    text = source.rstrip()
    while at < len(text):
        match = _TOKEN.match(text, at)
        assert match is not None  # the last alternative takes any character
        number, name, symbol = match.groups()
        if symbol is not None and symbol not in _SYMBOLS:
            raise ValueError(f"expression {show(source)}: {symbol!r} at {match.start(3)} is no operator")
        kind = "number" if number else "name" if name else "symbol"
        tokens.append((kind, str(number or name or symbol)))
        at = match.end()
    if not tokens:
        raise ValueError("an expression must not be empty")
    return [*tokens, ("end", "")]


def _apply(function: Callable[..., Any], arguments: Sequence[Node]) -> Node:
    """An operation element by element."""
    return lambda values: _elementwise(function, [argument(values) for argument in arguments])


def _chain(first: Node, rest: Sequence[tuple[Callable[..., Any], Node]]) -> Node:
    """Operations one after the other from the left: a sum of many terms is no deeper than one of two."""

    def node(values: Mapping[str, Value]) -> Value:
        result = first(values)
        for function, operand in rest:
            result = _elementwise(function, [result, operand(values)])
        return result

    return node


def _elementwise(function: Callable[..., Any], results: Sequence[Value]) -> Value:
    """A function of values element by element; numbers are repeated along vectors."""
    if not any(isinstance(result, Vector) for result in results):
        return np.asarray(function(*results), np.float64)
    parts, offsets, wrong = align(results)
    if len(wrong):
        raise LengthMismatchError(wrong)
    return Vector(np.asarray(function(*parts), np.float64), offsets)


def _reduce(function: Callable[..., Any], arguments: Sequence[Node]) -> Node:
    """A function of whole vectors: a number for each bag."""

    def node(values: Mapping[str, Value]) -> Value:
        results = [argument(values) for argument in arguments]
        parts, offsets, wrong = align(results, vectors=True)
        if len(wrong):
            raise LengthMismatchError(wrong)
        return np.asarray(function(offsets, *parts), np.float64)

    return node


def _truth(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *values: function(*values).astype(np.float64)


def _bits(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda a, b: function(np.asarray(a).astype(np.int64), np.asarray(b).astype(np.int64))


_LEVELS: list[dict[str, Callable[..., Any]]] = [
    {"||": _truth(lambda a, b: (a != 0) | (b != 0))},
    {"&&": _truth(lambda a, b: (a != 0) & (b != 0))},
    {"|": _bits(np.bitwise_or)},
    {"&": _bits(np.bitwise_and)},
    {
        "<=": _truth(np.less_equal),
        ">=": _truth(np.greater_equal),
        "!=": _truth(np.not_equal),
        "==": _truth(np.equal),
        ">": _truth(np.greater),
        "<": _truth(np.less),
    },
    {"+": np.add, "-": np.subtract},
    {"*": np.multiply, "/": np.divide},
]
_UNARY: dict[str, Callable[..., Any]] = {
    "-": np.negative,
    "+": np.positive,
    "!": _truth(lambda a: a == 0),
}
_SYMBOLS = {symbol for level in _LEVELS for symbol in level} | {"?", ":", "(", ")", ",", "^", "!"}
