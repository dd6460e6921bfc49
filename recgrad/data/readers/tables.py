"""Files of rows beside the training data, such as all items or all users: read by their suffix, in order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from recgrad.config.proto.data_pb2 import CsvDataset, DataConfig, ParquetDataset
from recgrad.data.arrow_columns import without_dictionary
from recgrad.data.readers.build import open_reader
from recgrad.data.readers.files import list_files
from recgrad.data.readers.reader import Reader, missing_column
from recgrad.data.readers.where_text import split_where
from recgrad.errors import DataError

_TEXTS = (".csv", ".csv.gz", ".tsv", ".tsv.gz", ".txt", ".txt.gz")


def open_table(path: str, data: DataConfig | None = None) -> Reader:
    """A reader of parquet files, of text files with a header line, or of what else `data` reads.

    Args:
        path: files, globs, folders or table addresses, joined by commas; `where …` may follow.
        data: gives the delimiter, and types of columns where the files have these columns.
    """
    if path.startswith("odps://"):
        return open_reader(path, data or DataConfig())
    files, _ = split_where(path)
    names = [file.path for file in list_files(files, (".parquet", ".parq", ".pq", *_TEXTS))]
    config = DataConfig(dataset_type=ParquetDataset)
    if all(name.endswith(_TEXTS) for name in names):
        config = DataConfig(dataset_type=CsvDataset, with_header=True)
        if data is not None and data.dataset_type == CsvDataset:
            config.delimiter = data.delimiter
            config.input_fields.extend(data.input_fields)
            config.input_fields_str = data.input_fields_str
        elif names[0].endswith((".tsv", ".tsv.gz")):
            config.delimiter = "\t"
    return open_reader(path, config)


def read_table(reader: Reader, columns: Sequence[str]) -> Iterator[pa.Table]:
    """Columns of all rows, in order, block by block, without dictionaries.

    Raises:
        DataError: a column is missing, or a value cannot be read.
    """
    reader.check_columns(list(columns))
    for fragment in reader.fragments:
        row = fragment.first_row
        for block in reader.read(fragment, list(columns)):
            for bad in block.bad:
                place = f"row {block.row_number(bad.row, row)} of {reader.files[fragment.file]}"
                raise DataError(f"data: column '{bad.column}': {bad.reason} ({place}: {bad.value!r})")
            names = block.table.column_names
            yield pa.table({name: without_dictionary(block.table.column(name)) for name in names})
            row += block.table.num_rows


def read_column(reader: Reader, name: str) -> pa.ChunkedArray:
    """One column of all rows."""
    if reader.schema.get_field_index(name) < 0:
        raise DataError(missing_column(name, reader.files[reader.first_file], reader.schema))
    parts = [table.column(name) for table in read_table(reader, [name])]
    return pa.chunked_array([chunk for part in parts for chunk in part.chunks], parts[0].type)
