"""Array files: named raw arrays behind a JSON header, in the layout of safetensors.

    8 bytes   length H of the header, little-endian
    H bytes   JSON: {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, …},
              padded with spaces so that the data starts at a multiple of 64
    the rest  the arrays, little-endian, C order, without gaps, widest type first, so that each
              lies at a multiple of its item size and can be memory-mapped

Offsets count from the start of the data. "__metadata__" maps strings to strings. Any program
that reads safetensors reads these files; none of their bytes is ever executed.
"""

from __future__ import annotations

import math
import mmap
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from recgrad.errors import CheckpointError
from recgrad.training.checkpoint.files import (
    FileRecord,
    dump_json,
    open_regular,
    parse_json,
    reason_of,
    require,
    write_blocks,
)
from recgrad.training.checkpoint.snapshot import AnyArray

ALIGNMENT = 64
MAX_HEADER_BYTES = 64 << 20
METADATA = "__metadata__"

# numpy has no bfloat16 and no float8: their bytes travel as integers of the same width, and
# only torch gives them their type back.
_TORCH_TYPES: dict[str, tuple[torch.dtype, str]] = {
    "F64": (torch.float64, "<f8"),
    "F32": (torch.float32, "<f4"),
    "F16": (torch.float16, "<f2"),
    "BF16": (torch.bfloat16, "<i2"),
    "F8_E4M3": (torch.float8_e4m3fn, "|i1"),
    "F8_E5M2": (torch.float8_e5m2, "|i1"),
    "C64": (torch.complex64, "<c8"),
    "I64": (torch.int64, "<i8"),
    "I32": (torch.int32, "<i4"),
    "I16": (torch.int16, "<i2"),
    "I8": (torch.int8, "|i1"),
    "U64": (torch.uint64, "<u8"),
    "U32": (torch.uint32, "<u4"),
    "U16": (torch.uint16, "<u2"),
    "U8": (torch.uint8, "|u1"),
    "BOOL": (torch.bool, "|b1"),
}
_NOT_IN_NUMPY = ("BF16", "F8_E4M3", "F8_E5M2")
_NAME_OF_TORCH = {torch_type: name for name, (torch_type, _) in _TORCH_TYPES.items()}
_NAME_OF_NUMPY = {
    np.dtype(numpy_type): name for name, (_, numpy_type) in _TORCH_TYPES.items() if name not in _NOT_IN_NUMPY
}


@dataclass(frozen=True)
class RawArray:
    """An array as stored: the safetensors name of its type, and its bytes as a numpy array."""

    dtype: str
    data: AnyArray

    @staticmethod
    def of_numpy(array: AnyArray) -> RawArray:
        """A numpy array; big-endian ones are turned."""
        little = np.asarray(array, dtype=array.dtype.newbyteorder("<"), order="C")
        name = _NAME_OF_NUMPY.get(little.dtype)
        if name is None:
            raise CheckpointError(f"arrays of dtype {array.dtype} cannot be stored in a checkpoint")
        return RawArray(name, little)

    @staticmethod
    def of_tensor(tensor: torch.Tensor) -> RawArray:
        """A dense tensor of any device; no copy if it is on the CPU and contiguous."""
        name = _NAME_OF_TORCH.get(tensor.dtype)
        if name is None or tensor.layout != torch.strided:
            raise CheckpointError(
                f"tensors of {tensor.dtype}, {tensor.layout} cannot be stored in a checkpoint"
            )
        plain = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
        if name in _NOT_IN_NUMPY:
            plain = plain.view(torch.int16 if name == "BF16" else torch.int8)
        return RawArray(name, plain.numpy())

    def numpy(self) -> AnyArray:
        """The array; bfloat16 and float8 widen to float32, which holds them exactly."""
        if self.dtype in _NOT_IN_NUMPY:
            wide: AnyArray = self.tensor().to(torch.float32).numpy()
            return wide
        return self.data

    def tensor(self) -> torch.Tensor:
        """The array as a tensor over the same memory."""
        tensor = torch.from_numpy(self.data)
        return tensor.view(_TORCH_TYPES[self.dtype][0])


@dataclass(frozen=True)
class ArrayFile:
    """The content of an array file."""

    arrays: dict[str, RawArray]
    metadata: dict[str, str]


def write_array_file(
    folder: Path, path: str, arrays: Mapping[str, RawArray], metadata: Mapping[str, str]
) -> FileRecord:
    """Write `folder/path`, a new file."""
    ordered = sorted(arrays.items(), key=lambda item: (-item[1].data.itemsize, item[0]))
    header: dict[str, Any] = {METADATA: dict(metadata)}
    offset = 0
    for name, array in ordered:
        end = offset + array.data.nbytes
        header[name] = {"dtype": array.dtype, "shape": list(array.data.shape), "data_offsets": [offset, end]}
        offset = end
    text = dump_json(header)
    text += b" " * (-(len(text) + 8) % ALIGNMENT)
    if len(text) > MAX_HEADER_BYTES:
        raise CheckpointError(f"{path}: the header would take {len(text)} bytes, over {MAX_HEADER_BYTES}")
    blocks: list[bytes | memoryview] = [len(text).to_bytes(8, "little") + text]
    blocks.extend(array.data.reshape(-1).view(np.uint8).data for _, array in ordered if array.data.nbytes)
    return write_blocks(folder, path, blocks)


def read_array_file(path: Path) -> ArrayFile:
    """Map an array file into memory; pages are read when they are touched.

    The mapping is private: the arrays can be written to without changing the file.
    """
    descriptor = open_regular(path)
    try:
        size = os.fstat(descriptor).st_size
        if size < 8:
            raise CheckpointError(f"{path}: has {size} bytes, too few for a header")
        mapped = mmap.mmap(descriptor, size, access=mmap.ACCESS_COPY)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: cannot be mapped ({reason_of(error)})") from error
    finally:
        os.close(descriptor)
    length = int.from_bytes(mapped[:8], "little")
    if length > min(size - 8, MAX_HEADER_BYTES):
        raise CheckpointError(f"{path}: the header claims {length} bytes, the file has {size}")
    header = parse_json(mapped[8 : 8 + length], str(path))
    require(isinstance(header, dict), path, "the header is not an object")
    metadata = header.pop(METADATA, {})
    require(
        isinstance(metadata, dict) and all(isinstance(value, str) for value in metadata.values()),
        path,
        f"{METADATA} is not a map of strings",
    )
    require(length % 8 == 0, path, "the data does not start at a multiple of 8")
    data = np.frombuffer(mapped, np.uint8, offset=8 + length)
    arrays = {name: _array(path, name, entry, data) for name, entry in header.items()}
    return ArrayFile(arrays, metadata)


def _array(path: Path, name: str, entry: Any, data: AnyArray) -> RawArray:
    where = f"array {name[:200]!r}"
    require(isinstance(entry, dict), path, f"{where} is not an object")
    dtype, shape, offsets = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
    require(isinstance(dtype, str) and dtype in _TORCH_TYPES, path, f"{where} has an unknown dtype")
    require(_sizes(shape) and len(shape) <= 32, path, f"{where} has no valid shape")
    require(_sizes(offsets) and len(offsets) == 2, path, f"{where} has no valid data_offsets")
    item = np.dtype(_TORCH_TYPES[dtype][1])
    start, end = offsets
    require(
        start <= end <= len(data)
        and start % item.itemsize == 0
        and end - start == math.prod(shape) * item.itemsize,
        path,
        f"{where} does not fit its shape and the file",
    )
    try:
        raw = data[start:end].view(item).reshape(shape)
    except (ValueError, OverflowError) as error:
        raise CheckpointError(f"{path}: {where} has an impossible shape ({error})") from error
    return RawArray(dtype, raw)


def _sizes(value: Any) -> bool:
    return isinstance(value, list) and all(type(v) is int and 0 <= v < 1 << 62 for v in value)
