"""The columns that a config declares: `input_fields` and `input_fields_str`."""

from __future__ import annotations

import pyarrow as pa

from recgrad.config.proto.data_pb2 import DataConfig, FieldType
from recgrad.errors import ConfigError, Problem, nearest

_SCALARS = {
    "INT32": pa.int32(),
    "INT64": pa.int64(),
    "STRING": pa.string(),
    "FLOAT": pa.float32(),
    "DOUBLE": pa.float64(),
}
_ALIASES = {"INT": "INT32", "BIGINT": "INT64"}


def field_types(config: DataConfig) -> dict[str, pa.DataType | None]:
    """Arrow types by column name in the declared order; None where the config gives no type.

    `input_fields_str` reads `name:TYPE;name:TYPE`, types as in `FieldType` or as MaxCompute
    writes them (BIGINT, INT, ARRAY<BIGINT>, MAP<STRING,DOUBLE>).
    """
    if config.input_fields and config.input_fields_str:
        raise ConfigError(
            [Problem("data_config", "input_fields and input_fields_str are both set; keep one")]
        )
    fields: dict[str, pa.DataType | None] = {}
    for name, kind in _declared(config):
        if name in fields:
            raise ConfigError(
                [Problem("data_config.input_fields", f"column '{name}' is named twice; keep one")]
            )
        fields[name] = None if kind is None else arrow_type(kind, name)
    return fields


def _declared(config: DataConfig) -> list[tuple[str, str | None]]:
    if config.input_fields:
        return [
            (field.input_name, FieldType.Name(field.input_type) if field.HasField("input_type") else None)
            for field in config.input_fields
        ]
    pairs = [part.strip().partition(":") for part in config.input_fields_str.split(";") if part.strip()]
    return [(name.strip(), kind.strip() or None) for name, _, kind in pairs]


def arrow_type(kind: str, column: str) -> pa.DataType:
    """The Arrow type of a `FieldType` name or a MaxCompute type such as ARRAY<BIGINT>."""
    text = kind.upper().replace(" ", "")
    for bracket in "<>,":
        text = text.replace(bracket, "_")
    parts = [_ALIASES.get(part, part) for part in text.split("_") if part]
    found = _nested(parts)
    if found is None:
        names = [*FieldType.keys(), *_ALIASES]
        hint = nearest(kind.upper(), names)
        raise ConfigError(
            [Problem("data_config.input_fields", f"column '{column}' has no type '{kind}'{hint}")]
        )
    return found


def _nested(parts: list[str]) -> pa.DataType | None:
    if len(parts) == 1:
        return _SCALARS.get(parts[0])
    if parts[0] == "ARRAY":
        item = _nested(parts[1:])
        return None if item is None else pa.list_(item)
    if parts[0] == "MAP" and len(parts) == 3:
        key, item = _SCALARS.get(parts[1]), _SCALARS.get(parts[2])
        return None if key is None or item is None else pa.map_(key, item)
    return None
