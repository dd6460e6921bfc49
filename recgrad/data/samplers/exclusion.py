"""Which drawn items a row must not be compared with."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from recgrad.data.samplers.item_side import Own
from recgrad.kernels import cached_njit
from recgrad.kernels.simd import LINE, address, prefetch

Ints = npt.NDArray[np.int64]
Slots = npt.NDArray[np.int32]
Bits = npt.NDArray[np.uint64]
AHEAD = 8  # rows whose items are asked for before they are needed
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
    at = (known, order, _counts(known), *_slots(known), *_bits(known))
    pairs: list[Ints] = [_pairs(*at, own.keys, own.starts, own.stops, diagonal) for own in sets]
    return pairs[0] if len(pairs) == 1 else np.concatenate(pairs)


@cached_njit(nogil=True)
def _pairs(
    known: Ints,
    order: Ints,
    counts: Slots,
    slots: Slots,
    shift: np.uint64,
    bits: Bits,
    bit_shift: np.uint64,
    items: Ints,
    starts: Ints,
    stops: Ints,
    diagonal: bool,
) -> Ints:
    """The pairs of a set, found by hash: keys that may be drawn by bits, and those that are in slots."""
    keys, base = np.empty(_most(starts, stops) + 1, np.int64), address(items)
    found, count = np.empty((8 * len(starts) + 64, 2), np.int64), 0
    for row in range(len(starts)):
        _ask_ahead(row, base, starts, stops)
        # Most items are not drawn. Those that may be are collected without a branch, which would be guessed
        # wrongly too often.
        size = np.uint64(0)
        for at in range(np.uint64(starts[row]), np.uint64(stops[row])):
            key = items[at]
            keys[size] = key
            bit = (np.uint64(key) * _MULTIPLIER) >> bit_shift
            size += (bits[bit >> np.uint64(6)] >> (bit & np.uint64(63))) & np.uint64(1)
        for at in range(size):
            first = _first(keys[at], known, slots, shift)
            times = counts[first] if first >= 0 else 0
            if count + times > len(found):
                found = _larger(found, times)
            for place in range(first, first + times):
                found[count, 0] = row
                found[count, 1] = order[place]
                count += int(diagonal or order[place] != row)
    return found[:count]


@cached_njit(nogil=True)
def _most(starts: Ints, stops: Ints) -> int:
    """The most items of a row."""
    most = 0
    for row in range(len(starts)):
        most = max(most, stops[row] - starts[row])
    return most


@cached_njit(nogil=True)
def _ask_ahead(row: int, base: int, starts: Ints, stops: Ints) -> None:
    if row + AHEAD < len(starts):
        begin = base + 8 * starts[row + AHEAD]
        for line in range(begin, min(base + 8 * stops[row + AHEAD], begin + 8 * LINE), LINE):
            prefetch(line)


@cached_njit(nogil=True)
def _larger(found: Ints, more: int) -> Ints:
    larger = np.empty((2 * len(found) + more, 2), np.int64)
    larger[: len(found)] = found
    return larger


@cached_njit(nogil=True)
def _counts(known: Ints) -> Slots:
    """How often each key of a sorted array is in it, at the key's first place."""
    counts = np.zeros(len(known), np.int32)
    first = 0
    for place in range(len(known)):
        if known[place] != known[first]:
            first = place
        counts[first] += 1
    return counts


@cached_njit(nogil=True)
def _bits(known: Ints) -> tuple[Bits, np.uint64]:
    """A bit for each hash, set where a key has it; and the shift of hashes.

    One bit in 128 is set, so that few keys that are not there meet one, as far as the bits stay in the
    innermost cache; else one in 16.
    """
    width = 12
    while (1 << width) < 128 * len(known) and width < 17:
        width += 1
    while (1 << width) < 16 * len(known):
        width += 1
    shift = np.uint64(64 - width)
    bits = np.zeros(1 << (width - 6), np.uint64)
    for key in known:
        bit = (np.uint64(key) * _MULTIPLIER) >> shift
        bits[bit >> np.uint64(6)] |= np.uint64(1) << (bit & np.uint64(63))
    return bits, shift


@cached_njit(nogil=True)
def _slots(known: Ints) -> tuple[Slots, np.uint64]:
    """The first place of each key of a sorted array by its hash, −1 in free slots; and the shift of hashes.

    At most a slot in 4 is taken.
    """
    bits = 8
    while (1 << bits) < 4 * len(known):
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
