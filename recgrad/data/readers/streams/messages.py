"""Rows of messages: Arrow IPC streams, bare record batches, or lines of JSON.

Messages that hold no rows of the expected columns give one row of nulls and a `BadValue`, so that
`on_bad_row` decides about them like about any bad row.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.json as pj

from recgrad.data.readers.reader import BadValue
from recgrad.errors import DataError, nearest

REMEDY = "correct who writes the messages, or leave them out with data_config.on_bad_row: SKIP"
_SHOWN = 60


@dataclass(frozen=True)
class Decoded:
    """Rows of messages.

    Attributes:
        table: the rows of all, one message after another.
        counts: rows of each message.
        bad: what could not be decoded, by row.
    """

    table: pa.Table
    counts: list[int]
    bad: tuple[BadValue, ...]


class Decoder:
    """Makes rows of messages.

    Args:
        schema: of all columns that messages may have, in the order of record batches without a schema.
        columns: those to keep.
        kind: AUTO, ARROW or JSON.
    """

    def __init__(self, schema: pa.Schema, columns: Sequence[str], kind: str = "AUTO") -> None:
        self._whole = schema
        self._schema = pa.schema([schema.field(name) for name in columns])
        self._kind = kind
        self._null = pa.Table.from_pylist([dict.fromkeys(columns)], self._schema)

    def decode(self, values: Sequence[bytes]) -> Decoded:
        """The rows of some messages; those of consecutive JSON messages are parsed at once."""
        tables: list[pa.Table] = []
        counts: list[int] = []
        bad: list[BadValue] = []
        at = total = 0
        while at < len(values):
            end = at + 1
            if self._is_json(values[at]):
                while end < len(values) and self._is_json(values[end]):
                    end += 1
                found = self._json(values[at:end])
            else:
                found = self._arrow(values[at])
            tables.append(found.table)
            counts += found.counts
            bad += [BadValue(b.row + total, None, b.value, b.reason, b.remedy) for b in found.bad]
            total += found.table.num_rows
            at = end
        table = pa.concat_tables(tables) if tables else self._schema.empty_table()
        return Decoded(table, counts, tuple(bad))

    def _is_json(self, value: bytes) -> bool:
        return self._kind == "JSON" or (self._kind == "AUTO" and value[:1] not in (b"\xff", b""))

    def _json(self, values: Sequence[bytes]) -> Decoded:
        """All at once where all are well, else one by one, and the lines of a bad one one by one."""
        lines = [[line for line in value.split(b"\n") if line.strip()] for value in values]
        if all(lines):
            try:
                table = self._parse([line for own in lines for line in own])
                return Decoded(table, [len(own) for own in lines], ())
            except pa.ArrowException:
                pass
        tables: list[pa.Table] = []
        bad: list[BadValue] = []
        for own in lines:
            for line in own or [b""]:
                try:
                    tables.append(self._parse([line]))
                except pa.ArrowException as error:
                    bad.append(self._bad(len(tables), line, f"is not JSON of these columns: {_brief(error)}"))
                    tables.append(self._null)
        return Decoded(pa.concat_tables(tables), [max(len(own), 1) for own in lines], tuple(bad))

    def _parse(self, lines: Sequence[bytes]) -> pa.Table:
        data = b"\n".join(lines)
        table = pj.read_json(
            io.BytesIO(data),
            read_options=pj.ReadOptions(use_threads=False, block_size=len(data) + 1),
            parse_options=pj.ParseOptions(explicit_schema=self._schema, unexpected_field_behavior="ignore"),
        )
        if table.num_rows != len(lines):
            raise pa.ArrowInvalid(f"{table.num_rows} objects in {len(lines)} lines")
        return table.select(self._schema.names)

    def _arrow(self, value: bytes) -> Decoded:
        try:
            table = read_arrow(value, self._whole)
            problem = self._misfit(table)
        except (pa.ArrowException, OSError, ValueError, DataError) as error:
            problem = f"is not Arrow data: {_brief(error)}"
        if problem:
            return Decoded(self._null, [1], (self._bad(0, value, problem),))
        return Decoded(table.select(self._schema.names), [table.num_rows], ())

    def _misfit(self, table: pa.Table) -> str:
        for field in self._schema:
            if table.schema.get_field_index(field.name) < 0:
                known = nearest(field.name, table.column_names)
                return f"has no column '{field.name}'{known}"
            kind = table.schema.field(field.name).type
            if kind != field.type:
                return f"has {kind} in column '{field.name}', not {field.type}"
        return ""

    def _bad(self, row: int, value: bytes, reason: str) -> BadValue:
        shown = value[:_SHOWN].decode("utf-8", "replace") + ("…" if len(value) > _SHOWN else "")
        return BadValue(row, None, shown, f"{{value}} {reason}", REMEDY)


def read_arrow(value: bytes, schema: pa.Schema | None) -> pa.Table:
    """The rows of an IPC stream with its schema, or of a record batch of `schema`."""
    buffer = pa.py_buffer(value)
    message = pa.ipc.read_message(buffer)
    if message.type == "schema":
        with pa.ipc.open_stream(buffer) as reader:
            return reader.read_all()
    if schema is None:
        raise DataError(
            "data: messages are record batches without their schema; name all columns with their types, in "
            "order, in data_config.input_fields"
        )
    return pa.Table.from_batches([pa.ipc.read_record_batch(message, schema)])


def _brief(error: Exception) -> str:
    return str(error).splitlines()[0].removeprefix("data: ")[:120]
