"""The peak of this machine's multiply-adds, which nothing that multiplies matrices here can pass."""

from __future__ import annotations

import time

import numpy as np
from numba import njit

from recgrad.kernels.compile import compiled
from recgrad.kernels.parallel import FIRST, launch, next_task
from recgrad.kernels.products import TILES
from recgrad.kernels.simd import LANES, LINE, add, field, load16, multiply_add, store

STEPS, TASKS = 20_000, 128
SUMS = 12 if TILES.most > 1 else 6  # of 16 numbers: as many as the registers hold beside two factors
COUNT, FACTORS, STARTS, RESULTS = range(FIRST, FIRST + 4)


@njit
def _six(a, b, starts, steps, to):  # type: ignore[no-untyped-def]
    """Six sums at once: each multiply-add waits for the one before it, and for no other."""
    c0, c1, c2 = load16(starts), load16(starts + LINE), load16(starts + 2 * LINE)
    c3, c4, c5 = load16(starts + 3 * LINE), load16(starts + 4 * LINE), load16(starts + 5 * LINE)
    for _ in range(steps):
        c0, c1, c2 = multiply_add(a, b, c0), multiply_add(a, b, c1), multiply_add(a, b, c2)
        c3, c4, c5 = multiply_add(a, b, c3), multiply_add(a, b, c4), multiply_add(a, b, c5)
    store(to, add(add(add(c0, c1), add(c2, c3)), add(c4, c5)))


@njit
def _twelve(a, b, starts, steps, to):  # type: ignore[no-untyped-def]
    """The same with twelve."""
    c0, c1, c2 = load16(starts), load16(starts + LINE), load16(starts + 2 * LINE)
    c3, c4, c5 = load16(starts + 3 * LINE), load16(starts + 4 * LINE), load16(starts + 5 * LINE)
    c6, c7, c8 = load16(starts + 6 * LINE), load16(starts + 7 * LINE), load16(starts + 8 * LINE)
    c9, c10, c11 = load16(starts + 9 * LINE), load16(starts + 10 * LINE), load16(starts + 11 * LINE)
    for _ in range(steps):
        c0, c1, c2 = multiply_add(a, b, c0), multiply_add(a, b, c1), multiply_add(a, b, c2)
        c3, c4, c5 = multiply_add(a, b, c3), multiply_add(a, b, c4), multiply_add(a, b, c5)
        c6, c7, c8 = multiply_add(a, b, c6), multiply_add(a, b, c7), multiply_add(a, b, c8)
        c9, c10, c11 = multiply_add(a, b, c9), multiply_add(a, b, c10), multiply_add(a, b, c11)
    found = add(add(add(c0, c1), add(c2, c3)), add(add(c4, c5), add(c6, c7)))
    store(to, add(found, add(add(c8, c9), add(c10, c11))))


_sums = _twelve if SUMS > 6 else _six


@njit(nogil=True)
def multiply_add_tasks(a: int) -> None:
    """Sums of products that stay in registers, from one load to one store a task."""
    task = next_task(a)
    while task < field(a, COUNT):
        factors = field(a, FACTORS)
        _sums(
            load16(factors), load16(factors + LINE), field(a, STARTS), STEPS, field(a, RESULTS) + LINE * task
        )
        task = next_task(a)


def multiply_add_rate(rounds: int = 5) -> float:
    """Floating-point operations a second of multiply-adds alone on all threads, the best of some rounds."""
    factors = np.stack([np.full(LANES, 0.5), np.full(LANES, 0.25)]).astype(np.float32)
    starts = np.arange(SUMS * LANES, dtype=np.float32)
    results = np.empty((TASKS, LANES), np.float32)
    kernel = compiled(multiply_add_tasks)
    seconds = []
    for _ in range(rounds + 1):
        start = time.perf_counter()
        launch(kernel, TASKS, factors, starts, results, tasks=TASKS)
        seconds.append(time.perf_counter() - start)
    expected = starts.reshape(SUMS, LANES).sum(0) + SUMS * STEPS * 0.5 * 0.25
    np.testing.assert_allclose(results, np.tile(expected, (TASKS, 1)), rtol=1e-4)
    return 2.0 * TASKS * SUMS * STEPS * LANES / min(seconds[1:])
