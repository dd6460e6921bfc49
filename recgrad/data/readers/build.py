"""The reader that DataConfig chooses, and its columns against what DataConfig says of them."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

from recgrad.config.messages import struct_to_dict
from recgrad.config.proto.data_pb2 import DataConfig, DatasetType, KafkaDataset, ParquetDataset
from recgrad.data.readers.fields import field_types
from recgrad.data.readers.filtered import FilteredReader
from recgrad.data.readers.reader import READERS, Reader
from recgrad.data.readers.where_text import split_where
from recgrad.errors import ConfigError, DataError, Problem
from recgrad.limits import check_limits
from recgrad.registry import UnknownNameError

CUSTOM = "CustomDataset"
"""The dataset_type of a reader of the user's own."""


def is_topic(input_path: str, data: DataConfig) -> bool:
    """Whether a path is that of a topic; beside topics, KafkaDataset reads parquet files."""
    return data.dataset_type == KafkaDataset and input_path.startswith("kafka://")


def open_reader(input_path: str, data: DataConfig) -> Reader:
    """The reader of `data_config.dataset_type`, with at least one row to read.

    Of `log.parquet where day < 20220506`, the rows of which that holds.
    """
    if data.dataset_type == KafkaDataset and not is_topic(input_path, data):
        topics, data = data, DataConfig()
        data.CopyFrom(topics)
        data.dataset_type = ParquetDataset
    reader_type, params = reader_class(data)
    files, condition = split_where(input_path)
    try:
        reader = reader_type(files, data, **params)
    except (TypeError, ValueError) as error:
        if not data.HasField("custom_reader"):
            raise
        raise ConfigError([Problem("data_config.custom_reader", str(error))]) from error
    if condition is not None and reader.num_rows:
        reader = FilteredReader(reader, condition)
        if reader.num_rows == 0:
            raise DataError(f"data: '{files}' has no row where {condition}; check the condition")
    if reader.num_rows == 0:
        raise DataError(f"data: '{input_path}' has no rows ({len(reader.files)} files); check the path")
    return reader


def reader_class(data: DataConfig) -> tuple[type[Reader], dict[str, Any]]:
    """The class that reads the rows of a config, and its keyword arguments; nothing is opened."""
    kind = DatasetType.Name(data.dataset_type)
    if kind != CUSTOM:
        if data.HasField("custom_reader"):
            what = f"has no effect with dataset_type: {kind}; use dataset_type: {CUSTOM}, or remove it"
            raise ConfigError([Problem("data_config.custom_reader", what)])
        try:
            return READERS[kind], {}
        except UnknownNameError as error:
            known = ", ".join(READERS)
            raise ConfigError(
                [Problem("data_config.dataset_type", f"{kind} cannot be read; use {known}")]
            ) from error
    if not data.HasField("custom_reader"):
        what = 'CustomDataset needs data_config.custom_reader { class_path: "package.Class" }'
        raise ConfigError([Problem("data_config.dataset_type", what)])
    custom = data.custom_reader
    params = struct_to_dict(custom.params)
    try:
        cls = READERS.resolve_subclass(custom.class_path, Reader, "__init__ and read")
        check_limits(cls, params)
        inspect.signature(cls).bind("", data, **params)
    except (TypeError, ValueError) as error:
        raise ConfigError([Problem("data_config.custom_reader", str(error))]) from error
    return cls, params


def check_declared(reader: Reader, data: DataConfig, columns: Sequence[str]) -> None:
    """Raise a DataError when `input_fields` gives a column another type than the files do."""
    for name, kind in field_types(data).items():
        if kind is not None and name in columns and reader.schema.field(name).type != kind:
            file = reader.files[reader.first_file]
            raise DataError(
                f"data: column '{name}' is {reader.schema.field(name).type} in {file}, but {kind} in "
                "data_config.input_fields; correct it there, or leave the type out"
            )
