"""Ids of users and items in columns, one or several a row, and their numbers in a list of known ones."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from recgrad.data.arrow_columns import one_chunk, without_dictionary
from recgrad.errors import DataError

Ints = npt.NDArray[np.int64]


class FlatIds(NamedTuple):
    """Ids one after another, and the row of each; missing ones are left out."""

    rows: Ints
    ids: pa.Array


def plain_ids(column: pa.Array | pa.ChunkedArray, where: str) -> pa.Array:
    """A column of ids as int64 or text.

    Args:
        column: integers, text, or floats without a fraction.
        where: what has these ids, for errors.
    """
    column = without_dictionary(column)
    array = one_chunk(column) if isinstance(column, pa.ChunkedArray) else column
    kind = array.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return array.cast(pa.large_string())
    if pa.types.is_null(kind):
        return array.cast(pa.int64())
    try:
        if pa.types.is_integer(kind) or pa.types.is_floating(kind):
            return array.cast(pa.int64())
    except pa.ArrowInvalid as error:
        raise DataError(f"{where}: ids must be integers or text ({error})") from error
    raise DataError(f"{where}: ids must be integers or text, got {kind}")


def flat_ids(column: pa.Array | pa.ChunkedArray, delimiter: str, where: str) -> FlatIds:
    """The ids of a column that holds one a row, a list of them, or text with a delimiter between them."""
    column = without_dictionary(column)
    array = one_chunk(column) if isinstance(column, pa.ChunkedArray) else column
    kind = array.type
    if (pa.types.is_string(kind) or pa.types.is_large_string(kind)) and delimiter:
        array = pc.split_pattern(array, delimiter)
        rows, values = _rows_of_lists(array), pc.utf8_trim_whitespace(array.flatten())
        kept = np.asarray(pc.not_equal(values, ""))
        return FlatIds(rows[kept], values.filter(pa.array(kept)).cast(pa.large_string()))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        rows, values = _rows_of_lists(array), plain_ids(array.flatten(), where)
    else:
        rows, values = np.arange(len(array)), plain_ids(array, where)
    if values.null_count:
        kept = np.asarray(values.is_valid())
        rows, values = rows[kept], values.drop_null()
    return FlatIds(rows, values)


def _rows_of_lists(array: pa.Array) -> Ints:
    return np.asarray(pc.list_parent_indices(array), np.int64)


class KnownIds:
    """Ids that each occur once, numbered in their order.

    Args:
        ids: integers or text.
        where: what has these ids, for errors.
    """

    def __init__(self, ids: pa.Array | pa.ChunkedArray, where: str) -> None:
        self.ids, self.where = plain_ids(ids, where), where
        if self.ids.null_count:
            row = int(np.flatnonzero(np.asarray(self.ids.is_null()))[0])
            raise DataError(f"{where}: row {row} has no id; give every row one")
        if len(first_rows(self.ids)) < len(self.ids):
            raise DataError(f"{where}: {_twice(self.ids)}; keep one row for each id")
        self._text: pa.Array | None = None

    def __len__(self) -> int:
        return len(self.ids)

    def numbers(self, ids: pa.Array) -> Ints:
        """The number of each id, −1 for unknown ones; integers and text compare as text."""
        own = self.ids
        if ids.type != own.type:
            if self._text is None:
                self._text = own.cast(pa.large_string())
            own, ids = self._text, ids.cast(pa.large_string())
        found = pc.index_in(ids, value_set=own)
        return np.asarray(found.fill_null(-1), np.int64)


def first_rows(ids: pa.Array) -> Ints:
    """The row where each different id stands first, in their order."""
    encoded = ids.dictionary_encode()
    codes = np.asarray(encoded.indices.fill_null(len(encoded.dictionary)))
    _, first = np.unique(codes, return_index=True)
    return np.sort(first)


def _twice(ids: pa.Array) -> str:
    counts = pc.value_counts(ids)
    repeated = counts.filter(pc.greater(counts.field("counts"), 1))
    name = repeated[0]["values"].as_py()
    return f"{len(repeated)} ids occur more than once, the first is {name!r}"
