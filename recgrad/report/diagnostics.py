"""How a model errs: calibration by predicted probability, AUC by the size of a group."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from recgrad.metrics.pairs import Floats, Ints, auc_by_group, group_starts


@dataclass(frozen=True)
class Calibration:
    """Predicted and observed rates in bins of equally many rows."""

    predicted: Floats
    observed: Floats
    rows: Ints


@dataclass(frozen=True)
class GroupSizes:
    """AUC inside groups, by how many rows a group has; groups of one class are left out."""

    labels: list[str]
    auc: Floats
    groups: Ints


def calibration_curve(scores: Floats, labels: Floats, num_bins: int = 20) -> Calibration:
    """Sort by score, cut into bins of equally many rows, and average both in each."""
    order = np.argsort(scores, kind="stable")
    edges = np.linspace(0, len(scores), min(num_bins, len(scores)) + 1).astype(np.int64)
    rows = np.diff(edges)
    predicted = np.add.reduceat(scores[order], edges[:-1]) / rows
    observed = np.add.reduceat(labels[order].astype(np.float64), edges[:-1]) / rows
    return Calibration(predicted, observed, rows)


def auc_by_group_size(scores: Floats, labels: Floats, keys: Ints) -> GroupSizes:
    """The mean AUC of groups with 2–3, 4–7, 8–15 … rows."""
    order = np.argsort(keys)
    starts = group_starts(keys[order])
    auc, _ = auc_by_group(scores[order], labels[order] > 0, starts)
    mixed = ~np.isnan(auc)
    level = np.log2(np.diff(starts)).astype(np.int64)
    kept = np.unique(level[mixed]).tolist()
    return GroupSizes(
        labels=[f"{2**k}–{2 ** (k + 1) - 1}" for k in kept],
        auc=np.array([auc[mixed & (level == k)].mean() for k in kept]),
        groups=np.array([np.count_nonzero(mixed & (level == k)) for k in kept], dtype=np.int64),
    )
