"""Kernels that copy columns of features between the blocks of holders and a matrix of the model.

Tasks are blocks of rows. A span is what a feature has in both: where its columns begin in the first row of
its block, how far it is to the next row, where they begin in the matrix, how many they are, and whether they
are added.
"""

from __future__ import annotations

import numpy as np
from numba import carray, njit

from recgrad.kernels.parallel import FIRST, next_task
from recgrad.kernels.simd import field, pointer

BLOCK = 256  # rows of a task
SPAN = 5

# What the argument block holds: int64 numbers and addresses.
(ROWS, SPANS, WIDTH, TOTAL, TABLE, BLOCKS, MATRIX, SHARE) = range(FIRST, FIRST + 8)


@njit(nogil=True)
def take_columns(a: int) -> None:
    """matrix[row, columns] = blocks[row, columns], for each span."""
    rows, count, width = field(a, ROWS), field(a, SPANS), field(a, WIDTH)
    table = carray(pointer(field(a, TABLE)), (count, SPAN), np.int64)
    blocks = carray(pointer(field(a, BLOCKS)), field(a, TOTAL), np.float32)
    matrix = carray(pointer(field(a, MATRIX)), (rows, width), np.float32)
    task = next_task(a)
    while task * BLOCK < rows:
        for row in range(task * BLOCK, min(rows, (task + 1) * BLOCK)):
            for s in range(count):
                start, at = table[s, 0] + row * table[s, 1], table[s, 2]
                for i in range(table[s, 3]):
                    matrix[row, at + i] = blocks[start + i]
        task = next_task(a)


@njit(nogil=True)
def put_columns(a: int) -> None:
    """blocks[row, columns] = matrix[row, columns] · share, or that added to what is there, for each span."""
    rows, count, width = field(a, ROWS), field(a, SPANS), field(a, WIDTH)
    table = carray(pointer(field(a, TABLE)), (count, SPAN), np.int64)
    blocks = carray(pointer(field(a, BLOCKS)), field(a, TOTAL), np.float32)
    matrix = carray(pointer(field(a, MATRIX)), (rows, width), np.float32)
    share = carray(pointer(field(a, SHARE)), 1, np.float32)[0]
    task = next_task(a)
    while task * BLOCK < rows:
        for row in range(task * BLOCK, min(rows, (task + 1) * BLOCK)):
            for s in range(count):
                start, at = table[s, 0] + row * table[s, 1], table[s, 2]
                if table[s, 4]:
                    for i in range(table[s, 3]):
                        blocks[start + i] += matrix[row, at + i] * share
                else:
                    for i in range(table[s, 3]):
                        blocks[start + i] = matrix[row, at + i] * share
        task = next_task(a)
