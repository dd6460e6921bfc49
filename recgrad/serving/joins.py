"""Stored features of users and items, found by id, so that a request need only carry ids.

A file (parquet or Arrow) is written once more as one Arrow record batch beside a sorted index of
the hashes of its ids; both are memory-mapped, so that all workers share their pages.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet

from recgrad.data.arrow_columns import take_rows, without_dictionary
from recgrad.data.faults import Faults
from recgrad.data.hashing import hash_array
from recgrad.errors import DataError, nearest, whole_path
from recgrad.serving.columns import Columns, Mask
from recgrad.serving.settings import StoreSettings

Ints = npt.NDArray[np.int64]


class FeatureStore:
    """The rows of one file by id.

    Args:
        role: "user" or "item"; errors and flags name it.
        settings: the file and its id column.
        folder: where the mapped copy is kept; the same for all workers.
        accepted: open the copy that was accepted last instead, whatever lies in the file's place now.
    """

    def __init__(
        self, role: str, settings: StoreSettings, folder: str | Path, *, accepted: bool = False
    ) -> None:
        self.role = role
        self.key = settings.key
        self.path = Path(settings.path)
        self._folder = Path(folder)
        if accepted:
            base = self._folder / (self._folder / f"{role}.accepted").read_text()
        else:
            base = _mapped_copy(role, self.path, self.key, self._folder)
        self._base = base
        with pa.memory_map(str(base.with_suffix(".arrow"))) as source:
            batch = pa.ipc.open_file(source).get_batch(0)
        self._columns: dict[str, pa.Array] = {
            name: batch.column(at) for at, name in enumerate(batch.schema.names)
        }
        self._hashes = np.load(base.with_suffix(".hashes.npy"), mmap_mode="r")
        self._order = np.load(base.with_suffix(".order.npy"), mmap_mode="r")
        self._longest_run = _longest_run(self._hashes)

    def accept(self) -> None:
        """Keep this copy for workers that are started later, and remove others."""
        with _locked(self._folder, self.role):
            pointer = self._folder / f"{self.role}.accepted"
            partial = pointer.with_suffix(".partial")
            partial.write_text(self._base.name)
            os.replace(partial, pointer)
            for old in self._folder.glob(f"{self.role}-*"):
                if not old.name.startswith(self._base.name):
                    old.unlink()  # workers that have it mapped keep it

    def __len__(self) -> int:
        return len(self._order)

    @property
    def names(self) -> tuple[str, ...]:
        """Its columns, the id's among them."""
        return tuple(self._columns)

    @property
    def key_type(self) -> pa.DataType:
        """The type of the ids."""
        return self._columns[self.key].type

    def find(self, ids: pa.Array, faults: Faults) -> Ints:
        """The row of each id, −1 and a fault where there is none."""
        wanted = hash_array(ids)
        keys = self._columns[self.key]
        texts = ids if ids.type == keys.type else ids.cast(keys.type)
        rows = np.full(len(ids), -1, np.int64)
        at = np.searchsorted(self._hashes, wanted)
        for shift in range(self._longest_run):
            near = np.minimum(at + shift, max(len(self._order) - 1, 0))
            if not len(self._order):
                break
            same = (self._hashes[near] == wanted) & (rows < 0)
            if not same.any():
                break
            candidates = np.asarray(self._order[near[same]])
            equal = pc.equal(keys.take(pa.array(candidates)), texts.filter(pa.array(same)))
            found = np.flatnonzero(same)[np.asarray(equal.fill_null(False))]
            rows[found] = candidates[np.asarray(equal.fill_null(False))]
        bad = np.flatnonzero(rows < 0)
        faults.add(
            bad,
            column=self.key,
            feature=f"column {self.key}",
            reason="{value} is no id of " + f"the stored {self.role} features",
            values=ids.take(pa.array(bad)),
            remedy=f"send the {self.role}'s columns themselves, or add it to {self.path.name}",
        )
        return rows

    def take(self, name: str, rows: Ints, kind: pa.DataType) -> pa.Array:
        """One column of the rows, as a type; a row −1 gives null."""
        column = self._columns[name]
        if len(rows) and rows.min() < 0:
            taken = column.take(pa.array(rows, mask=rows < 0))
        else:
            taken = take_rows(column, rows)
        return taken if taken.type == kind else taken.cast(kind)

    def check(self, types: dict[str, pa.DataType]) -> None:
        """Raise a DataError if a column cannot be of the type that the model reads."""
        for name in self.names:
            kind = types.get(name)
            if kind is None or name == self.key:
                continue
            column = self._columns[name]
            try:
                pa.array([], column.type).cast(kind)
            except (pa.ArrowException, NotImplementedError):
                raise DataError(
                    f"{self.role} features {self.path}: column '{name}' is of type {column.type}, "
                    f"and the model was trained with {kind}; write that type"
                ) from None


def add_stored(
    columns: Columns,
    stores: Sequence[FeatureStore],
    types: dict[str, pa.DataType],
    faults: Faults,
    absent: dict[str, Mask] | None = None,
) -> Columns:
    """The columns with those of the stores whose id they have; what is there already stays.

    Args:
        columns: of the rows.
        stores: of stored features.
        types: the columns that are wanted.
        faults: takes ids that are in no store.
        absent: rows that do not have a column which others have; these take what is stored, and the
            column is removed here.
    """
    joined = dict(columns)
    absent = {} if absent is None else absent
    for store in stores:
        ids = columns.get(store.key)
        wanted = [name for name in store.names if name in types and (name not in joined or name in absent)]
        if ids is None or not wanted:
            continue
        rows = store.find(ids, faults)
        for name in wanted:
            stored = store.take(name, rows, types[name])
            rest = absent.pop(name, None)
            joined[name] = stored if rest is None else fill(joined[name], stored, rest)
    return joined


def fill(own: pa.Array, others: pa.Array, absent: Mask) -> pa.Array:
    """The values of `own`, of `others` where absent; by take, since if_else has no maps."""
    index = np.arange(len(own))
    return pa.concat_arrays([own, others]).take(pa.array(np.where(absent, index + len(own), index)))


def signature(path: Path) -> str:
    """What changes when a file is replaced or written."""
    known = os.stat(path)
    return f"{known.st_dev}:{known.st_ino}:{known.st_size}:{known.st_mtime_ns}"


def _mapped_copy(role: str, path: Path, key: str, folder: Path) -> Path:
    """Write the Arrow copy and its index, unless another worker has; returns their path without suffix."""
    if not path.is_file():
        raise DataError(f"{role} features {path}{whole_path(path)}: no such file; check --{role}_features")
    name = hashlib.sha256(f"{path.resolve()}\n{key}\n{signature(path)}".encode()).hexdigest()[:24]
    base = folder / f"{role}-{name}"
    with _locked(folder, role):
        if not base.with_suffix(".arrow").exists():
            _write_copy(role, path, key, base)
    return base


@contextmanager
def _locked(folder: Path, role: str) -> Iterator[None]:
    """One worker at a time changes the copies of a role."""
    with open(folder / f"{role}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _write_copy(role: str, path: Path, key: str, base: Path) -> None:
    table = _read(role, path)
    if key not in table.column_names:
        raise DataError(
            f"{role} features {path}: no column '{key}'{nearest(key, table.column_names)} "
            f"(has: {', '.join(table.column_names[:20])}); check --{role}_key"
        )
    table = pa.table({name: _storable(table.column(name)) for name in table.column_names})
    keys = (
        table.column(key).combine_chunks() if table.num_rows else pa.array([], table.schema.field(key).type)
    )
    keys = keys.chunk(0) if isinstance(keys, pa.ChunkedArray) else keys
    if not (
        pa.types.is_integer(keys.type) or pa.types.is_string(keys.type) or pa.types.is_large_string(keys.type)
    ):
        raise DataError(
            f"{role} features {path}: column '{key}' is of type {keys.type}; ids are integers or texts"
        )
    if keys.null_count:
        row = int(np.flatnonzero(np.asarray(keys.is_null()))[0])
        raise DataError(
            f"{role} features {path}: the id of row {row} (column '{key}') is null; remove the row"
        )
    hashes = hash_array(keys)
    order = np.argsort(hashes, kind="stable")
    _refuse_twice(role, path, key, keys, hashes[order], order)
    np.save(base.with_suffix(".hashes.npy"), hashes[order])
    np.save(base.with_suffix(".order.npy"), order.astype(np.int64))
    partial = base.with_suffix(".partial")
    with pa.OSFile(str(partial), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        batches = table.combine_chunks().to_batches()
        assert len(batches) <= 1, "texts beyond 2 GB have wide offsets"
        for batch in batches or [pa.RecordBatch.from_pylist([], table.schema)]:
            writer.write_batch(batch)
    os.replace(partial, base.with_suffix(".arrow"))


def _read(role: str, path: Path) -> pa.Table:
    try:
        with open(path, "rb") as file:
            head = file.read(6)
        if head[:4] == b"PAR1":
            return pyarrow.parquet.read_table(path, partitioning=None)
        with pa.memory_map(str(path)) as source:
            return (pa.ipc.open_file(source) if head == b"ARROW1" else pa.ipc.open_stream(source)).read_all()
    except (pa.ArrowException, OSError) as error:
        text = str(error).splitlines()[0][:200]
        raise DataError(
            f"{role} features {path}: cannot be read ({text}); write parquet or Arrow IPC"
        ) from None


def _storable(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Without dictionaries; texts beyond 2 GB with wide offsets, so that one batch holds them."""
    column = without_dictionary(column)
    if pa.types.is_string(column.type) and column.nbytes > 1 << 30:
        return column.cast(pa.large_string())
    return column


def _longest_run(hashes: Any) -> int:
    """The most ids that share one hash; 1 unless hashes collide."""
    longest = 1
    while len(hashes) > longest and np.any(hashes[longest:] == hashes[:-longest]):
        longest += 1
    return longest


def _refuse_twice(role: str, path: Path, key: str, keys: pa.Array, hashes: Any, order: Ints) -> None:
    same = np.flatnonzero(hashes[1:] == hashes[:-1])
    for at in same[:1000]:
        one, other = sorted((int(order[at]), int(order[at + 1])))
        if keys[one].as_py() == keys[other].as_py():
            raise DataError(
                f"{role} features {path}: id {str(keys[one].as_py())[:80]!r} of column '{key}' occurs "
                f"in rows {one} and {other}; keep one"
            )
