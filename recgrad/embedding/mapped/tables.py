"""Tables in mapped files, and lookups into them by the kernel that training uses; no torch.

Only the pages of rows that are looked up are read, and processes that map the same files share them.
"""

from __future__ import annotations

import mmap
from collections.abc import Mapping, Sequence
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
    INDEX,
    INIT,
    KEY,
    KIND,
    LOOKUP_COLUMNS,
    ROWS,
    STRIDE,
    TABLE_COLUMNS,
    WEIGHTS,
)
from recgrad.embedding.local.lookup import BAGS_PER_TASK, TASK_COLUMNS, lookup_tasks
from recgrad.embedding.mapped.packing import PACKINGS
from recgrad.embedding.mapped.record import LookupRecord, TableRecord
from recgrad.errors import BundleError
from recgrad.kernels.compile import compiled
from recgrad.kernels.parallel import launch
from recgrad.kernels.simd import F32

Array = npt.NDArray[Any]


def _address(array: Array) -> int:
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


class MappedTables:
    """All tables of a bundle, read-only; threads may share it.

    Args:
        folder: the bundle.
        tables: what its manifest says of tables.
        lookups: and of their uses.
    """

    def __init__(self, folder: Path, tables: Sequence[TableRecord], lookups: Sequence[LookupRecord]) -> None:
        self._maps: list[Array] = []
        self.records = {record.name: record for record in tables}
        self.lookups = {record.name: record for record in lookups}
        self._line = {record.name: i for i, record in enumerate(tables)}
        self._matrix = np.zeros((max(len(tables), 1), TABLE_COLUMNS), np.int64)
        self._parameters = np.zeros((max(len(tables), 1), 4), np.float64)
        for i, record in enumerate(tables):
            self._map_table(folder, i, record)
        self._plain = {r.name for r in tables if not r.index_file and PACKINGS[r.packing].kind == F32}
        self._kernel = compiled(lookup_tasks)

    def _map_table(self, folder: Path, i: int, record: TableRecord) -> None:
        check_record(record)
        packing = PACKINGS[record.packing]
        stride = packing.stride(record.dim)
        line = self._matrix[i]
        line[[KIND, STRIDE, ROWS, COUNT]] = packing.kind, stride, record.num_rows, record.stored_rows
        line[[INIT, KEY]] = record.init_kind, record.key
        line[WEIGHTS] = self._map(folder / record.rows_file, record.stored_rows * stride)
        if record.index_file:
            line[INDEX] = self._map(folder / record.index_file, ENTRY_BYTES << record.index_bits)
            line[BITS] = record.index_bits
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
        # Rows lie anywhere: what is next to one is not needed next.
        if hasattr(mmap, "MADV_RANDOM"):
            pages.madvise(mmap.MADV_RANDOM)
        array = np.frombuffer(pages, np.uint8)
        self._maps.append(array)
        return _address(array)

    def dim(self, lookup: str) -> int:
        """Width of a lookup."""
        return self.records[self.lookups[lookup].table].dim

    def look_up(self, targets: Sequence[Target], bags: Mapping[str, Bags], threads: int = 1) -> None:
        """Pool the bags of each target's feature into its output.

        Raises:
            BadIdError: an id is outside its table.
        """
        by_dim: dict[int, list[Target]] = {}
        for target in targets:
            by_dim.setdefault(self.dim(target.lookup), []).append(target)
        for dim, own in by_dim.items():
            self._look_up(dim, own, bags, threads)

    def _look_up(self, dim: int, targets: Sequence[Target], bags: Mapping[str, Bags], threads: int) -> None:
        lines = np.zeros((len(targets), LOOKUP_COLUMNS), np.int64)
        simple, counts = True, set()
        for line, target in zip(lines, targets, strict=True):
            record, out = self.lookups[target.lookup], target.out
            own = bags[record.key]
            line[:] = (
                self._line[record.table],
                _address(own.ids),
                0 if own.offsets is None else _address(own.offsets),
                0 if own.weights is None else _address(own.weights),
                len(own),
                record.pooling == "mean",
                _address(out),
                out.strides[0],
            )
            simple = simple and own.offsets is None and own.weights is None and record.table in self._plain
            counts.add(len(own))
        tasks = self._tasks(lines, simple and len(counts) == 1)
        if not len(tasks):
            return
        errors = np.zeros((len(tasks), 2), np.int64)
        launch(
            self._kernel,
            *(dim, len(tasks), lines, self._matrix, self._parameters, tasks, errors),
            tasks=min(threads, len(tasks)),
        )
        if errors.any():
            column, position = errors[np.flatnonzero(errors[:, 1])[0]].tolist()
            record = self.lookups[targets[column].lookup]
            value = int(bags[record.key].ids[position - 1])
            raise BadIdError(record, self.records[record.table], value, position - 1)

    def _tasks(self, lines: Array, simple: bool) -> Array:
        """Bags in pieces: of all lookups at once where they are `simple`, else lookup by lookup."""
        tasks: list[tuple[int, int, int, int, int]] = []
        spans = (
            [(0, len(lines), int(lines[0, BAGS]))]
            if simple
            else [(i, i + 1, count) for i, count in enumerate(lines[:, BAGS].tolist())]
        )
        for first, last, count in spans:
            tasks += [
                (first, last, begin, min(begin + BAGS_PER_TASK, count), int(simple))
                for begin in range(0, count, BAGS_PER_TASK)
            ]
        return np.array(tasks, np.int64).reshape(-1, TASK_COLUMNS)


def check_record(record: TableRecord) -> None:
    """Refuse what no export writes, before anything is read by it."""
    whole = 0 < record.num_rows <= MAX_ROWS and 0 < record.dim < 1 << 20
    known = record.packing in PACKINGS and 0 <= record.init_kind <= CONSTANT
    fits = len(record.init_parameters) <= 4 and -(1 << 63) <= record.key < 1 << 63
    if record.index_file:
        stored = 0 <= record.stored_rows < 1 << record.index_bits and record.index_bits < 40
    else:
        stored = record.stored_rows == record.num_rows
    if not (whole and known and fits and stored):
        raise BundleError(
            f"manifest.json: table '{record.name}' is described wrongly; export the model again"
        )
