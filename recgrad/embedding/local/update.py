"""The update kernel: sums each row's gradients and applies an optimizer's rule, in one pass.

A task is a range of distinct rows of one table, as the plan has cut them. Each row has one owner, so
nothing is atomic. For `staged_rows` rows at a time, few enough that memory, which is asked for while rows are
staged, has hardly time to stand still:

    memory, anywhere                     stage ──▶      on the stack of the thread, in the L1 cache
    gradients of row 0: g0 + g2 + g5                    g       [row 0 | row 1 | … ]   rows · dim, flat
    weights   slot of row 0, slot of row 1 …            w       [row 0 | row 1 | … ]
    state k   slot of row 0, slot of row 1 …            states  [row 0 | row 1 | … ]   one line a state
                                                             │
                                                        rule(w, g, states, rows, dim, h): one long loop over
                                                        rows · dim, which the compiler turns into vector code
    weights, states                      ◀── unstage         │

Why staged: rows lie scattered, each shorter than what vector code needs to be fast, and in several types; a
rule sees neither. What is asked for early (prefetch) arrives while earlier rows are summed. A row that is
new is drawn from its initialiser in `stage`; a row that has missed updates (HISTORY) is brought up to date
there; weight decay that is not the rule's own is applied there as well.

`stage` and `unstage` (staging.py) are called by address; a rule is inlined into `update_function`'s kernel.

What a thread stages lies apart from what any other writes: the allocator may hand out neighbours, and a cache
line that two cores write to goes to and fro between them with every row.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray, njit

from recgrad.embedding.local.ranges import (
    DIM,
    HYPER,
    HYPER_COLUMNS,
    STAGE,
    STATES,
    SUMS,
    UNSTAGE,
    begin_range,
    next_range,
    staged_rows,
    sum_rows,
)
from recgrad.kernels import simd
from recgrad.kernels.simd import field

_LINE_BYTES = 64
_APART_BYTES = 128  # processors fetch cache lines in pairs


@njit(nogil=True)
def reduce_tasks(a: int) -> None:
    """Only sum: the gradient of each distinct row, at the row's place in an array of [occurrences, dim]."""
    while True:
        job, first, last = next_range(a)
        if job < 0:
            return
        begin_range(a, job, first, last, False)
        sum_rows(a, job, first, last - first, field(a, SUMS) + 4 * first * field(a, DIM), False)


def update_function(rule: Any) -> Any:
    """The update with an optimizer's rule in it, still to be compiled."""

    def kernel(a: int) -> None:
        dim, count = field(a, DIM), max(field(a, STATES), 1)
        most = staged_rows(dim)
        size = most * dim
        room = np.empty((2 + count) * size + 2 * _APART_BYTES // 4, np.float32)
        columns = field(a, HYPER_COLUMNS)
        while True:
            job, first, last = next_range(a)
            if job < 0:
                return
            begin_range(a, job, first, last, True)
            # From the array each time: it lives as long as it is spoken of.
            at_w = (simd.address(room) + _APART_BYTES) & -_LINE_BYTES
            at_g, at_states = at_w + 4 * size, at_w + 8 * size
            w, g = carray(simd.pointer(at_w), size, np.float32), carray(simd.pointer(at_g), size, np.float32)
            states = carray(simd.pointer(at_states), (count, size), np.float32)
            h = carray(simd.pointer(field(a, HYPER) + 4 * job * columns), columns, np.float32)
            while first < last:
                rows = min(most, last - first)
                simd.call(field(a, STAGE), a, job, first, rows, at_w, at_g, at_states)
                rule(w, g, states, rows, dim, h)
                simd.call(field(a, UNSTAGE), a, job, first, rows, at_w, at_g, at_states)
                first += rows

    return kernel
