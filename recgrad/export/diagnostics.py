"""How a model errs: calibration by predicted probability, AUC by the size of a group."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Calibration:
    """Predicted and observed rates in bins of equally many rows."""

    predicted: Floats
    observed: Floats
    rows: npt.NDArray[np.int64]


@dataclass(frozen=True)
class GroupSizes:
    """AUC inside groups, by how many rows a group has; groups of one class are left out."""

    labels: list[str]
    auc: Floats
    groups: npt.NDArray[np.int64]


def calibration_curve(scores: Floats, labels: Floats, num_bins: int = 20) -> Calibration:
    """Sort by score, cut into bins of equally many rows, and average both in each."""
    order = np.argsort(scores, kind="stable")
    edges = np.linspace(0, len(scores), min(num_bins, len(scores)) + 1).astype(np.int64)
    rows = np.diff(edges)
    predicted = np.add.reduceat(scores[order], edges[:-1]) / rows
    observed = np.add.reduceat(labels[order].astype(np.float64), edges[:-1]) / rows
    return Calibration(predicted, observed, rows)


def auc_by_group_size(scores: Floats, labels: Floats, keys: npt.NDArray[np.int64]) -> GroupSizes:
    """The mean AUC of groups with 2–3, 4–7, 8–15 … rows, vectorised over all groups."""
    order = np.lexsort((scores, keys))
    keys, scores, positive = keys[order], scores[order], labels[order] > 0
    starts = np.flatnonzero(np.r_[True, keys[1:] != keys[:-1]])
    sizes = np.diff(np.r_[starts, len(keys)])
    ranks = _ranks_with_ties(scores, starts, sizes)
    positives = np.add.reduceat(positive, starts, dtype=np.int64)
    negatives = sizes - positives
    sums = np.add.reduceat(np.where(positive, ranks, 0.0), starts)
    mixed = (positives > 0) & (negatives > 0)
    with np.errstate(invalid="ignore", divide="ignore"):
        auc = (sums - positives * (positives + 1) / 2) / (positives * negatives)
    level = np.log2(np.maximum(sizes, 1)).astype(np.int64)
    kept = sorted(set(level[mixed].tolist()))
    return GroupSizes(
        labels=[f"{2**k}–{2 ** (k + 1) - 1}" for k in kept],
        auc=np.array([auc[mixed & (level == k)].mean() for k in kept]),
        groups=np.array([np.count_nonzero(mixed & (level == k)) for k in kept], dtype=np.int64),
    )


def _ranks_with_ties(scores: Floats, starts: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64]) -> Floats:
    """Ranks from 1 inside each group of sorted scores; equal scores share their mean rank."""
    position = np.arange(len(scores)) - np.repeat(starts, sizes)
    first_of_group = np.zeros(len(scores), dtype=bool)
    first_of_group[starts] = True
    new_value = first_of_group | np.r_[True, scores[1:] != scores[:-1]]
    runs = np.flatnonzero(new_value)
    lengths = np.diff(np.r_[runs, len(scores)])
    middle = position[runs] + (lengths + 1) / 2
    ranks: Floats = np.repeat(middle, lengths)
    return ranks
