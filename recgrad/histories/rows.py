"""Rows of users whose events are sorted: which events are a history, and which comes next."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from recgrad.histories.log import ORDER
from recgrad.histories.settings import HistorySettings

Ints = npt.NDArray[np.int64]
RELEVANT = "relevant"
PARTS = ("train", "valid", "test")


@dataclass(frozen=True)
class Sorted:
    """Events of some users, user after user, oldest first.

    Attributes:
        table: the events.
        starts: int64 [users]: the first event of each user.
        counts: int64 [users]: how many events each has.
        times: float64 [events], or the number of the event in the log.
        turned: events that stood before an earlier one of their user in the log.
    """

    table: pa.Table
    starts: Ints
    counts: Ints
    times: npt.NDArray[np.float64]
    turned: int


@dataclass(frozen=True)
class Rows:
    """Rows as numbers of events: histories [begin, end), and the event that comes next.

    Attributes:
        begin, end: int64 [rows].
        next: int64 [rows].
        last: int64 [rows]: the end of the events that are to be found, from `next` on; for the split by time.
    """

    begin: Ints
    end: Ints
    next: Ints
    last: Ints


def sort_events(table: pa.Table, settings: HistorySettings) -> Sorted:
    """Events by user, time and place in the log."""
    user = _codes(table.column(settings.user))
    order = table.column(ORDER).to_numpy()
    times = table.column(settings.time).to_numpy() if settings.time else order.astype(np.float64)
    index = np.lexsort((order, times, user))
    user, order, times = user[index], order[index], times[index]
    starts = np.flatnonzero(np.r_[True, user[1:] != user[:-1]]) if len(user) else np.zeros(0, np.int64)
    counts = np.diff(np.r_[starts, len(user)])
    turned = int(((user[1:] == user[:-1]) & (order[1:] < order[:-1])).sum())
    return Sorted(table.take(pa.array(index)), starts, counts, times, turned)


def split_rows(events: Sorted, settings: HistorySettings, bounds: tuple[float, float]) -> dict[str, Rows]:
    """The rows of each part."""
    if settings.split == "time":
        return _by_time(events, settings, bounds)
    starts, counts = events.starts, events.counts
    # A user with fewer than three events could train nothing if two of them were held back.
    held = np.where((counts >= 3) & (settings.split == "leave-one-out"), 2, 0)
    parts = {"train": _training(starts, starts + counts - held, settings)}
    for back, name in ((2, "valid"), (1, "test")):
        own = (starts + counts - back)[held == 2]
        parts[name] = _rows(starts[held == 2], own, own + 1, settings)
    return parts


def _by_time(events: Sorted, settings: HistorySettings, bounds: tuple[float, float]) -> dict[str, Rows]:
    """Histories end where their part begins, so that no event of it is in any of them."""
    user = np.repeat(np.arange(len(events.starts)), events.counts)
    cuts = [
        events.starts + np.bincount(user[events.times < bound], minlength=len(events.starts))
        for bound in bounds
    ]
    ends = events.starts + events.counts
    parts = {"train": _training(events.starts, cuts[0], settings)}
    for name, begin, end in (("valid", cuts[0], cuts[1]), ("test", cuts[1], ends)):
        there = (begin > events.starts) & (end > begin)
        parts[name] = _rows(events.starts[there], begin[there], end[there], settings)
    return parts


def _training(starts: Ints, ends: Ints, settings: HistorySettings) -> Rows:
    """One row a user, whose next event is the last, or one each `stride` events back from it."""
    enough = ends - starts >= 2
    starts, ends = starts[enough], ends[enough]
    if settings.stride:
        pieces = -(-(ends - starts - 1) // settings.stride)
        user = np.repeat(np.arange(len(starts)), pieces)
        piece = np.arange(len(user)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
        starts, ends = starts[user], ends[user] - piece * settings.stride
    return _rows(starts, ends - 1, ends, settings)


def _rows(starts: Ints, own: Ints, last: Ints, settings: HistorySettings) -> Rows:
    begin = np.maximum(starts, own - settings.max_length) if settings.max_length else starts
    return Rows(begin, own, own, last)


def make_table(events: Sorted, rows: Rows, settings: HistorySettings) -> pa.Table:
    """The rows with their columns: the user, histories, and what comes next."""
    columns: dict[str, pa.Array] = {
        settings.user: events.table.column(settings.user).take(pa.array(rows.next))
    }
    for name in settings.of_events:
        values = events.table.column(name)
        columns[f"{settings.name}__{name}"] = _lists(values, rows.begin, rows.end)
        columns[name] = values.take(pa.array(rows.next))
    if settings.split == "time":
        columns[RELEVANT] = _lists(events.table.column(settings.item), rows.next, rows.last)
    return pa.table(columns)


def _lists(values: pa.ChunkedArray, begin: Ints, end: Ints) -> pa.Array:
    lengths = end - begin
    offsets = np.r_[0, np.cumsum(lengths)]
    index = np.arange(offsets[-1]) - np.repeat(offsets[:-1] - begin, lengths)
    taken = values.take(pa.array(index))
    flat = taken.combine_chunks() if isinstance(taken, pa.ChunkedArray) else taken
    if isinstance(flat, pa.ChunkedArray):
        flat = pa.concat_arrays(flat.chunks) if flat.num_chunks else pa.array([], flat.type)
    return pa.LargeListArray.from_arrays(pa.array(offsets, pa.int64()), flat).cast(pa.list_(flat.type))


def _codes(column: pa.ChunkedArray) -> Ints:
    """Equal numbers for equal values."""
    if pa.types.is_integer(column.type):
        numbers: Ints = column.cast(pa.int64()).to_numpy()
        return numbers
    codes = pc.dictionary_encode(column).combine_chunks()
    if isinstance(codes, pa.ChunkedArray):
        codes = codes.chunk(0)
    indices: Ints = codes.indices.to_numpy().astype(np.int64)
    return indices
