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
    by_hash = (*_chains(drawn), *_bits(drawn))
    # Few rows have more than a handful; what is not written to costs nothing.
    found, count = np.empty((64 + 8 * sum(len(own.starts) for own in sets), 2), np.int64), 0
    for own in sets:
        found, count = _add_pairs(found, count, drawn, *by_hash, own.keys, own.starts, own.stops, diagonal)
    return found[:count]


@cached_njit(nogil=True)
def _add_pairs(
    found: Ints,
    count: int,
    drawn: Ints,
    heads: Slots,
    following: Slots,
    shift: np.uint64,
    bits: Bits,
    bit_shift: np.uint64,
    items: Ints,
    starts: Ints,
    stops: Ints,
    diagonal: bool,
) -> tuple[Ints, int]:
    """The pairs so far and those of a set: keys that may be drawn are found by bits, places in chains."""
    keys, base = np.empty(_most(starts, stops) + 1, np.int64), address(items)
    last = np.uint64(len(heads) - 1)
    for row in range(len(starts)):
        if row + AHEAD < len(starts):
            begin = base + 8 * starts[row + AHEAD]
            for line in range(begin, min(base + 8 * stops[row + AHEAD], begin + 8 * LINE), LINE):
                prefetch(line)
        # Most items are not drawn. Those that may be are collected without a branch, which would be guessed
        # wrongly too often.
        size = np.uint64(0)
        for at in range(np.uint64(starts[row]), np.uint64(stops[row])):
            key = items[at]
            keys[size] = key
            bit = (np.uint64(key) * _MULTIPLIER) >> bit_shift
            size += (bits[bit >> np.uint64(6)] >> (bit & np.uint64(63))) & np.uint64(1)
        for at in range(size):
            key = keys[at]
            slot = (np.uint64(key) * _MULTIPLIER) >> shift
            place = np.int64(heads[slot])
            while place >= 0 and drawn[place] != key:
                slot = (slot + np.uint64(1)) & last
                place = np.int64(heads[slot])
            while place >= 0:
                if count == len(found):
                    larger = np.empty((2 * count, 2), np.int64)
                    larger[:count] = found
                    found = larger
                found[count, 0] = row
                found[count, 1] = place
                count += int(diagonal or place != row)
                place = np.int64(following[place])
    return found, count


@cached_njit(nogil=True)
def _most(starts: Ints, stops: Ints) -> int:
    """The most items of a row."""
    most = 0
    for row in range(len(starts)):
        most = max(most, stops[row] - starts[row])
    return most


@cached_njit(nogil=True)
def _bits(drawn: Ints) -> tuple[Bits, np.uint64]:
    """A bit for each hash, set where a key has it; and the shift of hashes.

    One bit in 128 is set, so that few keys that are not there meet one, as far as the bits stay in the
    innermost cache; else one in 16.
    """
    width = 12
    while (1 << width) < 128 * len(drawn) and width < 17:
        width += 1
    while (1 << width) < 16 * len(drawn):
        width += 1
    shift = np.uint64(64 - width)
    bits = np.zeros(1 << (width - 6), np.uint64)
    for key in drawn:
        bit = (np.uint64(key) * _MULTIPLIER) >> shift
        bits[bit >> np.uint64(6)] |= np.uint64(1) << (bit & np.uint64(63))
    return bits, shift


@cached_njit(nogil=True)
def _chains(drawn: Ints) -> tuple[Slots, Slots, np.uint64]:
    """The first place of each key by its hash, −1 in free slots; the key's next place, −1 after the last;
    and the shift of hashes.

    At most a slot in 4 is taken.
    """
    bits = 8
    while (1 << bits) < 4 * len(drawn):
        bits += 1
    shift, last = np.uint64(64 - bits), np.uint64((1 << bits) - 1)
    heads = np.full(1 << bits, -1, np.int32)
    following = np.empty(len(drawn), np.int32)
    for place in range(len(drawn) - 1, -1, -1):
        slot = (np.uint64(drawn[place]) * _MULTIPLIER) >> shift
        while heads[slot] >= 0 and drawn[heads[slot]] != drawn[place]:
            slot = (slot + np.uint64(1)) & last
        following[place] = heads[slot]
        heads[slot] = place
    return heads, following, shift
