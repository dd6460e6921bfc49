"""All tables of one dim: their lookups are one kernel call, their update another.

Memory of a forward pass. Pooled lookups are columns of one block, so that neighbours are one view of it and
the model's first layer reads what the kernel wrote; a sequence lookup has a tensor of its own:

             column 0   column 1   …  pooled − 1          pooled, …
    row 0   ┌ dim ────┬ dim ────┬   ┬ dim ────┐          ┌ dim ────┐ position 0
    row 1   │         │         │ … │         │          │         │ position 1
            └─────────┴─────────┴   ┴─────────┘          └─────────┘ …
            block [rows, pooled · dim]                   sequences[column] [positions, dim]

    matrix   int64 [tables, TABLE_COLUMNS]     the tables; kernels write counts into it, so it never moves
    lines    int64 [columns, LOOKUP_COLUMNS]   where the ids of each column are, and where its vectors go

Lines of a batch are those of its shape (frames.py) plus the addresses of this batch's arrays: one addition in
NumPy, whatever the number of columns. A forward pass gives them to the lookup kernel; backward
takes copies with gradients for outputs (`keep`, pending.py); an update gives those to the planner, whose
plan the update kernel reads. `reduce` replaces sources by sums per row, for those who need these before the
update (norms, clamping).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from recgrad.embedding.local.frames import Frames, lookup_tasks_of
from recgrad.embedding.local.inputs import Inputs, Result, new_block
from recgrad.embedding.local.layout import (
    BAGS,
    IDS,
    LOOKUP_COLUMNS,
    MEAN,
    TABLE,
    TABLE_COLUMNS,
    VECTOR_STRIDE,
    VECTORS,
)
from recgrad.embedding.local.lines import StateArrays, state_arrays
from recgrad.embedding.local.living.table import LivingTable
from recgrad.embedding.local.living.translator import Translator
from recgrad.embedding.local.lookup import BAGS_PER_TASK, lookup_tasks
from recgrad.embedding.local.memory import address_of
from recgrad.embedding.local.pending import SUMMED, Source, Tables, only, per_output
from recgrad.embedding.local.plan import JOB_ROWS, JOB_START
from recgrad.embedding.local.planner import Plan, Planner
from recgrad.embedding.local.row_copy import keep_all
from recgrad.embedding.local.staging import STAGE_SIGNATURE, stage, unstage
from recgrad.embedding.local.table import Table
from recgrad.embedding.local.update import reduce_tasks, update_function
from recgrad.embedding.spec import LookupSpec, TableSpec
from recgrad.errors import DataError
from recgrad.kernels.compile import compiled, compiled_with
from recgrad.kernels.parallel import launch
from recgrad.optim.sparse.tables import SparseEngine, Update

Array = npt.NDArray[Any]


class Span(NamedTuple):
    """Some neighbouring columns."""

    tables: Tables  # the trainable ones among theirs
    mask: Array | None  # which columns have a trainable table; None for all


class DimGroup:
    """Tables of one dim, their lookups in a fixed order of columns, and waiting gradients."""

    def __init__(
        self,
        tables: Sequence[TableSpec],
        lookups: Sequence[LookupSpec],
        keys: Sequence[str],
        sequence_keys: Sequence[str],
        seed: int,
        engine: SparseEngine,
    ) -> None:
        self.dim = tables[0].dim
        self.matrix = np.zeros((len(tables), TABLE_COLUMNS), np.int64)
        self.parameters = np.zeros((len(tables), 4), np.float64)
        self.tables = [
            (Table if spec.living is None else LivingTable)(
                spec, i, self.matrix[i], self.parameters[i], seed, engine
            )
            for i, spec in enumerate(tables)
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
        self._frames = Frames(self._fixed, self._keys, self.pooled, self.dim, self.matrix)
        self._state_arrays: tuple[tuple[int, ...], StateArrays, object] | None = None
        self.sources: list[Source] = []
        self._all: Tables = frozenset(range(len(tables)))
        self._planner = Planner(self.tables, self.matrix, self.dim)
        self._vectors = np.arange(len(ordered)) * self.dim * 4  # from a block's first column to each
        self._spans: dict[tuple[int, int], Span] = {}
        self._line_addresses = (address_of(self.matrix), address_of(self.parameters))
        living = {i: t for i, t in enumerate(self.tables) if isinstance(t, LivingTable)}
        self._translator = Translator(living, self._fixed[:, TABLE].tolist()) if living else None

    # --- forward ---

    def leave_room(self, columns: int) -> None:
        """Leave memory for so many columns before each row of the block, in whole cache lines."""
        self._frames.leave_room(columns)

    def lookup(self, ids: Inputs | None, sequences: Inputs | None, training: bool = False) -> Result:
        """Pool the bags of all columns whose inputs are given."""
        p = self.pooled
        block = None
        outputs: dict[int, Tensor] = {}
        parts, tasks = [self._fixed[:0]], []
        if ids is not None and p:
            frame = self._frames.of(ids)
            block = new_block(frame.rows, p * self.dim, self._frames.room)
            parts.append(frame.lines + ids.addresses(block.data_ptr()))
            tasks.append(frame.tasks)
        elif p:
            parts.append(self._frames.absent(0, p))
        if sequences is not None and p < len(self.lookups):
            lines = self._frames.relative(sequences, p, len(self.lookups)) + sequences.addresses(0)
            for column, count in enumerate(lines[:, BAGS].tolist(), p):
                outputs[column] = output = torch.empty(count, self.dim)
                lines[column - p, VECTORS] = output.data_ptr()
                tasks.append(lookup_tasks_of(column, column + 1, count, 4 * BAGS_PER_TASK, False))
            lines[:, VECTOR_STRIDE] = self.dim * 4
            parts.append(lines)
        elif p < len(self.lookups):
            parts.append(self._frames.absent(p, len(self.lookups)))
        lines = parts[1] if len(parts) == 2 else np.concatenate(parts)
        result = Result(block, outputs, lines, (ids, sequences), self.dim, room=self._frames.room)
        if self._translator is not None:
            waiting: Tables = frozenset().union(*(source.tables for source in self.sources))
            result.rows = self._translator.translate(lines, training=training, waiting=waiting)
        if tasks:
            self._run_lookup(lines, tasks[0] if len(tasks) == 1 else np.concatenate(tasks), result)
        return result

    def _run_lookup(self, lines: Array, tasks: Array, result: Result) -> None:
        errors = np.zeros((len(tasks), 2), np.int64)
        launch(
            compiled(lookup_tasks),
            *(self.dim, len(tasks), lines, *self._line_addresses, tasks, errors),
            tasks=len(tasks),
        )
        if errors.any():
            column, position = errors[np.flatnonzero(errors[:, 1])[0]]
            raise self._bad_id(int(column), int(position) - 1, result)

    def _bad_id(self, column: int, position: int, result: Result) -> DataError:
        spec = self.lookups[column]
        inputs = result.inputs[1 if spec.sequence else 0]
        assert inputs is not None
        key = self._keys[column]
        if inputs.offsets is None:
            bag = position
            position += int(inputs.bags.first[key])
        else:
            bag = (
                int(np.searchsorted(inputs.offsets, position, side="right")) - 1 - int(inputs.bags.first[key])
            )
        table = self.tables[self._fixed[column, TABLE]].spec
        place = "position" if spec.sequence else "row"
        return DataError(
            f"feature '{spec.key}': id {int(inputs.values[position])} is outside table '{table.name}' "
            f"of {table.num_rows} rows ({place} {bag} of the batch)"
        )

    # --- backward ---

    def keep(self, result: Result, first: int, last: int, order: tuple[int, int], gradient: Tensor) -> None:
        """Note the gradient of columns first … last − 1 for the next update."""
        gradient = gradient.detach().to(torch.float32)
        if gradient.stride(1) != 1 and gradient.shape[1] > 1:
            gradient = gradient.contiguous()
        span = self.span(first, last)
        if result.rows is not None and self._translator is not None:
            self._translator.check_current(result.rows)
        lines = result.lookups[first:last].copy()
        lines[:, VECTORS] = self._vectors[: last - first] + gradient.data_ptr()
        lines[:, VECTOR_STRIDE] = gradient.stride(0) * 4
        if span.mask is not None:
            lines = lines[span.mask]
        self.sources.append(Source(order, lines, span.tables, gradient, result))

    def span(self, first: int, last: int) -> Span:
        """What is known of columns first … last − 1."""
        known = self._spans.get((first, last))
        if known is None:
            mask = self.trainable[first:last]
            tables = frozenset(self._fixed[first:last, TABLE][mask].tolist())
            known = self._spans[first, last] = Span(tables, None if mask.all() else mask)
        return known

    def pending_tables(self) -> list[str]:
        """Names of the tables that have gradients waiting."""
        used: Tables = frozenset().union(*(source.tables for source in self.sources))
        return [self.tables[t].name for t in sorted(used)]

    def _members(self, names: Collection[str]) -> Tables:
        return frozenset(i for i, table in enumerate(self.tables) if table.name in names)

    def _waiting(self, members: Tables) -> list[Source]:
        """The sources of some tables."""
        chosen = (only(source, members) for source in self.sources)
        return [source for source in chosen if source is not None]

    def clear(self, names: set[str] | None = None) -> None:
        """Drop the waiting gradients, of all tables or of some."""
        if self._translator is not None:
            self._translator.close()
        if names is None:
            self.sources = []
        elif self.sources:
            self.drop(self._members(names))

    def drop(self, tables: Tables) -> None:
        """Drop the waiting gradients of the tables at these positions."""
        self.sources = self._waiting(self._all - tables)
        if self._translator is not None:
            self._translator.close()

    def scale(self, names: set[str], factor: float) -> None:
        """Multiply the waiting gradients of some tables."""
        members = self._members(names)
        scaled = [source.times(factor) for source in self._waiting(members)]
        self.sources = self._waiting(self._all - members) + scaled

    def finite(self, names: set[str]) -> bool:
        """Whether the waiting gradients of some tables are free of infinities and NaN."""
        gradients = [source.gradient for source in self._waiting(self._members(names))]
        extremes = [torch.stack(torch.aminmax(g)) for g in gradients if g.numel()]
        return all(bool(torch.isfinite(extreme).all()) for extreme in extremes)

    # --- update ---

    def _plan(self, limits: Mapping[int, float]) -> Plan | None:
        """Find the distinct rows of these tables, with their limits, and where their gradients are."""
        sources = sorted(self._waiting(frozenset(limits)), key=lambda s: s.order)
        as_they_are = all(limit == math.inf for limit in limits.values())
        return self._planner.plan(sources, as_they_are) if sources else None

    def _limits(self, limits: dict[int, float]) -> dict[int, float]:
        """The limits that are left to apply: an output's gradient is clamped once, before rows are summed."""
        limited = frozenset(t for t, limit in limits.items() if limit != math.inf)
        if limited:  # an output that was taken twice has one gradient, the sum: that is what is clamped
            self.sources = per_output(self.sources, limited, self.dim)
        summed: Tables = frozenset().union(*(s.tables for s in self.sources if s.order == SUMMED))
        for t in sorted(summed & limits.keys()):
            parts = self._waiting(frozenset((t,)))
            if limits[t] != math.inf and len(parts) > 1:  # gradients came after the sums
                late = [part if part.order == SUMMED else part.clamped(limits[t]) for part in parts]
                self.sources = self._waiting(self._all - {t}) + late
        return {t: math.inf if t in summed else limit for t, limit in limits.items()} if summed else limits

    def update(self, by_table: Mapping[int, Update]) -> None:
        """Apply one rule to the waiting gradients of the tables at these positions, which all have it."""
        limits = self._limits({t: u.limit for t, u in by_table.items()})
        plan = self._plan(limits)
        if plan is None or plan.size == 0:
            return
        ordered = [by_table[t] for t in plan.tables]
        settings = np.array(
            [(limits[t], u.l2, u.decoupled) for t, u in zip(plan.tables, ordered)], np.float32
        )
        hyper = np.array([u.hyperparameters or (0.0,) for u in ordered], np.float32)
        kernel = compiled_with(update_function, ordered[0].rule)
        states = self._states([self.tables[t] for t in plan.tables])
        self._keep_copied(plan)
        self._run_update(kernel, plan, settings, hyper, [u.step for u in ordered], states, None)

    def _keep_copied(self, plan: Plan) -> None:
        """Let tables that a checkpoint is copying put aside the rows that are about to change."""
        owed = []
        for position, job in zip(plan.tables, plan.jobs):
            copying = self.tables[position].copying
            if copying is not None:
                compact, start = self.tables[position].compact, int(job[JOB_START])
                slots = (plan.slots if compact else plan.rows)[start : start + int(job[JOB_ROWS])]
                owed.append((copying, slots))
        if owed:
            keep_all(owed)

    def _states(self, tables: Sequence[Table]) -> StateArrays:
        """Addresses and initial values of the tables' states, and the states' widths."""
        key = tuple(id(table.states) for table in tables)
        if self._state_arrays is None or self._state_arrays[0] != key:
            owners = [table.states for table in tables]  # kept alive, so that no other gets its id
            self._state_arrays = (key, state_arrays([table.lines for table in tables]), owners)
        return self._state_arrays[1]

    def _run_update(
        self,
        kernel: Any,
        plan: Plan,
        settings: Array,
        hyper: Array,
        steps: Sequence[int],
        states: StateArrays,
        out: Array | None,
    ) -> None:
        count, addresses, strides, initials, widths = states
        numbers = np.array(steps or [0], np.int64)
        jobs, task_jobs, cuts, rows, slots, ends, gradients, coefficients = plan.addresses
        launch(
            kernel,
            *(self.dim, count, plan.tasks, plan.size, hyper.shape[1]),
            *(jobs, *self._line_addresses, task_jobs, cuts, rows, slots, ends, gradients, coefficients),
            *(settings, hyper, numbers, addresses, strides, initials, widths),
            0 if out is None else out,
            *(compiled(function, STAGE_SIGNATURE).address for function in (stage, unstage)),
            tasks=plan.tasks,
        )

    def reduce(self, limits: dict[int, float]) -> Tensor:
        """Replace the waiting gradients of some tables by their sums per row.

        Args:
            limits: by table, the largest element that a gradient may have before it is summed.

        Returns:
            the sums, [distinct rows, dim]; changing them changes what will be applied.
        """
        limits = self._limits(limits)
        plan = self._plan(limits)
        if plan is None:
            return torch.empty(0, self.dim)
        settings = np.array([(limits[t], 0, 0) for t in plan.tables], np.float32)
        sums = np.empty((max(plan.size, 1), self.dim), np.float32)
        empty = np.zeros((len(plan.jobs), 1), np.int64)
        kernel = compiled(reduce_tasks)
        hyper = np.zeros((len(plan.jobs), 1), np.float32)
        none = StateArrays(0, empty, empty, hyper, empty[0])
        self._run_update(kernel, plan, settings, hyper, [], none, sums)
        return self._replace(plan, sums)

    def _replace(self, plan: Plan, sums: Array) -> Tensor:
        counts = plan.jobs[:, JOB_ROWS]
        picked = np.concatenate(
            [np.arange(s, s + n) for s, n in zip(plan.jobs[:, JOB_START], counts, strict=True)]
        )
        rows, packed = plan.rows[picked], torch.from_numpy(sums[picked])
        lines = np.zeros((len(plan.jobs), LOOKUP_COLUMNS), np.int64)
        first = np.cumsum(counts) - counts
        lines[:, TABLE] = plan.tables
        lines[:, IDS] = address_of(rows) + 8 * first
        lines[:, BAGS] = counts
        lines[:, VECTORS] = packed.data_ptr() + 4 * self.dim * first
        lines[:, VECTOR_STRIDE] = 4 * self.dim
        tables = frozenset(plan.tables)
        self.sources = [*self._waiting(self._all - tables), Source(SUMMED, lines, tables, packed, rows)]
        return packed
