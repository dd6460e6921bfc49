"""Counting pairs of rows that scores order right, in O(n log n)."""

from __future__ import annotations

import numba
import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


def exact_auc(scores: Floats, positive: npt.NDArray[np.bool_]) -> float:
    """P(score of a positive > score of a negative), ties ½; nan without both classes."""
    above, below = np.sort(scores[positive]), np.sort(scores[~positive])
    if not len(above) or not len(below):
        return float("nan")
    return float(_wins(above, below)) / 2 / (len(above) * len(below))


def binned_auc(negatives: Floats, positives: Floats) -> float:
    """AUC from counts by bin, in rising order of score; a pair in one bin counts ½."""
    pairs = negatives.sum() * positives.sum()
    if pairs == 0:
        return float("nan")
    return float(positives @ (np.cumsum(negatives) - negatives / 2) / pairs)


def group_starts(sorted_keys: Ints) -> Ints:
    """Where each run of equal keys begins, and the end: [groups + 1]."""
    if not len(sorted_keys):
        return np.zeros(1, dtype=np.int64)
    starts = np.flatnonzero(sorted_keys[1:] != sorted_keys[:-1]) + 1
    return np.concatenate([[0], starts, [len(sorted_keys)]]).astype(np.int64)


@numba.njit(cache=True)
def _wins(above: Floats, below: Floats) -> int:
    """2 × pairs with above > below + pairs with above = below; both sorted."""
    wins, less, upto = 0, 0, 0
    for score in above:
        while less < len(below) and below[less] < score:
            less += 1
        upto = max(upto, less)
        while upto < len(below) and below[upto] == score:
            upto += 1
        wins += less + upto
    return wins


@numba.njit(cache=True)
def auc_by_group(scores: Floats, positive: npt.NDArray[np.bool_], starts: Ints) -> tuple[Floats, Ints]:
    """AUC and positives of each group of rows; nan for a group without both classes."""
    groups = len(starts) - 1
    auc = np.full(groups, np.nan)
    counts = np.zeros(groups, dtype=np.int64)
    room = np.empty(len(scores))
    for group in range(groups):
        start, end = starts[group], starts[group + 1]
        low, high = start, end
        for row in range(start, end):
            if positive[row]:
                room[low] = scores[row]
                low += 1
            else:
                high -= 1
                room[high] = scores[row]
        counts[group] = low - start
        if start < low < end:
            room[start:low].sort()
            room[low:end].sort()
            pairs = (low - start) * (end - low)
            auc[group] = _wins(room[start:low], room[low:end]) / 2 / pairs
    return auc, counts
