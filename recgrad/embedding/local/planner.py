"""Making the plan of an update: its memory, and the calls of its kernels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from recgrad.embedding.local.layout import LOOKUP_COLUMNS
from recgrad.embedding.local.memory import address_of
from recgrad.embedding.local.pending import Source
from recgrad.embedding.local.plan import (
    ANY_BAD,
    JOB_BAD,
    JOB_COLUMNS,
    JOB_SIZE,
    JOB_TABLE,
    TOTALS,
    arrange_task,
    plan_tasks,
)
from recgrad.embedding.local.table import Table
from recgrad.errors import DataError
from recgrad.kernels.compile import compiled
from recgrad.kernels.parallel import launch, thread_count

Array = npt.NDArray[Any]
_LINE = 64  # bytes of a cache line: what is read and written a line at a time begins with one


class Workspace:
    """Arrays by name that grow and never shrink: allocating them again would cost page faults each step."""

    def __init__(self) -> None:
        self._arrays: dict[str, tuple[Array, int]] = {}

    def array(self, name: str, count: int, dtype: Any = np.int64) -> Array:
        """A flat array of at least `count` elements, with whatever it held before."""
        return self._get(name, count, dtype)[0]

    def address(self, name: str, count: int, dtype: Any = np.int64) -> int:
        """Where `array` of the same arguments begins."""
        return self._get(name, count, dtype)[1]

    def _get(self, name: str, count: int, dtype: Any) -> tuple[Array, int]:
        known = self._arrays.get(name)
        if known is None or len(known[0]) < count:
            array: Array = np.empty(count + (count >> 2) + 64, dtype)
            known = self._arrays[name] = (array, array.__array_interface__["data"][0])
        return known


class Plan(NamedTuple):
    """Distinct rows and their gradients, of the tables of some jobs; see `plan.py` for the arrays.

    The arrays are the planner's, and hold until its next plan.
    """

    jobs: Array  # [jobs, JOB_COLUMNS]
    tables: list[int]  # of the jobs
    size: int  # occurrences
    tasks: int
    rows: Array
    slots: Array  # of compact tables; those of others are their rows
    addresses: tuple[int, ...]  # of jobs, task_jobs, cuts, rows, slots, ends, gradients, coefficients


class Planner:
    """Makes plans for the tables of one dim."""

    def __init__(self, tables: Sequence[Table], matrix: Array, dim: int) -> None:
        self._tables, self._dim = tables, dim
        self._matrix = address_of(matrix)
        self._compact = any(table.compact for table in tables)
        self._work = Workspace()
        self._totals = np.zeros(TOTALS, np.int64)

    def plan(self, sources: Sequence[Source], as_they_are: bool) -> Plan:
        """Find the distinct rows of these sources and where their gradients are.

        Args:
            sources: in the order of summation.
            as_they_are: whether gradients are summed as they are, none of them clamped before.
        """
        work = self._work
        lines = sources[0].lines if len(sources) == 1 else np.concatenate([s.lines for s in sources])
        count, totals = len(lines), address_of(self._totals)
        ordered, jobs_at = (
            work.address("lines", count * LOOKUP_COLUMNS),
            work.address("jobs", count * JOB_COLUMNS),
        )
        launch(
            compiled(arrange_task),
            *(count, address_of(lines), len(self._tables), work.address("places of", len(self._tables) + 1)),
            *(ordered, jobs_at, totals, self._dim if as_they_are else 0, self._matrix),
            tasks=1,
        )
        found, tasks, size, busiest, scaled, copied, _ = self._totals.tolist()
        jobs = work.array("jobs", found * JOB_COLUMNS)[: found * JOB_COLUMNS].reshape(found, JOB_COLUMNS)
        tables: list[int] = jobs[:, JOB_TABLE].tolist()
        if self._compact:
            for position, rows in zip(tables, jobs[:, JOB_SIZE].tolist(), strict=True):
                self._tables[position].make_room(rows)
        task_jobs, cuts = work.address("task jobs", tasks), work.address("cuts", tasks)
        rows, slots, ends, gradients = (
            work.address(name, size) for name in ("rows", "slots", "ends", "gradients")
        )
        coefficients = work.address("coefficients", size if scaled else 0, np.float32)
        threads = min(thread_count(), found)
        places = max(64, 1 << (busiest + (busiest >> 1)).bit_length())
        launch(
            compiled(plan_tasks),
            *(found, work.address("places", threads * places, np.int32), places),
            *(work.address("numbers", threads * busiest, np.int32), busiest),
            *(jobs_at, ordered, self._matrix, rows, slots, ends, gradients, coefficients, cuts, task_jobs),
            *(
                _aligned(work.address("packed", copied * self._dim + _LINE // 4, np.float32)),
                totals,
                self._dim,
            ),
            tasks=found,
        )
        if self._totals[ANY_BAD]:
            self._refuse(jobs)
        addresses = (jobs_at, task_jobs, cuts, rows, slots, ends, gradients, coefficients)
        return Plan(jobs, tables, size, tasks, work.array("rows", size), work.array("slots", size), addresses)

    def _refuse(self, jobs: Array) -> None:
        first = self._tables[jobs[np.flatnonzero(jobs[:, JOB_BAD])[0], JOB_TABLE]]
        raise DataError(
            f"table '{first.name}': "
            "ids were changed between the forward pass and the update; they are outside the table now"
        )


def _aligned(address: int) -> int:
    return -(-address // _LINE) * _LINE
