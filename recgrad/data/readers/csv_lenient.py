"""Parsing a block of CSV lines that has something wrong in it, to say exactly what."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from recgrad.data.readers.reader import BadValue, Block

NULL_TEXTS = ["", "NULL", "null", "NA", "N/A", "n/a", "#N/A", "\\N"]
"""What counts as null in a number column. `nan` is not among them: it is a number, and a bad one."""


def parse_leniently(
    text: bytes,
    types: dict[str, pa.DataType],
    read: pa.csv.ReadOptions,
    parse: pa.csv.ParseOptions,
) -> Block:
    """The rows of a block with nulls where a value or a whole line cannot be parsed, each named."""
    bad: list[BadValue] = []

    def note(row: pa.csv.InvalidRow) -> str:
        reason = (
            f"the line has {row.actual_columns} fields where {row.expected_columns} are expected: {{value}}"
        )
        bad.append(BadValue(row.number - 1, None, row.text, reason))
        return "skip"

    parse.invalid_row_handler = note
    strings = pa.csv.ConvertOptions(
        column_types=dict.fromkeys(types, pa.large_binary()),
        include_columns=list(types),
        strings_can_be_null=False,
    )
    table = pa.csv.read_csv(
        pa.BufferReader(text), read_options=read, parse_options=parse, convert_options=strings
    )
    table = _with_gaps(table.combine_chunks(), [item.row for item in bad])
    arrays = []
    for name, kind in types.items():
        array, faults = _convert(table.column(name), name, kind)
        arrays.append(array)
        bad.extend(faults)
    return Block(pa.table(arrays, names=list(types)), tuple(bad))


def _with_gaps(table: pa.Table, rows: list[int]) -> pa.Table:
    """The table with a row of nulls put in at each of `rows`, so that rows keep their numbers."""
    if not rows:
        return table
    gaps = set(rows)
    total = table.num_rows + len(gaps)
    taken = iter(range(table.num_rows))
    return table.take(pa.array([None if row in gaps else next(taken) for row in range(total)], pa.int64()))


def _convert(column: pa.ChunkedArray, name: str, kind: pa.DataType) -> tuple[pa.ChunkedArray, list[BadValue]]:
    """The column as `kind`; what cannot be converted is null and named."""
    values = column.combine_chunks().dictionary_encode()
    values = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
    texts = values.dictionary.to_pylist()
    known = _decode(texts) if pa.types.is_string(kind) else _parse(texts, kind)
    wrong = {
        code: raw.decode("utf-8", "backslashreplace")
        for code, (raw, value) in enumerate(zip(texts, known, strict=True))
        if value is None and raw.decode("utf-8", "replace") not in NULL_TEXTS
    }
    array = pa.array(known, kind).take(values.indices)
    if not wrong:
        return array, []
    hits = pc.is_in(values.indices, value_set=pa.array(list(wrong), values.indices.type))
    rows = pc.indices_nonzero(hits.fill_null(False)).to_pylist()
    codes = values.indices.take(pa.array(rows, pa.int64())).to_pylist()
    what = "text in UTF-8" if pa.types.is_string(kind) else f"a value of type {kind}"
    return array, [
        BadValue(row, name, wrong[code], f"{{value}} is not {what}")
        for row, code in zip(rows, codes, strict=True)
    ]


def _decode(texts: list[bytes]) -> list[str | None]:
    """Texts, None where bytes are no UTF-8."""
    decoded: list[str | None] = []
    for raw in texts:
        try:
            decoded.append(raw.decode("utf-8"))
        except UnicodeDecodeError:
            decoded.append(None)
    return decoded


def _parse(texts: list[bytes], kind: pa.DataType) -> list[Any]:
    """Fields as pyarrow's own CSV converter reads them, None where it cannot.

    All are tried at once, then by halves, so that a few bad ones among many are found quickly.
    """
    if not texts:
        return []
    if len(texts) > 1 or b"\n" not in texts[0]:
        try:
            return _parse_all(texts, kind)
        except pa.ArrowInvalid:
            pass
    if len(texts) == 1:
        return [None]
    middle = len(texts) // 2
    return _parse(texts[:middle], kind) + _parse(texts[middle:], kind)


def _parse_all(texts: list[bytes], kind: pa.DataType) -> list[Any]:
    lines = b"".join(text + b"\n" for text in texts)
    table = pa.csv.read_csv(
        pa.BufferReader(lines),
        read_options=pa.csv.ReadOptions(use_threads=False, column_names=["value"]),
        parse_options=pa.csv.ParseOptions(delimiter="\x01", quote_char=False, ignore_empty_lines=False),
        convert_options=pa.csv.ConvertOptions(column_types={"value": kind}, null_values=NULL_TEXTS),
    )
    if table.num_rows != len(texts):
        raise pa.ArrowInvalid("a value holds a line end")
    values: list[Any] = table.column(0).to_pylist()
    return values
