"""Files of ids and vectors, as `recgrad embed` and TorchEasyRec's prediction write them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from recgrad.data.arrow_columns import one_chunk
from recgrad.errors import DataError

Vectors = npt.NDArray[np.float32]


def vectors_of(column: pa.ChunkedArray, where: str) -> Vectors:
    """Vectors [rows, dim] of a column of lists or of numbers joined by commas, all of one width.

    Args:
        column: of the file.
        where: what it is, for errors.
    """
    array = one_chunk(column)
    if pa.types.is_string(array.type) or pa.types.is_large_string(array.type):
        array = pc.split_pattern(array, ",")
    sizes = pc.list_value_length(array)
    if array.null_count or pc.min_max(sizes)["min"].as_py() in (None, 0):
        rows = np.flatnonzero(np.asarray(pc.equal(sizes.fill_null(0), 0)))
        row = int(rows[0]) if len(rows) else 0
        raise DataError(f"{where}: row {row} has no vector; leave such rows out, or give them one")
    widths = np.unique(np.asarray(sizes))
    if len(widths) > 1:
        raise DataError(f"{where}: vectors must be of one width, got {', '.join(map(str, widths[:5]))}")
    try:
        flat = array.flatten().cast(pa.float32())
    except pa.ArrowException as error:
        raise DataError(f"{where}: not a vector of numbers ({error})") from error
    return np.asarray(flat.fill_null(np.nan), np.float32).reshape(-1, int(widths[0]))


def interests_of(column: pa.ChunkedArray, where: str) -> Vectors:
    """Vectors [rows, interests, dim] of lists of lists or text joined by `;` and `,`; others as one interest.

    Rows may have different numbers of interests: the rest are zeros, which stand for none.
    """
    array = one_chunk(column)
    if pa.types.is_string(array.type) or pa.types.is_large_string(array.type):
        array = pc.split_pattern(array, ";")
    elif not (pa.types.is_list(array.type) and pa.types.is_list(array.type.value_type)):
        return vectors_of(column, where)[:, None, :]
    rows = np.asarray(pc.list_parent_indices(array), np.int64)
    vectors = vectors_of(pa.chunked_array([array.flatten()]), where)
    place = np.arange(len(rows)) - np.searchsorted(rows, rows)
    found = np.zeros((len(array), int(place.max(initial=0)) + 1, vectors.shape[1]), np.float32)
    found[rows, place] = vectors
    return found
