"""Weighted draws in constant time each: the alias method (Walker 1977, Vose 1991)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from recgrad.kernels import cached_njit

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@cached_njit(nogil=True)
def build_alias(weights: Floats) -> tuple[Floats, Ints]:
    """The alias table of `weights`: for each slot, the chance to keep it, and what is drawn instead.

    Slot i is kept with probability `keep[i]`, else `alias[i]` is drawn; over uniform slots
    item i then comes up with probability wᵢ / Σw.
    """
    count = len(weights)
    keep = weights * (count / weights.sum())
    alias = np.arange(count)
    small = np.empty(count, np.int64)
    large = np.empty(count, np.int64)
    smalls, larges = 0, 0
    for i in range(count):
        if keep[i] < 1.0:
            small[smalls] = i
            smalls += 1
        else:
            large[larges] = i
            larges += 1
    while smalls and larges:
        smalls -= 1
        low, high = small[smalls], large[larges - 1]
        alias[low] = high
        keep[high] -= 1.0 - keep[low]
        if keep[high] < 1.0:
            larges -= 1
            small[smalls] = high
            smalls += 1
    # What is left differs from 1 by rounding alone.
    for i in range(smalls):
        keep[small[i]] = 1.0
    for i in range(larges):
        keep[large[i]] = 1.0
    return keep, alias


@cached_njit(nogil=True)
def draw(keep: Floats, alias: Ints, bits: npt.NDArray[np.uint64]) -> Ints:
    """One item for each pair of random words in `bits` [n, 2]."""
    drawn = np.empty(len(bits), np.int64)
    count = np.uint64(len(keep))
    for i in range(len(bits)):
        # The high half of a 32 × 32 bit product is a uniform slot without the bias of a remainder
        # that matters: tables have far fewer than 2³² slots.
        slot = ((bits[i, 0] >> np.uint64(32)) * count) >> np.uint64(32)
        chance = (bits[i, 1] >> np.uint64(11)) * 2.0**-53
        drawn[i] = slot if chance < keep[slot] else alias[slot]
    return drawn
