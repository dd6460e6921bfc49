"""Opening a table whose format nobody has described: parquet, or text, with a header line or without."""

from __future__ import annotations

import gzip
import re
from collections.abc import Sequence

from recgrad.config.proto.data_pb2 import CsvDataset, DataConfig, ParquetDataset
from recgrad.data.readers.build import open_reader
from recgrad.data.readers.files import list_files
from recgrad.data.readers.reader import Reader
from recgrad.data.readers.where_text import split_where
from recgrad.errors import DataError, system_reason

_SUFFIXES = (".parquet", ".parq", ".pq", ".csv", ".csv.gz", ".tsv", ".tsv.gz", ".txt", ".txt.gz")
_DELIMITERS = ",\t|;"
_NUMBER = re.compile(r"\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*\Z")


def open_source(path: str, names: Sequence[str] = ()) -> tuple[Reader, DataConfig]:
    """A reader of a table, and the part of a config that makes it.

    Args:
        path: files, globs or folders, joined by commas; `where …` may follow.
        names: of the columns of text files without a header line.

    Raises:
        DataError: it is no table, or columns cannot be told apart.
    """
    files, _ = split_where(path)
    first = list_files(files, _SUFFIXES)[0]
    try:
        with first.open_binary() as handle:
            head = handle.read(1 << 16)
            if head[:2] == b"\x1f\x8b":
                handle.seek(0)
                with gzip.GzipFile(fileobj=handle) as unpacked:
                    head = unpacked.read(1 << 16)
    except (OSError, EOFError) as error:
        reason = system_reason(error) if isinstance(error, OSError) else "it is cut off"
        raise DataError(f"data: cannot read {first.path}: {reason}") from error
    if head[:4] == b"PAR1" or first.path.endswith((".parquet", ".parq", ".pq")):
        if names:
            raise DataError(f"data: {first.path} is parquet, which names its columns; leave --names out")
        config = DataConfig(dataset_type=ParquetDataset)
    else:
        config = _text_config(first.path, head, names)
    reader = open_reader(path, config)
    _check_names(reader, first.path)
    if config.dataset_type == CsvDataset:
        _declare(reader, config)
    return reader, config


def _text_config(path: str, head: bytes, names: Sequence[str]) -> DataConfig:
    if b"\0" in head:
        raise DataError(f"data: {path} is neither parquet nor text; give a parquet or CSV file")
    line = head.decode("utf-8-sig", "replace").lstrip("\r\n").splitlines()[:1]
    if not line:
        raise DataError(f"data: {path} is empty; give a file with rows")
    delimiter = max(_DELIMITERS, key=line[0].count)
    cells = [cell.strip().strip('"') for cell in line[0].split(delimiter)]
    config = DataConfig(dataset_type=CsvDataset, delimiter=delimiter)
    if delimiter == ",":
        config.ClearField("delimiter")
    if names:
        if len(names) != len(cells):
            raise DataError(
                f"data: --names has {len(names)} names, but {path} has {len(cells)} columns in its first line"
            )
        for name in names:
            config.input_fields.add(input_name=name)
    elif any(not cell or _NUMBER.match(cell) for cell in cells):
        raise DataError(
            f"data: the first line of {path} does not look like names of columns "
            f"('{line[0][:60]}'); name them with --names FILE or --names a,b,c"
        )
    else:
        config.with_header = True
    return config


def _check_names(reader: Reader, path: str) -> None:
    names = reader.schema.names
    twice = sorted({name for name in names if names.count(name) > 1}) if len(set(names)) < len(names) else []
    if twice:
        raise DataError(f"data: {path} has several columns called '{twice[0]}'; rename all but one")


def _declare(reader: Reader, config: DataConfig) -> None:
    """Write the types that the reader has found into the config, where it names the columns."""
    from recgrad.config.proto.data_pb2 import DOUBLE, INT64, STRING

    for field in config.input_fields:
        kind = str(reader.schema.field(field.input_name).type)
        field.input_type = {"int64": INT64, "double": DOUBLE}.get(kind, STRING)
