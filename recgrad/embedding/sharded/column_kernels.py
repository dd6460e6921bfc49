"""Kernels that copy vectors of bags and their gradients, all float32 in memory of this rank.

    take_columns   matrix[row, columns]    =  vectors[bag of row], for each span
    put_columns    gradients[bag of row]  +=  matrix[row, columns] · share, for each span
    pack_vectors   flat                    =  the vectors that a block has for each of the ranks
    unpack_vectors                            and back

A span is a feature in a matrix of the model. Its bags are the rows of the batch; or each is a distinct id,
and a code says which one a row has (−1: none, its columns are zeros). Gradients of an id are added up in the
order of rows, by one thread, so that sums do not depend on the number of threads.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from recgrad.embedding.local.rows import ZERO, copy, copy_wide
from recgrad.kernels import simd
from recgrad.kernels.compile import Wanted
from recgrad.kernels.parallel import FIRST, next_task
from recgrad.kernels.simd import field, load_i32

BLOCK = 256  # rows of a task
ROWS_AHEAD = 8  # between asking for the gradient of a row and reading it
GROUP = 16  # spans of a task: neighbours in the matrix, which is read row by row

# A span: address of the first vector, bytes to the next, first column in the matrix, number of columns,
# address of the codes (0: a bag is a row), whether gradients are added to what is there (to ids' they always
# are).
SPAN_VECTORS, SPAN_STRIDE, SPAN_COLUMN, SPAN_DIM, SPAN_CODES, SPAN_ADD, SPAN = range(7)

# A line of what a rank wants: address of the first vector in the block, bytes to the next, address in the
# flat memory where they lie one after another, how many they are, and the dim.
LINE_VECTORS, LINE_STRIDE, LINE_FLAT, LINE_COUNT, LINE_DIM, LINE = range(6)

# Arguments of the first two: int64 numbers and addresses.
ROWS, COUNT, WIDTH, SPANS, MATRIX, SHARE = range(FIRST, FIRST + 6)
# Arguments of the others: how many lines there are for each rank, and tasks, `BLOCK` vectors of each line.
RANKS, LINES_OF_RANK, BLOCKS_OF_RANK, LINES = range(FIRST, FIRST + 4)


@njit(nogil=True, inline="always")
def _copy(source: int, target: int, dim: int) -> None:
    if dim % 16 == 0:
        copy_wide(source, target, dim)
    else:
        copy(source, target, dim)


@njit(nogil=True)
def _clear(target: int, dim: int) -> None:
    for d in range(dim):
        simd.store(target + 4 * d, ZERO)


@njit(nogil=True)
def take_columns(a: int) -> None:
    """The columns of all spans; tasks are blocks of rows."""
    rows, count, spans = field(a, ROWS), field(a, COUNT), field(a, SPANS)
    task = next_task(a)
    while task * BLOCK < rows:
        for row in range(task * BLOCK, min(rows, (task + 1) * BLOCK)):
            line = field(a, MATRIX) + 4 * field(a, WIDTH) * row
            for s in range(count):
                span = spans + 8 * SPAN * s
                codes, dim = field(span, SPAN_CODES), field(span, SPAN_DIM)
                bag: Any = row
                if codes != 0:
                    bag = np.int64(load_i32(codes + 4 * row))
                target = line + 4 * field(span, SPAN_COLUMN)
                if bag < 0:
                    _clear(target, dim)
                else:
                    _copy(field(span, SPAN_VECTORS) + bag * field(span, SPAN_STRIDE), target, dim)
        task = next_task(a)


@njit(nogil=True, inline="always")
def _put_part(zero, source, target, share, added):  # type: ignore[no-untyped-def]
    """target = source · share, or that added, of as many elements as `zero` has."""
    x = simd.multiply(simd.load(zero, source), simd.splat(zero, share))
    simd.store(target, simd.add(simd.load(zero, target), x) if added else x)


@njit(nogil=True)
def _put(source, target, dim, share, added):  # type: ignore[no-untyped-def]
    d = 0
    while d + 16 <= dim:
        _put_part(simd.zeros16(), source + 4 * d, target + 4 * d, share, added)
        d += 16
    while d + 4 <= dim:
        _put_part(simd.zeros4(), source + 4 * d, target + 4 * d, share, added)
        d += 4
    while d < dim:
        _put_part(ZERO, source + 4 * d, target + 4 * d, share, added)
        d += 1


@njit(nogil=True)
def put_columns(a: int) -> None:
    """The gradients of all spans, of which no two are of one feature; tasks are groups of spans."""
    rows, count, spans = field(a, ROWS), field(a, COUNT), field(a, SPANS)
    share = simd.load1(field(a, SHARE))
    task = next_task(a)
    while task * GROUP < count:
        for row in range(rows):
            line = field(a, MATRIX) + 4 * field(a, WIDTH) * row
            ahead = line + 4 * field(a, WIDTH) * ROWS_AHEAD
            for s in range(task * GROUP, min(count, (task + 1) * GROUP)):
                span = spans + 8 * SPAN * s
                simd.prefetch(ahead + 4 * field(span, SPAN_COLUMN))
                codes, added = field(span, SPAN_CODES), field(span, SPAN_ADD) != 0
                bag: Any = row
                if codes != 0:
                    bag, added = np.int64(load_i32(codes + 4 * row)), True
                if bag >= 0:
                    target = field(span, SPAN_VECTORS) + bag * field(span, SPAN_STRIDE)
                    _put(line + 4 * field(span, SPAN_COLUMN), target, field(span, SPAN_DIM), share, added)
        task = next_task(a)


@njit(nogil=True, inline="always")
def _pack(a, back):  # type: ignore[no-untyped-def]
    """Between a block and the flat memory; tasks are blocks of vectors of all lines of a rank."""
    count, blocks = field(a, LINES_OF_RANK), field(a, BLOCKS_OF_RANK)
    task = next_task(a)
    while task < field(a, RANKS) * blocks:
        rank, first = task // blocks, BLOCK * (task % blocks)
        for i in range(rank * count, (rank + 1) * count):
            line = field(a, LINES) + 8 * LINE * i
            dim, stride = field(line, LINE_DIM), field(line, LINE_STRIDE)
            vectors, flat = field(line, LINE_VECTORS), field(line, LINE_FLAT)
            for bag in range(first, min(first + BLOCK, field(line, LINE_COUNT))):
                if back:
                    _copy(flat + 4 * dim * bag, vectors + stride * bag, dim)
                else:
                    _copy(vectors + stride * bag, flat + 4 * dim * bag, dim)
        task = next_task(a)


@njit(nogil=True)
def pack_vectors(a: int) -> None:
    """From the block."""
    _pack(a, False)


@njit(nogil=True)
def unpack_vectors(a: int) -> None:
    """Into the block."""
    _pack(a, True)


def kernels() -> list[Wanted]:
    """All of them, in the order of need."""
    return [Wanted(function) for function in (pack_vectors, take_columns, put_columns, unpack_vectors)]
