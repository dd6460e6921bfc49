"""Group and session keys as int64, the same in every batch and on every rank."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Keys = Tensor | npt.NDArray[np.generic] | Sequence[int] | Sequence[str]


def keys_of(key: Keys, rows: int, name: str) -> Tensor:
    """Keys [rows] as int64; strings are hashed to 64 bits.

    Two different strings meet with probability of about groups² / 2⁶⁵: 3·10⁻⁸ for a million groups.
    """
    if not isinstance(key, Tensor):
        array = np.asarray(key)
        if array.dtype.kind in "OUS":
            array = hash_strings(array.reshape(-1))
        elif array.dtype.kind == "u" and array.dtype.itemsize == 8:
            array = array.view(np.int64)
        key = torch.from_numpy(np.ascontiguousarray(array))
    key = key.detach().reshape(-1)
    if key.is_floating_point() and key.numel():
        raise ValueError(f"{name}: keys must be integers or strings, got {key.dtype}")
    if key.numel() != rows:
        raise ValueError(f"{name}: there must be one key for each of {rows} rows, got {key.numel()}")
    return key.to(torch.int64)


def hash_strings(strings: npt.NDArray[np.generic]) -> npt.NDArray[np.int64]:
    """A 64-bit hash of each string's UTF-8 bytes: FNV-1a, then a finishing mix; works on all rows at once."""
    if strings.size == 0:
        return np.zeros(0, dtype=np.int64)
    encoded = (
        strings.astype(np.bytes_) if strings.dtype.kind == "S" else np.char.encode(strings.astype(np.str_))
    )
    width = encoded.dtype.itemsize
    codes = np.ascontiguousarray(encoded).view(np.uint8).reshape(len(encoded), width)
    lengths = np.char.str_len(encoded)
    hashes = np.full(len(strings), 0xCBF29CE484222325, dtype=np.uint64)
    for position in range(width):
        longer = lengths > position
        hashes[longer] = (hashes[longer] ^ codes[longer, position]) * np.uint64(0x100000001B3)
    hashes ^= hashes >> np.uint64(33)
    hashes *= np.uint64(0xFF51AFD7ED558CCD)
    hashes ^= hashes >> np.uint64(33)
    return hashes.view(np.int64)
