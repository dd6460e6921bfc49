"""Exponentials of the scores of queries, in place, with their largest score and their sum.

A task is a query, which no other task writes to, so that results do not depend on the number of threads.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numba import njit
from torch import Tensor

from recgrad.kernels.compile import compiled
from recgrad.kernels.parallel import FIRST, launch, next_task
from recgrad.kernels.simd import LANES, add, field, load1, load16, splat16, store, subtract, total, zeros16
from recgrad.kernels.vector_math import exponential, largest, maximum

(E_ROWS, E_WIDTH, E_SCORES, E_TOPS, E_SUMS) = range(FIRST, FIRST + 5)
_STEP = 4 * LANES  # bytes of a vector


def fits_kernels(*tensors: Tensor) -> bool:
    """Whether the kernel takes these tensors, here and now."""
    if torch.compiler.is_compiling() or torch.is_autocast_enabled("cpu"):
        return False
    return all(x.device.type == "cpu" and x.dtype == torch.float32 for x in tensors)


def exponentials(scores: Tensor) -> tuple[Tensor, Tensor]:
    """Makes exp(s − top) of scores [rows, items] in place; the largest score of each row, and its sum."""
    rows, width = scores.shape
    tops, sums = torch.empty(rows), torch.empty(rows)
    arrays = scores.numpy(), tops.numpy(), sums.numpy()
    launch(compiled(exponentiate_rows), rows, width, *arrays, tasks=rows)
    return tops, sums


@njit(nogil=True)
def exponentiate_rows(a: int) -> None:
    """Scores become exponentials, row by row."""
    rows, width = field(a, E_ROWS), field(a, E_WIDTH)
    row = next_task(a)
    while row < rows:
        begin = field(a, E_SCORES) + 4 * width * row
        top = _largest(begin, width)
        store(field(a, E_TOPS) + 4 * row, top)
        store(field(a, E_SUMS) + 4 * row, _exponentiate(begin, width, top))
        row = next_task(a)


@njit(nogil=True)
def _largest(begin, width):  # type: ignore[no-untyped-def]
    """The largest of a row's numbers."""
    whole = width // LANES * LANES
    top = np.float32(-math.inf)
    one = other = splat16(top)
    for at in range(0, whole - LANES, 2 * LANES):
        one = maximum(one, load16(begin + 4 * at))
        other = maximum(other, load16(begin + 4 * at + _STEP))
    if whole % (2 * LANES):
        one = maximum(one, load16(begin + 4 * (whole - LANES)))
    top = largest(maximum(one, other))
    for at in range(whole, width):
        top = max(top, load1(begin + 4 * at))
    return top


@njit(nogil=True)
def _exponentiate(begin, width, top):  # type: ignore[no-untyped-def]
    """exp(s − top) in place of a row's s; their sum."""
    whole, tops = width // LANES * LANES, splat16(top)
    one = other = zeros16()
    for at in range(0, whole - LANES, 2 * LANES):
        x = exponential(subtract(load16(begin + 4 * at), tops))
        y = exponential(subtract(load16(begin + 4 * at + _STEP), tops))
        store(begin + 4 * at, x)
        store(begin + 4 * at + _STEP, y)
        one, other = add(one, x), add(other, y)
    if whole % (2 * LANES):
        x = exponential(subtract(load16(begin + 4 * (whole - LANES)), tops))
        store(begin + 4 * (whole - LANES), x)
        one = add(one, x)
    whole_sum = total(add(one, other))
    for at in range(whole, width):
        value = np.float32(math.exp(load1(begin + 4 * at) - top))
        store(begin + 4 * at, value)
        whole_sum += value
    return whole_sum
