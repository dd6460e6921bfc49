"""JSON rows as Arrow columns of the types that the model was trained with.

A value is taken if it is of the column's type, or becomes it without loss: 3.0 and "3" for an
integer, 3 for a text. All else is a bad row. So the scores of a row never depend on rows
of other requests that are scored with it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from recgrad.data.arrow_columns import dtype_of
from recgrad.data.faults import Faults
from recgrad.errors import DataError, nearest
from recgrad.serving.requests import Row

Columns = dict[str, pa.Array]
Mask = npt.NDArray[np.bool_]
Convert = Callable[[Any], Any]


def plain(kind: pa.DataType) -> pa.DataType:
    """The type that a column is served with: without dictionary; one that held only nulls takes texts."""
    if pa.types.is_dictionary(kind):
        return plain(kind.value_type)
    return pa.string() if pa.types.is_null(kind) else kind


class Shape(NamedTuple):
    """Which columns a row has.

    Attributes:
        known: columns that are read, in the order of `RowReader.types`.
        unknown: other keys.
        get: the values of `known` and `unknown` of a row, as a tuple; raises a KeyError where one lacks.
    """

    known: tuple[str, ...]
    unknown: tuple[str, ...]
    get: Callable[[Row], tuple[Any, ...]]


class RowReader:
    """Reads rows as columns.

    Args:
        schema: the model's columns.
        extra: id columns that rows may have to find stored features by, with their types.
    """

    MAX_SHAPES = 256
    """Shapes that are remembered; clients choose the keys."""
    MAX_UNKNOWN_LENGTH = 1024
    """Characters of the unknown keys of such a shape: thousands of keys a row would fill the memory."""

    def __init__(self, schema: pa.Schema, extra: Mapping[str, pa.DataType] | None = None) -> None:
        self.types: dict[str, pa.DataType] = {field.name: plain(field.type) for field in schema}
        for name, kind in (extra or {}).items():
            self.types.setdefault(name, plain(kind))
        self._shapes: dict[tuple[str, ...], Shape] = {}

    def shape(self, row: Row) -> Shape:
        """The shape of a row with these keys."""
        keys = tuple(row)
        found = self._shapes.get(keys)
        if found is None:
            known = tuple(name for name in self.types if name in row)
            unknown = tuple(name for name in keys if name not in self.types)
            found = Shape(known, unknown, _getter(known + unknown))
            small = sum(map(len, unknown)) + len(unknown) <= self.MAX_UNKNOWN_LENGTH
            if small and len(self._shapes) < self.MAX_SHAPES:
                self._shapes[keys] = found
        return found

    def read(self, rows: Sequence[Row], shape: Shape, faults: Faults) -> Columns | None:
        """The columns of rows that all have one shape; None if they do not. Bad values become null."""
        if sum(map(len, rows)) != len(rows) * (len(shape.known) + len(shape.unknown)):
            return None
        try:
            tuples = list(map(shape.get, rows))
        except KeyError:
            return None
        return {
            name: to_array(values, name, self.types[name], faults)
            for name, values in zip(shape.known, zip(*tuples))
        }

    def read_any(self, rows: Sequence[Row], faults: Faults) -> tuple[Columns, tuple[str, ...]]:
        """The columns that any of the rows has, null where a row has it not; and the unknown keys."""
        names = dict.fromkeys(name for row in rows for name in row)
        columns = {
            name: to_array([row.get(name) for row in rows], name, kind, faults)
            for name, kind in self.types.items()
            if name in names
        }
        return columns, tuple(name for name in names if name not in self.types)


def absent_cells(rows: Sequence[Row]) -> dict[str, Mask]:
    """Which rows do not have a key that others have, by key; a null that is there is no absent one."""
    found: dict[str, Mask] = {}
    for name in dict.fromkeys(name for row in rows for name in row):
        has = np.array([name in row for row in rows])
        if not has.all():
            found[name] = ~has
    return found


def _getter(names: tuple[str, ...]) -> Callable[[Row], tuple[Any, ...]]:
    if len(names) > 1:
        return itemgetter(*names)
    return lambda row: tuple(row[name] for name in names)


def to_array(values: Sequence[Any], name: str, kind: pa.DataType, faults: Faults) -> pa.Array:
    """The values as an array of a type; bad ones are noted in `faults` and become null."""
    if _fits(values, kind):
        try:
            return pa.array(values, kind)
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            pass
    convert = _converter(kind)
    converted: list[Any] = []
    bad: list[int] = []
    for row, value in enumerate(values):  # only where some value is not of the type
        try:
            converted.append(None if value is None else convert(value))
        except (TypeError, ValueError, OverflowError):
            converted.append(None)
            bad.append(row)
    faults.add(
        bad,
        column=name,
        feature=f"column {name}",
        reason="{value} is not " + describe(kind),
        values=[values[row] for row in bad],
        remedy="send what the column held in training, or null",
    )
    return pa.array(converted, kind)


_NONE = type(None)


def _fits(values: Sequence[Any], kind: pa.DataType) -> bool:
    """Whether Arrow would take the values as they are meant, or refuse them.

    It cuts fractions off, takes bools for numbers, and lists of pairs for maps.
    """
    if pa.types.is_integer(kind):
        return set(map(type, values)) <= {int, _NONE}
    if pa.types.is_floating(kind):
        return bool not in set(map(type, values))
    if _is_list(kind):
        if not set(map(type, values)) <= {list, _NONE}:
            return False
        return _fits(list(chain.from_iterable(value for value in values if value)), kind.value_type)
    return not pa.types.is_map(kind)


def describe(kind: pa.DataType) -> str:
    """A type in words."""
    if pa.types.is_integer(kind):
        return f"an integer of {kind}"
    if pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return "a number"
    if pa.types.is_boolean(kind):
        return "true or false"
    if _is_text(kind):
        return "a text"
    if _is_list(kind):
        return f"a list of which each item is {describe(kind.value_type)}"
    if pa.types.is_map(kind):
        return f"an object of which each value is {describe(kind.item_type)}"
    return f"of type {kind}"


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _converter(kind: pa.DataType) -> Convert:
    """A function that gives a value of the type, or raises."""
    if pa.types.is_integer(kind):
        low, high = (
            int(np.iinfo(dtype_of(kind)).min),
            int(np.iinfo(dtype_of(kind)).max),
        )
        return lambda value: _int(value, low, high)
    if pa.types.is_floating(kind):
        return _float
    if pa.types.is_boolean(kind):
        return _bool
    if _is_text(kind):
        return _text
    if _is_list(kind):
        item = _converter(kind.value_type)
        size = kind.list_size if pa.types.is_fixed_size_list(kind) else None
        return lambda value: _list(value, item, size)
    if pa.types.is_map(kind):
        key, item = _converter(kind.key_type), _converter(kind.item_type)
        return lambda value: _map(value, key, item)
    return lambda value: pa.scalar(value, kind).as_py()


def _int(value: Any, low: int, high: int) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise TypeError
    if isinstance(value, str):
        if not value.lstrip("-").isdecimal() or len(value) > 20:
            raise ValueError
        number = int(value)
    else:
        number = int(value)
        if number != value:
            raise ValueError
    if not low <= number <= high:
        raise OverflowError
    return number


def _float(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise TypeError
    if isinstance(value, str) and len(value) > 40:
        raise ValueError
    number = float(value)
    if isinstance(value, str) and not math.isfinite(number):
        raise ValueError
    return number  # an infinite one is told of by the features that read it, as in a column of floats alone


def _bool(value: Any) -> bool:
    if value in (0, 1) and isinstance(value, (bool, int)):
        return bool(value)
    raise TypeError


def _text(value: Any) -> str:
    if isinstance(value, str):
        value.encode()  # a lone surrogate raises a ValueError
        return value
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError
    return str(value)


def _list(value: Any, item: Convert, size: int | None) -> list[Any]:
    if not isinstance(value, list) or (size is not None and len(value) != size):
        raise TypeError
    return [None if one is None else item(one) for one in value]


def _map(value: Any, key: Convert, item: Convert) -> list[tuple[Any, Any]]:
    if not isinstance(value, dict):
        raise TypeError
    return [(key(name), None if one is None else item(one)) for name, one in value.items()]


def json_value(value: Any) -> Any:
    """A value of an Arrow column as a client would send it; a map is an object."""
    if isinstance(value, list) and value and all(isinstance(item, tuple) for item in value):
        return {str(key): item for key, item in value}
    return value if isinstance(value, (int, float, str, bool, list, dict, type(None))) else str(value)


def cast_table(table: pa.Table, types: Mapping[str, pa.DataType]) -> tuple[Columns, tuple[str, ...]]:
    """The known columns of an Arrow table in the model's types, and the names of the others.

    Raises:
        DataError: a column occurs twice, or does not become its type without loss.
    """
    names = table.column_names
    columns: Columns = {}
    for name in dict.fromkeys(names):
        if name not in types:
            continue
        if names.count(name) > 1:
            raise DataError(f"data: column '{name}' occurs {names.count(name)} times; keep one")
        column = table.column(name).combine_chunks()
        array = column.chunk(0) if isinstance(column, pa.ChunkedArray) and column.num_chunks else column
        if isinstance(array, pa.ChunkedArray):
            array = pa.array([], array.type)
        try:
            columns[name] = array if array.type == types[name] else array.cast(types[name])
        except (pa.ArrowException, NotImplementedError) as error:
            text = str(error).splitlines()[0][:200]
            raise DataError(
                f"data: column '{name}' is of type {array.type}, and does not become {types[name]} "
                f"as it was in training ({text}); send that type"
            ) from None
    return columns, tuple(name for name in dict.fromkeys(names) if name not in types)


def missing(needed: Iterable[str], given: Iterable[str], others: Sequence[str]) -> str | None:
    """What is wrong when rows lack a column that the model reads; None if they have all."""
    known = set(given)
    lacking = [name for name in needed if name not in known]
    if not lacking:
        return None
    first, rest = lacking[0], lacking[1:]
    also = f" (so {'is' if len(rest) == 1 else 'are'} {', '.join(rest[:5])}{', …' if rest[5:] else ''})"
    near = re.search("'(.*)'", nearest(first, others))
    guess = f"; '{near.group(1)}', which is not read, may be it" if near else ""
    return (
        f"data: column '{first}' is missing{also if rest else ''}{guess}; send null where there is no value"
    )
