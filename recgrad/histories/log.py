"""Reading a log of events, block by block, with an error that names the row of what cannot be used."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recgrad.data.readers.reader import Reader
from recgrad.data.readers.tables import open_table
from recgrad.errors import DataError, system_reason
from recgrad.histories.settings import HistorySettings

ORDER = "__order"  # the number of an event in the log, which decides between equal times
_LINES = 20_000


class EventLog:
    """A log of one event a row.

    Args:
        path: parquet files, or text files with a header line.
        settings: which columns are what.
    """

    def __init__(self, path: str, settings: HistorySettings) -> None:
        self.settings, self.reader = settings, open_table(path)
        self.reader.check_columns(settings.columns)
        self.num_events = self.reader.num_rows

    def blocks(self) -> Iterator[pa.Table]:
        """Events in the order of the log; times are float64 seconds."""
        first = 0
        for fragment in self.reader.fragments:
            row = fragment.first_row
            for block in self.reader.read(fragment, self.settings.columns):
                where = _Place(self.reader, fragment.file, row)
                for bad in block.bad:
                    raise DataError(
                        f"data: column '{bad.column}': {bad.reason} ({where.of(bad.row)}: {bad.value!r})"
                    )
                yield _checked(block.table, self.settings, where, first)
                row, first = row + block.table.num_rows, first + block.table.num_rows


class LineLog:
    """A log of one line a user: the user, then the items in the order of time, with blanks between."""

    def __init__(self, path: str, settings: HistorySettings) -> None:
        if settings.time or settings.carry:
            raise DataError("sequences: lines of users have no times and no further columns; leave them out")
        self.path, self.settings = Path(path), settings
        try:
            with self.path.open(encoding="utf-8") as lines:
                first = lines.readline().split()
                self.num_events = len(first) - 1 if first else 0
                self.num_events += sum(max(len(line.split()) - 1, 0) for line in lines)
        except OSError as error:
            raise DataError(f"data: {path}: {system_reason(error)}") from error
        except UnicodeDecodeError as error:
            raise DataError(f"data: {path}: is not UTF-8 text ({error.reason})") from error
        if not self.num_events:
            raise DataError(f"data: '{path}' has no events")
        self._numbers = {"user": first[:1] and _is_number(first[0]), "item": all(map(_is_number, first[1:]))}

    def blocks(self) -> Iterator[pa.Table]:
        """Events, user after user."""
        users: list[str] = []
        items: list[str] = []
        first = 0
        with self.path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                words = line.split()
                if len(words) == 1:
                    raise DataError(
                        f"data: line {number} of {self.path} has a user and no item; leave it out"
                    )
                users += words[:1] * (len(words) - 1)
                items += words[1:]
                if number % _LINES == 0 and users:
                    yield self._table(users, items, first)
                    first, users, items = first + len(users), [], []
        if users:
            yield self._table(users, items, first)

    def _table(self, users: list[str], items: list[str], first: int) -> pa.Table:
        order = np.arange(first, first + len(users))
        names = [self.settings.user, self.settings.item, ORDER]
        columns = [self._column(users, "user"), self._column(items, "item"), pa.array(order)]
        return pa.table(columns, names=names)

    def _column(self, words: list[str], what: str) -> pa.Array:
        """Whole numbers where the first line has one, else texts."""
        if not self._numbers[what]:
            return pa.array(words)
        try:
            return pa.array(words).cast(pa.int64())
        except pa.ArrowInvalid as error:
            raise DataError(
                f"data: {self.path}: the first {what} is a number and another is not ({error})"
            ) from error


def _is_number(word: str) -> bool:
    return word.isascii() and word.isdigit() and len(word) < 19


class _Place:
    """Where a block lies, for errors."""

    def __init__(self, reader: Reader, file: int, row: int) -> None:
        self.file, self.row = reader.files[file], row

    def of(self, row: int) -> str:
        return f"row {self.row + row} of {self.file}"


def _checked(table: pa.Table, settings: HistorySettings, where: _Place, first: int) -> pa.Table:
    for name, what in ((settings.user, "user"), (settings.item, "item"), (settings.time, "time")):
        if name and table.column(name).null_count:
            row = int(np.flatnonzero(np.asarray(table.column(name).is_null()))[0])
            raise DataError(
                f"data: column '{name}': the {what} is null ({where.of(row)}); leave such rows out"
            )
    columns = {name: _plain(table.column(name)) for name in settings.columns if name != settings.time}
    if settings.time:
        columns[settings.time] = _seconds(_plain(table.column(settings.time)), settings.time, where)
    columns[ORDER] = pa.array(np.arange(first, first + table.num_rows))
    return pa.table(columns)


def _plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    return column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column


def _seconds(column: pa.ChunkedArray, name: str, where: _Place) -> pa.ChunkedArray:
    """Numbers as they are, dates and times, also as texts of ISO 8601, as seconds since 1970."""
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        column = _moments(column, name, where)
    kind = column.type
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        micros = column.cast(pa.timestamp("us", tz=getattr(kind, "tz", None))).cast(pa.int64())
        return pc.divide(micros.cast(pa.float64()), 1e6)
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        raise DataError(
            f"data: column '{name}' is {kind}, and times must be numbers, dates or timestamps; write seconds"
        )
    values = column.cast(pa.float64(), safe=False)
    bad = ~np.isfinite(values.to_numpy())
    if bad.any():
        row = int(np.flatnonzero(bad)[0])
        raise DataError(f"data: column '{name}': the time is not a finite number ({where.of(row)})")
    return values


# Texts are all of one of these: seconds, times without a zone, or times with one.
_KINDS_OF_TIME = (pa.float64(), pa.timestamp("us"), pa.timestamp("us", tz="UTC"))


def _moments(column: pa.ChunkedArray, name: str, where: _Place) -> pa.ChunkedArray:
    """Texts such as 1769862600, 2026-01-31 or 2026-01-31T12:30:00+02:00; UTC without a zone."""
    for kind in _KINDS_OF_TIME:
        if (found := _read_as(column, kind)) is not None:
            return found
    texts = column.to_pylist()
    kinds = [
        next((kind for kind in _KINDS_OF_TIME if _read_as(pa.array([t]), kind) is not None), None)
        for t in texts
    ]
    odd = kinds.index(None) if None in kinds else next(i for i, kind in enumerate(kinds) if kind != kinds[0])
    problem = "is no time" if kinds[odd] is None else f"is another kind of time than {texts[0]!r}"
    raise DataError(
        f"data: column '{name}': {texts[odd]!r} {problem} ({where.of(odd)}); write seconds, or dates and "
        "times such as 2026-01-31 12:30:00, all of them with a zone or none"
    )


def _read_as(texts: pa.Array | pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray | None:
    try:
        return texts.cast(kind)
    except pa.ArrowInvalid:
        return None
