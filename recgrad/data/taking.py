"""Rows of a batch by their numbers, and features of two batches side by side."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from itertools import accumulate

import torch
from torch import Tensor

from recgrad.data.batch import Batch, JaggedDense, KeyedDense, KeyedJagged, Origin
from recgrad.errors import DataError


def take_rows(batch: Batch, rows: Tensor) -> Batch:
    """The rows of a batch at `rows` (int64 [taken], in any order, also several times), without negatives."""
    lengths = {key: values[rows] for key, values in batch.sequence_lengths.items()}
    origin = batch.origin
    return Batch(
        size=rows.shape[0],
        dense=replace(batch.dense, values=batch.dense.values[rows]),
        sparse=_take_bags(batch.sparse, [rows] * len(batch.sparse.keys)),
        sequence_lengths=lengths,
        sequence_sparse=None if batch.sequence_sparse is None else _take_positions(batch, rows),
        sequence_dense={
            key: JaggedDense(one.values[spans(one.lengths, rows)], lengths[key])
            for key, one in batch.sequence_dense.items()
        },
        labels={
            key: values[spans(batch.label_lengths[key], rows) if key in batch.label_lengths else rows]
            for key, values in batch.labels.items()
        },
        label_lengths={key: values[rows] for key, values in batch.label_lengths.items()},
        sample_weights={key: values[rows] for key, values in batch.sample_weights.items()},
        keys={key: values[rows] for key, values in batch.keys.items()},
        origin=None if origin is None else Origin(origin.files, origin.file_index[rows], origin.row[rows]),
        precise={key: values[rows] for key, values in batch.precise.items()},
    )


def beside(rows: Batch, more: Batch) -> Batch:
    """The rows with features of `more`, row for row, added to theirs."""
    if rows.size != more.size:
        raise ValueError(f"both must have {rows.size} rows, got {more.size}")
    twice = set(rows.sparse.keys) & set(more.sparse.keys) | set(rows.dense.keys) & set(more.dense.keys)
    if twice:
        raise DataError(f"feature {min(twice)}: is there twice; name it once")
    sequences = [ids for ids in (rows.sequence_sparse, more.sequence_sparse) if ids is not None]
    return replace(
        rows,
        dense=KeyedDense(
            rows.dense.keys + more.dense.keys,
            rows.dense.dims + more.dense.dims,
            torch.cat([rows.dense.values, more.dense.values], dim=1),
        ),
        sparse=_joined([rows.sparse, more.sparse]),
        sequence_lengths={**rows.sequence_lengths, **more.sequence_lengths},
        sequence_sparse=_joined(sequences) if sequences else None,
        sequence_dense={**rows.sequence_dense, **more.sequence_dense},
    )


def only_features(batch: Batch, names: Collection[str]) -> Batch:
    """The rows with some features alone; no labels, no negatives."""
    keys = [key for key in batch.dense.keys if key in names]
    columns = [batch.dense[key] for key in keys]
    sequences = batch.sequence_sparse
    return Batch(
        size=batch.size,
        dense=KeyedDense(
            tuple(keys),
            tuple(column.shape[1] for column in columns),
            torch.cat(columns, dim=1) if columns else batch.dense.values[:, :0],
        ),
        sparse=_joined([batch.sparse[key] for key in batch.sparse.keys if key in names], batch.sparse),
        sequence_lengths={key: v for key, v in batch.sequence_lengths.items() if key in names},
        sequence_sparse=None
        if sequences is None
        else _joined([sequences[key] for key in sequences.keys if key in names], sequences),
        sequence_dense={key: v for key, v in batch.sequence_dense.items() if key in names},
        precise={key: v for key, v in batch.precise.items() if key in names},
    )


def feature_names(batch: Batch) -> set[str]:
    """The names of all features of a batch, those of lengths of sequences included."""
    sequences = () if batch.sequence_sparse is None else batch.sequence_sparse.keys
    return {*batch.dense.keys, *batch.sparse.keys, *sequences, *batch.sequence_dense, *batch.sequence_lengths}


def stack_features(first: Batch, then: Batch) -> Batch:
    """The rows of two batches that have the same features, one after another, without sequences."""
    return Batch(
        size=first.size + then.size,
        dense=replace(first.dense, values=torch.cat([first.dense.values, _columns(then, first.dense.keys)])),
        sparse=_joined(
            [_stacked(first.sparse[key], then.sparse[key]) for key in first.sparse.keys], first.sparse
        ),
        precise={key: torch.cat([values, then.precise[key]]) for key, values in first.precise.items()},
    )


def _columns(batch: Batch, keys: tuple[str, ...]) -> Tensor:
    """Dense features side by side in this order."""
    return torch.cat([batch.dense.values[:, :0], *(batch.dense[key] for key in keys)], dim=1)


def _stacked(first: KeyedJagged, then: KeyedJagged) -> KeyedJagged:
    """The bags of one feature, those of `then` after those of `first`."""
    both = _joined([first, then])
    return replace(both, keys=first.keys, bag_counts=(sum(both.bag_counts),))


def with_features(rows: Batch, other: Batch) -> Batch:
    """The rows with the features that `other` has in place of their own, row for row."""
    dense = rows.dense.values
    if other.dense.keys:
        dense = dense.clone()
        for key in other.dense.keys:
            start, width = rows.dense.columns[key]
            dense[:, start : start + width] = other.dense[key]
    sequences = rows.sequence_sparse
    if sequences is not None and other.sequence_sparse is not None:
        sequences = _with_ids(sequences, other.sequence_sparse)
    return replace(
        rows,
        dense=replace(rows.dense, values=dense),
        sparse=_with_ids(rows.sparse, other.sparse),
        sequence_lengths={**rows.sequence_lengths, **other.sequence_lengths},
        sequence_sparse=sequences,
        sequence_dense={**rows.sequence_dense, **other.sequence_dense},
        precise={**rows.precise, **other.precise},
    )


def _with_ids(ids: KeyedJagged, other: KeyedJagged) -> KeyedJagged:
    if not other.keys:
        return ids
    return _joined([other[key] if key in other.keys else ids[key] for key in ids.keys])


def spans(lengths: Tensor, rows: Tensor) -> Tensor:
    """Places of the elements of some rows, one row after another, where row i has `lengths[i]` elements."""
    lengths = lengths.long()
    starts = lengths.cumsum(0) - lengths
    taken = lengths[rows]
    ends = taken.cumsum(0)
    total = int(ends[-1]) if len(ends) else 0
    within = torch.arange(total) - torch.repeat_interleave(ends - taken, taken, output_size=total)
    return torch.repeat_interleave(starts[rows], taken, output_size=total) + within


def _take_positions(batch: Batch, rows: Tensor) -> KeyedJagged:
    """The positions of some rows: bags of each sequence feature."""
    ids = batch.sequence_sparse
    assert ids is not None
    places = {key: spans(batch.sequence_lengths[key], rows) for key in ids.keys}
    return _take_bags(ids, [places[key] for key in ids.keys])


def _take_bags(ids: KeyedJagged, bags: list[Tensor]) -> KeyedJagged:
    """Some bags of each feature, all features in one pass."""
    first = [0, *accumulate(ids.bag_counts)]
    places = [start + one for start, one in zip(first, bags, strict=False)]
    at = torch.cat(places) if places else torch.zeros(0, dtype=torch.int64)
    values = at if ids.single else spans(ids.lengths, at)
    return KeyedJagged(
        ids.keys,
        ids.values[values],
        ids.lengths[at],
        tuple(len(one) for one in bags),
        None if ids.weights is None else ids.weights[values],
        ids.single,
    )


def _joined(parts: list[KeyedJagged], none: KeyedJagged | None = None) -> KeyedJagged:
    """The features of several, one after another; of no parts, no features of `none`."""
    if not parts:
        assert none is not None
        return replace(
            none, keys=(), values=none.values[:0], lengths=none.lengths[:0], bag_counts=(), weights=None
        )
    weights = None
    if any(part.weights is not None for part in parts):
        weights = torch.cat(
            [torch.ones(len(part.values)) if part.weights is None else part.weights for part in parts]
        )
    return KeyedJagged(
        tuple(key for part in parts for key in part.keys),
        torch.cat([part.values for part in parts]),
        torch.cat([part.lengths for part in parts]),
        tuple(count for part in parts for count in part.bag_counts),
        weights,
        all(part.single for part in parts),
    )
