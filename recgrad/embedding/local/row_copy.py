"""The rows of a table as they were at one moment, copied while training goes on.

Copying millions of rows takes seconds, and a step a tenth of one. So rows are copied by another thread, a
piece at a time, and an update first puts aside the rows that it will change and that are not copied yet:

    WHERE[slot]   0   still as it was, in the table: whoever comes first takes it
                 −1   copied
                  k   put aside by an update, as entry k − 1

A place goes from 0 to something else once, under a lock that is held for one piece. So an update waits for
one piece at most, and each row is put aside once at most. Rows that came later have later slots.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
PIECE_BYTES = 2 << 20
INDEX_PIECE = 1 << 18
_POLL_SECS = 0.0002


class RowCopy:
    """Rows of a table, which keep the values of the moment in which this was made.

    Args:
        arrays: the memory of the table by name, each [slots, width] without gaps.
        slots: how many of the slots there were.
        places: rows in any order and their slots; called in the thread that copies.
    """

    def __init__(
        self, arrays: dict[str, Array], slots: int, places: Callable[[], tuple[Array, Array]]
    ) -> None:
        self._arrays = arrays
        self._where = np.zeros(slots, np.int32)
        self._places = places
        self._aside: list[dict[str, Array]] = []
        self._kept = 0
        self._lock = threading.Lock()  # of all above
        self._wanted = False
        self._copying = threading.Lock()
        self._result: tuple[Array, dict[str, Array]] | None = None

    def keep(self, slots: Array) -> None:
        """Put aside what slots hold that are about to be written; each of them is named once."""
        if self._result is not None:
            return
        if len(slots) and int(slots.max()) >= len(self._where):
            slots = slots[slots < len(self._where)]
        self._wanted = True
        with self._lock:
            self._wanted = False
            new = slots[self._where[slots] == 0]
            if len(new):
                self._where[new] = np.arange(self._kept + 1, self._kept + 1 + len(new))
                self._aside.append(
                    {name: np.take(array, new, axis=0) for name, array in self._arrays.items()}
                )
                self._kept += len(new)

    def collect(self) -> tuple[Array, dict[str, Array]]:
        """Rows in ascending order, and the arrays of them by name; copied once, by whoever asks first."""
        with self._copying:
            if self._result is None:
                self._result = self._collect()
                self._arrays, self._aside = {}, []
            return self._result

    @property
    def done(self) -> bool:
        """Whether all is copied."""
        return self._result is not None

    def _collect(self) -> tuple[Array, dict[str, Array]]:
        rows, slots = self._places()
        order = np.argsort(rows)
        rows, slots = rows[order], slots[order]
        copies = {
            name: np.empty((len(slots), *array.shape[1:]), array.dtype)
            for name, array in self._arrays.items()
        }
        where = np.empty(len(slots), np.int32)
        width = sum(array[:1].nbytes for array in self._arrays.values())
        piece = max(PIECE_BYTES // max(width, 1), 1)
        for first in range(0, len(slots), piece):
            span = slice(first, first + piece)
            while self._wanted:  # a lock alone would let this loop have it again and again
                time.sleep(_POLL_SECS)
            with self._lock:
                self._copy(slots[span], where[span], {name: copy[span] for name, copy in copies.items()})
        self._take_aside(where, copies)
        return rows, copies

    def _copy(self, slots: Array, where: Array, copies: dict[str, Array]) -> None:
        """Copy slots; rows that were put aside are being changed, and come from there."""
        np.take(self._where, slots, out=where, mode="clip")
        for name, copy in copies.items():
            np.take(self._arrays[name], slots, axis=0, out=copy, mode="clip")
        self._where[slots[where == 0]] = -1

    def _take_aside(self, where: Array, copies: dict[str, Array]) -> None:
        aside = np.flatnonzero(where > 0)
        if len(aside):
            for name, copy in copies.items():
                entries = np.concatenate([part[name] for part in self._aside])
                copy[aside] = entries[where[aside] - 1]


def indexed_places(indexes: Sequence[Array], slots: int) -> tuple[Array, Array]:
    """The rows that have the first slots, and these, read from indexes to which others may be adding.

    An entry never changes, and those that come later have later slots. Of a row in both the old and the new
    index, both say the same.
    """
    rows = np.empty(slots, np.int64)
    for index in indexes:
        for first in range(0, len(index), INDEX_PIECE):
            entries = index[first : first + INDEX_PIECE]
            entries = entries[entries != 0]
            entries = entries[(entries >> 32) < slots]
            rows[entries >> 32] = (entries & 0xFFFFFFFF) - 1
    return rows, np.arange(slots)
