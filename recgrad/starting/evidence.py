"""What a column of the sample tells of the label, and on what it depends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recgrad.data.arrow_columns import one_chunk
from recgrad.data.hashing import hash_array

_MIN_PAIRS = 20
_MODE_ROWS = 20_000
_CONSTANT = 0.95
_BUCKETS, _BUCKET_ROWS, _FEW_ROWS = 64, 40_000, 50


@dataclass(frozen=True)
class Evidence:
    """How well one column predicts a binary label.

    Attributes:
        auc: of the best ranking by the column alone, learned on one half of the sample, seen on the other.
        implies: of a column of 0 and 1, the share of one class among the rows of 1.
        implied: that class.
        lift: `implies` over that class's share in all rows.
    """

    auc: float
    implies: float = 0.0
    implied: int = 1
    lift: float = 1.0


def tells(values: pa.ChunkedArray, codes: Any, target: Any) -> Evidence:
    """What a column tells of the label (0, 1, NaN for unknown); `codes` are those of its values."""
    known = np.isfinite(target)
    codes = codes[known]
    labels = target[known]
    if not 0 < labels.sum() < len(labels):
        return Evidence(0.5)
    train = np.arange(len(codes)) % 2 == 0
    scores = _rates(codes, labels, train)
    auc = _auc(scores[~train], labels[~train])
    column = one_chunk(values)
    if int(codes.max()) > len(codes) / _FEW_ROWS:  # few rows a value: neighbouring values tell more
        auc = max(auc, _auc_by_buckets(column.filter(pa.array(known)), labels))
    if not (pa.types.is_integer(column.type) or pa.types.is_boolean(column.type)):
        return Evidence(auc)
    numbers = column.cast(pa.float64()) if not pa.types.is_boolean(column.type) else column.cast(pa.int8())
    plain = np.asarray(numbers.to_numpy(zero_copy_only=False), np.float64)[known]
    if not set(np.unique(plain[np.isfinite(plain)])) <= {0.0, 1.0} or (plain == 1).sum() < 20:
        return Evidence(auc)
    rate, base = float(labels[plain == 1].mean()), float(labels.mean())
    if rate >= 0.5:
        return Evidence(auc, rate, 1, rate / base)
    return Evidence(auc, 1 - rate, 0, (1 - rate) / (1 - base))


def _auc_by_buckets(column: Any, labels: Any) -> float:
    """The AUC of a number by the buckets of equally many rows that it lies in; ½ of what is no number."""
    if not (pa.types.is_floating(column.type) or pa.types.is_integer(column.type)):
        return 0.5
    step = max(1, len(labels) // _BUCKET_ROWS)
    numbers = np.asarray(column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False))[::step]
    labels = labels[::step]
    finite = numbers[np.isfinite(numbers)]
    if not len(finite):
        return 0.5
    edges = np.quantile(finite, np.arange(1, _BUCKETS) / _BUCKETS)
    buckets = np.where(np.isfinite(numbers), np.searchsorted(edges, numbers, side="right"), _BUCKETS)
    train = np.arange(len(buckets)) % 2 == 0
    return _auc(_rates(buckets, labels, train)[~train], labels[~train])


class Groups:
    """Rows of the sample side by side by a column, such as those of a user."""

    def __init__(self, sample: pa.Table, name: str) -> None:
        keys = codes_of(sample.column(name))
        self._order = np.argsort(keys, kind="stable")
        keys = keys[self._order]
        self._same = keys[1:] == keys[:-1]

    def share_one_value(self, codes: Any) -> bool:
        """Whether rows of a group have the same value, as far as the sample shows it.

        Pairs of rows are compared of which not both have the commonest value: of rare events most pairs
        would agree by chance.
        """
        values = codes[self._order]
        known, counts = np.unique(values[:_MODE_ROWS], return_counts=True)
        usual = known[np.argmax(counts)]
        left, right = values[:-1], values[1:]
        pairs = self._same & ((left != usual) | (right != usual))
        if pairs.sum() < _MIN_PAIRS:
            return False
        return bool((left == right)[pairs].mean() > _CONSTANT)


def codes_of(column: pa.ChunkedArray) -> Any:
    """A whole number for each row, the same for the same value."""
    array = one_chunk(column)
    kind = array.type
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        # Lists are compared by length and by the sum of the hashes of their items.
        lengths = np.asarray(pc.list_value_length(array).fill_null(0).to_numpy(zero_copy_only=False))
        flat = array.flatten()
        hashes = hash_array(flat.cast(pa.string()) if pa.types.is_floating(flat.type) else flat)
        sums = np.concatenate([[np.uint64(0)], np.cumsum(hashes, dtype=np.uint64)])
        ends = np.cumsum(lengths.astype(np.int64))
        return (sums[ends] - sums[ends - lengths]).view(np.int64)
    if pa.types.is_nested(kind):
        return np.zeros(len(array), np.int64)
    indices = array.dictionary_encode().indices.fill_null(-1)
    return np.asarray(indices.to_numpy(zero_copy_only=False), np.int64)


def _rates(codes: Any, labels: Any, train: Any) -> Any:
    """The share of 1 for each value among the rows of `train`, drawn to that of all where rows are few."""
    _, places = np.unique(codes, return_inverse=True)
    size = int(places.max()) + 1
    ones = np.bincount(places[train], labels[train], size)
    counts = np.bincount(places[train], minlength=size)
    prior = 20.0
    return ((ones + prior * labels[train].mean()) / (counts + prior))[places]


def _auc(scores: Any, labels: Any) -> float:
    ones = int(labels.sum())
    zeros = len(labels) - ones
    if not ones or not zeros:
        return 0.5
    _, inverse, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    ranks = (ends - (counts - 1) / 2)[inverse]
    return float((ranks[labels == 1].sum() - ones * (ones + 1) / 2) / (ones * zeros))
