"""Encodes rows whose features are mostly plain: all plain ones by one kernel, the rest as training does.

    encoder = PlainEncoder(features)
    rows = encoder.encode(batch)             # ids and numbers of plain features
    rows.odd                                 # features that have values which are more than plain

Columns reach the kernel through the Arrow C data interface, so no work is done in Python for each.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from recgrad.data.features.base import Feature
from recgrad.data.plain import kernel
from recgrad.data.plain import layout as at
from recgrad.data.plain.features import plain_line
from recgrad.kernels.compile import compiled

Ints = npt.NDArray[np.int64]
MAX_SCHEMAS = 8
"""Schemas that are remembered; clients choose them."""

_KINDS = {
    pa.lib.Type_INT64: at.INT64,
    pa.lib.Type_INT32: at.INT32,
    pa.lib.Type_INT16: at.INT16,
    pa.lib.Type_INT8: at.INT8,
    pa.lib.Type_UINT32: at.UINT32,
    pa.lib.Type_UINT16: at.UINT16,
    pa.lib.Type_UINT8: at.UINT8,
    pa.lib.Type_BOOL: at.BOOL,
    pa.lib.Type_FLOAT: at.FLOAT32,
    pa.lib.Type_DOUBLE: at.FLOAT64,
    pa.lib.Type_STRING: at.TEXT,
    pa.lib.Type_BINARY: at.TEXT,
    pa.lib.Type_LARGE_STRING: at.LARGE_TEXT,
    pa.lib.Type_LARGE_BINARY: at.LARGE_TEXT,
}


@dataclass(frozen=True)
class PlainRows:
    """What the plain features of some rows are.

    Attributes:
        size: the number of rows.
        ids: int64 [id features, rows], EMPTY where a bag is empty; of a shared row only the first holds.
        numbers: float32 [rows, dense features].
        shared: int64 [id features], 1 for those of the row that all rows share.
        odd: names of features whose values are not plain; what stands for them here means nothing.
    """

    size: int
    ids: Ints
    numbers: npt.NDArray[np.float32]
    shared: Ints
    odd: tuple[str, ...]


@dataclass(frozen=True)
class _Places:
    """Where the columns are in rows of one schema (and in a shared row of another)."""

    rows: pa.Schema | None
    shared_row: pa.Schema | None
    lines: Ints
    shared: Ints


@dataclass(frozen=True)
class Cells:
    """Rows whose columns lie one after another, such as they were read from JSON.

    Attributes:
        size: the number of rows.
        names: of the columns.
        kinds: of the columns, by `layout`: INT64, FLOAT64, WIDE_FLOAT32, SPANS, or NONE.
        present: numbers of the columns that rows have.
        values: 64 bits [columns, rows and more]: integers, floats, or where texts begin.
        ends: int64, likewise: where texts end.
        valid: uint8, likewise: 0 for a null.
        text: bytes that texts lie in; None where texts begin and end at addresses of memory.
    """

    size: int
    names: tuple[str, ...]
    kinds: tuple[int, ...]
    present: tuple[int, ...]
    values: npt.NDArray[Any]
    ends: npt.NDArray[Any]
    valid: npt.NDArray[Any]
    text: npt.NDArray[np.uint8] | None

    def is_like(self, other: Cells) -> bool:
        """Whether the columns of others, of the same reader, are the same."""
        return self.names is other.names and self.kinds is other.kinds and self.present == other.present


class PreparedRows:
    """Encodes cells that lie in the same place at every call, so that a call is that of the kernel alone.

    Args:
        kernel: a C function of one address.
        block: its arguments.
        rows: what it writes.
        odd: int64 [features], which it marks.
        kept: arrays that the block refers to.
    """

    def __init__(self, kernel: Any, block: Ints, rows: PlainRows, odd: Ints, kept: tuple[Any, ...]) -> None:
        self.rows = rows
        self._kernel, self._address = kernel, _address(block)
        self._odd, self._none = odd, bytes(odd.nbytes)
        self._kept = block, kept

    def run(self) -> bool:
        """Encode what the cells hold now; False if values of a feature are not plain."""
        self._kernel(self._address)
        return self._odd.tobytes() == self._none


class PlainEncoder:
    """Encodes the plain ones among some features; threads may share it.

    Args:
        features: any features.

    Attributes:
        features: the plain ones.
        ids: names of those that make ids, in the order of `PlainRows.ids`.
        numbers: names of those that make numbers, in the order of `PlainRows.numbers`.
    """

    def __init__(self, features: Sequence[Feature]) -> None:
        self._lines = [line for line in map(plain_line, features) if line is not None]
        self.features = tuple(line.feature for line in self._lines)
        self.ids = tuple(line.feature.name for line in self._lines if not line.dense)
        self.numbers = tuple(line.feature.name for line in self._lines if line.dense)
        self._columns = tuple(dict.fromkeys(feature.columns[0] for feature in self.features))
        line_of = {name: i for i, name in enumerate(self._columns)}
        counts = [0, 0]
        for line in self._lines:
            line.numbers[at.PLACE] = counts[line.dense]
            counts[line.dense] += 1
            line.numbers[at.COLUMN] = line_of[line.feature.columns[0]]
        self._features = np.array([line.numbers for line in self._lines], np.int64)
        self._floats = np.array([line.floats for line in self._lines], np.float64)
        self._addresses = _address(self._features), _address(self._floats)
        self._known: list[_Places] = []
        self._cell_places: dict[tuple[tuple[str, ...], tuple[int, ...], tuple[int, ...]], _Places] = {}
        self._last_cells: tuple[Cells, _Places] | None = None
        self._kernel = compiled(kernel.encode_rows).ctypes if self._lines else None

    def encode(self, rows: pa.RecordBatch, shared_row: pa.RecordBatch | None = None) -> PlainRows | None:
        """The plain features of rows, of which there is one at least.

        Args:
            rows: a column each, of the features.
            shared_row: one row with the columns that `rows` does not have.

        Returns:
            None if a column is missing, or is there twice: others say so.
        """
        if self._kernel is None:
            return None
        size = rows.num_rows
        places = self._places(rows.schema, None if shared_row is None else shared_row.schema)
        if places is None:
            return None
        columns = np.empty((len(self._columns), at.COLUMN_COLUMNS), np.int64)
        arrays = np.zeros((2, at.ARROW_WORDS), np.int64)
        first, second = _address(arrays), _address(arrays) + 8 * at.ARROW_WORDS
        try:
            rows._export_to_c(first)
            if shared_row is not None:
                shared_row._export_to_c(second)
            return self._run(size, first, second, places, columns)
        finally:
            for array, address in ((arrays[0], first), (arrays[1], second)):
                if array[at.ARROW_RELEASE]:
                    _function(int(array[at.ARROW_RELEASE]))(address)

    def encode_cells(self, cells: Cells) -> PlainRows | None:
        """The plain features of rows that are not Arrow's, of which there is one at least.

        Returns:
            None if a column is missing.
        """
        if self._kernel is None:
            return None
        places = self._places_of_cells(cells)
        if not len(places.lines):
            return None
        return self._run(cells.size, 0, 0, places, _columns_of(cells, places))

    def prepare(self, cells: Cells, ids: Ints, numbers: npt.NDArray[np.float32]) -> PreparedRows | None:
        """What encodes cells again and again, as their values change but not their place and number.

        Args:
            cells: where they lie.
            ids: takes them, int64 [id features, rows].
            numbers: takes them, float32 [rows, dense features].

        Returns:
            None if a column is missing.
        """
        places = None if self._kernel is None else self._places_of_cells(cells)
        if places is None or not len(places.lines):
            return None
        columns, odd = _columns_of(cells, places), np.zeros(len(self.features), np.int64)
        block = self._block(cells.size, 0, 0, places, columns, ids, numbers, odd)
        rows = PlainRows(cells.size, ids, numbers, places.shared, ())
        return PreparedRows(self._kernel, block, rows, odd, (cells, places, columns))

    def _block(
        self,
        size: int,
        first: int,
        second: int,
        places: _Places,
        columns: Ints,
        ids: Ints,
        numbers: npt.NDArray[np.float32],
        odd: Ints,
    ) -> Ints:
        return np.array(
            [0, 0, size, first, second, len(self._columns), _address(places.lines), _address(columns),
             len(self.features), *self._addresses, _address(ids),
             _address(numbers), len(self.numbers), _address(odd)],
            np.int64,
        )  # fmt: skip

    def _run(self, size: int, first: int, second: int, places: _Places, columns: Ints) -> PlainRows:
        ids = np.empty((len(self.ids), size), np.int64)
        numbers = np.empty((size, len(self.numbers)), np.float32)
        odd = np.empty(len(self.features), np.int64)
        block = self._block(size, first, second, places, columns, ids, numbers, odd)
        assert self._kernel is not None
        self._kernel(_address(block))
        names: tuple[str, ...] = ()
        if 1 in odd.tolist():
            names = tuple(self.features[i].name for i in np.flatnonzero(odd))
        return PlainRows(size, ids, numbers, places.shared, names)

    def _places_of_cells(self, cells: Cells) -> _Places:
        last = self._last_cells
        if last is not None and last[0].is_like(cells):
            return last[1]
        key = (cells.names, cells.kinds, cells.present)
        places = self._cell_places.get(key)
        if places is None:
            places = self._find_cells(cells)
            if len(self._cell_places) < MAX_SCHEMAS:
                self._cell_places[key] = places
        nothing = np.empty(0, np.uint8)
        self._last_cells = Cells(0, *key, nothing, nothing, nothing, nothing), places
        return places

    def _find_cells(self, cells: Cells) -> _Places:
        """Where columns are among cells; no lines if one is missing."""
        numbers = {name: i for i, name in enumerate(cells.names)}
        lacking = [name for name in self._columns if numbers.get(name, -1) not in cells.present]
        columns = () if lacking else self._columns
        lines = np.array([(0, numbers[c], cells.kinds[numbers[c]]) for c in columns], np.int64)
        return _Places(None, None, lines, np.zeros(len(self.ids), np.int64))

    def _places(self, rows: pa.Schema, shared_row: pa.Schema | None) -> _Places | None:
        for known in self._known:
            if (
                known.rows is not None
                and known.rows.equals(rows)
                and (
                    known.shared_row is shared_row
                    if known.shared_row is None or shared_row is None
                    else known.shared_row.equals(shared_row)
                )
            ):
                return known
        found = self._find(rows, shared_row)
        if found is not None:
            self._known = [found, *self._known[: MAX_SCHEMAS - 1]]
        return found

    def _find(self, rows: pa.Schema, shared_row: pa.Schema | None) -> _Places | None:
        lines = np.zeros((len(self._columns), at.PLACE_COLUMNS), np.int64)
        for line, column in zip(lines, self._columns, strict=True):
            found = [(0, i, rows) for i in rows.get_all_field_indices(column)]
            if shared_row is not None:
                found += [(1, i, shared_row) for i in shared_row.get_all_field_indices(column)]
            if len(found) != 1:
                return None
            shared, child, schema = found[0]
            line[:] = shared, child, _KINDS.get(schema.field(child).type.id, at.NONE)
        ids = self._features[self._features[:, at.MAKES] != at.DENSE]
        return _Places(rows, shared_row, lines, lines[ids[:, at.COLUMN], at.SHARED])


def _columns_of(cells: Cells, places: _Places) -> Ints:
    """Where the columns are that features read."""
    first, step = np.zeros((2, at.COLUMN_COLUMNS), np.int64)
    for place, array in ((at.VALUES, cells.values), (at.ENDS, cells.ends), (at.VALID, cells.valid)):
        first[place], step[place] = _address(array), array.strides[0]
    first[at.VALID_BYTES], first[at.DATA] = 1, 0 if cells.text is None else _address(cells.text)
    columns: Ints = first + step * places.lines[:, at.CHILD, None]
    return columns


def _address(array: npt.NDArray[Any]) -> int:
    address: int = array.__array_interface__["data"][0]
    return address


@cache
def _function(address: int) -> Any:
    """A C function of one address: Arrow's own, that gives an array's memory back."""
    return ctypes.CFUNCTYPE(None, ctypes.c_void_p)(address)
