"""Kernels over long histories: signatures by random hyperplanes, the nearest positions, bucket sums.

Tasks are rows, or blocks of positions; each writes what no other does, so that results do not depend on the
number of threads. `recgrad.nn.long_history` fills in the argument blocks.
"""

from __future__ import annotations

import numpy as np
from numba import carray, njit

from recgrad.kernels.parallel import FIRST, next_task
from recgrad.kernels.simd import field, pointer

BLOCK = 1024  # positions of a task of `sign_bits`

# What argument blocks hold: int64 numbers and addresses.
(S_COUNT, S_BITS, S_VALUES, S_CODES) = range(FIRST, FIRST + 4)
(N_ROWS, N_LIMIT, N_CODES, N_QUERY, N_OFFSETS, N_LENGTHS, N_OUT) = range(FIRST, FIRST + 7)
(E_ROWS, E_LIMIT, E_WIDTH, E_KEYS, E_QUERY, E_OFFSETS, E_LENGTHS, E_OUT) = range(FIRST, FIRST + 8)
(B_ROWS, B_GROUPS, B_WIDTH, B_DIM, B_CODES, B_QUERY, B_OFFSETS, B_LENGTHS, B_VALUES, B_SUMS) = range(
    FIRST, FIRST + 10
)


@njit(nogil=True)
def _ones(x: np.uint64) -> np.int64:
    """Bits that are set."""
    x = x - ((x >> np.uint64(1)) & np.uint64(0x5555555555555555))
    x = (x & np.uint64(0x3333333333333333)) + ((x >> np.uint64(2)) & np.uint64(0x3333333333333333))
    x = (x + (x >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return np.int64((x * np.uint64(0x0101010101010101)) >> np.uint64(56))


@njit(nogil=True)
def sign_bits(a: int) -> None:
    """codes[i]: bit b is set where values[i, b] > 0."""
    count, bits = field(a, S_COUNT), field(a, S_BITS)
    values = carray(pointer(field(a, S_VALUES)), (count, bits), np.float32)
    codes = carray(pointer(field(a, S_CODES)), count, np.uint64)
    task = next_task(a)
    while task * BLOCK < count:
        for i in range(task * BLOCK, min(count, (task + 1) * BLOCK)):
            code = np.uint64(0)
            for b in range(bits):
                code |= np.uint64(values[i, b] > 0) << np.uint64(b)
            codes[i] = code
        task = next_task(a)


@njit(nogil=True)
def nearest_codes(a: int) -> None:
    """out[row]: the `limit` positions whose codes differ least from the row's, in their order; then −1.

    Of equally near ones the first count. A histogram of distances tells the largest that is taken.
    """
    rows, limit = field(a, N_ROWS), field(a, N_LIMIT)
    query = carray(pointer(field(a, N_QUERY)), rows, np.uint64)
    offsets = carray(pointer(field(a, N_OFFSETS)), rows, np.int64)
    lengths = carray(pointer(field(a, N_LENGTHS)), rows, np.int64)
    out = carray(pointer(field(a, N_OUT)), (rows, limit), np.int64)
    counts = np.empty(65, np.int64)
    row = next_task(a)
    while row < rows:
        start, length = offsets[row], lengths[row]
        codes = carray(pointer(field(a, N_CODES) + 8 * start), length, np.uint64)
        counts[:] = 0
        for i in range(length):
            counts[_ones(codes[i] ^ query[row])] += 1
        worst, before = 0, 0
        while worst < 64 and before + counts[worst] < limit:
            before += counts[worst]
            worst += 1
        room = limit - before  # for those at the distance `worst`
        taken = 0
        for i in range(length):
            distance = _ones(codes[i] ^ query[row])
            if distance < worst or (distance == worst and room > 0):
                room -= distance == worst
                out[row, taken] = start + i
                taken += 1
        out[row, taken:] = -1
        row = next_task(a)


@njit(nogil=True)
def equal_keys(a: int) -> None:
    """out[row]: the first `limit` positions whose keys equal the row's; then −1. Keys of zeros are none."""
    rows, limit, width = field(a, E_ROWS), field(a, E_LIMIT), field(a, E_WIDTH)
    query = carray(pointer(field(a, E_QUERY)), (rows, width), np.float32)
    offsets = carray(pointer(field(a, E_OFFSETS)), rows, np.int64)
    lengths = carray(pointer(field(a, E_LENGTHS)), rows, np.int64)
    out = carray(pointer(field(a, E_OUT)), (rows, limit), np.int64)
    row = next_task(a)
    while row < rows:
        start, length, taken = offsets[row], lengths[row], 0
        keys = carray(pointer(field(a, E_KEYS) + 4 * start * width), (length, width), np.float32)
        known = False
        for d in range(width):
            known |= query[row, d] != 0
        i = 0
        while known and i < length and taken < limit:
            d = 0
            while d < width and keys[i, d] == query[row, d]:
                d += 1
            if d == width:
                out[row, taken] = start + i
                taken += 1
            i += 1
        out[row, taken:] = -1
        row = next_task(a)


@njit(nogil=True)
def add_to_buckets(a: int) -> None:
    """sums[row, g] += values[i] for positions i of the row whose g-th part of the code is the row's."""
    rows, groups, width, dim = field(a, B_ROWS), field(a, B_GROUPS), field(a, B_WIDTH), field(a, B_DIM)
    mask = (np.uint64(1) << np.uint64(width)) - np.uint64(1)
    query = carray(pointer(field(a, B_QUERY)), rows, np.uint64)
    offsets = carray(pointer(field(a, B_OFFSETS)), rows, np.int64)
    lengths = carray(pointer(field(a, B_LENGTHS)), rows, np.int64)
    row = next_task(a)
    while row < rows:
        start, length = offsets[row], lengths[row]
        codes = carray(pointer(field(a, B_CODES) + 8 * start), length, np.uint64)
        values = carray(pointer(field(a, B_VALUES) + 4 * start * dim), (length, dim), np.float32)
        sums = carray(pointer(field(a, B_SUMS) + 4 * row * groups * dim), (groups, dim), np.float32)
        for i in range(length):
            other = codes[i] ^ query[row]
            for g in range(groups):
                if (other >> np.uint64(g * width)) & mask == 0:
                    for d in range(dim):
                        sums[g, d] += values[i, d]
        row = next_task(a)


@njit(nogil=True)
def add_from_buckets(a: int) -> None:
    """values[i] = Σ_g sums[row, g] over the buckets of position i: the gradient of `add_to_buckets`."""
    rows, groups, width, dim = field(a, B_ROWS), field(a, B_GROUPS), field(a, B_WIDTH), field(a, B_DIM)
    mask = (np.uint64(1) << np.uint64(width)) - np.uint64(1)
    query = carray(pointer(field(a, B_QUERY)), rows, np.uint64)
    offsets = carray(pointer(field(a, B_OFFSETS)), rows, np.int64)
    lengths = carray(pointer(field(a, B_LENGTHS)), rows, np.int64)
    row = next_task(a)
    while row < rows:
        start, length = offsets[row], lengths[row]
        codes = carray(pointer(field(a, B_CODES) + 8 * start), length, np.uint64)
        values = carray(pointer(field(a, B_VALUES) + 4 * start * dim), (length, dim), np.float32)
        sums = carray(pointer(field(a, B_SUMS) + 4 * row * groups * dim), (groups, dim), np.float32)
        for i in range(length):
            other = codes[i] ^ query[row]
            for g in range(groups):
                if (other >> np.uint64(g * width)) & mask == 0:
                    for d in range(dim):
                        values[i, d] += sums[g, d]
        row = next_task(a)
