"""Reads deltas, after their checksums were compared."""

from __future__ import annotations

import io
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from recgrad.embedding.deltas.quantizing import dequantize
from recgrad.embedding.deltas.record import DeltaError, DeltaRecord
from recgrad.errors import system_reason

Array = npt.NDArray[Any]


class Part(NamedTuple):
    """Rows of one table.

    Attributes:
        table: its name.
        op: "upsert", "delete" or "default", see `recgrad.embedding.deltas.writing`.
        keys: of the rows.
        weights: float32 [keys, dim]; None for "delete".
    """

    table: str
    op: str
    keys: Array
    weights: Array | None


class Delta:
    """The content of a delta, in memory; its files are read once, and compared with their checksums.

    Raises:
        DeltaError: a file is missing or damaged.
    """

    def __init__(self, folder: Path, record: DeltaRecord) -> None:
        self.record, self._folder = record, folder
        content = {name: read_file(folder / name, *known) for name, known in record.files.items()}
        self._rows = [own for name, own in content.items() if Path(name).suffix == ".arrow"]
        self._dense = next((own for name, own in content.items() if Path(name).suffix == ".npz"), b"")
        self._dims = {table.name: table.dim for table in record.tables}

    def parts(self) -> Iterator[Part]:
        """The rows, by table and what is to be done with them."""
        try:
            for rows in self._rows:
                reader = pa.ipc.open_file(pa.BufferReader(rows))
                for i in range(reader.num_record_batches):
                    yield self._part(reader.get_batch(i))
        except (pa.ArrowException, KeyError, ValueError, IndexError) as error:
            raise self._damaged(error) from error

    def _part(self, batch: pa.RecordBatch) -> Part:
        table, op = (batch.column(name)[0].as_py() for name in ("table_fqn", "op"))
        keys = batch.column("key_id").to_numpy()
        vectors = batch.column("embedding")
        if vectors.null_count:
            return Part(table, op, keys, None)
        flat = vectors.flatten().to_numpy()
        packed = flat.reshape(len(keys), -1)
        weights = dequantize(packed) if flat.dtype == np.uint8 else packed
        if weights.shape[1] != self._dims[table]:
            raise ValueError(f"rows of table '{table}' have {weights.shape[1]} values")
        return Part(table, op, keys, weights)

    def dense(self) -> dict[str, Array]:
        """The dense weights by name."""
        try:
            with np.load(io.BytesIO(self._dense), allow_pickle=False) as arrays:
                return dict(arrays)
        except (ValueError, OSError, KeyError, EOFError) as error:
            raise self._damaged(error) from error

    def _damaged(self, error: Exception) -> DeltaError:
        return DeltaError(f"{self._folder}: delta {self.record.number} cannot be read ({error})")


def keys_of_delta(folder: Path, record: DeltaRecord) -> dict[str, Array]:
    """The keys that a delta has changed or taken away, by table."""
    found: dict[str, list[Array]] = {table.name: [] for table in record.tables}
    for part in Delta(folder, record).parts():
        if part.op != "default":
            found[part.table].append(part.keys)
    return {name: np.concatenate(keys) if keys else np.empty(0, np.int64) for name, keys in found.items()}


def read_file(path: Path, size: int, crc: int) -> bytes:
    """The content of a file of this size and checksum.

    Raises:
        DeltaError: it is missing or damaged.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DeltaError(f"{path}: cannot be read ({system_reason(error)})") from error
    if len(content) != size or zlib.crc32(content) != crc:
        raise DeltaError(f"{path}: is damaged (its checksum is wrong); copy it again, or export a bundle")
    return content
