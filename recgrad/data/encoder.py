"""Columns become ids and floats: the one way that training, prediction and serving encode rows.

    encoder = FeatureEncoder(features_of(config))     # once; reads vocabularies
    faults = Faults()
    encoded = encoder.encode_table(table, faults)     # a pyarrow Table or RecordBatch, any thread
    if faults: …                                      # bad rows: faults.rows, faults.firsts()

`encoded` is an `Encoded` of NumPy arrays (see `recgrad.data.encoded`). Importing this module
imports no torch. Nothing is kept between calls, so any number of threads may share an encoder;
kernels run on the calling thread, without the GIL.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from recgrad.data.arrow_columns import one_chunk
from recgrad.data.encoded import DenseArray, Encoded, Floats, IdArrays, Lengths
from recgrad.data.faults import Faults
from recgrad.data.features.base import Feature
from recgrad.data.features.build import in_order
from recgrad.data.features.frame import Frame
from recgrad.data.features.outputs import Dense, Sparse
from recgrad.data.features.spec import Kind
from recgrad.errors import DataError


class FeatureEncoder:
    """Encodes batches of Arrow columns.

    Holds no state between batches, so threads may share one.

    Args:
        features: as build_features gives them.
    """

    def __init__(self, features: Sequence[Feature]) -> None:
        self.features = tuple(features)
        self._order = in_order(features)
        self.columns: tuple[str, ...] = tuple(
            dict.fromkeys(column for feature in self._order for column in feature.columns)
        )
        self._dense = [f for f in features if not f.spec.sequence and f.spec.kind is Kind.DENSE]
        self._sparse = [f for f in features if not f.spec.sequence and f.spec.kind is Kind.SPARSE]
        self._sequences = [f for f in features if f.spec.sequence]
        self._dims = tuple(f.spec.value_dim for f in self._dense)
        self._groups: dict[str, list[Feature]] = {}
        for feature in self._sequences:
            if feature.spec.sequence_name is not None:
                self._groups.setdefault(feature.spec.sequence_name, []).append(feature)

    def encode(
        self,
        columns: Mapping[str, pa.Array],
        size: int,
        faults: Faults,
        mask: npt.NDArray[np.bool_] | None = None,
    ) -> Encoded:
        """The features of `size` rows.

        Bad rows are noted in `faults`; when there are any, the result must not be used: drop the
        rows and encode the rest. A column of the wrong type, or a missing one, is a DataError.

        Args:
            columns: arrays of `size` rows by column name; slices are fine, chunked arrays are not.
            size: the number of rows.
            faults: takes the bad rows.
            mask: rows whose inputs count as missing for features with use_mask.
        """
        frame = Frame(columns, size, mask)
        for feature in self._order:
            frame.results[feature.name] = feature.encode(frame, faults)
        results = frame.results
        self._check_groups(results, faults)
        sparse = [results[f.name] for f in self._sparse]
        lengths, sequence_sparse, sequence_dense = self._pack_sequences(results)
        return Encoded(
            size=size,
            dense=self._pack_dense(results, size),
            sparse=_pack_ids(tuple(f.name for f in self._sparse), sparse, [size] * len(sparse)),
            sequence_lengths=lengths,
            sequence_sparse=sequence_sparse,
            sequence_dense=sequence_dense,
            precise={
                f.name: np.ascontiguousarray(results[f.name].values[:, 0])
                for f in self._dense
                if f.spec.data_type == "FP64"
            },
        )

    def encode_table(self, table: pa.Table | pa.RecordBatch, faults: Faults) -> Encoded:
        """The features of the rows of a table, which may have other columns too; as `encode`."""
        names = table.schema.names
        columns = {}
        for name in self.columns:
            if names.count(name) > 1:
                raise DataError(f"data: column '{name}' occurs {names.count(name)} times; keep one")
            if name in names:
                column = table.column(name)
                columns[name] = one_chunk(column) if isinstance(column, pa.ChunkedArray) else column
        if len(columns) < len(self.columns):  # whoever misses one says which others there are
            columns |= {name: table.column(i) for i, name in enumerate(names) if name not in columns}
        return self.encode(columns, table.num_rows, faults)

    def _pack_dense(self, results: Mapping[str, Any], size: int) -> DenseArray:
        matrix = np.empty((size, sum(self._dims)), np.float32)
        at = 0
        for feature, width in zip(self._dense, self._dims, strict=True):
            matrix[:, at : at + width] = results[feature.name].values
            at += width
        return DenseArray(tuple(f.name for f in self._dense), self._dims, matrix)

    def _pack_sequences(
        self, results: Mapping[str, Any]
    ) -> tuple[dict[str, Lengths], IdArrays | None, dict[str, Floats]]:
        lengths: dict[str, Lengths] = {}
        dense: dict[str, Floats] = {}
        sparse = []
        for feature in self._sequences:
            result, name = results[feature.name], feature.name
            rows = np.diff(result.row_offsets).astype(np.int32)
            lengths[name] = rows
            if feature.spec.sequence_name is not None:
                lengths.setdefault(feature.spec.sequence_name, rows)
            if isinstance(result, Dense):
                dense[name] = np.require(result.values, requirements="W")
            else:
                sparse.append((name, result))
        if not sparse:
            return lengths, None, dense
        counts = [int(result.row_offsets[-1]) for _, result in sparse]
        jagged = _pack_ids(tuple(name for name, _ in sparse), [result for _, result in sparse], counts)
        return lengths, jagged, dense

    def _check_groups(self, results: Mapping[str, Any], faults: Faults) -> None:
        """Members of a sequence_feature have equally many positions in each row."""
        for group, members in self._groups.items():
            first = results[members[0].name].row_offsets
            for member in members[1:]:
                offsets = results[member.name].row_offsets
                if np.array_equal(first, offsets):
                    continue
                lengths = np.diff(offsets)
                wrong = np.flatnonzero(lengths != np.diff(first))
                faults.add(
                    wrong,
                    column=member.inputs[0].name,
                    feature=member.name,
                    reason="has {value} positions, not as many as " + f"{members[0].name} of '{group}'",
                    values=lengths[wrong],
                    remedy="make the sequences of a group equally long",
                )


def _pack_ids(keys: tuple[str, ...], results: Sequence[Any], counts: Sequence[int]) -> IdArrays:
    """Ids of all features one after another."""
    parts: list[Sparse] = list(results)
    values = np.concatenate([part.values for part in parts]) if parts else np.empty(0, np.int64)
    single = all(part.lengths is None for part in parts)
    if single:
        lengths = np.ones(len(values), np.int32)
    else:
        lengths = np.concatenate(
            [np.ones(len(p.values), np.int32) if p.lengths is None else p.lengths for p in parts]
        )
    weights = None
    if any(part.weights is not None for part in parts):
        weights = np.concatenate(
            [np.ones(len(p.values), np.float32) if p.weights is None else p.weights for p in parts]
        )
    return IdArrays(keys, values, lengths, tuple(counts), weights, single)
