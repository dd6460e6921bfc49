"""Rows that a table begins with: `dynamicemb.init_table`, vectors of ids from a file, at the start of a run.

A file has the id in its first column and the vector in its second, as a list or as text with commas, spaces,
semicolons or bars between the numbers. Ids become keys as those of the training data do. Nothing is read
where a run resumes or begins from a checkpoint, which has rows of its own.
"""

from __future__ import annotations

import glob
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from recgrad.data.features.base import Feature
from recgrad.data.features.outputs import IdOutput
from recgrad.data.features.text import Text
from recgrad.embedding.engine import EmbeddingEngine, LivingRows
from recgrad.errors import DataError, system_reason

_log = logging.getLogger("recgrad.training")

Array = npt.NDArray[Any]
_BETWEEN = r"[\s,;|]+"
_BATCH = 1 << 16


def load_init_tables(engine: EmbeddingEngine | None, features: list[Feature]) -> None:
    """Give tables the rows that `init_table` of their features names.

    Raises:
        DataError: a file cannot be read or has no ids and vectors that fit; it says which and why.
    """
    done: set[str] = set()
    for feature in features:
        message: Any = feature.spec.dynamicemb
        if engine is None or message is None or not message.init_table:
            continue
        for name in {s.table for s in engine.lookups.values() if s.key == feature.name} - done:
            table: Any = engine.tables[name]
            if isinstance(table, LivingRows) and table.spec.dim == feature.spec.embedding_dim:
                done.add(name)
                keys, vectors = read_init_table(message.init_table, feature, table.spec.dim)
                if len(keys) > table.spec.capacity:
                    raise DataError(
                        f"{message.init_table}: has {len(keys)} ids, and max_capacity of feature "
                        f"'{feature.name}' is {table.spec.capacity}; raise it"
                    )
                table.begin_with(keys, vectors)
                _log.info("table '%s': begins with %s rows of %s", name, f"{len(keys):,}", message.init_table)


def read_init_table(path: str, feature: Feature, dim: int) -> tuple[Array, Array]:
    """The keys of a file as the feature makes them, and their vectors, float32 [keys, dim].

    Raises:
        DataError: see `load_init_tables`.
    """
    assert isinstance(feature.output, IdOutput)
    keys, vectors = [np.empty(0, np.int64)], [np.empty((0, dim), np.float32)]
    for file in _files(path):
        for ids, values in _batches(file):
            if ids.null_count or values.null_count:
                raise DataError(f"{file}: has an id or a vector that is missing; fill or remove it")
            keys.append(feature.output.bucketizer(_values(ids), _refusing(file)))
            vectors.append(_vectors(file, values, dim))
    found, first = np.concatenate(keys), np.concatenate(vectors)
    if len(np.unique(found)) != len(found):
        order = np.sort(found)
        twice = order[1:][order[1:] == order[:-1]][0]
        raise DataError(f"{path}: an id is there twice (as key {twice}); keep one vector for each")
    return found, first


def _files(path: str) -> list[Path]:
    if "://" in path:
        raise DataError(f"init_table '{path}': reads parquet and csv files; download it and name the file")
    found = sorted(map(Path, glob.glob(path)))
    files = [file for own in found for file in (sorted(own.iterdir()) if own.is_dir() else [own])]
    files = [file for file in files if not file.name.startswith((".", "_"))]
    if not files:
        raise DataError(f"init_table '{path}': there is no such file; mend the path, or leave it out")
    return files


def _batches(file: Path) -> Iterator[tuple[pa.Array, pa.Array]]:
    """The first two columns, some rows at a time."""
    try:
        if file.suffix in (".csv", ".txt", ".tsv"):
            import pyarrow.csv as pcsv  # slow to import, and few runs read text here

            options = pcsv.ParseOptions(delimiter="\t" if file.suffix == ".tsv" else ",")
            batches: Any = pcsv.open_csv(file, parse_options=options)
        else:
            batches = pq.ParquetFile(file).iter_batches(_BATCH)
        for batch in batches:
            if batch.num_columns < 2:
                raise DataError(f"{file}: has {batch.num_columns} columns; it needs an id and a vector")
            yield batch.column(0), batch.column(1)
    except OSError as error:
        raise DataError(f"{file}: cannot be read ({system_reason(error)})") from error
    except pa.ArrowException as error:
        raise DataError(f"{file}: cannot be read ({error}); it must be parquet or csv") from error


def _values(ids: pa.Array) -> Any:
    if pa.types.is_integer(ids.type):
        return ids.cast(pa.int64()).to_numpy()
    return Text.of(ids)


def _refusing(file: Path) -> Any:
    def report(_: Any, reason: str, values: Any, remedy: str) -> None:
        value = values[0].item() if isinstance(values, np.ndarray) else values[0]
        raise DataError(f"{file}: {reason.replace('{value}', repr(value))}; {remedy}")

    return report


def _vectors(file: Path, values: pa.Array, dim: int) -> Array:
    if pa.types.is_string(values.type) or pa.types.is_large_string(values.type):
        values = pc.split_pattern_regex(pc.utf8_trim(values, "[](){} "), _BETWEEN)
    kind = values.type
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)):
        raise DataError(f"{file}: its second column is {kind}; it must be a list of numbers or text")
    lengths = pc.list_value_length(values).to_numpy(zero_copy_only=False)
    wrong = np.flatnonzero(lengths != dim)
    if len(wrong):
        raise DataError(f"{file}: a vector has {lengths[wrong[0]]} numbers, and embedding_dim is {dim}")
    try:
        flat = np.asarray(pc.list_flatten(values).cast(pa.float32()), np.float32)
    except pa.ArrowInvalid as error:
        raise DataError(f"{file}: a vector cannot be read as numbers ({error})") from error
    if not np.isfinite(flat).all():
        raise DataError(f"{file}: a vector has a number that is not finite")
    return flat.reshape(-1, dim)
