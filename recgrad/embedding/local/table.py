"""One embedding table in memory: its rows, its optimizer's state, and the index of a compact one."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from recgrad.embedding.check import check_rows, check_states, check_weights
from recgrad.embedding.engine import EmbeddingTable, TableMemory, TablePart
from recgrad.embedding.local.headings import pack, unpack
from recgrad.embedding.local.index import MAX_ROWS
from recgrad.embedding.local.initializer import parse_init_fn, table_key
from recgrad.embedding.local.layout import (
    BITS,
    CHANGED,
    COUNT,
    DIRECTION,
    FIRST_COLUMN,
    FIRST_ROW,
    HISTORY,
    INDEX,
    INIT,
    KEY,
    KIND,
    ROWS,
)
from recgrad.embedding.local.lines import Lines, StateArray, part_of
from recgrad.embedding.local.memory import Region
from recgrad.embedding.local.row_copy import RowCopy
from recgrad.embedding.local.slots import SlotIndex
from recgrad.embedding.local.stored import as_floats, first_bits, from_floats
from recgrad.embedding.local.transfer import assign_task, catch_up_task, initial_task
from recgrad.embedding.spec import Shard, TableSpec
from recgrad.kernels.compile import compiled
from recgrad.kernels.parallel import launch
from recgrad.kernels.simd import BF16, F16, F32
from recgrad.optim.sparse.history import HEADING, MISSED, SQUARE, STEP, STORED, History, saved_widths
from recgrad.optim.sparse.tables import SparseEngine

SMALL_BYTES = 1 << 20  # AUTO: tables of at most this size are plain
PLAIN_BYTES = 64 << 20  # AUTO: larger ones of at most this size become plain
PLAIN_SHARE = 0.5  # … when this much of their rows was written; before, an array of all would be mostly empty
EXPORT_ROWS = 1 << 18
_SMALL_PAGES = 8 << 20  # a compact table's first bytes; beyond them huge pages are worth their size
_KINDS = {"FP32": F32, "FP16": F16, "BF16": BF16}

Array = npt.NDArray[Any]


def _regions(table: str, small_pages: int) -> Callable[[int, str], Region]:
    """Makes regions of so many bytes for what it is told, of which the first bytes have small pages."""
    return lambda size, what: Region(size, f"{what} of table '{table}'", small_pages)


class Table(EmbeddingTable):
    """A table's memory. Python sees it whole; kernels see one line of integers.

    Attributes:
        spec: what was asked for.
        position: its line in the table matrix of its dim.
        numbers: the line of the table matrix that kernels read and write.
        parameters: of the initialiser.
        height: slots that there may be.
    """

    def __init__(
        self,
        spec: TableSpec,
        position: int,
        numbers: Array,
        parameters: Array,
        seed: int,
        engine: SparseEngine,
    ) -> None:
        super().__init__(spec, engine)
        self.position = position
        self.numbers = numbers
        self.parameters = parameters
        self._copying: weakref.ref[RowCopy] | None = None
        self._check()
        self.kind = _KINDS[spec.data_type]
        self.height = spec.num_rows
        item = 4 if self.kind == F32 else 2
        size = spec.num_rows * spec.dim * item
        self.compact = spec.storage == "COMPACT" or (spec.storage == "AUTO" and size > SMALL_BYTES)
        self._fills = self.compact and spec.storage == "AUTO" and size <= PLAIN_BYTES
        reserve = _regions(spec.name, _SMALL_PAGES if self.compact else 0)
        self.lines = Lines(numbers, self.height, spec.dim, self.kind, reserve)
        whole = spec.shard or Shard(spec.name, spec.num_rows, spec.dim)
        initializer = parse_init_fn(spec.init_fn, whole.num_rows, whole.dim, whole.table)
        parameters[: len(initializer.parameters)] = initializer.parameters
        numbers[[KIND, ROWS]] = self.kind, spec.num_rows
        numbers[[INIT, KEY]] = initializer.kind, table_key(seed, whole.table)
        numbers[[FIRST_ROW, FIRST_COLUMN]] = whole.first_row, whole.first_column
        self.slots = SlotIndex(numbers, lambda size: reserve(size, "index")) if self.compact else None

    def _check(self) -> None:
        spec = self.spec
        if spec.num_rows < 1 or spec.dim < 1:
            raise ValueError(
                f"a table needs rows and a dim, got {spec.num_rows} × {spec.dim} for '{spec.name}'"
            )
        if spec.data_type not in _KINDS:
            raise ValueError(
                f"data_type must be FP32, FP16 or BF16, got '{spec.data_type}' for '{spec.name}'"
            )
        if spec.storage not in ("AUTO", "PLAIN", "COMPACT"):
            raise ValueError(
                f"storage must be AUTO, PLAIN or COMPACT, got '{spec.storage}' for '{spec.name}'"
            )
        if spec.num_rows > MAX_ROWS:
            raise ValueError(f"a table has at most {MAX_ROWS} rows, got {spec.num_rows} for '{spec.name}'")

    def _kept_slots(self) -> Array | None:
        """The slots that hold something; None where none does."""
        return self.touched_rows()[1] if self.touched else None

    # --- how rows are found ---

    def make_room(self, rows: int) -> None:
        """See to it that `rows` more rows find room."""
        if self._fills and self.touched >= PLAIN_SHARE * self.height:
            self._become_plain()
        if self.slots is not None:
            self.slots.make_room(min(self.touched + rows, self.height))

    def _become_plain(self) -> None:
        """Move all rows to arrays in which a row's number is its place, unless others know its slot."""
        if self.numbers[CHANGED] or self.copying is not None:
            return
        assert self.slots is not None
        rows, slots = self.slots.entries()
        written = int(np.count_nonzero(self._first_bits()[slots]))
        self.compact = self._fills = False
        self.slots = None
        self.lines.rearrange(rows, slots, _regions(self.name, 0))
        self.numbers[[INDEX, BITS, COUNT]] = 0, 0, written

    # --- rows ---

    @property
    def touched(self) -> int:
        """The number of rows that were written."""
        return int(self.numbers[COUNT])

    def _first_bits(self) -> Array:
        """The bits of each slot's first element; 0 where a row was never written."""
        return first_bits(self.lines.stored(), self.kind)

    def touched_rows(self) -> tuple[Array, Array]:
        """Row numbers in ascending order, and their slots."""
        if self.slots is None:
            first = self._first_bits()
            pieces = range(0, len(first), EXPORT_ROWS)
            # Compared first: steps may go on beside it, and flatnonzero refuses what changes under it.
            found = [np.flatnonzero(first[i : i + EXPORT_ROWS] != 0) + i for i in pieces]
            rows = np.concatenate(found).astype(np.int64)
            return rows, rows
        rows, slots = self.slots.entries()
        order = np.argsort(rows)
        rows, slots = rows[order], slots[order]
        written = self._first_bits()[slots] != 0
        return rows[written], slots[written]

    def slots_for(self, rows: Array) -> Array:
        """The slots of rows; a row that is not in the index yet is added to it."""
        rows = np.ascontiguousarray(rows, dtype=np.int64)
        check_rows(self.spec, rows)
        self.make_room(len(rows))
        if not self.compact:
            return rows
        slots = np.empty_like(rows)
        launch(
            compiled(assign_task),
            self.numbers,
            rows,
            slots,
            len(rows),
            tasks=1,
        )
        return slots

    def _is_new(self, slots: Array) -> Array:
        return np.asarray(self._first_bits()[slots] == 0)

    def pieces(self, chunk_rows: int = EXPORT_ROWS) -> Iterator[tuple[Array, Array]]:
        """Touched rows in ascending order and their weights as float32, some at a time."""
        rows, slots = self.touched_rows()
        for i in range(0, len(rows), chunk_rows):
            yield rows[i : i + chunk_rows], self.read(slots[i : i + chunk_rows])

    def parts(self) -> Iterator[TablePart]:
        """All that was learned."""
        rows, slots = self.touched_rows()
        yield TablePart(0, rows, self.read(slots), self._states_at(slots))

    # --- rows of one moment, for a checkpoint ---

    @property
    def copying(self) -> RowCopy | None:
        """A copy of an earlier moment that is not finished, to which whoever writes rows owes `keep`."""
        found = None if self._copying is None else self._copying()
        if found is None or found.done:
            self._copying = None
            return None
        return found

    def begin_copy(self) -> Callable[[], list[TablePart]]:
        """`parts` of this moment: copied by whoever calls it, while training goes on."""
        self.finish_copy()
        slots, places = self._places_of_now()
        missed = None if self.history is None else self.history.missed_now()
        begun = self.lines.begin_copy(slots, places, self._bits_of_now(slots), missed)
        self._copying = weakref.ref(begun)  # a copy that nobody wants any more ends by that
        return lambda: [part_of(begun)]  # not of `self`: the table may go before somebody asks

    def _places_of_now(self) -> tuple[int, Callable[[], tuple[Array, Array]]]:
        """How many slots there are, and what gives the rows that have them now, in any thread."""
        if self.slots is None:  # a row that is written later was put aside as one that is not
            return self.height, self.touched_rows
        return self.touched, self.slots.places_of_now()

    def _bits_of_now(self, slots: int) -> Array | None:
        """A copy of the first bits of all slots, [slots, 1], where others than updates change them."""
        return None

    def finish_copy(self) -> None:
        """Copy the rest, because rows are about to be written otherwise than by an update."""
        copying = self.copying
        if copying is not None:
            copying.collect()

    def read(self, slots: Array) -> Array:
        """The weights at these slots as float32, as they are by now."""
        weights = self._read_stored(slots)
        if self.history is not None:
            slots = np.ascontiguousarray(slots, dtype=np.int64)
            kernel = compiled(catch_up_task)
            launch(kernel, self.numbers, slots, len(slots), weights, self.spec.dim, tasks=1)
        return weights

    def _read_stored(self, slots: Array) -> Array:
        """The weights as each row's last update left them."""
        return as_floats(self.lines.stored()[slots], self.kind)

    def write(self, rows: Array, weights: Array) -> None:
        """Set rows; short types round to nearest. States of rows that were untouched become initial."""
        weights = np.ascontiguousarray(weights, dtype=np.float32)
        check_weights(self.spec, rows, weights)
        self.finish_copy()
        slots = self.slots_for(rows)
        new = self._is_new(slots)
        if not self.compact:
            self.numbers[COUNT] += len(np.unique(slots[new]))
        self._begin_states(slots[new])
        self._store(slots, weights)
        if self.history is not None:
            self._bring_up_to_date(slots)

    def _store(self, slots: Array, weights: Array) -> None:
        self.lines.stored()[slots] = from_floats(weights, self.kind)

    def materialise(self, rows: Array) -> None:
        """Write the rows among these that are untouched, at their initial values."""
        rows = np.unique(np.asarray(rows, dtype=np.int64))
        slots = self.slots_for(rows)
        new = self._is_new(slots)
        if new.any():
            self.write(rows[new], self.initial(rows[new]))

    def initial(self, rows: Array) -> Array:
        """What untouched rows read as."""
        rows = np.ascontiguousarray(rows, dtype=np.int64)
        values = np.empty((len(rows), self.spec.dim), np.float32)
        launch(
            compiled(initial_task),
            self.numbers,
            self.parameters,
            rows,
            len(rows),
            values,
            self.spec.dim,
            tasks=1,
        )
        return values

    # --- optimizer state ---

    @property
    def states(self) -> Mapping[str, StateArray]:
        """The optimizer's states by name."""
        return self.lines.states

    def set_states(self, states: Sequence[tuple[str, int, float]]) -> None:
        """Make room for an optimizer's states (name, width, initial value); drops those there were."""
        self.finish_copy()
        self.follow(None)
        self.lines.set_states(states, self._kept_slots())
        if any(state.initial for state in self.states.values()) and self.touched:
            self._begin_states(self.touched_rows()[1])

    def _begin_states(self, slots: Array) -> None:
        """Give rows their initial states."""
        for state in self.states.values():
            if not state.moves:
                self.lines.state(state)[slots] = state.initial
        if self.history is not None:
            self.lines.headings()[slots] = 0

    def follow(self, history: History | None) -> None:
        """From now on rows that no batch touches move on by this history; None for rows that stay."""
        self.history = history
        self.numbers[HISTORY] = 0
        if history is None:
            return
        self.numbers[DIRECTION] = 4 * self.lines.behind
        self.numbers[HISTORY] = history.line.__array_interface__["data"][0]

    def _bring_up_to_date(self, slots: Array) -> None:
        """Let the states of rows be those of now, because their weights are."""
        assert self.history is not None
        squares = self.lines.state(self.states[SQUARE])
        headings, steps = unpack(self.lines.headings()[slots], self.spec.dim)
        headings, squares[slots] = self.history.bring_up_to_date(steps, headings, squares[slots])
        self.lines.headings()[slots] = pack(headings, np.full(len(slots), self.history.count))

    def row_states(self) -> tuple[Array, dict[str, Array]]:
        """Touched rows in ascending order, and their states by name, each [rows, width]."""
        rows, slots = self.touched_rows()
        return rows, self._states_at(slots)

    def _states_at(self, slots: Array) -> dict[str, Array]:
        stored = {name: state for name, state in self.states.items() if not state.moves}
        states = {name: self.lines.state(state)[slots] for name, state in stored.items()}
        if self.history is not None:
            states[HEADING], steps = unpack(self.lines.headings()[slots], self.spec.dim)
            states |= {STEP: steps[:, None], STORED: self._read_stored(slots)}
            states[MISSED] = self.history.missed(steps)
        return states

    def import_states(self, rows: Array, values: dict[str, Array]) -> None:
        """Set the states of rows; untouched ones come into being."""
        rows = np.asarray(rows, dtype=np.int64)
        widths = {name: state.width for name, state in self.states.items()}
        if self.history is not None:
            widths |= saved_widths(self.spec.dim)
        check_states(self.spec, widths, rows, values)
        self.finish_copy()
        self.materialise(rows)
        slots = self.slots_for(rows)
        for name, value in values.items():
            state = self.states.get(name)
            if state is not None and not state.moves:
                self.lines.state(state)[slots] = np.asarray(value, np.float32).reshape(len(rows), state.width)
        if self.history is not None:
            headings = np.asarray(values[HEADING], np.float32).reshape(len(rows), self.spec.dim)
            self.lines.headings()[slots] = pack(headings, np.asarray(values[STEP], np.int32).reshape(-1))
            self._store(slots, np.ascontiguousarray(values[STORED], np.float32))

    def memory(self) -> TableMemory:
        """Touched rows and what they cost."""
        rows = self.touched if self.compact else self.height
        index = 0 if self.slots is None else self.slots.nbytes
        width = sum(state.width for state in self.states.values())
        weights = self.spec.dim * (4 if self.kind == F32 else 2)
        return TableMemory(self.name, self.touched, rows * weights, rows * width * 4, index)
