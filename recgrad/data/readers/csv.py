"""CSV files, plain or gzip; a fragment is a block of whole lines."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pyarrow as pa
import pyarrow.csv

from recgrad.config.proto.data_pb2 import DataConfig
from recgrad.data.readers.csv_index import CsvIndex, build_index, read_block
from recgrad.data.readers.csv_lenient import NULL_TEXTS, parse_leniently
from recgrad.data.readers.fields import field_types
from recgrad.data.readers.files import SourceFile, list_files
from recgrad.data.readers.reader import READERS, Block, FileIdentity, Fragment, Reader
from recgrad.errors import ConfigError, DataError, Problem

_PACKED = (".bz2", ".zst", ".xz", ".lz4", ".snappy", ".zip")


@READERS.register("CsvDataset")
class CsvReader(Reader):
    """Reads CSV files, only the columns that are asked for.

    Column names come from the header (`with_header`) or from `input_fields`; types from
    `input_fields`, else from the first block of the first file, and hold for all files. An
    empty field is null in a number column and "" in a string column. Numbers may have spaces
    around them; strings are taken as they are.
    """

    def __init__(self, input_path: str, config: DataConfig) -> None:
        self._delimiter = _check_delimiter(config.delimiter)
        declared = field_types(config)
        _check_declared(declared, config.with_header)
        self._sources = list_files(input_path, (".csv", ".csv.gz", ".tsv", ".tsv.gz", ".txt", ".txt.gz"))
        for source in self._sources:
            if source.path.endswith(_PACKED):
                raise DataError(f"data: {source.name} is packed; CSV files may be plain or .gz")
        build = partial(build_index, delimiter=self._delimiter, with_header=config.with_header)
        with ThreadPoolExecutor(max_workers=8) as pool:
            self._indexes = list(pool.map(build, self._sources))
        self.files = tuple(source.name for source in self._sources)
        self.local_paths = tuple(source.path for source in self._sources if source.local)
        self.identities = tuple(
            FileIdentity(source.name, source.size, index.digest)
            for source, index in zip(self._sources, self._indexes, strict=True)
        )
        self.fragments = tuple(_fragments(self._indexes))
        names = [
            self._header_names(source, index) if config.with_header else list(declared)
            for source, index in zip(self._sources, self._indexes, strict=True)
        ]
        self._names = names
        types = self._column_types(declared)
        self.schemas = tuple(
            pa.schema([(name, types.get(name, pa.string())) for name in file_names]) for file_names in names
        )

    def check_columns(self, columns: Sequence[str]) -> None:
        """As for any reader; a column whose type nothing shows needs one from the config."""
        super().check_columns(columns)
        for name in columns:
            if pa.types.is_null(self.schema.field(name).type):
                file = self.files[self.first_file]
                raise DataError(
                    f"data: column '{name}' has no value in the first rows of {file}, so its type is "
                    "not known; "
                    "give it in data_config.input_fields"
                )

    def read(self, fragment: Fragment, columns: Sequence[str]) -> Iterator[Block]:
        """The rows of a block of lines, parsed in one piece."""
        source, index = self._sources[fragment.file], self._indexes[fragment.file]
        try:
            with source.open_binary() as handle:
                text = read_block(handle, index.blocks[fragment.index])
        except (OSError, EOFError, zlib.error) as error:
            raise DataError(f"data: cannot read {source.name} ({error}); write it again") from error
        schema = self.schemas[fragment.file]
        types = {name: schema.field(name).type for name in columns}
        options = self._options(self._names[fragment.file], index, len(text))
        try:
            table = pa.csv.read_csv(
                pa.BufferReader(text),
                read_options=options[0],
                parse_options=options[1],
                convert_options=_convert(types),
            )
        except pa.ArrowInvalid:
            yield parse_leniently(text, types, *options)
            return
        if table.num_rows != fragment.num_rows:
            raise DataError(
                f"data: {source.name} changed while it was read ({table.num_rows} rows where "
                f"{fragment.num_rows} were); start again when it is complete"
            )
        yield Block(table)

    def _options(
        self, names: list[str], index: CsvIndex, size: int
    ) -> tuple[pa.csv.ReadOptions, pa.csv.ParseOptions]:
        read = pa.csv.ReadOptions(use_threads=False, column_names=names, block_size=max(size, 1 << 10) + 1)
        parse = pa.csv.ParseOptions(delimiter=self._delimiter, newlines_in_values=index.newlines_in_values)
        return read, parse

    def _header_names(self, source: SourceFile, index: CsvIndex) -> list[str]:
        parse = pa.csv.ParseOptions(delimiter=self._delimiter, newlines_in_values=True)
        try:
            index.header.decode("utf-8")
        except UnicodeDecodeError as error:
            shown = ascii(index.header[max(error.start - 12, 0) : error.start + 12])[2:-1]
            raise DataError(
                f"data: the header of {source.name} is not UTF-8 (byte 0x{index.header[error.start]:02X} in "
                f"'{shown}'); save the file as UTF-8"
            ) from None
        try:
            table = pa.csv.read_csv(pa.BufferReader(index.header), parse_options=parse)
        except pa.ArrowInvalid as error:
            raise DataError(f"data: {source.name} has no readable header line ({error})") from error
        return [name.strip() for name in table.column_names]

    def _column_types(self, declared: dict[str, pa.DataType | None]) -> dict[str, pa.DataType]:
        """Declared types, and for the rest what the first block of the first file shows."""
        types = {name: kind for name, kind in declared.items() if kind is not None}
        unknown = [name for name in self._names[self.first_file] if name not in types]
        if not unknown or not self.fragments:
            return types
        first = self.fragments[0]
        source, index = self._sources[first.file], self._indexes[first.file]
        with source.open_binary() as handle:
            text = read_block(handle, index.blocks[first.index])
        read, parse = self._options(self._names[first.file], index, len(text))
        parse.invalid_row_handler = lambda row: "skip"
        convert = pa.csv.ConvertOptions(null_values=NULL_TEXTS, column_types=types)
        convert.include_columns = [name for name in unknown if name in self._names[first.file]]
        table = pa.csv.read_csv(
            pa.BufferReader(text), read_options=read, parse_options=parse, convert_options=convert
        )
        for field in table.schema:
            types[field.name] = pa.string() if pa.types.is_temporal(field.type) else field.type
        return types


def _convert(types: dict[str, pa.DataType]) -> pa.csv.ConvertOptions:
    return pa.csv.ConvertOptions(null_values=NULL_TEXTS, column_types=types, include_columns=list(types))


def _fragments(indexes: Sequence[CsvIndex]) -> Iterator[Fragment]:
    for file, index in enumerate(indexes):
        first_row = 0
        for number, block in enumerate(index.blocks):
            yield Fragment(file, number, first_row, block.num_rows)
            first_row += block.num_rows


def _check_delimiter(delimiter: str) -> str:
    if len(delimiter.encode()) != 1 or delimiter in '\r\n"':
        raise ConfigError(
            [
                Problem(
                    "data_config.delimiter",
                    f"must be one ASCII character other than a quote, got {delimiter!r}",
                )
            ]
        )
    return delimiter


def _check_declared(declared: dict[str, pa.DataType | None], with_header: bool) -> None:
    if not declared and not with_header:
        raise ConfigError(
            [
                Problem(
                    "data_config",
                    "a CSV file without a header needs input_fields, one for each column in order; "
                    "or set with_header: true",
                )
            ]
        )
    for name, kind in declared.items():
        if kind is not None and pa.types.is_nested(kind):
            raise ConfigError(
                [
                    Problem(
                        "data_config.input_fields",
                        f"column '{name}' is {kind}, which a CSV field cannot hold; declare it STRING and "
                        "give the feature a separator",
                    )
                ]
            )
