"""Rows as D × uint8 with a float16 scale and offset: what TorchEasyRec calls INT8 in deltas.

offset = fp16(min), range = max − offset, scale = fp16(range / 255), or 1 where that is 0;
q = clip(rint((x − offset) / scale), 0, 255); back: q · scale + offset.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

_TAIL = 4  # bytes of scale and offset


def quantize(rows: npt.NDArray[np.float32]) -> npt.NDArray[np.uint8]:
    """Rows [n, dim] as bytes [n, dim + 4].

    Raises:
        ValueError: a value is not finite, or too large for float16.
    """
    if not len(rows):
        return np.empty((0, rows.shape[1] + _TAIL), np.uint8)
    if not np.isfinite(rows).all():
        raise ValueError("a value is not finite")
    with np.errstate(over="ignore"):
        offset = rows.min(axis=1).astype(np.float16)
        scale = ((rows.max(axis=1) - offset.astype(np.float32)) / np.float32(255)).astype(np.float16)
    if not (np.isfinite(offset).all() and np.isfinite(scale).all()):
        raise ValueError("a value is beyond what float16 holds, 65504")
    scale[scale <= 0] = 1
    whole = (rows - offset.astype(np.float32)[:, None]) / scale.astype(np.float32)[:, None]
    packed = np.empty((len(rows), rows.shape[1] + _TAIL), np.uint8)
    packed[:, :-_TAIL] = np.clip(np.rint(whole), 0, 255).astype(np.uint8)
    packed[:, -_TAIL:-2] = scale[:, None].view(np.uint8)
    packed[:, -2:] = offset[:, None].view(np.uint8)
    return packed


def dequantize(packed: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
    """The way back."""
    tail = np.ascontiguousarray(packed[:, -_TAIL:]).view(np.float16).astype(np.float32)
    return packed[:, :-_TAIL].astype(np.float32) * tail[:, :1] + tail[:, 1:]
