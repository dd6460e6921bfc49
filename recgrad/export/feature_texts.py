"""Encoded features as text, for comparing what a model was given in two places.

    user_id:17 | tags:3,9 | price:0.25 | history:4;8;15

Values of a feature are joined by commas, positions of a sequence by semicolons; weighted ids are id:weight.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recgrad.errors import RecgradError

COLUMN = "__features__"
"""TorchEasyRec's name of the column."""


def with_texts(table: pa.Table, encoded: Any, names: Sequence[str]) -> pa.Table:
    """The rows with their encoded features as text."""
    if COLUMN in table.column_names:
        raise RecgradError(
            f"predict: column '{COLUMN}' of the input has the name of the encoded features; do not carry it "
            "along, or rename it"
        )
    return table.append_column(COLUMN, feature_texts(encoded, names))


def feature_texts(encoded: Any, names: Sequence[str]) -> pa.Array:
    """One text a row.

    Args:
        encoded: features of rows, as an `Encoded` or a `Batch`.
        names: the features to write, in this order; those that the rows have not are left out.
    """
    columns = []
    for name in names:
        texts = _of_feature(encoded, name)
        if texts is not None:
            columns.append(pc.binary_join_element_wise(pa.scalar(f"{name}:"), texts, ""))
    if not columns:
        return pa.array([""] * encoded.size, pa.string())
    return pc.binary_join_element_wise(*columns, " | ")


def _of_feature(encoded: Any, name: str) -> pa.Array | None:
    """The values of a feature, joined, for each row; None where the rows have none."""
    if name in encoded.precise:
        return _texts(encoded.precise[name])
    if name in encoded.dense.keys:
        return _vectors(encoded.dense[name])
    if name in encoded.sparse.keys:
        return _bags(encoded.sparse[name])
    sequences = encoded.sequence_sparse
    if sequences is not None and name in sequences.keys:
        return _joined(_bags(sequences[name]), encoded.sequence_lengths[name], ";")
    if name in encoded.sequence_dense:
        dense = encoded.sequence_dense[name]
        values = getattr(dense, "values", dense)
        return _joined(_vectors(values), encoded.sequence_lengths[name], ";")
    return None


def _bags(ids: Any) -> pa.Array:
    texts = _texts(ids.values)
    if ids.weights is not None:
        texts = pc.binary_join_element_wise(texts, _texts(ids.weights), ":")
    return _joined(texts, ids.lengths, ",")


def _vectors(values: Any) -> pa.Array:
    array = np.asarray(values)
    array = array.reshape(len(array), -1)
    return _joined(_texts(array.reshape(-1)), np.full(len(array), array.shape[1]), ",")


def _texts(values: Any) -> pa.Array:
    return pa.array(np.ascontiguousarray(np.asarray(values))).cast(pa.string())


def _joined(texts: pa.Array, lengths: Any, separator: str) -> pa.Array:
    """Texts one after another as one text for each length."""
    ends = np.concatenate([[0], np.cumsum(np.asarray(lengths, np.int64))])
    lists = pa.LargeListArray.from_arrays(pa.array(ends), texts)
    return pc.binary_join(lists.cast(pa.list_(pa.string())), separator)
