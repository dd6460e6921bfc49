"""Writes a delta so that it is there whole or not at all."""

from __future__ import annotations

import os
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import IO, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from recgrad.embedding.deltas.changed import ChangedTable, join_columns, load_columns, save_columns
from recgrad.embedding.deltas.quantizing import quantize
from recgrad.embedding.deltas.reading import read_file
from recgrad.embedding.deltas.record import DeltaError, DeltaRecord, TableDelta, published, read_record, stem
from recgrad.errors import system_reason

Array = npt.NDArray[Any]
_LOOK_SECS = 0.01  # between two looks for what other ranks have written
COLUMNS = ".columns"
"""What files end with by which other ranks send the first one columns of rows that nobody has whole."""
OPS = UPSERT, DELETE, DEFAULT = "upsert", "delete", "default"


def write_delta(
    folder: Path,
    prefix: str,
    record: DeltaRecord,
    tables: list[ChangedTable],
    dense: Mapping[str, Array],
    *,
    ranks: int = 1,
    others: Callable[[], list[DeltaRecord]] | None = None,
) -> DeltaRecord:
    """Write the files of a delta, its manifest last; returns what that says.

    Args:
        folder, prefix: where to, and how files are called.
        record: of the delta, without tables and files.
        tables: what has changed in this process, the first of `ranks`; whole rows, or columns of them.
        dense: weights by name.
        ranks: processes that write rows.
        others: waits for what the other ranks have written (`await_parts`).

    Raises:
        DeltaError: it cannot be written; nothing of it is left then.
    """
    name = stem(prefix, record.number, record.step)
    dense_file = f"{name}.npz"
    with _said(folder):
        own = _write_part(folder, name, record, _whole(tables), rank=0, ranks=ranks)
        dense_size = _write(folder / dense_file, lambda file: np.savez(file, **dense))  # type: ignore[arg-type]
        parts = [own, *(others() if others is not None else ())]
        files = {file: known for part in parts for file, known in part.files.items()}
        sent = {file: files.pop(file) for file in list(files) if Path(file).suffix == COLUMNS}
        joined = join_columns([*_columns(tables), *_read_columns(folder, sent)])
        if joined:
            parts.append(_write_rows_file(folder, f"{name}{COLUMNS}.arrow", record, joined, (0, ranks)))
            files |= parts[-1].files
        for file in sent:
            (folder / file).unlink()
        whole = replace(record, tables=_joined(parts), files={**files, dense_file: dense_size})
        content = whole.to_bytes()
        _write(folder / f"{name}.json", lambda file: file.write(content))
    return whole


def write_part(
    folder: Path, prefix: str, record: DeltaRecord, tables: list[ChangedTable], *, rank: int, ranks: int
) -> DeltaRecord:
    """Write the rows of another rank than the first, and what the manifest is to say of them.

    Raises:
        DeltaError: they cannot be written.
    """
    name = stem(prefix, record.number, record.step)
    with _said(folder):
        part = _write_part(folder, name, record, _whole(tables), rank=rank, ranks=ranks)
        if columns := _columns(tables):
            file = f"{name}.rank_{rank}_of_{ranks}{COLUMNS}"
            size = _write(folder / file, lambda out: save_columns(out, columns))
            part = replace(part, files={**part.files, file: size})
        content = part.to_bytes()
        _write(part_path(folder, prefix, record, rank), lambda file: file.write(content))
    return part


def part_path(folder: Path, prefix: str, record: DeltaRecord, rank: int) -> Path:
    """Where a rank says what it has written; readers of deltas do not look at it."""
    return folder / f".{stem(prefix, record.number, record.step)}.rank_{rank}.part"


def await_parts(
    folder: Path, prefix: str, record: DeltaRecord, ranks: int, timeout_secs: float, ended: Event
) -> list[DeltaRecord]:
    """What the other ranks have written of a delta, when all have.

    Raises:
        DeltaError: one has not within the time, or the run has ended.
    """
    missing = {rank: part_path(folder, prefix, record, rank) for rank in range(1, ranks)}
    found: dict[int, DeltaRecord] = {}
    until = time.monotonic() + timeout_secs
    while True:
        for rank, path in list(missing.items()):
            if path.exists() and (part := read_record(path)).id == record.id:
                found[rank] = part
                del missing[rank]
        if not missing:
            break
        if ended.wait(_LOOK_SECS) or time.monotonic() > until:
            raise DeltaError(
                f"{folder}: rank {min(missing)} has not written its rows of delta {record.number}"
            )
    for rank in found:
        part_path(folder, prefix, record, rank).unlink()
    return [found[rank] for rank in sorted(found)]


def remove_leftovers(folder: Path, prefix: str) -> None:
    """Remove what a killed run began and did not publish."""
    if not folder.is_dir():
        return
    stems = {path.stem for path in published(folder).values()}
    for path in folder.iterdir():
        begun = path.name.startswith(f".{prefix}_") and path.suffix in (".tmp", ".part")
        orphan = path.name.startswith(f"{prefix}_") and path.suffix in (".arrow", ".npz", COLUMNS)
        if begun or (orphan and path.name.partition(".")[0] not in stems):
            path.unlink(missing_ok=True)


@contextmanager
def _said(folder: Path) -> Iterator[None]:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        raise DeltaError(f"{folder}: a delta cannot be written ({system_reason(error)})") from error
    except ValueError as error:
        raise DeltaError(
            f"{folder}: a delta cannot be written as INT8: {error}; leave delta_embedding_dump_config."
            "quant_type out"
        ) from error


def _write_part(
    folder: Path, name: str, record: DeltaRecord, tables: list[ChangedTable], *, rank: int, ranks: int
) -> DeltaRecord:
    """Write rows; returns what there is to say of them."""
    file = f"{name}.arrow" if ranks == 1 else f"{name}.rank_{rank}_of_{ranks}.arrow"
    return _write_rows_file(folder, file, record, tables, (rank, ranks))


def _whole(tables: list[ChangedTable]) -> list[ChangedTable]:
    return [table for table in tables if table.whole]


def _columns(tables: list[ChangedTable]) -> list[ChangedTable]:
    return [table for table in tables if not table.whole]


def _read_columns(folder: Path, files: Mapping[str, tuple[int, int]]) -> list[ChangedTable]:
    """What other ranks have sent of rows that nobody has whole."""
    return [
        piece for file, known in files.items() for piece in load_columns(read_file(folder / file, *known))
    ]


def _write_rows_file(
    folder: Path, file: str, record: DeltaRecord, tables: list[ChangedTable], rank: tuple[int, int]
) -> DeltaRecord:
    """Write whole rows; returns what there is to say of them."""
    size = _write(folder / file, lambda out: _write_rows(out, record, tables, rank))
    described = tuple(
        TableDelta(
            table.name,
            table.dim,
            len(table.keys),
            len(table.gone),
            0 if table.stand_ins is None else len(table.stand_ins),
        )
        for table in tables
    )
    return replace(record, tables=described, files={file: size})


def _joined(parts: list[DeltaRecord]) -> tuple[TableDelta, ...]:
    """Tables of all ranks, each once."""
    found: dict[str, TableDelta] = {}
    for table in (table for part in parts for table in part.tables):
        known = found.get(table.name)
        found[table.name] = (
            table
            if known is None
            else replace(
                table,
                rows=table.rows + known.rows,
                gone=table.gone + known.gone,
                stand_ins=max(table.stand_ins, known.stand_ins),
            )
        )
    return tuple(found.values())


class _Summed:
    """A file that notes size and checksum of what is written to it."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self.size, self.crc = file, 0, 0
        self.closed = False

    def write(self, data: Any) -> int:
        view = memoryview(data)
        self._file.write(view)
        self.crc, self.size = zlib.crc32(view, self.crc), self.size + view.nbytes
        return view.nbytes

    def flush(self) -> None:
        self._file.flush()

    def tell(self) -> int:
        return self.size

    def seekable(self) -> bool:
        return False

    def readable(self) -> bool:
        return False

    def writable(self) -> bool:
        return True

    def close(self) -> None:
        """The file outlives whoever writes to it."""

    def read(self, size: int = -1) -> bytes:
        raise OSError("it is written only")


def _write(path: Path, fill: Callable[[Any], Any]) -> tuple[int, int]:
    """Write a file under a hidden name and rename it when it is on the disk; returns size and checksum."""
    hidden = path.with_name(f".{path.name}.tmp")
    try:
        with open(hidden, "wb") as file:
            summed = _Summed(file)
            fill(summed)
            file.flush()
            os.fsync(file.fileno())
        os.replace(hidden, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(hidden)
        raise
    return summed.size, summed.crc


def _write_rows(file: Any, record: DeltaRecord, tables: list[ChangedTable], rank: tuple[int, int]) -> None:
    """Up to three batches a table: rows that changed, those that are gone, what ids without a row read."""
    int8 = record.quant == "INT8"
    schema = _schema(pa.uint8() if int8 else pa.float32())
    words = {
        "feature_name": pa.array([table.features for table in tables], pa.string()),
        "table_fqn": pa.array([table.name for table in tables], pa.string()),
        "source": pa.array(["model_delta_tracker"]),
        "op": pa.array(OPS),
    }
    with pa.ipc.new_file(file, schema) as writer:
        for i, table in enumerate(tables):
            for op, (keys, weights) in enumerate(_parts(table)):
                if len(keys):
                    codes = {"feature_name": i, "table_fqn": i, "source": 0, "op": op}
                    writer.write_batch(_batch(schema, record.step, rank, codes, words, keys, weights, int8))


def _parts(table: ChangedTable) -> tuple[tuple[Array, Array | None], ...]:
    """Keys and values by what is to be done with them, in the order of OPS."""
    stand_ins = np.empty((0, table.dim), np.float32) if table.stand_ins is None else table.stand_ins
    return (table.keys, table.weights), (table.gone, None), (np.full(len(stand_ins), -1), stand_ins)


def _schema(element: pa.DataType) -> pa.Schema:
    text = pa.dictionary(pa.int32(), pa.string())
    return pa.schema(
        {
            "global_step": pa.int64(),
            "rank": pa.int32(),
            "world_size": pa.int32(),
            "feature_name": text,
            "table_fqn": text,
            "key_id": pa.int64(),
            "embedding": pa.list_(element),
            "source": text,
            "op": text,
        }
    )


def _batch(
    schema: pa.Schema,
    step: int,
    rank: tuple[int, int],
    codes: Mapping[str, int],
    words: Mapping[str, pa.Array],
    keys: Array,
    weights: Array | None,
    int8: bool,
) -> pa.RecordBatch:
    count = len(keys)
    values = {
        "global_step": pa.array(np.full(count, step)),
        "rank": pa.array(np.full(count, rank[0], np.int32)),
        "world_size": pa.array(np.full(count, rank[1], np.int32)),
        "key_id": pa.array(np.ascontiguousarray(keys, np.int64)),
        "embedding": _vectors(schema.field("embedding").type, count, weights, int8),
    }
    for name, code in codes.items():
        values[name] = pa.DictionaryArray.from_arrays(np.full(count, code, np.int32), words[name])
    return pa.record_batch([values[name] for name in schema.names], schema=schema)


def _vectors(kind: pa.DataType, count: int, weights: Array | None, int8: bool) -> pa.Array:
    if weights is None:
        return pa.nulls(count, kind)
    packed = quantize(weights) if int8 else np.ascontiguousarray(weights, np.float32)
    offsets = pa.array(np.arange(count + 1, dtype=np.int32) * packed.shape[1], pa.int32())
    return pa.ListArray.from_arrays(offsets, pa.array(packed.reshape(-1)))
