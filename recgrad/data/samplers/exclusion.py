"""Which drawn items a row must not be compared with."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from recgrad.data.samplers.item_side import Own
from recgrad.kernels import cached_njit

Ints = npt.NDArray[np.int64]
Slots = npt.NDArray[np.int32]
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)


def excluded_pairs(drawn: Ints, *sets: Own, diagonal: bool = True) -> Ints:
    """(row, place) of every drawn item that is among the row's own, int64 [pairs, 2].

    Args:
        drawn: int64 [drawn], keys of the drawn items.
        sets: the items that rows have; the pairs of a set come after those of the one before, rows ascending.
        diagonal: whether row i may exclude place i; not so when what is drawn is the rows' own items.
    """
    order = np.argsort(drawn, kind="stable")
    known = drawn[order]
    slots, shift = _slots(known)
    pairs: list[Ints] = [
        _pairs(known, order, slots, shift, own.keys, own.starts, own.stops, diagonal) for own in sets
    ]
    return pairs[0] if len(pairs) == 1 else np.concatenate(pairs)


@cached_njit(nogil=True)
def _pairs(
    known: Ints,
    order: Ints,
    slots: Slots,
    shift: np.uint64,
    items: Ints,
    starts: Ints,
    stops: Ints,
    diagonal: bool,
) -> Ints:
    most = 0
    for row in range(len(starts)):
        most = max(most, stops[row] - starts[row])
    likely = np.empty(most + 1, np.int64)
    found = np.empty((64, 2), np.int64)
    count = 0
    for row in range(len(starts)):
        # Most items are not drawn. Those that may be are collected without a branch, which would be guessed
        # wrongly too often.
        size = 0
        for at in range(starts[row], stops[row]):
            likely[size] = items[at]
            size += slots[(np.uint64(items[at]) * _MULTIPLIER) >> shift] >= 0
        for key in likely[:size]:
            place = _first(key, known, slots, shift)
            while 0 <= place < len(known) and known[place] == key:
                if diagonal or order[place] != row:
                    if count == len(found):
                        larger = np.empty((2 * count, 2), np.int64)
                        larger[:count] = found
                        found = larger
                    found[count, 0] = row
                    found[count, 1] = order[place]
                    count += 1
                place += 1
    return found[:count]


@cached_njit(nogil=True)
def _slots(known: Ints) -> tuple[Slots, np.uint64]:
    """The first place of each key of a sorted array by its hash, −1 in free slots; and the shift of hashes.

    At most a slot in 16 is taken, so that few keys that are not there meet one.
    """
    bits = 8
    while (1 << bits) < 16 * len(known):
        bits += 1
    shift, last = np.uint64(64 - bits), (1 << bits) - 1
    slots = np.full(1 << bits, -1, np.int32)
    for place in range(len(known)):
        if place == 0 or known[place] != known[place - 1]:
            slot = np.int64((np.uint64(known[place]) * _MULTIPLIER) >> shift)
            while slots[slot] >= 0:
                slot = (slot + 1) & last
            slots[slot] = place
    return slots, shift


@cached_njit(nogil=True)
def _first(key: int, known: Ints, slots: Slots, shift: np.uint64) -> int:
    """The first place of a key, −1 if it is not there."""
    slot = np.int64((np.uint64(key) * _MULTIPLIER) >> shift)
    while slots[slot] >= 0 and known[slots[slot]] != key:
        slot = (slot + 1) & (len(slots) - 1)
    return int(slots[slot])
