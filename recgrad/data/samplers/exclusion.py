"""Which drawn items a row must not be compared with."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from recgrad.kernels import cached_njit

Ints = npt.NDArray[np.int64]
_BITS = 16


def excluded_pairs(drawn: Ints, items: Ints, starts: Ints, stops: Ints, *, diagonal: bool = True) -> Ints:
    """(row, place) of every drawn item that is among the row's own, int64 [pairs, 2], rows ascending.

    Args:
        drawn: int64 [drawn], keys of the drawn items.
        items: keys, of which row i has those from `starts[i]` to `stops[i]`.
        starts: int64 [rows].
        stops: int64 [rows].
        diagonal: whether row i may exclude place i; not so when what is drawn is the rows' own items.
    """
    order = np.argsort(drawn, kind="stable")
    pairs: Ints = _pairs(drawn[order], order, items, starts, stops, diagonal)
    return pairs


@cached_njit(nogil=True)
def _pairs(known: Ints, order: Ints, items: Ints, starts: Ints, stops: Ints, diagonal: bool) -> Ints:
    # Most items are not drawn, which one bit of a small table tells without a search.
    multiplier, shift = np.uint64(0x9E3779B97F4A7C15), np.uint64(64 - _BITS)
    seen = np.zeros(1 << _BITS, np.bool_)
    for key in known:
        seen[(np.uint64(key) * multiplier) >> shift] = True
    found = np.empty((64, 2), np.int64)
    count = 0
    for row in range(len(starts)):
        for at in range(starts[row], stops[row]):
            key = items[at]
            if not seen[(np.uint64(key) * multiplier) >> shift]:
                continue
            place = np.searchsorted(known, key)
            while place < len(known) and known[place] == key:
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
