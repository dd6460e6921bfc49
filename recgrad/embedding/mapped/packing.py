"""How rows of exported tables lie in their files.

    FP32   dim float32                  as trained
    FP16   dim float16
    BF16   dim bfloat16                 of tables that were trained so
    INT8   a bfloat16 scale, dim int8   value = scale · int8, |int8| ≤ 127; an even number of bytes

A row that was never trained is all zeros in a file that has room for it, and its value is drawn; to keep
the two apart, a first number (or scale) of +0 is written as another one of the same meaning.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from recgrad.kernels.simd import BF16, F16, F32, I8

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]
_LARGEST_HALF = 65504.0
_MOST = 127


@dataclass(frozen=True)
class Packing:
    """One way in which rows lie.

    Attributes:
        kind: as kernels know it.
        stride: bytes of a row of `dim` elements.
        pack: rows [n, dim] as bytes [n, stride].
        unpack: the way back.
    """

    kind: int
    stride: Callable[[int], int]
    pack: Callable[[Floats], Bytes]
    unpack: Callable[[Bytes, int], Floats]


def _bytes(array: npt.NDArray[Any]) -> Bytes:
    return np.ascontiguousarray(array).view(np.uint8)


def _pack_f32(rows: Floats) -> Bytes:
    rows = np.array(rows, np.float32)
    first = rows[:, 0]
    first[first == 0] = -0.0
    return _bytes(rows)


def _pack_f16(rows: Floats) -> Bytes:
    short = np.clip(rows, -_LARGEST_HALF, _LARGEST_HALF).astype(np.float16)
    first = short[:, 0]
    first[first == 0] = -0.0
    return _bytes(short)


def _bf16_bits(values: Floats, *, up: bool = False) -> npt.NDArray[np.uint16]:
    """The nearest bfloat16 (ties to even), or the next one that is not below where `up`."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32).astype(np.uint64)
    bits += np.uint64(0xFFFF) if up else np.uint64(0x7FFF) + ((bits >> np.uint64(16)) & np.uint64(1))
    return (bits >> np.uint64(16)).astype(np.uint16)


def _pack_bf16(rows: Floats) -> Bytes:
    bits = _bf16_bits(rows)
    first = bits[:, 0]
    first[first == 0] = 0x8000
    return _bytes(bits)


def _unpack_bf16(rows: Bytes, dim: int) -> Floats:
    return (rows.view(np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)


def _int8_stride(dim: int) -> int:
    return (dim + 3) // 2 * 2


def _pack_int8(rows: Floats) -> Bytes:
    """The scale is rounded before rows are divided by it, so that its rounding costs nothing."""
    largest = np.abs(rows).max(axis=1)
    bits = _bf16_bits(largest / np.float32(_MOST), up=True)
    bits[bits == 0] = 0x3F80  # 1: any scale will do for a row of zeros
    scale = (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
    packed = np.zeros((len(rows), _int8_stride(rows.shape[1])), np.uint8)
    packed[:, :2] = bits[:, None].view(np.uint8)
    whole = np.rint(rows / scale[:, None])
    packed[:, 2 : 2 + rows.shape[1]] = np.clip(whole, -_MOST, _MOST).astype(np.int8).view(np.uint8)
    return packed


def _unpack_int8(rows: Bytes, dim: int) -> Floats:
    scale = _unpack_bf16(np.ascontiguousarray(rows[:, :2]), 1)
    return scale * np.ascontiguousarray(rows[:, 2 : 2 + dim]).view(np.int8).astype(np.float32)


PACKINGS = {
    "FP32": Packing(F32, lambda dim: 4 * dim, _pack_f32, lambda rows, _: rows.view(np.float32)),
    "FP16": Packing(
        F16, lambda dim: 2 * dim, _pack_f16, lambda rows, _: rows.view(np.float16).astype(np.float32)
    ),
    "BF16": Packing(BF16, lambda dim: 2 * dim, _pack_bf16, _unpack_bf16),
    "INT8": Packing(I8, _int8_stride, _pack_int8, _unpack_int8),
}

PRECISIONS = ("FP32", "FP16", "INT8")
"""What a user may ask for."""


def packing_for(precision: str, data_type: str) -> str:
    """The packing of a table that was trained as `data_type`: never wider than that, nor than asked for."""
    if precision == "INT8":
        return "INT8"
    return "FP16" if precision == "FP16" and data_type == "FP32" else data_type
