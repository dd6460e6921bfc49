"""What semantic ids are worth, how collisions are taken apart, and ids as features: functions of arrays.

An id is a row of codes, one of each level; `sizes` are the numbers of codes of the levels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Codes = npt.NDArray[np.int64]


@dataclass(frozen=True)
class LevelUse:
    """How one level uses its codes.

    Attributes:
        codes: that it has.
        used: by at least one item.
        perplexity: exp of the entropy: of codes that are used equally often, their number.
    """

    codes: int
    used: int
    perplexity: float

    @property
    def coverage(self) -> float:
        """The share of codes that are used."""
        return self.used / self.codes


@dataclass(frozen=True)
class CodeReport:
    """What the ids of items are worth.

    Attributes:
        items: all of them.
        ids: distinct ones.
        alone: items whose id no other has.
        largest: items of the id that has most.
        gini: of the sizes of ids, 0 where all have as many items.
        entropy: of the sizes, in nats.
        entropy_ratio: to ln of the number of possible ids.
        levels: use of each level.
    """

    items: int
    ids: int
    alone: int
    largest: int
    gini: float
    entropy: float
    entropy_ratio: float
    levels: tuple[LevelUse, ...]

    @property
    def no_collision_rate(self) -> float:
        """Distinct ids per item."""
        return self.ids / self.items


def measure_codes(codes: Codes, sizes: Sequence[int]) -> CodeReport:
    """The report of ids, int64 [items, levels]."""
    counts = np.unique(flat_ids(codes, sizes), return_counts=True)[1]
    possible = sum(math.log(size) for size in sizes)
    entropy = _entropy(counts)
    levels = []
    for level, size in enumerate(sizes):
        used = np.bincount(codes[:, level], minlength=size)
        levels.append(LevelUse(size, int((used > 0).sum()), math.exp(_entropy(used[used > 0]))))
    return CodeReport(
        items=len(codes),
        ids=len(counts),
        alone=int((counts == 1).sum()),
        largest=int(counts.max()),
        gini=gini(counts),
        entropy=entropy,
        entropy_ratio=entropy / possible if possible else 0.0,
        levels=tuple(levels),
    )


def flat_ids(codes: Codes, sizes: Sequence[int]) -> npt.NDArray[np.int64]:
    """One number for each id; ids that are equal have equal numbers, in their order."""
    if math.prod(sizes) < 1 << 63:
        flat = np.zeros(len(codes), np.int64)
        for level, size in enumerate(sizes):
            flat = flat * size + codes[:, level]
        return flat
    return np.unique(codes, axis=0, return_inverse=True)[1].reshape(-1).astype(np.int64)


def gini(counts: npt.NDArray[np.int64]) -> float:
    """Gini coefficient of counts: Σ(2i − n − 1)·cᵢ / (n·Σc), the counts rising."""
    rising, n = np.sort(counts).astype(np.float64), len(counts)
    return float(((2 * np.arange(1, n + 1) - n - 1) * rising).sum() / (n * rising.sum()))


def _entropy(counts: npt.NDArray[np.int64]) -> float:
    shares = counts / counts.sum()
    return float(-(shares * np.log(shares)).sum())


def spread(codes: Codes, candidates: Codes, sizes: Sequence[int], most: int) -> tuple[Codes, int]:
    """Ids with at most so many items each, as far as candidates reach; and how many items still are too many.

    The first items of an id keep it; each other one takes its first candidate that has room.

    Args:
        codes: [items, levels].
        candidates: [items, topk, levels], the nearest first.
        sizes: of the levels.
        most: items of an id.
    """
    taken = codes.copy()
    keys = [tuple(row) for row in codes.tolist()]
    room: dict[tuple[int, ...], int] = {}
    crowded = []
    for item, key in enumerate(keys):
        room[key] = room.get(key, 0) + 1
        if room[key] > most:
            room[key] -= 1
            crowded.append(item)
    left = 0
    for item in crowded:
        for other in candidates[item].tolist():
            key = tuple(other)
            if room.get(key, 0) < most:
                room[key] = room.get(key, 0) + 1
                taken[item] = other
                break
        else:
            left += 1
    return taken, left


def tokens(codes: Codes, sizes: Sequence[int]) -> Codes:
    """Codes with those of earlier levels before them, so that no two levels share a number."""
    return codes + np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(np.int64)
