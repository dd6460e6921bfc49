"""Stored rows of any type as NumPy sees them: [rows, dim], float32, or uint16 for short types."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from recgrad.kernels.simd import BF16, F16, F32

Array = npt.NDArray[Any]


def stored_of(lines: Array, kind: int, dim: int) -> Array:
    """The weights of lines of bytes, [lines, dim]."""
    item = 4 if kind == F32 else 2
    return lines[:, : dim * item].view(np.float32 if kind == F32 else np.uint16)


def floats_of(lines: Array, place: int, width: int) -> Array:
    """Some float32 of lines of bytes, [lines, width]."""
    return lines[:, 4 * place : 4 * (place + width)].view(np.float32)


def first_bits(stored: Array, kind: int) -> Array:
    """The bits of each row's first element; 0 where it was never written."""
    return np.asarray(stored[:, 0].view(np.uint32 if kind == F32 else np.uint16))


def as_floats(stored: Array, kind: int) -> Array:
    """Rows as float32, a copy."""
    if kind == F16:
        stored = stored.view(np.float16)
    elif kind == BF16:
        stored = (stored.astype(np.uint32) << 16).view(np.float32)
    return np.asarray(stored, dtype=np.float32) + np.float32(0)  # −0 marks a written row; show +0


def from_floats(weights: Array, kind: int) -> Array:
    """float32 as rows are stored, rounded to nearest and marked as written."""
    short = {F32: torch.float32, F16: torch.float16, BF16: torch.bfloat16}[kind]
    integer, zero = (torch.int32, -(1 << 31)) if kind == F32 else (torch.int16, -(1 << 15))
    bits = torch.from_numpy(weights).to(short).view(integer)
    bits = bits.clone() if kind == F32 else bits
    bits[:, 0] = torch.where(bits[:, 0] == 0, zero, bits[:, 0])
    return np.asarray(bits.numpy().view(np.float32 if kind == F32 else np.uint16))
