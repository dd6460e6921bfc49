"""Cutting a batch into batches of fewer rows.

Rows are encoded many at a time, since each column costs a fixed effort; small batches are
then cut from the result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from recgrad.data.batch import Batch, JaggedDense, KeyedDense, KeyedJagged, Origin


def cut_batch(batch: Batch, bounds: Sequence[int]) -> list[Batch]:
    """The rows `bounds[i]` to `bounds[i + 1]` of a batch, as batches of their own.

    Bounds that cover the whole batch at once give the batch itself. Negatives are not cut:
    a batch has none when it is cut.
    """
    if len(bounds) == 2 and bounds[0] == 0 and bounds[1] == batch.size:
        return [batch]
    sparse = _cut_jagged(batch.sparse, dict.fromkeys(batch.sparse.keys), bounds)
    starts = {key: _starts(lengths) for key, lengths in batch.sequence_lengths.items()}
    sequences: list[KeyedJagged | None] = [None] * (len(bounds) - 1)
    if batch.sequence_sparse is not None:
        sequences = list(_cut_jagged(batch.sequence_sparse, starts, bounds))
    return [
        Batch(
            size=stop - start,
            dense=KeyedDense(batch.dense.keys, batch.dense.dims, batch.dense.values[start:stop]),
            sparse=sparse[i],
            sequence_lengths=_rows(batch.sequence_lengths, start, stop),
            sequence_sparse=sequences[i],
            sequence_dense={key: _cut_dense(item, start, stop) for key, item in batch.sequence_dense.items()},
            labels=_rows(batch.labels, start, stop),
            sample_weights=_rows(batch.sample_weights, start, stop),
            keys=_rows(batch.keys, start, stop),
            origin=_cut_origin(batch.origin, start, stop),
        )
        for i, (start, stop) in enumerate(pairwise(bounds))
    ]


def _rows(tensors: Mapping[str, Tensor], start: int, stop: int) -> dict[str, Tensor]:
    return {key: tensor[start:stop] for key, tensor in tensors.items()}


def _starts(lengths: Tensor) -> npt.NDArray[np.int64]:
    # NumPy, not torch, here and below: torch would wake its own threads for these small sums.
    return np.concatenate([[0], np.cumsum(lengths.numpy(), dtype=np.int64)])


def _cut_origin(origin: Origin | None, start: int, stop: int) -> Origin | None:
    if origin is None:
        return None
    return Origin(origin.files, origin.file_index[start:stop], origin.row[start:stop])


def _cut_dense(item: JaggedDense, start: int, stop: int) -> JaggedDense:
    lengths = item.lengths.numpy()
    first, last = int(lengths[:start].sum()), int(lengths[:stop].sum())
    return JaggedDense(item.values[first:last], item.lengths[start:stop])


def _cut_jagged(
    jagged: KeyedJagged, starts: Mapping[str, npt.NDArray[np.int64] | None], bounds: Sequence[int]
) -> list[KeyedJagged]:
    """Cut every feature's bags at the bags where the rows of `bounds` begin.

    `starts` maps a feature to the first bag of each row; None when a bag is a row.
    """
    count = len(jagged.keys)
    bag_bounds = []  # for each feature, the bag at each bound
    for key in jagged.keys:
        at = starts[key]
        bag_bounds.append(list(bounds) if at is None else at[list(bounds)].tolist())
    if jagged.single and count and all(item == bag_bounds[0] for item in bag_bounds):
        return _cut_single(jagged, bag_bounds[0])
    first_bag = [0, *accumulate(jagged.bag_counts)]
    offsets = _starts(jagged.lengths)
    parts = []
    for i in range(len(bounds) - 1):
        bags = [(first_bag[f] + bag_bounds[f][i], first_bag[f] + bag_bounds[f][i + 1]) for f in range(count)]
        ids = [(int(offsets[start]), int(offsets[stop])) for start, stop in bags]
        parts.append(
            KeyedJagged(
                jagged.keys,
                _join(jagged.values, ids),
                _join(jagged.lengths, bags),
                tuple(stop - start for start, stop in bags),
                None if jagged.weights is None else _join(jagged.weights, ids),
                jagged.single,
            )
        )
    return parts


def _cut_single(jagged: KeyedJagged, bounds: Sequence[int]) -> list[KeyedJagged]:
    """As `_cut_jagged` when every bag holds one id, so that features are rows of a matrix."""
    count = len(jagged.keys)
    values, lengths = jagged.values.numpy().reshape(count, -1), jagged.lengths.numpy().reshape(count, -1)
    weights = None if jagged.weights is None else jagged.weights.numpy().reshape(count, -1)
    return [
        KeyedJagged(
            jagged.keys,
            torch.from_numpy(values[:, start:stop].reshape(-1)),
            torch.from_numpy(lengths[:, start:stop].reshape(-1)),
            (stop - start,) * count,
            None if weights is None else torch.from_numpy(weights[:, start:stop].reshape(-1)),
            True,
        )
        for start, stop in pairwise(bounds)
    ]


def _join(values: Tensor, ranges: Sequence[tuple[int, int]]) -> Tensor:
    if not ranges:
        return values[:0]
    flat = values.numpy()
    return torch.from_numpy(np.concatenate([flat[start:stop] for start, stop in ranges]))
