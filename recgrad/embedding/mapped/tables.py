"""Tables in mapped files, and lookups into them by the kernel that training uses; no torch.

Only the pages of rows that are looked up are read, and processes that map the same files share them.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from recgrad.embedding.local.index import ENTRY_BYTES, MAX_ROWS
from recgrad.embedding.local.initializer import CONSTANT
from recgrad.embedding.local.layout import (
    BAGS,
    BITS,
    COUNT,
    ID_WEIGHTS,
    IDS,
    INDEX,
    INIT,
    KEY,
    KIND,
    MEAN,
    OFFSETS,
    READ,
    ROWS,
    STRIDE,
    TABLE,
    TABLE_COLUMNS,
    VECTOR_STRIDE,
    VECTORS,
    WEIGHTS,
)
from recgrad.embedding.local.living.find import IDS_PER_TASK, find_tasks
from recgrad.embedding.local.living.layout import ENTRIES, LINE_COLUMNS, SIZE, UNKNOWN_ROWS
from recgrad.embedding.local.living.layout import ENTRY as LIVING_ENTRY
from recgrad.embedding.mapped.lookup import (
    BAGS_PER_TASK,
    DIM,
    ERROR_COLUMNS,
    ID_STEP,
    MAPPED_COLUMNS,
    NO_ID,
    TASK_COLUMNS,
    mapped_lookups,
)
from recgrad.embedding.mapped.packing import PACKINGS
from recgrad.embedding.mapped.record import LookupRecord, TableRecord
from recgrad.errors import BundleError
from recgrad.kernels.compile import compiled
from recgrad.kernels.parallel import launch

Array = npt.NDArray[Any]


def address_of(array: Array) -> int:
    """Where an array begins."""
    address: int = array.__array_interface__["data"][0]
    return address


@dataclass(frozen=True)
class Bags:
    """Ids of one feature.

    Attributes:
        ids: int64, contiguous.
        offsets: int64 [bags + 1], where each bag begins in `ids`; None where every bag holds one id.
        weights: float32, one for each id; None where all are 1.
    """

    ids: Array
    offsets: Array | None = None
    weights: Array | None = None

    def __len__(self) -> int:
        return len(self.ids) if self.offsets is None else len(self.offsets) - 1


@dataclass(frozen=True)
class Target:
    """Where the pooled bags of a lookup go: float32 [bags, dim], whose rows may lie apart."""

    lookup: str
    out: npt.NDArray[np.float32]


class BadIdError(ValueError):
    """An id outside its table.

    Attributes:
        lookup: the lookup.
        position: of the id among those of its feature.
    """

    def __init__(self, lookup: LookupRecord, table: TableRecord, value: int, position: int) -> None:
        super().__init__(
            f"feature {lookup.key}: id {value} is outside table '{table.name}' of {table.num_rows} rows"
        )
        self.lookup, self.position = lookup, position


class PreparedLookups:
    """Lookups whose ids and vectors lie in the same place at every call, on the thread that calls.

    Args:
        kernel: that looks up.
        block: its arguments.
        errors: that it writes to.
        kept: arrays that the block refers to.
    """

    def __init__(self, kernel: Any, block: Array, errors: Array, kept: tuple[Any, ...]) -> None:
        self._kernel, self._address = kernel, address_of(block)
        self._drawn = block.data  # the first number counts the tasks that are done
        self._errors, self._none = errors, bytes(errors.nbytes)
        self._kept = block, kept

    def run(self) -> bool:
        """Look up the ids that are there now; False if one is outside its table."""
        self._drawn[0] = 0
        self._kernel(self._address)
        if self._errors.tobytes() == self._none:
            return True
        self._errors[:] = 0
        return False


class MappedTables:
    """All tables of a bundle, read-only; threads may share it.

    Args:
        folder: the bundle.
        tables: what its manifest says of tables.
        lookups: and of their uses.
    """

    def __init__(self, folder: Path, tables: Sequence[TableRecord], lookups: Sequence[LookupRecord]) -> None:
        self._maps: list[Array] = []
        self._living: dict[str, Array] = {}
        self.records = {record.name: record for record in tables}
        self.lookups = {record.name: record for record in lookups}
        self._line = {record.name: i for i, record in enumerate(tables)}
        self._matrix = np.zeros((max(len(tables), 1), TABLE_COLUMNS), np.int64)
        self._parameters = np.zeros((max(len(tables), 1), 4), np.float64)
        for i, record in enumerate(tables):
            self._map_table(folder, i, record)
        self._kernel = compiled(mapped_lookups)

    def _map_table(self, folder: Path, i: int, record: TableRecord) -> None:
        check_record(record)
        packing = PACKINGS[record.packing]
        stride = packing.stride(record.dim)
        line = self._matrix[i]
        line[[STRIDE, READ, ROWS, COUNT]] = stride, stride, record.num_rows, record.stored_rows
        self._describe(line, i, record)
        line[WEIGHTS] = self._map(folder / record.rows_file, record.stored_rows * stride)
        if record.entries:
            size = LIVING_ENTRY * record.entries
            own = np.zeros(LINE_COLUMNS, np.int64)
            own[[ENTRIES, SIZE]] = self._map(folder / record.index_file, size), record.entries
            own[UNKNOWN_ROWS] = record.stand_ins
            self._living[record.name] = own
        elif record.index_file:
            line[INDEX] = self._map(folder / record.index_file, ENTRY_BYTES << record.index_bits)
            line[BITS] = record.index_bits

    def _describe(self, line: Array, i: int, record: TableRecord) -> None:
        """How rows lie, and what untrained ones read as."""
        line[[KIND, INIT, KEY]] = PACKINGS[record.packing].kind, record.init_kind, record.key
        self._parameters[i, : len(record.init_parameters)] = record.init_parameters

    def _map(self, path: Path, size: int) -> int:
        """The address of a mapped file, which must have this size."""
        try:
            actual = path.stat().st_size
            if actual != size:
                raise BundleError(f"{path}: has {actual} bytes instead of {size}; copy the bundle again")
            if size == 0:
                return 0
            with open(path, "rb") as file:
                pages = mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ)
        except OSError as error:
            raise BundleError(f"{path}: cannot be read ({error.strerror}); copy the bundle again") from error
        # Rows lie anywhere: what is next to one is not needed next, nor the rest of a huge page.
        for advice in ("MADV_RANDOM", "MADV_NOHUGEPAGE"):
            if hasattr(mmap, advice):
                with suppress(OSError):  # kernels without huge pages refuse the second
                    pages.madvise(getattr(mmap, advice))
        array = np.frombuffer(pages, np.uint8)
        self._maps.append(array)
        return address_of(array)

    def dim(self, lookup: str) -> int:
        """Width of a lookup."""
        return self.records[self.lookups[lookup].table].dim

    def lines(self, lookups: Sequence[str], no_id: int = -(1 << 63)) -> Array:
        """What the kernel is told of lookups, a line each, but for the addresses of ids and vectors.

        Args:
            lookups: their names.
            no_id: the id that stands for an empty bag.
        """
        lines = np.zeros((len(lookups), MAPPED_COLUMNS), np.int64)
        for line, name in zip(lines, lookups, strict=True):
            record = self.lookups[name]
            line[[TABLE, MEAN, DIM]] = self._line[record.table], record.pooling == "mean", self.dim(name)
        lines[:, ID_STEP], lines[:, NO_ID] = 8, no_id
        return lines

    def put_bags(self, line: Array, bags: Bags) -> None:
        """Tell the kernel in a line where the ids of a lookup are."""
        line[IDS], line[BAGS] = address_of(bags.ids), len(bags)
        line[OFFSETS] = 0 if bags.offsets is None else address_of(bags.offsets)
        line[ID_WEIGHTS] = 0 if bags.weights is None else address_of(bags.weights)

    def look_up(self, targets: Sequence[Target], bags: Mapping[str, Bags], threads: int = 1) -> None:
        """Pool the bags of each target's feature into its output.

        Raises:
            BadIdError: an id is outside its table.
        """
        names = [target.lookup for target in targets]
        lines = self.lines(names)
        for line, target in zip(lines, targets, strict=True):
            self.put_bags(line, bags[self.lookups[target.lookup].key])
            line[[VECTORS, VECTOR_STRIDE]] = address_of(target.out), target.out.strides[0]
        self.run(names, lines, threads)

    def run(self, lookups: Sequence[str], lines: Array, threads: int = 1) -> None:
        """Look up what complete lines say.

        Args:
            lookups: the name of each line.
            lines: as `lines` gives them, filled in.
            threads: to use.

        Raises:
            BadIdError: an id is outside its table.
        """
        tasks = _tasks(lines[:, BAGS])
        if not len(tasks):
            return
        lines, _kept = self._with_rows(lookups, lines, threads) if self._living else (lines, None)
        errors = np.zeros((len(tasks), ERROR_COLUMNS), np.int64)
        launch(
            self._kernel,
            *(len(tasks), lines, self._matrix, self._parameters, tasks, errors),
            tasks=min(threads, len(tasks)),
        )
        if errors[:, 1].any():
            at, position, value = errors[np.flatnonzero(errors[:, 1])[0]].tolist()
            record = self.lookups[lookups[at]]
            raise BadIdError(record, self.records[record.table], value, position - 1)

    def prepare(self, lines: Array) -> PreparedLookups | None:
        """What looks up by complete lines again and again; None where rows belong to ids: these move.

        Args:
            lines: as `lines` gives them, filled in.
        """
        if self._living:
            return None
        tasks = _tasks(lines[:, BAGS])
        errors = np.zeros((len(tasks), ERROR_COLUMNS), np.int64)
        arrays = (lines, self._matrix, self._parameters, tasks, errors)
        block = np.array([0, 0, len(tasks), *map(address_of, arrays)], np.int64)
        return PreparedLookups(self._kernel.ctypes, block, errors, arrays)

    def _with_rows(self, lookups: Sequence[str], lines: Array, threads: int) -> tuple[Array, list[Array]]:
        """Lines that point to row numbers, where rows belong to ids, and what these lie in."""
        lines, kept = lines.copy(), []
        for line, name in zip(lines, lookups, strict=True):
            own = self._living.get(self.lookups[name].table)
            if own is None or not line[BAGS]:
                continue
            first, count = 0, int(line[BAGS]) if line[ID_STEP] else 1
            if line[OFFSETS]:
                ends = _int64_at(int(line[OFFSETS]), int(line[BAGS]) + 1)
                first, count = int(ends[0]), int(ends[-1] - ends[0])
            ids = _int64_at(int(line[IDS]) + 8 * first, count)
            rows = _rows_of(own, ids, threads)
            rows[ids == line[NO_ID]] = line[NO_ID]
            line[IDS] = address_of(rows) - 8 * first
            kept.append(rows)
        return lines, kept


def _int64_at(address: int, count: int) -> Array:
    return np.ctypeslib.as_array((ctypes.c_int64 * count).from_address(address))


def _rows_of(line: Array, ids: Array, threads: int) -> Array:
    """The rows of ids, stand-ins for those that have none."""
    rows = np.empty(len(ids), np.int64)
    if not len(ids):
        return rows
    job = np.array([address_of(line), address_of(ids), address_of(rows), len(rows)], np.int64)
    begin = np.arange(0, len(rows), IDS_PER_TASK)
    tasks = np.stack([0 * begin, begin, np.minimum(begin + IDS_PER_TASK, len(rows))], axis=1)
    launch(compiled(find_tasks), job, 1, tasks, len(tasks), 0, 0, tasks=min(threads, len(tasks)))
    return rows


def _tasks(bags: Array) -> Array:
    """Bags in pieces: of lookups with equally many bags, one after another, together."""
    if not len(bags):
        return np.empty((0, TASK_COLUMNS), np.int64)
    first_count = int(bags[0])
    if 0 < first_count <= BAGS_PER_TASK and bags.tolist() == [first_count] * len(bags):
        return np.array([[0, len(bags), 0, first_count]], np.int64)
    ends = [*(np.flatnonzero(np.diff(bags)) + 1).tolist(), len(bags)]
    tasks: list[tuple[int, int, int, int]] = []
    first = 0
    for last in ends:
        count = int(bags[first])
        for begin in range(0, count, BAGS_PER_TASK):
            tasks.append((first, last, begin, min(begin + BAGS_PER_TASK, count)))
        first = last
    return np.array(tasks, np.int64).reshape(-1, TASK_COLUMNS)


def check_record(record: TableRecord) -> None:
    """Refuse what no export writes, before anything is read by it."""
    whole = 0 < record.num_rows <= MAX_ROWS and 0 < record.dim < 1 << 20
    known = record.packing in PACKINGS and 0 <= record.init_kind <= CONSTANT
    fits = len(record.init_parameters) <= 4 and -(1 << 63) <= record.key < 1 << 63
    if record.entries:
        stored = 0 < record.stand_ins <= record.stored_rows == record.num_rows < record.entries + 64
    elif record.index_file:
        stored = 0 <= record.stored_rows < 1 << record.index_bits and record.index_bits < 40
    else:
        stored = record.stored_rows == record.num_rows
    if not (whole and known and fits and stored):
        raise BundleError(
            f"manifest.json: table '{record.name}' is described wrongly; export the model again"
        )
