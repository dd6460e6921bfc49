"""A list of numbers a row, all rows in one array: what models that score lists of candidates predict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from recgrad.data.arrow_columns import as_array


@dataclass(frozen=True)
class ListColumn:
    """A list for each row.

    Attributes:
        values: the lists one after another, [values] or [values, width].
        lengths: int64 [rows].
        missing: bool [rows], rows that have no list at all; None where every row has one.
    """

    values: npt.NDArray[Any]
    lengths: npt.NDArray[np.int64]
    missing: npt.NDArray[np.bool_] | None = None

    def __post_init__(self) -> None:
        if int(self.lengths.sum()) != len(self.values):
            raise ValueError(f"lists have {int(self.lengths.sum())} values, got {len(self.values)}")

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, rows: slice) -> ListColumn:
        start, stop, step = rows.indices(len(self))
        if step != 1:
            raise ValueError(f"rows must follow each other, got a step of {step}")
        first = int(self.lengths[:start].sum())
        lengths = self.lengths[start:stop]
        missing = None if self.missing is None else self.missing[start:stop]
        return ListColumn(self.values[first : first + int(lengths.sum())], lengths, missing)

    def spread(self, rows: npt.NDArray[np.int64], count: int) -> ListColumn:
        """The lists as those of some rows, in order, among `count`; the others have none."""
        lengths, missing = np.zeros(count, np.int64), np.ones(count, np.bool_)
        lengths[rows], missing[rows] = self.lengths, False
        return ListColumn(self.values, lengths, missing)

    def to_arrow(self, *, nan_is_null: bool = False) -> pa.ListArray:
        """As Arrow has it; values of several numbers are lists themselves."""
        values = np.ascontiguousarray(self.values)
        # Nothing here imports pandas, as pa.array would.
        flat = as_array(values.reshape(-1))
        if nan_is_null:
            flat = pc.if_else(pc.is_nan(flat), pa.scalar(None, flat.type), flat)
        if values.ndim > 1:
            flat = pa.FixedSizeListArray.from_arrays(flat, int(np.prod(values.shape[1:])))
        offsets = as_array(np.concatenate([[0], self.lengths.cumsum()]).astype(np.int32))
        mask = None if self.missing is None else as_array(self.missing)
        return pa.ListArray.from_arrays(offsets, flat, mask=mask)

    def tolist(self) -> list[Any]:
        """As Python has it; None for a row that has no list."""
        found: list[Any] = self.to_arrow().to_pylist()
        return found


Column: TypeAlias = npt.NDArray[Any] | ListColumn
"""Predictions of rows: a number or a vector a row, or a list."""


def values_of(column: Column) -> npt.NDArray[Any]:
    """The numbers of a column, those of its lists one after another."""
    return column.values if isinstance(column, ListColumn) else column


def with_values(column: Column, values: npt.NDArray[Any]) -> Column:
    """A column with other numbers, in the same lists if it has lists."""
    return replace(column, values=values) if isinstance(column, ListColumn) else values


def in_lists(values: npt.NDArray[Any], lengths: npt.NDArray[Any] | None) -> Column:
    """Values as lists of these lengths; as they are without lengths."""
    return values if lengths is None else ListColumn(values, lengths.astype(np.int64))


def join_columns(columns: Sequence[Column]) -> Column:
    """The rows of columns one after another."""
    values = np.concatenate([values_of(column) for column in columns])
    lengths = [column.lengths for column in columns if isinstance(column, ListColumn)]
    return in_lists(values, np.concatenate(lengths) if lengths else None)
