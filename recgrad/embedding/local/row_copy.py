"""The rows of a table as they were at one moment, copied while training goes on.

Copying millions of rows takes seconds, and a step a tenth of one. So rows are copied by another thread, a
piece at a time, and an update first puts aside the rows that it will change and that are not copied yet:

    WHERE[slot]   0   still as it was, in the table: whoever comes first takes it
                 −1   copied
                  k   put aside by an update, as record k

A place goes from 0 to something else once, under a lock that is held for one piece. So an update waits for
one piece at most, and each row is put aside once at most. Rows that came later have later slots.

Records lie one behind the other in room for all slots, which is paid for by the page. Blocks of the heap
would be those that a step frees and takes again, and steps would pay for the pages of others.

The thread that copies rests after each piece while steps go on: a scheduler that finds three busy threads on
two cores may give it a whole one, and have the two of the step share the other for a tenth of a second.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
import numpy.typing as npt

from recgrad.embedding.local.copy_kernels import (
    ARRAY_COLUMNS,
    DIGITS,
    JOB_COLUMNS,
    JOB_KEPT,
    gather_task,
    keep_tasks,
    sort_task,
)
from recgrad.embedding.local.memory import address_of, for_a_while, spread_phase
from recgrad.kernels.compile import Wanted, compiled
from recgrad.kernels.parallel import launch

Array = npt.NDArray[Any]
Rows = dict[str, Array]
PIECE_BYTES = 2 << 20
INDEX_PIECE = 1 << 18
REST = 3  # times what a piece took: no more than a quarter of a core is taken from steps
STEPS_SECS = 2.0  # after so long without an update nobody needs the cores
_POLL_SECS = 0.0002
_ALIGNMENT = 8  # of what is put aside
_number = itertools.count()  # of copies: those of one moment have their records grow at the same pace


def _as_they_are(copies: Rows) -> tuple[Array | None, Rows]:
    return None, copies


class RowCopy:
    """Rows of a table, which keep the values of the moment in which this was made.

    Args:
        arrays: the memory of the table by name, each [slots, width] without gaps.
        slots: how many of the slots there were.
        places: rows in any order and their slots; called in the thread that copies.
        convert: what becomes of the arrays of some rows, which it may overwrite: a mask of those that count,
            None for all, and arrays of as many rows. A piece at a time, while it is in the cache.
    """

    def __init__(
        self,
        arrays: Rows,
        slots: int,
        places: Callable[[], tuple[Array, Array]],
        convert: Callable[[Rows], tuple[Array | None, Rows]] = _as_they_are,
    ) -> None:
        self._arrays = arrays
        self._places, self._convert = places, convert
        widths = [array[:1].nbytes for array in arrays.values()]
        padded = [-(-width // _ALIGNMENT) * _ALIGNMENT for width in widths]
        self._record = sum(padded)
        self._lines = np.zeros((len(widths), ARRAY_COLUMNS), np.int64)
        self._lines[:, 0] = [address_of(array) for array in arrays.values()]
        self._lines[:, 1], self._lines[:, 2] = widths, np.cumsum(padded) - padded
        self._where = for_a_while((slots,), np.int32, zeroed=True)
        self._aside = for_a_while((slots, self._record), np.uint8, phase=spread_phase(next(_number)))
        self._kept = 0  # records in it
        self._lock = threading.Lock()  # of all above
        self._wanted = False
        self._asked = time.monotonic()  # when an update last wanted to write
        self._hurried = False  # somebody waits for the copy
        self._copying = threading.Lock()
        self._result: tuple[Array, Rows] | None = None

    def keep(self, slots: Array) -> None:
        """Put aside what slots hold that are about to be written."""
        keep_all([(self, slots)])

    def collect(self, *, beside: bool = False) -> tuple[Array, Rows]:
        """Rows in ascending order, and the arrays of them by name; copied once, by whoever asks first.

        Args:
            beside: whether this thread has time, and should leave the cores to steps that go on.
        """
        self._hurried = self._hurried or not beside
        with self._copying:
            if self._result is None:
                result = self._collect()
                with self._lock:
                    self._result = result
                    self._arrays = {}
                    self._aside, self._where = np.empty((0, 1), np.uint8), np.empty(0, np.int32)
            return self._result

    @property
    def done(self) -> bool:
        """Whether all is copied."""
        return self._result is not None

    def _collect(self) -> tuple[Array, Rows]:
        begin = time.thread_time()
        rows, slots = _sorted(*self._places())
        piece = max(PIECE_BYTES // max(int(self._lines[:, 1].sum()), 1), 1)
        room = {
            name: np.empty((min(piece, len(slots)), *array.shape[1:]), array.dtype)
            for name, array in self._arrays.items()
        }
        _, empty = self._convert({name: array[:0] for name, array in room.items()})
        result = {name: for_a_while((len(slots), *a.shape[1:]), a.dtype) for name, a in empty.items()}
        taken = 0  # of the result; rows that do not count are left out
        for first in range(0, len(slots), piece):
            begin = self._rest(begin)
            some = slots[first : first + piece]
            copies = {name: array[: len(some)] for name, array in room.items()}
            while self._wanted:  # a lock alone would let this loop have it again and again
                time.sleep(_POLL_SECS)
            with self._lock:
                self._copy(some, copies)
            counts, converted = self._convert(copies)
            own = rows[first : first + piece]
            if counts is not None and not counts.all():
                own, converted = own[counts], {name: array[counts] for name, array in converted.items()}
            for name, array in converted.items():
                result[name][taken : taken + len(own)] = array
            rows[taken : taken + len(own)] = own
            taken += len(own)
        return rows[:taken], {name: array[:taken] for name, array in result.items()}

    def _rest(self, begin: float) -> float:
        """Let steps have the cores, if there are any; `begin` and the result are times of this thread."""
        if not self._hurried and time.monotonic() - self._asked < STEPS_SECS:
            time.sleep(REST * (time.thread_time() - begin))
        return time.thread_time()

    def _copy(self, slots: Array, copies: Rows) -> None:
        """Copy slots; rows that were put aside are being changed, and come from there."""
        targets = np.array([address_of(copy) for copy in copies.values()], np.int64)
        launch(
            compiled(gather_task),
            *(self._where, self._lines, len(self._lines), targets, slots, len(slots)),
            *(self._aside, self._record),
            tasks=1,
        )


def keep_all(owed: Sequence[tuple[RowCopy, Array]]) -> None:
    """Put aside what slots hold that are about to be written, for several copies at once."""
    for copy, _ in owed:
        copy._wanted = True
    with ExitStack() as held:
        for copy, _ in owed:
            held.enter_context(copy._lock)  # of the thread that copies, which has no second one meanwhile
            copy._wanted, copy._asked = False, time.monotonic()
        _put_aside([(copy, np.ascontiguousarray(s, np.int64)) for copy, s in owed if not copy.done])


def _put_aside(owed: Sequence[tuple[RowCopy, Array]]) -> None:
    """What `keep_all` does under the locks."""
    jobs = np.zeros((len(owed), JOB_COLUMNS), np.int64)
    for job, (copy, slots) in zip(jobs, owed, strict=True):
        lines = copy._lines
        job[:JOB_KEPT] = (
            *(address_of(copy._where), len(copy._where), address_of(lines), len(lines)),
            *(address_of(slots), len(slots), address_of(copy._aside), copy._record, copy._kept),
        )
    launch(compiled(keep_tasks), jobs, len(jobs), tasks=len(jobs))
    for (copy, _), kept in zip(owed, jobs[:, JOB_KEPT].tolist(), strict=True):
        copy._kept = kept


def kernels() -> list[Wanted]:
    """What copies need compiled, in the order of need."""
    return [Wanted(keep_tasks), Wanted(sort_task), Wanted(gather_task)]


def _sorted(rows: Array, slots: Array) -> tuple[Array, Array]:
    """Rows in ascending order, and their slots; `argsort` takes several times as long."""
    rows, slots = (np.ascontiguousarray(array, np.int64) for array in (rows, slots))
    other_rows, other_slots = np.empty_like(rows), np.empty_like(slots)
    counts, moved = np.empty(DIGITS, np.int64), np.zeros(1, np.int64)
    launch(compiled(sort_task), rows, slots, len(rows), other_rows, other_slots, counts, moved, tasks=1)
    return (other_rows, other_slots) if moved[0] else (rows, slots)


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
