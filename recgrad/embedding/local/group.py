"""All tables of one dim: their lookups are one kernel call, their update another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from recgrad.embedding.local.compile import rule_kernel, simple_kernel, stage_function
from recgrad.embedding.local.inputs import Inputs, Result, address_of
from recgrad.embedding.local.layout import (
    BAGS,
    ID_WEIGHTS,
    IDS,
    INDEX,
    LOOKUP_COLUMNS,
    MEAN,
    OFFSETS,
    TABLE,
    TABLE_COLUMNS,
    VECTOR_STRIDE,
    VECTORS,
)
from recgrad.embedding.local.lookup import BAGS_PER_TASK, TASK_COLUMNS
from recgrad.embedding.local.parallel import launch, thread_count
from recgrad.embedding.local.pending import Plan, Source, only
from recgrad.embedding.local.plan import (
    JOB_BAD,
    JOB_COLUMNS,
    JOB_PACKED,
    JOB_ROWS,
    JOB_SCALED,
    JOB_SOURCE,
    JOB_SOURCES,
    JOB_START,
    JOB_TABLE,
    JOB_TASK,
    JOB_TASKS,
    OCCURRENCES_PER_TASK,
    PACK_FROM,
)
from recgrad.embedding.local.simd import F32
from recgrad.embedding.local.table import Table
from recgrad.embedding.local.update import TEMPLATE
from recgrad.embedding.spec import LookupSpec, TableSpec
from recgrad.errors import DataError
from recgrad.optim.sparse.optimizer import Update

Array = npt.NDArray[Any]


class DimGroup:
    """Tables of one dim, their lookups in a fixed order of columns, and waiting gradients."""

    def __init__(
        self,
        tables: Sequence[TableSpec],
        lookups: Sequence[LookupSpec],
        keys: Sequence[str],
        sequence_keys: Sequence[str],
        seed: int,
        engine: Any,
    ) -> None:
        self.dim = tables[0].dim
        self.matrix = np.zeros((len(tables), TABLE_COLUMNS), np.int64)
        self.parameters = np.zeros((len(tables), 4), np.float64)
        self.tables = [
            Table(spec, i, self.matrix[i], self.parameters[i], seed, engine) for i, spec in enumerate(tables)
        ]
        position = {spec.name: i for i, spec in enumerate(tables)}
        ordered = [s for s in lookups if not s.sequence] + [s for s in lookups if s.sequence]
        self.lookups = ordered
        self.columns = {spec.name: i for i, spec in enumerate(ordered)}
        self.pooled = sum(not spec.sequence for spec in ordered)
        self.trainable = np.array([tables[position[spec.table]].trainable for spec in ordered], dtype=bool)
        self._fixed = np.zeros((len(ordered), LOOKUP_COLUMNS), np.int64)
        self._fixed[:, TABLE] = [position[spec.table] for spec in ordered]
        self._fixed[:, MEAN] = [spec.pooling == "mean" for spec in ordered]
        self._keys = np.array(
            [(sequence_keys if spec.sequence else keys).index(spec.key) for spec in ordered], dtype=np.int64
        )
        used = [self.tables[t] for t in self._fixed[: self.pooled, TABLE]]
        self._simple_rows = all(table.kind == F32 and not table.compact for table in used)
        self._state_arrays: tuple[Any, tuple[Array, Array, Array], Any] | None = None
        self.sources: list[Source] = []
        self._scratch: list[Array] = [np.empty((0, 0), np.int32)] * 2

    # --- forward ---

    def lookup(self, ids: Inputs | None, sequences: Inputs | None) -> Result:
        """Pool the bags of all columns whose inputs are given."""
        lines = self._fixed.copy()
        occurrences = np.zeros(len(lines), np.int64)
        lines[:, BAGS] = -1
        p = self.pooled
        result = Result(None, {}, lines, occurrences, (ids, sequences), self.dim)
        tasks: list[Array] = []
        if ids is not None and p:
            self._fill(lines[:p], occurrences[:p], self._keys[:p], ids)
            rows = int(lines[0, BAGS])
            if (lines[:p, BAGS] != rows).any():
                raise ValueError(f"pooled features must have one bag per row, got {lines[:p, BAGS].tolist()}")
            result.block = torch.empty(rows, p * self.dim)
            lines[:p, VECTORS] = result.block.data_ptr() + np.arange(p) * self.dim * 4
            lines[:p, VECTOR_STRIDE] = p * self.dim * 4
            simple = self._simple_rows and ids.offsets is None and ids.weights is None
            tasks.append(_tasks(0, p, rows, BAGS_PER_TASK, simple))
        if sequences is not None and p < len(lines):
            self._fill(lines[p:], occurrences[p:], self._keys[p:], sequences)
            for column in range(p, len(lines)):
                positions = int(lines[column, BAGS])
                result.sequences[column] = output = torch.empty(positions, self.dim)
                lines[column, VECTORS] = output.data_ptr()
                tasks.append(_tasks(column, column + 1, positions, 4 * BAGS_PER_TASK, False))
            lines[p:, VECTOR_STRIDE] = self.dim * 4
        if tasks:
            self._run_lookup(lines, np.concatenate(tasks), result)
        return result

    def _fill(self, lines: Array, occurrences: Array, keys: Array, inputs: Inputs) -> None:
        """Where the ids of each column are."""
        first = inputs.first_bags[keys]
        last = inputs.first_bags[keys + 1]
        lines[:, BAGS] = last - first
        weights = 0 if inputs.weights is None else address_of(inputs.weights)
        if inputs.offsets is None:
            occurrences[:] = last - first
            lines[:, IDS] = address_of(inputs.values) + 8 * first
            lines[:, ID_WEIGHTS] = weights + 4 * first if weights else 0
        else:
            occurrences[:] = inputs.offsets[last] - inputs.offsets[first]
            lines[:, IDS] = address_of(inputs.values)
            lines[:, OFFSETS] = address_of(inputs.offsets) + 8 * first
            lines[:, ID_WEIGHTS] = weights

    def _run_lookup(self, lines: Array, tasks: Array, result: Result) -> None:
        errors = np.zeros((len(tasks), 2), np.int64)
        launch(
            simple_kernel("recgrad.embedding.local.lookup", "lookup_tasks"),
            *(self.dim, len(tasks), lines, self.matrix, self.parameters, tasks, errors),
            tasks=len(tasks),
        )
        bad = np.flatnonzero(errors[:, 1])
        if len(bad):
            column, position = errors[bad[0]]
            raise self._bad_id(int(column), int(position) - 1, result)

    def _bad_id(self, column: int, position: int, result: Result) -> DataError:
        spec = self.lookups[column]
        inputs = result.inputs[1 if spec.sequence else 0]
        assert inputs is not None
        key = self._keys[column]
        if inputs.offsets is None:
            bag = position
            position += int(inputs.first_bags[key])
        else:
            bag = (
                int(np.searchsorted(inputs.offsets, position, side="right")) - 1 - int(inputs.first_bags[key])
            )
        table = self.tables[self._fixed[column, TABLE]].spec
        place = "position" if spec.sequence else "row"
        return DataError(
            f"feature '{spec.key}': id {inputs.values[position]} is outside table '{table.name}' "
            f"of {table.num_rows} rows ({place} {bag} of the batch)"
        )

    # --- backward ---

    def keep(self, result: Result, first: int, last: int, order: tuple[int, int], gradient: Tensor) -> None:
        """Note the gradient of columns first … last − 1 for the next update."""
        gradient = gradient.detach().to(torch.float32)
        if gradient.stride(1) != 1 and gradient.shape[1] > 1:
            gradient = gradient.contiguous()
        lines = result.lookups[first:last].copy()
        lines[:, VECTORS] = gradient.data_ptr() + np.arange(last - first) * self.dim * 4
        lines[:, VECTOR_STRIDE] = gradient.stride(0) * 4
        used = self.trainable[first:last]
        if not used.all():
            lines = lines[used]
        occurrences = result.occurrences[first:last][used]
        self.sources.append(Source(order, lines, occurrences, gradient, result))

    def pending_tables(self) -> list[str]:
        """Names of the tables that have gradients waiting."""
        used = {int(t) for source in self.sources for t in source.lines[:, TABLE]}
        return [self.tables[t].name for t in sorted(used)]

    def clear(self, names: set[str] | None = None) -> None:
        """Drop the waiting gradients, of all tables or of some."""
        if names is not None:
            left = [i for i, table in enumerate(self.tables) if table.name not in names]
            self.sources = [
                kept for kept in (only(source, left, len(self.tables)) for source in self.sources) if kept
            ]
        else:
            self.sources = []

    def scale(self, names: set[str], factor: float) -> None:
        """Multiply the waiting gradients of some tables."""
        members = [i for i, table in enumerate(self.tables) if table.name in names]
        others = [i for i, table in enumerate(self.tables) if table.name not in names]
        chosen = [only(source, members, len(self.tables)) for source in self.sources]
        kept = [only(source, others, len(self.tables)) for source in self.sources]
        self.sources = [s for s in kept if s] + [s.times(factor) for s in chosen if s]

    def finite(self, names: set[str]) -> bool:
        """Whether the waiting gradients of some tables are free of infinities and NaN."""
        members = [i for i, table in enumerate(self.tables) if table.name in names]
        gradients = [
            s.gradient for s in (only(source, members, len(self.tables)) for source in self.sources) if s
        ]
        extremes = [torch.stack(torch.aminmax(g)) for g in gradients if g.numel()]
        return all(bool(torch.isfinite(extreme).all()) for extreme in extremes)

    # --- update ---

    def plan(self, members: Sequence[int]) -> Plan | None:
        """Find the distinct rows of these tables and where their gradients are."""
        chosen = [
            only(source, members, len(self.tables)) for source in sorted(self.sources, key=lambda s: s.order)
        ]
        sources = [source for source in chosen if source is not None]
        if not sources:
            return None
        lines = np.concatenate([source.lines for source in sources])
        occurrences = np.concatenate([source.occurrences for source in sources])
        order = np.argsort(lines[:, TABLE], kind="stable")
        lines, occurrences = lines[order], occurrences[order]
        starts = np.flatnonzero(np.diff(lines[:, TABLE], prepend=-1))
        counts = np.add.reduceat(occurrences, starts)
        jobs = self._jobs(lines, starts, counts)
        packed = self._pack(jobs, np.add.reduceat(lines[:, BAGS], starts), counts)
        for i in np.flatnonzero(self.matrix[jobs[:, JOB_TABLE], INDEX]):
            self.tables[jobs[i, JOB_TABLE]].make_room(int(counts[i]))
        size = int(counts.sum())
        tasks = int(jobs[-1, JOB_TASKS])
        rows, slots, ends, gradients = (np.empty(max(size, 1), np.int64) for _ in range(4))
        coefficients = np.empty(size if jobs[:, JOB_SCALED].any() else 1, np.float32)
        cuts = np.empty(tasks, np.int64)
        busiest = int(counts.max())
        places, numbers = self._room(max(64, 1 << max(0, int(busiest * 1.5)).bit_length()), max(1, busiest))
        launch(
            simple_kernel("recgrad.embedding.local.plan", "plan_tasks"),
            *(len(jobs), places, places.shape[1], numbers, numbers.shape[1]),
            *(jobs, lines, self.matrix, rows, slots, ends, gradients, coefficients, cuts),
            self.dim,
            tasks=len(jobs),
        )
        bad = np.flatnonzero(jobs[:, JOB_BAD])
        if len(bad):
            raise DataError(
                f"table '{self.tables[jobs[bad[0], JOB_TABLE]].name}': "
                "ids were changed between the forward pass and the update; they are outside the table now"
            )
        task_jobs = np.repeat(np.arange(len(jobs)), jobs[:, JOB_TASKS] - jobs[:, JOB_TASK])
        return Plan(jobs, rows, slots, ends, gradients, coefficients, cuts, task_jobs, size, packed)

    def _jobs(self, lines: Array, starts: Array, counts: Array) -> Array:
        jobs = np.zeros((len(starts), JOB_COLUMNS), np.int64)
        jobs[:, JOB_TABLE] = lines[starts, TABLE]
        jobs[:, JOB_SOURCE] = starts
        jobs[:, JOB_SOURCES] = np.append(starts[1:], len(lines))
        ends = np.cumsum(counts)
        jobs[:, JOB_START] = ends - counts
        tasks = (counts + OCCURRENCES_PER_TASK - 1) // OCCURRENCES_PER_TASK
        jobs[:, JOB_TASKS] = np.cumsum(tasks)
        jobs[:, JOB_TASK] = jobs[:, JOB_TASKS] - tasks
        scaled = (lines[:, ID_WEIGHTS] != 0) | ((lines[:, MEAN] != 0) & (lines[:, OFFSETS] != 0))
        jobs[:, JOB_SCALED] = np.logical_or.reduceat(scaled, starts)
        return jobs

    def _pack(self, jobs: Array, bags: Array, counts: Array) -> Array | None:
        """Room for copies of gradients that are read several times each."""
        worth = np.where(counts >= PACK_FROM * bags, bags, 0)
        if not worth.any():
            return None
        room = np.empty((int(worth.sum()), self.dim), np.float32)
        jobs[:, JOB_PACKED] = np.where(
            worth > 0, address_of(room) + 4 * self.dim * (np.cumsum(worth) - worth), 0
        )
        return room

    def _room(self, places: int, numbers: int) -> list[Array]:
        """Scratch memory of the plan, a line for each thread."""
        threads = thread_count()
        for i, columns in enumerate((places, numbers)):
            have = self._scratch[i].shape
            if have[0] < threads or have[1] < columns:
                self._scratch[i] = np.empty((threads, columns), np.int32)
        return self._scratch

    def update(self, updates: Sequence[Update]) -> None:
        """Apply one rule to the waiting gradients of these tables, which all have it."""
        if not updates:
            return
        by_table = {u.table.position: u for u in updates}
        plan = self.plan(sorted(by_table))
        if plan is None or plan.size == 0:
            return
        ordered = [by_table[int(t)] for t in plan.jobs[:, JOB_TABLE]]
        settings = np.array([(u.limit, u.l2, u.decoupled) for u in ordered], np.float32)
        hyper = np.array([u.hyperparameters or (0.0,) for u in ordered], np.float32)
        kernel = rule_kernel(TEMPLATE, ordered[0].rule)
        self._run_update(kernel, plan, settings, hyper, ordered, self._states(ordered), None)

    def _states(self, ordered: Sequence[Update]) -> tuple[Array, Array, Array]:
        """Addresses and initial values of the tables' states, and the states' widths."""
        key = tuple(id(u.table.states) for u in ordered)
        if self._state_arrays is None or self._state_arrays[0] != key:
            lines = [list(u.table.states.values()) for u in ordered]
            shape = (len(lines), max(len(lines[0]), 1))
            addresses, initials = np.zeros(shape, np.int64), np.zeros(shape, np.float32)
            for i, line in enumerate(lines):
                addresses[i, : len(line)] = [state.region.address for state in line]
                initials[i, : len(line)] = [state.initial for state in line]
            widths = np.array([state.width for state in lines[0]] or [0], np.int64)
            owners = [u.table.states for u in ordered]  # kept alive, so that no other gets its id
            self._state_arrays = (key, (addresses, initials, widths), owners)
        return self._state_arrays[1]

    def _run_update(
        self,
        kernel: Any,
        plan: Plan,
        settings: Array,
        hyper: Array,
        ordered: Sequence[Update],
        states: Any,
        out: Any,
    ) -> None:
        addresses, initials, widths = states
        count = len(ordered[0].table.states) if ordered else 0
        steps = np.array([u.step for u in ordered] or [0], np.int64)
        launch(
            kernel,
            *(self.dim, count, len(plan.cuts), plan.size, hyper.shape[1]),
            *(plan.jobs, self.matrix, self.parameters, plan.task_jobs, plan.cuts),
            *(plan.rows, plan.slots, plan.ends, plan.gradients, plan.coefficients),
            *(settings, hyper, steps, addresses, initials, widths),
            0 if out is None else out,
            *(stage_function(name).address for name in ("stage", "unstage")),
            tasks=len(plan.cuts),
        )

    def reduce(self, limits: dict[int, float]) -> Tensor:
        """Replace the waiting gradients of some tables by their sums per row.

        Args:
            limits: by table, the largest element that a gradient may have before it is summed.

        Returns:
            the sums, [distinct rows, dim]; changing them changes what will be applied.
        """
        plan = self.plan(sorted(limits))
        if plan is None:
            return torch.empty(0, self.dim)
        settings = np.array([(limits[int(t)], 0, 0) for t in plan.jobs[:, JOB_TABLE]], np.float32)
        sums = np.empty((max(plan.size, 1), self.dim), np.float32)
        empty = np.zeros((len(plan.jobs), 1), np.int64)
        kernel = simple_kernel("recgrad.embedding.local.update", "reduce_tasks")
        hyper = np.zeros((len(plan.jobs), 1), np.float32)
        self._run_update(kernel, plan, settings, hyper, [], (empty, hyper, empty[0]), sums)
        return self._replace(plan, sums)

    def _replace(self, plan: Plan, sums: Array) -> Tensor:
        counts = plan.jobs[:, JOB_ROWS]
        picked = np.concatenate(
            [np.arange(s, s + n) for s, n in zip(plan.jobs[:, JOB_START], counts, strict=True)]
        )
        rows, packed = plan.rows[picked], torch.from_numpy(sums[picked])
        lines = np.zeros((len(plan.jobs), LOOKUP_COLUMNS), np.int64)
        first = np.cumsum(counts) - counts
        lines[:, TABLE] = plan.jobs[:, JOB_TABLE]
        lines[:, IDS] = address_of(rows) + 8 * first
        lines[:, BAGS] = counts
        lines[:, VECTORS] = packed.data_ptr() + 4 * self.dim * first
        lines[:, VECTOR_STRIDE] = 4 * self.dim
        names = {self.tables[int(t)].name for t in plan.jobs[:, JOB_TABLE]}
        self.clear(names)
        self.sources.append(Source((-1, 0), lines, counts.copy(), packed, rows))
        return packed


def _tasks(first: int, last: int, bags: int, per_task: int, simple: bool) -> Array:
    begin = np.arange(0, bags, per_task, dtype=np.int64)
    tasks = np.empty((len(begin), TASK_COLUMNS), np.int64)
    tasks[:, 0], tasks[:, 1], tasks[:, 2] = first, last, begin
    tasks[:, 3] = np.minimum(begin + per_task, bags)
    tasks[:, 4] = simple
    return tasks
