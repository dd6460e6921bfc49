"""The memory of a living table's index, which grows with its keys and never in one step.

A larger index costs pages, which the system zeroes when they are first written (keys lie everywhere, so the
first batch would have them all), and entries to be moved. The first is spread over the batches that fill the
index before it, the second over those that follow.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from recgrad.embedding.local.living import layout as at
from recgrad.embedding.local.living.index import MAX_LOAD
from recgrad.embedding.local.living.rows import settle_task
from recgrad.embedding.local.memory import Region
from recgrad.kernels.compile import compiled
from recgrad.kernels.parallel import launch

Array = npt.NDArray[Any]
_LEAST = 1024  # entries


class Reserve:
    """A larger index that is not used yet, whose pages come bit by bit.

    Attributes:
        region: its memory.
        size: entries.
        touched: bytes that have pages.
    """

    def __init__(self, region: Region, size: int) -> None:
        self.region, self.size, self.touched = region, size, 0

    def touch(self, share: float) -> None:
        """Have this share of the pages that are left, at least one."""
        left = self.region.size - self.touched
        if left <= 0:
            return
        last = self.touched + min(max(int(left * share), mmap.PAGESIZE), left)
        self.region.array(np.uint8, (self.region.size,))[self.touched : last : mmap.PAGESIZE] = 0
        self.touched = -(-last // mmap.PAGESIZE) * mmap.PAGESIZE


class IndexMemory:
    """The index of a table, the smaller one that is being moved over, and the larger one to come.

    Args:
        line: of the table, through which kernels see the first two.
        capacity: keys that there may be.
        reserve: memory of a size.
    """

    def __init__(self, line: Array, capacity: int, reserve: Callable[[int], Region]) -> None:
        self._line, self._capacity, self._reserve = line, capacity, reserve
        # Halved from the largest, so that doubling ends at it, without a small step at the end.
        self._most = size = int(capacity / MAX_LOAD) + 8
        while size > 2 * _LEAST:
            size = -(-size // 2)
        self._entries = reserve(at.ENTRY * size)
        line[[at.ENTRIES, at.SIZE]] = self._entries.address, size
        self._old: Region | None = None
        self._next: Reserve | None = None

    def make_room(self, keys: int) -> None:
        """See to it that as many more keys find room; begins to use a larger index when needed."""
        line = self._line
        if line[at.MOVED] == line[at.OLD_SIZE]:
            self._drop_old()
        live, size = int(line[at.LIVE]), int(line[at.SIZE])
        need, limit = min(live + keys, self._capacity), int(MAX_LOAD * size)
        if need <= limit:
            if size < self._most:
                self._larger(need).touch(keys / max(limit - live, 1))
            return
        self.settle()
        larger = self._larger(need)
        larger.touch(1.0)
        self._old, self._entries, self._next = self._entries, larger.region, None
        line[[at.OLD_ENTRIES, at.OLD_SIZE, at.MOVED]] = line[at.ENTRIES], size, 0
        line[[at.ENTRIES, at.SIZE]] = larger.region.address, larger.size

    def settle(self) -> None:
        """Move all that is left in the old index."""
        if self._old is not None:
            launch(compiled(settle_task), self._line, tasks=1)
            self._drop_old()

    def _drop_old(self) -> None:
        if self._old is not None:
            self._line[[at.OLD_ENTRIES, at.OLD_SIZE, at.MOVED]] = 0
            self._old = None

    def _larger(self, need: int) -> Reserve:
        """The index after this one, which has room for that many keys."""
        if self._next is None or need > MAX_LOAD * self._next.size:
            size = 2 * int(self._line[at.SIZE])
            while need > MAX_LOAD * size:
                size *= 2
            size = min(size, self._most)
            self._next = Reserve(self._reserve(at.ENTRY * size), size)
        return self._next

    @property
    def nbytes(self) -> int:
        """Bytes that are in use."""
        size = int(self._line[at.SIZE]) + int(self._line[at.OLD_SIZE])
        return at.ENTRY * size + (0 if self._next is None else self._next.touched)
