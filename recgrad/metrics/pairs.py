"""Counting pairs of rows that scores order right, in O(n log n)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from recgrad.kernels import cached_njit

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
    below = np.cumsum(negatives)
    below -= negatives / 2
    below *= positives
    # Not by BLAS: threads of NumPy's own would wait in a loop afterwards and take the next steps' cores.
    return float(below.sum() / pairs)


def group_starts(sorted_keys: Ints) -> Ints:
    """Where each run of equal keys begins, and the end: [groups + 1]."""
    if not len(sorted_keys):
        return np.zeros(1, dtype=np.int64)
    starts = np.flatnonzero(sorted_keys[1:] != sorted_keys[:-1]) + 1
    return np.concatenate([[0], starts, [len(sorted_keys)]]).astype(np.int64)


@cached_njit()
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


@cached_njit()
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


@cached_njit()
def _inversions(values: Floats, room: Floats) -> int:
    """Pairs i < j with values[i] > values[j]; sorts `values` (merge sort, insertion sort below 16)."""
    n, count, width = len(values), 0, 16
    for start in range(0, n, width):
        for i in range(start + 1, min(start + width, n)):
            value, j = values[i], i
            while j > start and values[j - 1] > value:
                values[j] = values[j - 1]
                j -= 1
            values[j] = value
            count += i - j
    while width < n:
        for start in range(0, n - width, 2 * width):
            middle, end = start + width, min(start + 2 * width, n)
            if values[middle - 1] <= values[middle]:
                continue
            room[start:middle] = values[start:middle]
            left, right = start, middle
            for out in range(start, end):
                if left == middle:
                    break
                if right < end and values[right] < room[left]:
                    values[out] = values[right]
                    right += 1
                    count += middle - left
                else:
                    values[out] = room[left]
                    left += 1
        width *= 2
    return count


@cached_njit()
def _ties(ordered: Floats) -> int:
    """Pairs of equal values."""
    count, run = 0, 0
    for i in range(1, len(ordered)):
        run = run + 1 if ordered[i] == ordered[i - 1] else 0
        count += run
    return count


@cached_njit()
def _sort_within(labels: Floats, scores: Floats) -> None:
    """Sort the scores of rows of one label, for every label; `labels` are sorted."""
    start = 0
    for i in range(1, len(labels) + 1):
        if i == len(labels) or labels[i] != labels[start]:
            if i - start > 1:
                scores[start:i].sort()
            start = i


@cached_njit()
def _concordance(labels: Floats, scores: Floats, room: Floats) -> tuple[int, int]:
    """2 × pairs ordered alike + pairs tied in score alone, and pairs of different labels.

    Rows come sorted by label, then score; `scores` is sorted by it (Knight, 1966).
    """
    n, both, run = len(labels), 0, 0
    for i in range(1, n):
        run = run + 1 if labels[i] == labels[i - 1] and scores[i] == scores[i - 1] else 0
        both += run
    pairs = n * (n - 1) // 2 - _ties(labels)
    wrong = _inversions(scores, room)
    tied = _ties(scores) - both
    return 2 * (pairs - wrong - tied) + tied, pairs


@cached_njit()
def _sampled(labels: Floats, scores: Floats, draws: int, seed: np.uint64) -> tuple[int, int]:
    """The same two counts over `draws` random pairs of different rows (splitmix64)."""
    n, wins, pairs = len(labels), 0, 0
    state = seed
    for _ in range(draws):
        state += np.uint64(0x9E3779B97F4A7C15)
        mixed = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        mixed ^= mixed >> np.uint64(31)
        # 32 random bits each; products of 32-bit numbers do not overflow 64 bits.
        i = np.int64(((mixed >> np.uint64(32)) * np.uint64(n)) >> np.uint64(32))
        j = np.int64(((mixed & np.uint64(0xFFFFFFFF)) * np.uint64(n - 1)) >> np.uint64(32))
        j += j >= i
        if labels[i] != labels[j]:
            pairs += 1
            if scores[i] == scores[j]:
                wins += 1
            elif (labels[i] < labels[j]) == (scores[i] < scores[j]):
                wins += 2
    return wins, pairs


def concordance(scores: Floats, labels: Floats) -> tuple[int, int]:
    """2 × pairs that the scores order as the labels do, ties in score counting 1, and pairs that count.

    Pairs of equal labels do not count.
    """
    labels, scores = _by_label(scores, labels)
    wins, pairs = _concordance(labels, scores, np.empty_like(scores))
    return int(wins), int(pairs)


def sampled_concordance(scores: Floats, labels: Floats, draws: int) -> tuple[int, int]:
    """The same two counts over a random sample of `draws` pairs.

    Rows are put in a fixed order first, so that the sample depends on the rows alone and
    not on the order in which, or the process on which, they came. When the sample would
    cost more than all pairs do, or when it hits no pair that counts, all pairs are counted.
    """
    n = len(scores)
    if n < 2 or draws >= 16 * n or draws >= n * (n - 1) // 2:
        return concordance(scores, labels)
    ordered_labels, ordered_scores = _by_label(scores, labels)
    wins, pairs = _sampled(ordered_labels, ordered_scores, draws, np.uint64(n))
    return (int(wins), int(pairs)) if pairs else concordance(scores, labels)


def _by_label(scores: Floats, labels: Floats) -> tuple[Floats, Floats]:
    order = np.argsort(labels)
    labels, scores = labels[order], scores[order]
    _sort_within(labels, scores)
    return labels, scores


@cached_njit()
def concordance_by_group(
    scores: Floats, labels: Floats, keys: Ints, starts: Ints, max_pairs: int
) -> tuple[Ints, Ints]:
    """The two counts of each group; rows come sorted by key, then label. `scores` is overwritten.

    A group of more than `max_pairs` pairs is sampled, by a seed that is its key; none is when
    max_pairs is 0.
    """
    groups = len(starts) - 1
    wins, pairs = np.zeros(groups, dtype=np.int64), np.zeros(groups, dtype=np.int64)
    room = np.empty(len(scores))
    for group in range(groups):
        start, end = starts[group], starts[group + 1]
        n = end - start
        _sort_within(labels[start:end], scores[start:end])
        if 0 < max_pairs < n * (n - 1) // 2:
            wins[group], pairs[group] = _sampled(
                labels[start:end], scores[start:end], max_pairs, np.uint64(keys[start])
            )
        if pairs[group] == 0:
            wins[group], pairs[group] = _concordance(labels[start:end], scores[start:end], room[start:end])
    return wins, pairs
