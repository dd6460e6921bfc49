"""Conditions on rows: what each says of columns, and of ranges of values; `where_text` reads them."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timezone
from itertools import product
from typing import Any, NamedTuple, NoReturn

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from recgrad.data.hashing import hash_array
from recgrad.data.readers.reader import ValueRange
from recgrad.errors import DataError

Outcomes = frozenset[bool | None]
"""What a condition may say of the rows of a fragment: True, False, or None for neither."""

ANY: Outcomes = frozenset({True, False, None})
OPERATORS: dict[str, tuple[Callable[[Any, Any], Any], Callable[..., Any]]] = {
    "<": (operator.lt, pc.less),
    "<=": (operator.le, pc.less_equal),
    ">": (operator.gt, pc.greater),
    ">=": (operator.ge, pc.greater_equal),
    "=": (operator.eq, pc.equal),
    "!=": (operator.ne, pc.not_equal),
}


class Rows(NamedTuple):
    """Rows to judge: their columns, and their numbers in their file."""

    columns: Mapping[str, pa.Array]
    numbers: npt.NDArray[np.int64]


@dataclass(frozen=True)
class Condition:
    """A condition on rows."""

    def columns(self) -> Iterator[str]:
        """The columns that it reads."""
        yield from ()

    def mask(self, rows: Rows) -> pa.Array:
        """True, False or null for each row."""
        raise NotImplementedError

    def outcomes(self, ranges: Mapping[str, ValueRange], schema: pa.Schema) -> Outcomes:
        """What it may say of rows whose values lie in these ranges."""
        return ANY

    def check(self, schema: pa.Schema) -> None:
        """Raise a DataError where a value does not fit the type of its column."""


@dataclass(frozen=True)
class Compare(Condition):
    """`column op value`."""

    column: str
    op: str
    value: Any

    def columns(self) -> Iterator[str]:
        yield self.column

    def mask(self, rows: Rows) -> pa.Array:
        values = rows.columns[self.column]
        return OPERATORS[self.op][1](values, literal(self.value, values.type, self.column))

    def outcomes(self, ranges: Mapping[str, ValueRange], schema: pa.Schema) -> Outcomes:
        known = ranges.get(self.column)
        if known is None:
            return ANY
        kind = schema.field(self.column).type
        found: set[bool | None] = {None} if known.has_nulls else set()
        if known.low is None:
            return frozenset(found)
        try:
            value = literal(self.value, kind, self.column).as_py()
            found |= _compare_range(known.low, known.high, self.op, value)
        except (TypeError, ValueError):  # such as a time with a zone and one without
            return ANY
        if pa.types.is_floating(kind):  # what the footer says leaves NaN out, which is unlike everything
            found.add(self.op == "!=")
        return frozenset(found)

    def check(self, schema: pa.Schema) -> None:
        literal(self.value, schema.field(self.column).type, self.column)


@dataclass(frozen=True)
class IsIn(Condition):
    """`column in (value, …)`."""

    column: str
    values: tuple[Any, ...]

    def columns(self) -> Iterator[str]:
        yield self.column

    def _parts(self) -> list[Condition]:
        return [Compare(self.column, "=", value) for value in self.values]

    def mask(self, rows: Rows) -> pa.Array:
        values = rows.columns[self.column]
        wanted = [literal(value, values.type, self.column) for value in self.values]
        kinds = {scalar.type for scalar in wanted}
        if len(kinds) > 1:
            return Either(tuple(self._parts())).mask(rows)
        found = pc.is_in(values, pa.array([scalar.as_py() for scalar in wanted], values.type))
        return pc.if_else(pc.is_null(values), pa.scalar(None, pa.bool_()), found)

    def outcomes(self, ranges: Mapping[str, ValueRange], schema: pa.Schema) -> Outcomes:
        return Either(tuple(self._parts())).outcomes(ranges, schema)

    def check(self, schema: pa.Schema) -> None:
        for part in self._parts():
            part.check(schema)


@dataclass(frozen=True)
class IsNull(Condition):
    """`column is null`."""

    column: str

    def columns(self) -> Iterator[str]:
        yield self.column

    def mask(self, rows: Rows) -> pa.Array:
        return pc.is_null(rows.columns[self.column])

    def outcomes(self, ranges: Mapping[str, ValueRange], schema: pa.Schema) -> Outcomes:
        known = ranges.get(self.column)
        if known is None:
            return frozenset({True, False})
        return frozenset({known.low is None} | ({True} if known.has_nulls else set()))


@dataclass(frozen=True)
class HashShare(Condition):
    """`hash(column) % modulo op value`; of row numbers where the column is empty. A null hashes as ""."""

    column: str
    modulo: int
    op: str
    value: Any

    def columns(self) -> Iterator[str]:
        if self.column:
            yield self.column

    def mask(self, rows: Rows) -> pa.Array:
        values = rows.columns[self.column] if self.column else pa.array(rows.numbers)
        return pa.array(OPERATORS[self.op][0](hash_array(values) % np.uint64(self.modulo), self.value))

    def outcomes(self, ranges: Mapping[str, ValueRange], schema: pa.Schema) -> Outcomes:
        return frozenset({True, False})

    def check(self, schema: pa.Schema) -> None:
        if self.column and pa.types.is_nested(schema.field(self.column).type):
            kind = schema.field(self.column).type
            raise DataError(f"data: where: column '{self.column}' is {kind}, which has no hash; name another")


@dataclass(frozen=True)
class Joined(Condition):
    """Conditions of which all, or one, must hold."""

    parts: tuple[Condition, ...]

    def columns(self) -> Iterator[str]:
        for part in self.parts:
            yield from part.columns()

    def check(self, schema: pa.Schema) -> None:
        for part in self.parts:
            part.check(schema)

    def _outcomes(self, ranges: Mapping[str, ValueRange], schema: pa.Schema, decides: bool) -> Outcomes:
        found: Outcomes = frozenset({not decides})
        for part in self.parts:
            pairs = product(found, part.outcomes(ranges, schema))
            found = frozenset(
                decides if decides in pair else None if None in pair else not decides for pair in pairs
            )
        return found


@dataclass(frozen=True)
class Both(Joined):
    """Conditions joined by `and`."""

    def mask(self, rows: Rows) -> pa.Array:
        return _fold(pc.and_kleene, self.parts, rows)

    def outcomes(self, ranges: Mapping[str, ValueRange], schema: pa.Schema) -> Outcomes:
        return self._outcomes(ranges, schema, False)


@dataclass(frozen=True)
class Either(Joined):
    """Conditions joined by `or`."""

    def mask(self, rows: Rows) -> pa.Array:
        return _fold(pc.or_kleene, self.parts, rows)

    def outcomes(self, ranges: Mapping[str, ValueRange], schema: pa.Schema) -> Outcomes:
        return self._outcomes(ranges, schema, True)


@dataclass(frozen=True)
class Not(Condition):
    """`not condition`."""

    part: Condition

    def columns(self) -> Iterator[str]:
        yield from self.part.columns()

    def mask(self, rows: Rows) -> pa.Array:
        return pc.invert(self.part.mask(rows))

    def outcomes(self, ranges: Mapping[str, ValueRange], schema: pa.Schema) -> Outcomes:
        found = self.part.outcomes(ranges, schema)
        return frozenset(None if outcome is None else not outcome for outcome in found)

    def check(self, schema: pa.Schema) -> None:
        self.part.check(schema)


def _fold(join: Callable[[Any, Any], Any], parts: Sequence[Condition], rows: Rows) -> pa.Array:
    found = parts[0].mask(rows)
    for part in parts[1:]:
        found = join(found, part.mask(rows))
    return found


def _compare_range(low: Any, high: Any, op: str, value: Any) -> set[bool | None]:
    """What `x op value` may be for x from low to high."""
    if op in ("=", "!="):
        found: set[bool | None] = {False} if value < low or high < value else {True, False}
        found = {True} if low == high == value else found
        return {not outcome for outcome in found} if op == "!=" else found
    holds = OPERATORS[op][0]
    return {bool(holds(low, value)), bool(holds(high, value))}


class Date(str):
    """A date or a time as it was written."""

    __slots__ = ()


def literal(value: Any, kind: pa.DataType, column: str) -> pa.Scalar:
    """A value of a condition, to compare with a column of a type.

    Raises:
        DataError: the two cannot be compared.
    """
    number = isinstance(value, (int, float))
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if pa.types.is_boolean(kind):
        if value in (0, 1):
            return pa.scalar(bool(value))
        _refuse(value, kind, column, "compare it with true or false")
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        if number:
            return pa.scalar(value)
        _refuse(value, kind, column, "compare it with a number")
    if kind in (pa.string(), pa.large_string()):
        if not number:
            return pa.scalar(str(value), kind)
        _refuse(value, kind, column, f"put the value in quotes: '{value}'")
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        if not number:
            return _time(value, kind, column)
        _refuse(value, kind, column, "compare it with a date, such as 2022-05-06")
    return _refuse(value, kind, column, "no value can be compared with it; name another column")


def _refuse(value: Any, kind: pa.DataType, column: str, remedy: str) -> NoReturn:
    raise DataError(f"data: where: column '{column}' is {kind}, but the condition has {value!r}; {remedy}")


def _time(text: str, kind: pa.DataType, column: str) -> pa.Scalar:
    try:
        if pa.types.is_date(kind) and len(text) == 10:
            return pa.scalar(date.fromisoformat(text), kind)
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise DataError(
            f"data: where: column '{column}' is {kind}, but '{text}' is no time; write 2022-05-06 or "
            "2022-05-06T12:30:00"
        ) from None
    if pa.types.is_date(kind):
        return pa.scalar(moment)
    zone = timezone.utc if kind.tz else None
    return pa.scalar(moment.replace(tzinfo=zone), pa.timestamp("us", tz=kind.tz))
