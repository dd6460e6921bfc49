"""Parquet files; a fragment is a row group."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from hashlib import blake2b

import pyarrow as pa
import pyarrow.parquet as pq

from recgrad.config.proto.data_pb2 import DataConfig
from recgrad.data.readers.files import SourceFile, list_files
from recgrad.data.readers.reader import BLOCK_ROWS, READERS, Block, FileIdentity, Fragment, Reader, ValueRange
from recgrad.errors import DataError, system_reason


@READERS.register("ParquetDataset")
class ParquetReader(Reader):
    """Reads parquet files of any file system, only the columns that are asked for.

    Text columns that the first file holds as dictionaries come as dictionary arrays, which
    takes half the time. Footers are read when the reader is built; a file is known by its name, size and the
    hash of its footer.
    """

    def __init__(self, input_path: str, config: DataConfig) -> None:
        self._sources = list_files(input_path, (".parquet", ".parq", ".pq"))
        with ThreadPoolExecutor(max_workers=8) as pool:
            footers = list(pool.map(_read_footer, self._sources))
        self.files = tuple(source.name for source in self._sources)
        self.local_paths = tuple(source.path for source in self._sources if source.local)
        self.schemas = tuple(schema for _, schema, _ in footers)
        self.identities = tuple(
            FileIdentity(source.name, source.size, digest)
            for source, (_, _, digest) in zip(self._sources, footers, strict=True)
        )
        fragments = []
        for file, (counts, _, _) in enumerate(footers):
            first_row = 0
            for index, count in enumerate(counts):
                if count:
                    fragments.append(Fragment(file, index, first_row, count))
                first_row += count
        self.fragments = tuple(fragments)
        self._metadata: dict[int, pq.FileMetaData] = {}
        self._lock = threading.Lock()
        self.coded_columns = frozenset(_dictionary_columns(self._sources[self.first_file]))

    def read(self, fragment: Fragment, columns: Sequence[str]) -> Iterator[Block]:
        """The rows of a row group; a large one is decoded piece by piece."""
        source = self._sources[fragment.file]
        names = list(columns)
        try:
            with source.open_arrow() as handle:
                _check_same(handle, source, self.identities[fragment.file].digest)
                coded = [name for name in names if name in self.coded_columns]
                parquet = pq.ParquetFile(handle, pre_buffer=not source.local, read_dictionary=coded)
                if fragment.num_rows <= 2 * BLOCK_ROWS:
                    yield Block(parquet.read_row_group(fragment.index, names, use_threads=False))
                    return
                batches = parquet.iter_batches(
                    BLOCK_ROWS, row_groups=[fragment.index], columns=names, use_threads=False
                )
                for batch in batches:
                    yield Block(pa.Table.from_batches([batch]))
        except (OSError, pa.ArrowException) as error:
            last = fragment.first_row + fragment.num_rows - 1
            raise DataError(
                f"data: cannot read rows {fragment.first_row} to {last} of {source.name} ({error}); "
                "the file is damaged or changed while it was read: write it again"
            ) from error

    def ranges(self, fragment: Fragment, columns: Sequence[str]) -> dict[str, ValueRange]:
        """The least and largest values that the footer gives for a row group."""
        with self._lock:
            if fragment.file not in self._metadata:
                with self._sources[fragment.file].open_arrow() as handle:
                    self._metadata = {fragment.file: pq.read_metadata(handle)}
            metadata = self._metadata[fragment.file]
        group = metadata.row_group(fragment.index)
        found = {}
        for i in range(group.num_columns):
            chunk = group.column(i)
            if chunk.path_in_schema in columns and chunk.is_stats_set:
                stats = chunk.statistics
                if stats.has_null_count and (stats.has_min_max or stats.null_count == fragment.num_rows):
                    found[chunk.path_in_schema] = ValueRange(stats.min, stats.max, stats.null_count > 0)
        return found


def _check_same(handle: pa.NativeFile, source: SourceFile, digest: str) -> None:
    """Raise unless the file is the one whose footer was read: another's rows would pass for its own.

    Of files elsewhere only the size is compared, which costs no further request.
    """
    size = handle.size()
    if size == source.size and (not source.local or _digest(_footer_bytes(handle, size)) == digest):
        return
    how = f"{source.size} bytes then, {size} now" if size != source.size else "same size, other content"
    raise DataError(
        f"data: {source.name} was replaced while it was read ({how}); put the old file back, and do not "
        "write to the files of a run"
    )


def _read_footer(source: SourceFile) -> tuple[list[int], pa.Schema, str]:
    """Rows of each row group, the schema, and the hash of the footer."""
    if source.size == 0:
        raise DataError(f"data: {source.name} is empty (0 bytes); remove it or write it again")
    try:
        with source.open_arrow() as handle:
            footer = _footer_bytes(handle, source.size)
            parquet = pq.ParquetFile(handle)
            metadata = parquet.metadata
            counts = [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]
            return counts, parquet.schema_arrow, _digest(footer)
    except (PermissionError, IsADirectoryError, FileNotFoundError) as error:
        raise DataError(f"data: cannot read {source.name}: {system_reason(error)}") from error
    except (OSError, pa.ArrowException) as error:
        raise DataError(
            f"data: {source.name} is not a readable parquet file ({error}); "
            "it may be truncated: write it again"
        ) from error


def _dictionary_columns(source: SourceFile) -> list[str]:
    """Text columns whose values are, by their size, nearly all numbers into a dictionary.

    A writer gives the dictionary up when it grows beyond about 1 MB and writes texts, each with 4
    bytes for its length; the numbers take less.
    """
    with source.open_arrow() as handle:
        parquet = pq.ParquetFile(handle)
        metadata, schema = parquet.metadata, parquet.schema_arrow
    texts = {field.name for field in schema if field.type in (pa.string(), pa.large_string())}
    if metadata.num_row_groups == 0:
        return []
    group = metadata.row_group(0)
    chunks = [group.column(i) for i in range(group.num_columns)]
    return [
        chunk.path_in_schema
        for chunk in chunks
        if chunk.path_in_schema in texts
        and chunk.has_dictionary_page
        and chunk.total_uncompressed_size - (1 << 20) < 4 * chunk.num_values
    ]


def _digest(footer: bytes) -> str:
    return blake2b(footer, digest_size=8).hexdigest()


def _footer_bytes(handle: pa.NativeFile, size: int) -> bytes:
    """The footer's own bytes, which change when any column chunk moves or its statistics do."""
    if size < 12:
        raise pa.ArrowInvalid(f"{size} bytes are too few for a footer")
    handle.seek(size - 8)
    length = int.from_bytes(handle.read(4), "little")
    if not 0 < length <= size - 12:
        raise pa.ArrowInvalid("the footer is missing")
    handle.seek(size - 8 - length)
    footer: bytes = handle.read(length + 8)
    handle.seek(0)
    return footer
