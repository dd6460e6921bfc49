"""A look at every column in one pass: types, nulls, ranges, how many values, and a sample of rows.

Memory does not grow with the number of rows: what is kept of a column is a sketch, a range and its part of
the sample, which is spread evenly over the files.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recgrad.cores import available_cores
from recgrad.data.arrow_columns import one_chunk, without_dictionary
from recgrad.data.readers.reader import Fragment, Reader
from recgrad.starting.sketch import Registers, add_values, empty_registers, estimate

SAMPLE_ROWS = 200_000
_COLUMNS_AT_ONCE = 256
_FRACTIONS = 8


@dataclass
class Column:
    """What was seen of a column.

    Attributes:
        name: the column's name.
        kind: its Arrow type.
        nulls: rows without a value.
        low, high: the least and largest value; None for types without order, and without values.
        rows: rows seen.
    """

    name: str
    kind: pa.DataType
    rows: int = 0
    nulls: int = 0
    low: Any = None
    high: Any = None
    registers: Registers = field(default_factory=empty_registers)

    @cached_property
    def distinct(self) -> int:
        """About how many different values there are; of lists, how many different items.

        Of numbers with fractions, among every eighth row.

        To be asked once all rows are taken in.
        """
        return estimate(self.registers)

    @property
    def items(self) -> pa.DataType:
        """The type of a value, or of an item of a list."""
        return self.kind.value_type if is_list(self.kind) else self.kind

    def add(self, array: pa.Array) -> None:
        """Take in some rows."""
        self.rows += len(array)
        self.nulls += array.null_count
        if not is_plain(self.items):
            return
        if is_list(self.kind):
            array = array.flatten()
        if pa.types.is_floating(self.items):
            # Whether fractions are few is all that counts, and one in eight shows it.
            add_values(self.registers, pa.array(array.to_numpy(zero_copy_only=False)[::_FRACTIONS]))
        else:
            add_values(self.registers, array)
        if pa.types.is_dictionary(array.type) or not len(array):
            return
        if pa.types.is_integer(self.items) or pa.types.is_floating(self.items):
            found = pc.min_max(array)
            self._widen(found["min"].as_py(), found["max"].as_py())

    def join(self, other: Column) -> None:
        """Take in what was seen elsewhere."""
        self.rows, self.nulls = self.rows + other.rows, self.nulls + other.nulls
        self.registers = np.maximum(self.registers, other.registers)
        self._widen(other.low, other.high)

    def _widen(self, low: Any, high: Any) -> None:
        if low is None or high is None:
            return
        self.low = low if self.low is None else min(self.low, low)
        self.high = high if self.high is None else max(self.high, high)


@dataclass(frozen=True)
class Profile:
    """All columns of a table, and a sample of its rows."""

    columns: dict[str, Column]
    sample: pa.Table
    num_rows: int


def is_list(kind: pa.DataType) -> bool:
    """Whether a value is a list."""
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def is_text(kind: pa.DataType) -> bool:
    """Whether a value is text."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def is_number(kind: pa.DataType) -> bool:
    """Whether a value is a number."""
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def is_plain(kind: pa.DataType) -> bool:
    """Whether values can be counted: numbers, truth values, times and texts."""
    floats = pa.types.is_float32(kind) or pa.types.is_float64(kind)
    whole = pa.types.is_integer(kind) or pa.types.is_boolean(kind)
    time = pa.types.is_timestamp(kind) or pa.types.is_date(kind)
    return bool(floats or whole or time or is_text(kind))


def look(reader: Reader, sample_rows: int = SAMPLE_ROWS) -> Profile:
    """The profile of a table, from one pass over all of its rows."""
    names = reader.schema.names
    filled = sorted({fragment.file for fragment in reader.fragments})
    for name in names:
        reader.check_columns([name]) if len(filled) > 1 else None
    share = min(1.0, sample_rows / max(reader.num_rows, 1))
    columns = {name: Column(name, reader.schema.field(name).type) for name in names}
    samples: list[pa.Table] = []
    with ThreadPoolExecutor(available_cores()) as pool:
        for found, sample in pool.map(lambda fragment: _look_at(reader, fragment, share), reader.fragments):
            for name, column in found.items():
                columns[name].join(column)
            samples.append(sample)
    return Profile(columns, pa.concat_tables(samples), reader.num_rows)


def _look_at(reader: Reader, fragment: Fragment, share: float) -> tuple[dict[str, Column], pa.Table]:
    """What a fragment shows, and its part of the sample: the first rows of each of its blocks."""
    names = reader.schema.names
    columns = {name: Column(name, reader.schema.field(name).type) for name in names}
    sampled: dict[str, pa.ChunkedArray] = {}
    for some in _parts(names):
        pieces: list[pa.Table] = []
        for block in reader.read(fragment, some):
            for name in some:
                columns[name].add(one_chunk(block.table.column(name)))
            pieces.append(block.table.slice(0, int(np.ceil(share * block.table.num_rows))))
        table = pa.concat_tables(pieces)
        for name in some:
            plain = without_dictionary(table.column(name))
            # A copy, so that the block it was sliced from can be given back.
            sampled[name] = pa.chunked_array([pa.concat_arrays([one_chunk(plain), one_chunk(plain)[:0]])])
    return columns, pa.table(sampled)


def _parts(names: Sequence[str]) -> Iterator[list[str]]:
    for start in range(0, len(names), _COLUMNS_AT_ONCE):
        yield list(names[start : start + _COLUMNS_AT_ONCE])
