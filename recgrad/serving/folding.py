"""The folded form of a program: first layers look up what small tables times their weights are.

A first layer multiplies vectors that come from tables. Of a table of few rows every such product can be made
when the bundle is loaded; then a row costs an addition for each unit where it cost as many multiplications as
vectors are wide. Sums are in another order than the program's, so that scores may differ in the last bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from recgrad.data.plain.encoder import PlainRows
from recgrad.embedding.mapped.tables import Bags, MappedTables, Target, address_of
from recgrad.errors import BundleError
from recgrad.kernels.compile import compiled
from recgrad.kernels.parallel import launch
from recgrad.kernels.simd import LANES
from recgrad.serving.fold_kernel import IDS, PRODUCTS, ROWS_PER_TASK, TABLE_COLUMNS, fold_tasks
from recgrad.serving.manifest import FoldRecord, InputRecord, ProgramRecord
from recgrad.serving.program import OnnxProgram

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float32]


class Fold:
    """One input of a folded program.

    Args:
        folder: the bundle.
        record: what the manifest says of the input.
        tables: of the bundle.
        ids: names of the plain features that make ids, in their order.
    """

    def __init__(self, folder: Path, record: FoldRecord, tables: MappedTables, ids: Sequence[str]) -> None:
        self.name, self.units = record.name, record.units
        weights = _weights(folder / record.file, record, tables)
        self._bias = np.ascontiguousarray(weights[0])
        self._id_of = np.array([ids.index(tables.lookups[name].key) for name in record.lookups], np.int64)
        self._products: list[Floats] = []
        first = 1
        for name in record.lookups:
            dim = tables.dim(name)
            self._products.append(_vectors(tables, name) @ weights[first : first + dim])
            first += dim
        self._addresses = np.array([address_of(products) for products in self._products], np.int64)
        self._kernel = compiled(fold_tasks)

    def arguments(self, rows: PlainRows, out: Floats) -> tuple[int | Array, ...]:
        """What the kernel takes to write `out`, [rows, units]."""
        shared = rows.shared[self._id_of] != 0
        order = np.argsort(~shared, kind="stable")  # shared ones first
        lines = np.zeros((len(order), TABLE_COLUMNS), np.int64)
        lines[:, PRODUCTS] = self._addresses[order]
        lines[:, IDS] = address_of(rows.ids) + 8 * rows.size * self._id_of[order]
        tasks = -(-rows.size // ROWS_PER_TASK)
        return tasks, rows.size, self.units, len(order), int(shared.sum()), lines, self._bias, out

    def write(self, rows: PlainRows, threads: int) -> Floats:
        """The input of rows, whose ids are known to be in their tables."""
        out = np.empty((rows.size, self.units), np.float32)
        arguments = self.arguments(rows, out)
        launch(self._kernel, *arguments, tasks=min(threads, int(arguments[0])))
        return out

    def prepare(self, rows: PlainRows, out: Floats) -> Callable[[], None]:
        """What writes `out` again and again, on the thread that calls, as ids change but not their place."""
        arguments = self.arguments(rows, out)
        values = [value if isinstance(value, int) else address_of(value) for value in arguments]
        block = np.array([0, 0, *values], np.int64)
        kernel, address, drawn = self._kernel.ctypes, address_of(block), block.data

        def write(_kept: object = (block, arguments, rows)) -> None:
            drawn[0] = 0
            kernel(address)

        return write


class Folding:
    """The folded form of a program, for rows all of whose features are plain.

    Args:
        folder: the bundle.
        record: of the program.
        tables: of the bundle.
        ids: names of the plain features that make ids, in their order.
        threads: of one call.
    """

    def __init__(
        self, folder: Path, record: ProgramRecord, tables: MappedTables, ids: Sequence[str], threads: int
    ) -> None:
        self.folds = [Fold(folder, fold, tables, ids) for fold in record.folds]
        more = tuple(InputRecord(fold.name, "fold", width=fold.units) for fold in self.folds)
        folded = replace(record, file=record.folded_file, inputs=(*record.inputs, *more))
        self.program = OnnxProgram(folder / folded.file, folded, threads)
        self._threads = threads

    @staticmethod
    def of(
        folder: Path, record: ProgramRecord, tables: MappedTables, ids: Sequence[str], threads: int
    ) -> Folding | None:
        """The folded form; None where there is none, or a folded feature is not plain."""
        names = [name for fold in record.folds for name in fold.lookups]
        unknown = [name for name in names if name not in tables.lookups]
        if unknown:
            raise BundleError(f"manifest.json: no lookup '{unknown[0]}'; export the model again")
        if not record.folds or not {tables.lookups[name].key for name in names} <= set(ids):
            return None
        return Folding(folder, record, tables, ids, threads)

    def feeds(self, rows: PlainRows) -> dict[str, Array]:
        """The inputs that the program takes more."""
        return {fold.name: fold.write(rows, self._threads) for fold in self.folds}


def _weights(path: Path, record: FoldRecord, tables: MappedTables) -> Floats:
    try:
        weights: Array = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise BundleError(f"{path}: cannot be read ({error}); copy the bundle again") from error
    wanted = (1 + sum(map(tables.dim, record.lookups)), record.units)
    if weights.shape != wanted or weights.dtype != np.float32 or record.units % LANES:
        raise BundleError(f"{path}: is {weights.dtype} {weights.shape}, not float32 {wanted}; export again")
    return weights


def _vectors(tables: MappedTables, lookup: str) -> Floats:
    """The vector of each id."""
    record = tables.lookups[lookup]
    table = tables.records[record.table]
    out = np.empty((table.num_rows, table.dim), np.float32)
    tables.look_up([Target(lookup, out)], {record.key: Bags(np.arange(table.num_rows))})
    return out
