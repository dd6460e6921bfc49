"""Encoded rows as NumPy arrays: what models read, whatever computes them.

The loader makes a `Batch` of torch tensors of them (`Batch.of`, no copies); a served model hands
them to its program as they are. Nothing here imports torch.

Ids of all features lie in one array, feature after feature:

    keys        a          b
    values      7 2 9 4    5 1 3      the ids
    lengths     1 2 0 1    1 1 1 0    of each bag: 4 rows of a, 4 rows of b
    bag_counts  4          4

A bag is what is pooled into one vector: the ids of a row, or of one position of a sequence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Lengths = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class DenseArray:
    """Dense features side by side.

    Attributes:
        keys: feature names.
        dims: the width of each feature.
        values: float32 [rows, sum(dims)].
    """

    keys: tuple[str, ...]
    dims: tuple[int, ...]
    values: Floats

    def __getitem__(self, key: str) -> Floats:
        """The columns of one feature."""
        at = self.keys.index(key)
        start = sum(self.dims[:at])
        return self.values[:, start : start + self.dims[at]]


@dataclass(frozen=True)
class IdArrays:
    """Ids of several features, feature after feature.

    Attributes:
        keys: feature names.
        values: int64 [ids of feature 0, ids of feature 1, …].
        lengths: int32 [bags of feature 0, bags of feature 1, …], the number of ids in each bag.
        bag_counts: the number of bags of each feature; for row features that is the number of rows.
        weights: float32, one for each id, or None when no feature is weighted.
        single: every bag holds exactly one id, so `lengths` need not be read.
    """

    keys: tuple[str, ...]
    values: Ints
    lengths: Lengths
    bag_counts: tuple[int, ...]
    weights: Floats | None = None
    single: bool = False

    @cached_property
    def offsets(self) -> Ints:
        """int64 [bags + 1]: where each bag begins in `values`."""
        return starts_of(self.lengths)

    def __getitem__(self, key: str) -> IdArrays:
        """One feature alone, as views."""
        i = self.keys.index(key)
        bags = slice(sum(self.bag_counts[:i]), sum(self.bag_counts[: i + 1]))
        ids = slice(int(self.offsets[bags.start]), int(self.offsets[bags.stop]))
        weights = None if self.weights is None else self.weights[ids]
        return IdArrays(
            (key,), self.values[ids], self.lengths[bags], (self.bag_counts[i],), weights, self.single
        )


@dataclass(frozen=True)
class Encoded:
    """The features of some rows.

    Attributes:
        size: the number of rows.
        dense: dense row features.
        sparse: id row features; a bag is a row.
        sequence_lengths: int32 [rows] by sequence feature, and by group: the number of positions of each row.
        sequence_sparse: id sequence features; a bag is one position of one row. None without any.
        sequence_dense: [positions, width] by dense sequence feature, row after row: float32, or float64 of
            width 1.
        precise: float64 [rows] by dense row feature that asks for it.
    """

    size: int
    dense: DenseArray
    sparse: IdArrays
    sequence_lengths: Mapping[str, Lengths] = field(default_factory=dict)
    sequence_sparse: IdArrays | None = None
    sequence_dense: Mapping[str, Floats] = field(default_factory=dict)
    precise: Mapping[str, npt.NDArray[np.float64]] = field(default_factory=dict)

    def cut(self, bounds: Sequence[int]) -> list[Encoded]:
        """The rows `bounds[i]` to `bounds[i + 1]`, each as an Encoded of its own.

        Rows are encoded many at a time, since each column costs a fixed effort; small batches are
        then cut from the result. Bounds that cover all rows at once give the whole itself.
        """
        if len(bounds) == 2 and bounds[0] == 0 and bounds[1] == self.size:
            return [self]
        sparse = _cut_ids(self.sparse, dict.fromkeys(self.sparse.keys), bounds)
        starts = {key: starts_of(lengths) for key, lengths in self.sequence_lengths.items()}
        sequences: list[IdArrays | None] = [None] * (len(bounds) - 1)
        if self.sequence_sparse is not None:
            sequences = list(_cut_ids(self.sequence_sparse, starts, bounds))
        return [
            Encoded(
                size=stop - start,
                dense=DenseArray(self.dense.keys, self.dense.dims, self.dense.values[start:stop]),
                sparse=sparse[i],
                sequence_lengths={key: lengths[start:stop] for key, lengths in self.sequence_lengths.items()},
                sequence_sparse=sequences[i],
                sequence_dense={
                    key: values[starts[key][start] : starts[key][stop]]
                    for key, values in self.sequence_dense.items()
                },
                precise={key: values[start:stop] for key, values in self.precise.items()},
            )
            for i, (start, stop) in enumerate(pairwise(bounds))
        ]


def starts_of(lengths: npt.NDArray[Any]) -> Ints:
    """int64 [bags + 1]: where each bag begins."""
    starts = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=starts[1:])
    return starts


def _cut_ids(ids: IdArrays, starts: Mapping[str, Ints | None], bounds: Sequence[int]) -> list[IdArrays]:
    """Cut every feature's bags at the bags where the rows of `bounds` begin.

    `starts` maps a feature to the first bag of each row; None when a bag is a row.
    """
    count = len(ids.keys)
    bag_bounds = []  # for each feature, the bag at each bound
    for key in ids.keys:
        at = starts[key]
        bag_bounds.append(list(bounds) if at is None else at[list(bounds)].tolist())
    if ids.single and count and all(item == bag_bounds[0] for item in bag_bounds):
        return _cut_single(ids, bag_bounds[0])
    first_bag = [0, *accumulate(ids.bag_counts)]
    parts = []
    for i in range(len(bounds) - 1):
        bags = [(first_bag[f] + bag_bounds[f][i], first_bag[f] + bag_bounds[f][i + 1]) for f in range(count)]
        taken = [(int(ids.offsets[start]), int(ids.offsets[stop])) for start, stop in bags]
        parts.append(
            IdArrays(
                ids.keys,
                _join(ids.values, taken),
                _join(ids.lengths, bags),
                tuple(stop - start for start, stop in bags),
                None if ids.weights is None else _join(ids.weights, taken),
                ids.single,
            )
        )
    return parts


def _cut_single(ids: IdArrays, bounds: Sequence[int]) -> list[IdArrays]:
    """As `_cut_ids` when every bag holds one id, so that features are rows of a matrix."""
    count = len(ids.keys)
    values, lengths = ids.values.reshape(count, -1), ids.lengths.reshape(count, -1)
    weights = None if ids.weights is None else ids.weights.reshape(count, -1)
    return [
        IdArrays(
            ids.keys,
            values[:, start:stop].reshape(-1),
            lengths[:, start:stop].reshape(-1),
            (stop - start,) * count,
            None if weights is None else weights[:, start:stop].reshape(-1),
            True,
        )
        for start, stop in pairwise(bounds)
    ]


def _join(values: npt.NDArray[Any], ranges: Sequence[tuple[int, int]]) -> npt.NDArray[Any]:
    return np.concatenate([values[start:stop] for start, stop in ranges]) if ranges else values[:0]
