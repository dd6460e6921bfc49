"""Memory that is reserved whole and paid for by the page, so that a table grows without a copy."""

from __future__ import annotations

import ctypes
import mmap
import sys
import threading
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from recgrad.errors import RecgradError

HUGE_PAGE_BYTES = 2 << 20
_LINE_BYTES = 64
_LEAST_REGION_BYTES = 64 << 10  # smaller arrays are the allocator's
_NORESERVE = 0x4000  # MAP_NORESERVE on Linux: pages count against the limit when they are touched
_ADVISE_HUGE = 14  # MADV_HUGEPAGE
_GOLDEN = 0.6180339887498949


class Region:
    """Zeroed memory of a fixed address, backed by pages only where it was written.

    Args:
        size: bytes to reserve.
        what: what it is for, as the error says it when the address space is exhausted.
        huge_after: bytes at the start that stay on small pages; beyond them the kernel is
            asked for huge ones, which spare address translation but come 2 MB at a time.
        phase: 0 … 1, how far into a huge page a large region begins. Regions that grow at the same pace
            then come to their next huge pages at different times, not all at once.
    """

    def __init__(self, size: int, what: str, huge_after: int = 0, phase: float = 0.0) -> None:
        self.size = max(size, 1)
        self._map: Any  # keeps the memory
        if huge_after == 0 and self.size < HUGE_PAGE_BYTES:
            self._map, self.address = _carve(self.size)
            return
        reserved = self.size + 2 * HUGE_PAGE_BYTES
        shift = int(phase * HUGE_PAGE_BYTES) // mmap.PAGESIZE * mmap.PAGESIZE
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | (_NORESERVE if sys.platform == "linux" else 0)
        try:
            self._map = mmap.mmap(-1, reserved, flags=flags)
        except (OSError, OverflowError, ValueError) as error:
            raise RecgradError(
                f"{what}: cannot reserve {reserved / 2**30:.1f} GiB of address space ({error}); "
                "lower num_rows or raise the limit (ulimit -v, vm.overcommit_memory)"
            ) from error
        start = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        aligned = -(-start // HUGE_PAGE_BYTES) * HUGE_PAGE_BYTES
        self.address = aligned + shift
        # A page that the region begins in the middle of would be paid for whole.
        first = -(-max(huge_after, shift) // HUGE_PAGE_BYTES) * HUGE_PAGE_BYTES
        if self.size + shift - first >= HUGE_PAGE_BYTES:
            advise_huge(aligned + first, self.size + shift - first)

    def array(self, dtype: npt.DTypeLike, shape: Sequence[int]) -> npt.NDArray[Any]:
        """The memory from its start on as an array, which keeps the region alive."""
        count = int(np.prod(shape, dtype=np.int64))
        size = count * np.dtype(dtype).itemsize
        if size > self.size:
            raise ValueError(f"an array of {size} bytes must fit into {self.size} bytes")
        buffer = (ctypes.c_char * size).from_address(self.address)
        weakref.finalize(buffer, _release, self)
        return np.frombuffer(memoryview(buffer), dtype=dtype, count=count).reshape(shape)


def address_of(array: npt.NDArray[Any]) -> int:
    """Where an array begins."""
    address: int = array.__array_interface__["data"][0]
    return address


def spread_phase(number: int) -> float:
    """A phase for the region of this number: evenly spread, however many there are (Weyl 1916)."""
    return (_GOLDEN * number) % 1.0


def for_a_while(
    shape: Sequence[int], dtype: npt.DTypeLike, *, zeroed: bool = False, phase: float = 0.0
) -> npt.NDArray[Any]:
    """Memory that is given back when nobody has the array any more: of huge pages where it is large.

    The allocator would take the blocks for it that steps free and take again, which then pay for new pages,
    and would never give them back. A huge page is there in a fraction of the time of 512 small ones; arrays
    that are smaller share some. For `phase` see `Region`.
    """
    size = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
    if size < _LEAST_REGION_BYTES:
        return np.zeros(shape, dtype) if zeroed else np.empty(shape, dtype)
    return Region(size, "rows of a checkpoint", phase=phase).array(dtype, shape)


_CHUNK_BYTES = 8 << 20
_carving = threading.Lock()
_chunk: list[Any] = []  # the newest chunk and how much of it is taken


def _carve(size: int) -> tuple[Any, int]:
    """Memory for a small region: small ones lie together, so that they have huge pages too.

    Returns what keeps it alive, and its address. A chunk lives as long as one of its regions.
    """
    size = -(-size // _LINE_BYTES) * _LINE_BYTES
    with _carving:
        if not _chunk or _chunk[1] + size > _CHUNK_BYTES:
            _chunk[:] = [Region(_CHUNK_BYTES, "small tables"), 0]
        chunk, taken = _chunk
        _chunk[1] = taken + size
    return chunk, chunk.address + taken


def _release(region: Region) -> None:
    """Nothing: being an argument of the finaliser has kept the region alive."""


def advise_huge(address: int, size: int) -> bool:
    """Ask the kernel for huge pages; whether it took it. A refusal costs speed, never correctness."""
    if sys.platform != "linux":
        return False
    page = mmap.PAGESIZE
    length = -(-size // page) * page
    advice = (ctypes.c_void_p(address), ctypes.c_size_t(length), ctypes.c_int(_ADVISE_HUGE))
    return bool(ctypes.CDLL(None).madvise(*advice) == 0)
