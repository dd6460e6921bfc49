"""The direction in which a row moves on and the number of its last update, as they lie behind its weights.

Every lookup reads both, so the number should cost no cache line of its own. Where rows fill whole lines
(dims that are multiples of 16), it is in the two lowest bits of the first 16 elements of the direction,
which loses 2 of their 24 bits; for other dims it follows the direction.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

LANES = 16
_BITS = np.uint32(3)
_ONE = np.uint32(1)
_LOWER = np.arange(LANES, dtype=np.uint32)  # lane i has bits i and 16 + i of the number
_UPPER = _LOWER + np.uint32(LANES)


def line_width(dim: int) -> int:
    """How many float32 lie behind the weights of a row."""
    return dim + (dim % LANES != 0)


def pack(headings: Array, steps: Array) -> Array:
    """Lines [rows, line_width] of directions, float32 [rows, dim], and last updates, int32 [rows]."""
    dim = headings.shape[1]
    bits = np.array(headings, np.float32).view(np.uint32)
    bits[:, : dim // LANES * LANES] &= ~_BITS  # whole vectors are read without them
    numbers = steps.astype(np.uint32)[:, None]
    if dim % LANES:
        return np.concatenate([bits, numbers], axis=1).view(np.float32)
    bits[:, :LANES] |= ((numbers >> _LOWER) & _ONE) | (((numbers >> _UPPER) & _ONE) << _ONE)
    return bits.view(np.float32)


def unpack(lines: Array, dim: int) -> tuple[Array, Array]:
    """Directions, float32 [rows, dim], and last updates, int32 [rows], of lines."""
    bits = np.array(lines, np.float32).view(np.uint32)
    if dim % LANES:
        steps = bits[:, dim].view(np.int32).copy()
    else:
        lanes = bits[:, :LANES]
        parts = ((lanes & _ONE) << _LOWER) | (((lanes >> _ONE) & _ONE) << _UPPER)
        steps = np.bitwise_or.reduce(parts, axis=1).view(np.int32)
    headings = bits[:, :dim].copy()
    headings[:, : dim // LANES * LANES] &= ~_BITS
    return headings.view(np.float32), steps
