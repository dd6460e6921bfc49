"""Bodies of requests: JSON or Arrow, rows or one user with many items."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import msgspec
import pyarrow as pa

from recgrad.serving.answers import ARROW, JSON, RequestError

Row = dict[str, Any]
OnBadRow = Literal["error", "null"]
JSON_KINDS = (JSON, "text/json", "application/x-www-form-urlencoded", "")
"""What is read as JSON; curl sends the third unless told otherwise."""
ARROW_KINDS = (ARROW, "application/x-apache-arrow-stream")

_UNLIKE = '; send {"rows": [{…}, …]} or {"user": {…}, "items": [{…}, …]}'


class _Body(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    rows: list[Row] | None = None
    user: Row | int | str | None = None
    items: list[Row | int | str] | None = None
    on_bad_row: OnBadRow = "error"


_decoder = msgspec.json.Decoder(_Body)


class ScoreRequest(NamedTuple):
    """A decoded request, of JSON rows or an Arrow table.

    Attributes:
        rows: rows of columns; the items where there is a user; None where there is a table.
        table: an Arrow body; None where there are rows.
        user: the columns of the one user that all rows share, or None.
        on_bad_row: whether a bad row fails the request or scores null.
        size: the number of rows.
    """

    rows: Sequence[Row] | None
    table: pa.Table | None
    user: Row | None
    on_bad_row: OnBadRow
    size: int


def decode(
    body: bytes, kind: str, *, max_rows: int, keys: dict[str, str] | None = None, on_bad_row: str = ""
) -> ScoreRequest:
    """A request from its body.

    Args:
        body: as it was sent.
        kind: its content type, without parameters.
        max_rows: more rows are refused.
        keys: the id columns of stored features, by role; a user or item may then be an id alone.
        on_bad_row: what the query asks for; "" for nothing. An Arrow body cannot say it itself.

    Raises:
        RequestError: 400 for what cannot be read, 413 for too many rows, 415 for another content type.
    """
    kind = plain_kind(kind)
    if on_bad_row not in ("", "error", "null"):
        raise RequestError(400, f"on_bad_row must be error or null, got {on_bad_row[:80]!r}")
    if kind in ARROW_KINDS:
        request = _arrow(body, on_bad_row)
    elif kind in JSON_KINDS:
        request = _json(body, keys or {}, on_bad_row)
    else:
        raise RequestError(415, f"content type '{kind[:80]}' is not read; send {JSON} or {ARROW}")
    if request.size > max_rows:
        raise RequestError(
            413,
            f"the request has {request.size:,} rows, more than --max_rows {max_rows:,}; send fewer at a time",
        )
    return request


def plain_kind(kind: str) -> str:
    """A content type without its parameters."""
    return kind.partition(";")[0].strip().lower() if ";" in kind else kind.strip().lower()


def _json(body: bytes, keys: dict[str, str], on_bad_row: str) -> ScoreRequest:
    try:
        read = _decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RequestError(400, f"the body cannot be read: {error}{_UNLIKE}") from None
    except RecursionError:
        raise RequestError(400, f"the body cannot be read: it is nested too deeply{_UNLIKE}") from None
    how: OnBadRow = read.on_bad_row
    if on_bad_row:
        how = "null" if on_bad_row == "null" else "error"
    if read.rows is not None:
        if read.user is not None or read.items is not None:
            raise RequestError(400, "the body has 'rows' beside 'user' or 'items'; keep one of both forms")
        return ScoreRequest(read.rows, None, None, how, len(read.rows))
    if read.items is None:
        raise RequestError(400, f"the body has neither 'rows' nor 'items'{_UNLIKE}")
    if read.user is None:
        raise RequestError(400, "the body has 'items' but no 'user'; send a user, or rows")
    items = [item if type(item) is dict else _of_id(item, "item", keys) for item in read.items]
    user = read.user if type(read.user) is dict else _of_id(read.user, "user", keys)
    return ScoreRequest(items, None, user, how, len(items))


def _of_id(value: Any, role: str, keys: dict[str, str]) -> Row:
    if role not in keys:
        raise RequestError(
            400,
            f"{role} {str(value)[:80]!r} is an id, and this server has no stored {role} features; "
            f"send its columns as an object, or start the server with --{role}_features and --{role}_key",
        )
    return {keys[role]: value}


def _arrow(body: bytes, on_bad_row: str) -> ScoreRequest:
    source = pa.py_buffer(body)
    try:
        _refuse_compressed(source)
        table = pa.ipc.open_stream(source).read_all()
        table.validate(full=True)  # offsets of a hostile body may point anywhere
    except (pa.ArrowException, OSError, ValueError, MemoryError, LookupError, struct.error) as error:
        lines = str(error).splitlines() or [type(error).__name__]
        raise RequestError(400, f"the body is no Arrow IPC stream: {lines[0][:200]}") from None
    how: OnBadRow = "null" if on_bad_row == "null" else "error"
    return ScoreRequest(None, table, None, how, table.num_rows)


def _refuse_compressed(source: pa.Buffer) -> None:
    """Refuse batches that say they are compressed: a small body could ask for any amount of memory."""
    for message in pa.ipc.MessageReader.open_stream(source):
        if message.type in ("record batch", "dictionary"):
            data = memoryview(message.metadata)
            header = _field(data, struct.unpack_from("<I", data)[0], 2)
            batch = header + struct.unpack_from("<I", data, header)[0]
            if message.type == "dictionary":
                inner = _field(data, batch, 1)
                batch = inner + struct.unpack_from("<I", data, inner)[0]
            if _field(data, batch, 3):
                raise RequestError(400, "the Arrow body is compressed, which is not read; write it without")


def _field(data: memoryview, table: int, number: int) -> int:
    """Where field `number` of a flatbuffer's table is, or 0 if the table does not have it."""
    vtable = table - struct.unpack_from("<i", data, table)[0]
    size = struct.unpack_from("<H", data, vtable)[0]
    at = 4 + 2 * number
    offset = struct.unpack_from("<H", data, vtable + at)[0] if at < size else 0
    return table + offset if offset else 0
