"""Vectors of rows by one tower of a trained model, in Python and to files."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from recgrad.config import PipelineConfig, load_config
from recgrad.config.messages import chosen
from recgrad.config.proto.data_pb2 import DataConfig
from recgrad.data.arrow_columns import as_bytes
from recgrad.data.readers.reader import Reader
from recgrad.data.readers.tables import open_table, read_table
from recgrad.errors import RecgradError, whole_path
from recgrad.serving.manifest import CONFIG, is_bundle
from recgrad.serving.scorer import Scorer

logger = logging.getLogger(__name__)

Vectors = npt.NDArray[np.float32]
GOLDEN_KEY = b"recgrad.golden"
GOLDEN_ROWS = 16


class Embedder(Protocol):
    """A model that gives vectors: a checkpoint's, or a bundle's."""

    similarity: str
    data: DataConfig | None
    towers: Sequence[str]

    def columns(self, tower: str) -> Sequence[str]:
        """The columns that a tower reads."""

    def embed(self, rows: pa.Table, tower: str) -> Vectors:
        """Vectors of rows, [rows, dim] or [rows, interests, dim]."""


class TrainedTowers:
    """The towers of a checkpoint.

    Args:
        config: a config, or the model_dir of a run.
        checkpoint_path: instead of the best or newest of the model_dir.
        edit_config_json: changes to the config.
        custom_code: whether the config may name classes by import path.
    """

    def __init__(
        self,
        config: Any,
        checkpoint_path: str | Path | None = None,
        *,
        edit_config_json: str | Mapping[str, Any] | None = None,
        custom_code: bool = True,
    ) -> None:
        import torch

        from recgrad.models.towers import TowerEncoder
        from recgrad.training.run import load_trained

        trained = load_trained(
            config,
            checkpoint_path,
            edit_config_json=edit_config_json,
            exporting=True,
            device=torch.device("cpu"),
            custom_code=custom_code,
        )
        if trained.task.predicts_in is not None:
            logger.warning(
                "export_config.mixed_precision is %s, which is for recgrad predict; vectors are computed in "
                "float32",
                trained.config.export_config.mixed_precision,
            )
        self.data: DataConfig | None = trained.config.data_config
        self.similarity = trained.task.model.similarity
        self.towers: Sequence[str] = tuple(trained.task.model.tower_groups)
        self._make = cache(partial(TowerEncoder, trained.task.model, trained.features))

    def _tower(self, tower: str) -> Any:
        return self._make(tower)

    def columns(self, tower: str) -> Sequence[str]:
        """The columns that a tower reads."""
        columns: Sequence[str] = self._tower(tower).columns
        return columns

    def embed(self, rows: pa.Table, tower: str) -> Vectors:
        """Vectors of rows, [rows, dim] or [rows, interests, dim]."""
        vectors: Vectors = self._tower(tower).embed(rows)
        return vectors


class BundleTowers:
    """The towers of a bundle of `recgrad export`, computed without torch.

    Args:
        path: of the bundle.
        threads: that one call computes with.
    """

    def __init__(self, path: str | Path, *, threads: int = 1) -> None:
        config = load_config(Path(path) / CONFIG)
        self._scorer = Scorer.load(path, threads=threads)
        self.data: DataConfig | None = config.data_config
        self.similarity = similarity_of(config)
        self.towers: Sequence[str] = self._scorer.towers

    def columns(self, tower: str) -> Sequence[str]:
        """The columns that a tower reads."""
        return list(self._scorer.tower_schema(tower).names)

    def embed(self, rows: pa.Table, tower: str) -> Vectors:
        """Vectors of rows, [rows, dim] or [rows, interests, dim]."""
        return self._scorer.embed(rows, tower)


def similarity_of(config: PipelineConfig) -> str:
    """How a config's model compares vectors: COSINE, INNER_PRODUCT or EUCLID."""
    choice = chosen(config.model_config, "model")
    field = None if choice is None else choice[1].DESCRIPTOR.fields_by_name.get("similarity")
    if choice is None or field is None or field.enum_type is None:
        return "INNER_PRODUCT"
    name: str = field.enum_type.values_by_number[choice[1].similarity].name
    return name


def open_towers(
    model: str | Path,
    *,
    checkpoint_path: str | Path | None = None,
    edit_config_json: str | Mapping[str, Any] | None = None,
    custom_code: bool = True,
    threads: int = 1,
) -> Embedder:
    """The towers of a config, a model_dir or a bundle; `threads` are those of a bundle.

    Raises:
        RecgradError: it cannot be read, or what is asked for does not go with a bundle.
    """
    if not is_model_bundle(model):
        return TrainedTowers(
            model, checkpoint_path, edit_config_json=edit_config_json, custom_code=custom_code
        )
    check_bundle_options(model, checkpoint_path, edit_config_json)
    return BundleTowers(model, threads=threads)


def check_bundle_options(model: str | Path, checkpoint_path: Any, edit_config_json: Any) -> None:
    """Raise where something is asked for that does not go with a bundle."""
    for flag, value in (("--checkpoint-path", checkpoint_path), ("--edit-config-json", edit_config_json)):
        if value:
            raise RecgradError(
                f"{flag}: '{model}' is a bundle, which holds one checkpoint with its config; leave it out"
            )


def is_model_bundle(path: str | Path) -> bool:
    """Whether a path is a bundle, not a checkpoint: these have a manifest too, but no config beside it."""
    return is_bundle(path) and (Path(path) / CONFIG).is_file()


def embedded_blocks(
    embedder: Embedder, reader: Reader, tower: str, carry: Sequence[str]
) -> Iterator[tuple[pa.Table, Vectors]]:
    """Blocks of rows with the carried columns, and their vectors; no others than the tower's are read."""
    columns = list(dict.fromkeys([*embedder.columns(tower), *carry]))
    for table in read_table(reader, columns):
        yield table.select(list(carry)), embedder.embed(table, tower)


def embed_file(
    embedder: Embedder,
    tower: str,
    input_path: str,
    output_path: str | Path,
    carry: Sequence[str] | None = None,
) -> int:
    """Write the vectors of one tower for every row of some files, in their order; returns their number.

    Vectors are a column `<tower>_tower_emb` of lists; in text files numbers joined by commas, those of
    several interests by semicolons. Other columns are carried along: those named, or all.
    """
    target = Path(output_path)
    if target.suffix not in (".parquet", ".csv"):
        raise RecgradError(f"embed: output '{target}' must end with .parquet or .csv")
    reader = open_table(input_path, embedder.data)
    if target.exists() and any(target.samefile(path) for path in reader.local_paths):
        raise RecgradError(
            f"embed: output '{target}'{whole_path(target)} is one of the input files; choose another"
        )
    carried = list(reader.schema.names) if carry is None else list(carry)
    golden = golden_rows(embedder, reader, tower) if tower == "item" else None
    rows = 0

    def tables() -> Iterator[pa.Table]:
        nonlocal rows
        for table, vectors in embedded_blocks(embedder, reader, tower, carried):
            rows += len(vectors)
            column = _texts(vectors) if target.suffix == ".csv" else lists_of(vectors)
            yield table.append_column(f"{tower}_tower_emb", column)

    write_tables(target, tables(), {} if golden is None else {GOLDEN_KEY: as_bytes(golden)})
    return rows


def golden_rows(embedder: Embedder, reader: Reader, tower: str) -> pa.Table:
    """A few rows as a tower reads them, with their vectors in the column `__vector__`.

    Spread over the first block: neighbours are often of one kind, which further training may leave alone.
    """
    block = next(read_table(reader, list(embedder.columns(tower))))
    places = np.unique(np.linspace(0, block.num_rows - 1, GOLDEN_ROWS).astype(np.int64))
    rows = block.take(pa.array(places)).combine_chunks()
    return rows.append_column("__vector__", lists_of(embedder.embed(rows, tower)))


def golden_of_file(path: str) -> pa.Table | None:
    """The golden rows that `embed_file` has put into a parquet file."""
    try:
        metadata = pq.read_schema(path).metadata or {}
    except (OSError, pa.ArrowException):
        return None
    kept = metadata.get(GOLDEN_KEY)
    return None if kept is None else pa.ipc.open_stream(kept).read_all()


def lists_of(vectors: Vectors) -> pa.Array:
    """Vectors as a column of lists, or of lists of lists."""
    column = pa.array(np.ascontiguousarray(vectors, np.float32).reshape(-1))
    for size in reversed(vectors.shape[1:]):
        column = pa.FixedSizeListArray.from_arrays(column, size)
    kind: Any = pa.float32()
    for _ in vectors.shape[1:]:
        kind = pa.list_(kind)
    return column.cast(kind)


def _texts(vectors: Vectors) -> pa.Array:
    if vectors.ndim == 2:
        return pa.array([",".join(f"{x:.9g}" for x in row) for row in vectors.tolist()])
    rows = vectors.tolist()
    return pa.array([";".join(",".join(f"{x:.9g}" for x in one) for one in row) for row in rows])


def write_tables(target: Path, tables: Iterator[pa.Table], metadata: Mapping[bytes, bytes]) -> None:
    """Write to a file beside the target and rename it, so that a killed run leaves no half file."""
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(target.name + ".partial")
    writer: Any = None
    try:
        for table in tables:
            if writer is None:
                schema = table.schema.with_metadata({**(table.schema.metadata or {}), **metadata})
                csv = target.suffix == ".csv"
                writer = pa.csv.CSVWriter(partial, schema) if csv else pq.ParquetWriter(partial, schema)
            writer.write_table(table.replace_schema_metadata(schema.metadata).cast(schema))
        if writer is None:
            raise RecgradError("there are no rows to write")
        writer.close()
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)
