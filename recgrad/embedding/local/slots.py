"""The slots of a compact table: its index in memory, doubled as rows come, as Python sees it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from recgrad.embedding.local.index import ENTRY_BYTES
from recgrad.embedding.local.layout import BITS, COUNT, INDEX, MOVED, OLD_BITS, OLD_INDEX
from recgrad.embedding.local.memory import Region
from recgrad.embedding.local.row_copy import indexed_places
from recgrad.embedding.local.transfer import settle_task
from recgrad.kernels.compile import compiled
from recgrad.kernels.parallel import launch

Array = npt.NDArray[Any]
_MIN_BITS = 10
_MAX_LOAD = 0.85  # of an index, which is then doubled; at .7 it would take half as much again on average


class SlotIndex:
    """Memory of an index from row to slot; index.py has what it holds.

    Args:
        numbers: the table's line, in which kernels find it.
        reserve: makes a region of so many bytes.
    """

    def __init__(self, numbers: Array, reserve: Callable[[int], Region]) -> None:
        self._numbers, self._reserve = numbers, reserve
        self._old: Region | None = None
        self._make(_MIN_BITS)

    def _make(self, bits: int) -> None:
        self.region = self._reserve(ENTRY_BYTES << bits)
        self._numbers[[INDEX, BITS]] = self.region.address, bits

    @property
    def size(self) -> int:
        """How many entries there is room for."""
        return 1 << int(self._numbers[BITS])

    @property
    def nbytes(self) -> int:
        """What it takes by now."""
        old = 0 if self._old is None else ENTRY_BYTES << int(self._numbers[OLD_BITS])
        return ENTRY_BYTES * self.size + old

    def make_room(self, need: int) -> None:
        """See to it that `need` rows find room; begins to double the index where they do not."""
        numbers = self._numbers
        if self._old is not None and numbers[MOVED] == 1 << int(numbers[OLD_BITS]):
            self._drop_old()
        bits = int(numbers[BITS])
        if need <= _MAX_LOAD * (1 << bits):
            return
        self.settle()
        while need > _MAX_LOAD * (1 << bits):
            bits += 1
        self._old = self.region
        numbers[[OLD_INDEX, OLD_BITS, MOVED]] = numbers[INDEX], numbers[BITS], 0
        self._make(bits)
        if bits > int(numbers[OLD_BITS]) + 1 or numbers[COUNT] == 0:
            self.settle()

    def settle(self) -> None:
        """Move the rest of the old index."""
        if self._old is not None:
            launch(compiled(settle_task), self._numbers, tasks=1)
            self._drop_old()

    def _drop_old(self) -> None:
        self._numbers[[OLD_INDEX, OLD_BITS, MOVED]] = 0
        self._old = None

    def entries(self) -> tuple[Array, Array]:
        """The rows that have slots, in no order, and the slots."""
        self.settle()
        entries = self.region.array(np.int64, (self.size,))
        entries = entries[entries != 0]
        return (entries & 0xFFFFFFFF) - 1, entries >> 32

    def places_of_now(self) -> Callable[[], tuple[Array, Array]]:
        """Gives the rows of this moment and their slots, while others may be added."""
        arrays = [self.region.array(np.int64, (self.size,))]
        if self._old is not None:
            arrays.append(self._old.array(np.int64, (1 << int(self._numbers[OLD_BITS]),)))
        return partial(indexed_places, arrays, int(self._numbers[COUNT]))
