"""Who leaves: the k lowest of many scores, ties broken by key."""

from __future__ import annotations

import numpy as np
from numba import njit


@njit(nogil=True)
def kth(values, k):  # type: ignore[no-untyped-def]
    """The k-th smallest (from 0) of an array of numbers, whose order is lost (Hoare 1961)."""
    low, high = 0, len(values) - 1
    while low < high:
        middle = (low + high) >> 1
        a, b, c = values[low], values[middle], values[high]
        pivot = max(min(a, b), min(max(a, b), c))
        i, j = low, high
        while i <= j:
            while values[i] < pivot:
                i += 1
            while pivot < values[j]:
                j -= 1
            if i <= j:
                values[i], values[j] = values[j], values[i]
                i += 1
                j -= 1
        if k <= j:
            high = j
        elif k >= i:
            low = i
        else:
            return values[k]
    return values[k]


@njit(nogil=True)
def lowest(scores, keys, k):  # type: ignore[no-untyped-def]
    """Positions of the k lowest by (score, key), in the order of positions; keys are distinct."""
    n = len(scores)
    chosen = np.empty(k, np.int64)
    if k == 0:
        return chosen
    limit = kth(scores.copy(), k - 1)
    below = 0
    same = 0
    for i in range(n):
        if scores[i] < limit:
            below += 1
        elif scores[i] == limit:
            same += 1
    needed = k - below
    last_key = np.int64(-1) if needed == 0 else np.int64(0x7FFFFFFFFFFFFFFF)
    if 0 < needed < same:
        ties = np.empty(same, np.int64)
        t = 0
        for i in range(n):
            if scores[i] == limit:
                ties[t] = keys[i]
                t += 1
        last_key = kth(ties, needed - 1)
    m = 0
    for i in range(n):
        if scores[i] < limit or (scores[i] == limit and keys[i] <= last_key):
            chosen[m] = i
            m += 1
    return chosen


@njit(nogil=True)
def by_score(scores, keys):  # type: ignore[no-untyped-def]
    """The order that sorts by (score, key), both ascending."""
    order = np.argsort(keys, kind="mergesort")
    return order[np.argsort(scores[order], kind="mergesort")]
