"""From the keys of a batch to row numbers, before the lookup; in training, rounds of admission as well."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from recgrad.embedding.local.layout import BAGS, IDS, OFFSETS
from recgrad.embedding.local.living import layout as at
from recgrad.embedding.local.living.find import (
    IDS_PER_TASK,
    JOB_COLUMNS,
    JOB_COUNT,
    JOB_KEYS,
    JOB_LINE,
    JOB_ROWS,
    find_tasks,
    note_tasks,
    rest_tasks,
)
from recgrad.embedding.local.living.rounds import round_tasks
from recgrad.embedding.local.living.table import LivingTable
from recgrad.embedding.local.memory import address_of
from recgrad.kernels.compile import compiled
from recgrad.kernels.parallel import launch

Array = npt.NDArray[Any]


class Rows:
    """Row numbers of a forward pass.

    Attributes:
        array: they, by lookup.
        changes: how often rows have changed hands that are not protected.
    """

    __slots__ = ("__weakref__", "array", "changes")

    def __init__(self, array: Array, changes: int) -> None:
        self.array, self.changes = array, changes


class Translator:
    """Replaces the keys of lookups into living tables by row numbers.

    Args:
        tables: the living tables, by position.
        columns: the table of each lookup.
    """

    def __init__(self, tables: Mapping[int, LivingTable], columns: Sequence[int]) -> None:
        self._tables = tables
        self._columns = np.array([c for c, t in enumerate(columns) if t in tables], np.int64)
        self._of_column = [tables[columns[c]] for c in self._columns]
        self._lines = np.array([address_of(table.line) for table in self._of_column], np.int64)
        self._changes = 0
        self._open: list[weakref.ref[Rows]] = []  # passes in training since the last update

    def translate(self, lines: Array, *, training: bool, waiting: frozenset[int]) -> Rows | None:
        """Let lines of the lookup matrix point to row numbers; returns what keeps these alive.

        Args:
            lines: of all columns.
            training: keys are counted and may be admitted and evicted.
            waiting: positions of the tables that have gradients waiting.
        """
        jobs, rows = self._jobs(lines)
        if not len(jobs):
            return None
        open_passes = [rows for rows in (reference() for reference in self._open) if rows is not None]
        used = [t for t in self._tables.items() if (jobs[:, JOB_LINE] == address_of(t[1].line)).any()]
        if training:
            for position, table in used:
                table.begin_pass(waits=position in waiting or bool(open_passes))
        tasks = _tasks(jobs[:, JOB_COUNT])
        own = np.array([address_of(table.line) for _, table in used], np.int64)
        self._launch(find_tasks, jobs, tasks, len(tasks), int(training), own)
        if not training:
            return Rows(rows, self._changes)
        self._admit([table for _, table in used], jobs, tasks, own)
        for earlier in open_passes:  # their rows have stayed
            earlier.changes = self._changes
        found = Rows(rows, self._changes)
        self._open = [*map(weakref.ref, open_passes), weakref.ref(found)]
        return found

    def close(self) -> None:
        """After an update, or where gradients are dropped: rows of the passes so far may change hands."""
        self._open = []

    def check_current(self, rows: Rows) -> None:
        """Refuse gradients of rows that may belong to other keys by now."""
        if rows.changes != self._changes:
            raise RuntimeError(
                "rows changed hands between this forward pass and its backward; run backward before the next"
                " forward pass in training"
            )

    def _jobs(self, lines: Array) -> tuple[Array, Array]:
        """The lookups that have ids, with room for their row numbers; `lines` are made to point there."""
        own = lines[self._columns]
        first = np.zeros(len(own), np.int64)
        counts = np.maximum(own[:, BAGS], 0)
        for i in np.flatnonzero((own[:, OFFSETS] != 0) & (counts > 0)).tolist():
            ends = _int64_at(int(own[i, OFFSETS]), int(counts[i]) + 1)
            first[i], counts[i] = ends[0], ends[-1] - ends[0]
        rows = np.empty(int(counts.sum()), np.int64)
        begin = address_of(rows) + 8 * (np.cumsum(counts) - counts)
        filled = np.flatnonzero(counts > 0)
        jobs = np.empty((len(filled), JOB_COLUMNS), np.int64)
        jobs[:, JOB_LINE] = self._lines[filled]
        jobs[:, JOB_KEYS] = own[filled, IDS] + 8 * first[filled]
        jobs[:, JOB_ROWS], jobs[:, JOB_COUNT] = begin[filled], counts[filled]
        lines[self._columns[filled], IDS] = begin[filled] - 8 * first[filled]
        return jobs, rows

    def _admit(self, tables: list[LivingTable], jobs: Array, tasks: Array, own: Array) -> None:
        """Count keys without a row, hold the rounds that are due, and find the rows that are missing."""
        missing = [table for table in tables if table.line[at.MISSES]]
        for table in missing:
            table.make_window(int(table.line[at.MISSES]))
        if missing:
            self._launch(note_tasks, jobs, tasks, len(own), 0, own)
        rounds = [table for table in tables if table.before_round()]
        if rounds:
            before = [_gone(table) for table in rounds]
            due = np.array([address_of(table.line) for table in rounds], np.int64)
            launch(compiled(round_tasks), due, len(due), tasks=len(due))
            if before != [_gone(table) for table in rounds]:
                self._changes += 1
            for table in rounds:
                table.after_round()
        if missing or rounds:
            self._launch(rest_tasks, jobs, tasks, len(tasks), 1, own)

    @staticmethod
    def _launch(function: Any, jobs: Array, tasks: Array, count: int, training: int, own: Array) -> None:
        launch(compiled(function), jobs, len(jobs), tasks, count, training, own, tasks=count)


def _gone(table: LivingTable) -> int:
    return int(table.line[at.EVICTED] + table.line[at.EXPIRED])


def _int64_at(address: int, count: int) -> Array:
    return np.ctypeslib.as_array((ctypes.c_int64 * count).from_address(address))


def _tasks(counts: Array) -> Array:
    """Pieces of jobs: job, first id, one past the last."""
    pieces = -(-counts // IDS_PER_TASK)
    job = np.repeat(np.arange(len(counts)), pieces)
    piece = np.arange(len(job)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    tasks = np.empty((len(job), 3), np.int64)
    tasks[:, 0], tasks[:, 1] = job, piece * IDS_PER_TASK
    tasks[:, 2] = np.minimum(tasks[:, 1] + IDS_PER_TASK, counts[job])
    return tasks
