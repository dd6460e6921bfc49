"""Memory of a worker: what it has, and giving back what the allocators keep for later."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache

import pyarrow as pa

STEP_BYTES = 32 << 20
"""By how much resident memory may grow before what is free is given back."""


def resident_bytes() -> int:
    """Resident memory of this process; 0 where the system does not tell."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * 4096
    except (OSError, ValueError):
        return 0


def give_back() -> None:
    """Return what is free to the system: a large body leaves holes that malloc would keep for ever."""
    pa.default_memory_pool().release_unused()
    trim = _malloc_trim()
    if trim is not None:
        trim(0)


class MemoryWatch:
    """Gives memory back when there is much more than after the last time.

    Args:
        resident: tells how much there is.
        give_back: returns what is free to the system.
        step_bytes: how much more.
    """

    def __init__(
        self,
        resident: Callable[[], int] = resident_bytes,
        give_back: Callable[[], None] = give_back,
        step_bytes: int = STEP_BYTES,
    ) -> None:
        self._resident, self._give_back, self._step = resident, give_back, step_bytes
        self._least = resident()

    def look(self) -> int:
        """Resident memory, after what is free was given back if there was reason to."""
        now = self._resident()
        if now > self._least + self._step:
            self._give_back()
            now = self._least = self._resident()
        self._least = min(self._least, now)
        return now


@cache
def _malloc_trim() -> Callable[[int], int] | None:
    """glibc's; None where the C library has none."""
    try:
        return ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError):
        return None
