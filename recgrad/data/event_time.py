"""When events happened, in seconds since 1970."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from recgrad.errors import DataError


def latest_event(column: pa.Array) -> float | None:
    """The latest time of a column of seconds, dates or timestamps; None where all are null."""
    value = pc.max(column)
    kind = column.type
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        value = value.cast(pa.timestamp("us", tz=getattr(kind, "tz", None))).cast(pa.int64())
        return value.as_py() / 1e6 if value.is_valid else None
    seconds = value.as_py()
    return None if seconds is None or seconds != seconds else float(seconds)


def check_time(column: str, schema: pa.Schema, file: str) -> None:
    """Raise a DataError unless a column can hold event times."""
    kind = schema.field(column).type
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind) or pa.types.is_integer(kind):
        return
    if not pa.types.is_floating(kind):
        raise DataError(
            f"data: column '{column}' is {kind} in {file}, and data_config.timestamp_field must be seconds "
            "since 1970, dates or timestamps; write one of these"
        )
