"""Requests as columns of the model: read, joined with stored features, complete."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from recgrad.data.faults import Fault, Faults
from recgrad.errors import DataError
from recgrad.serving.columns import Columns, Mask, absent_cells, cast_table, missing
from recgrad.serving.joins import add_stored, fill
from recgrad.serving.json_rows import Read
from recgrad.serving.requests import Row, ScoreRequest
from recgrad.serving.served import Served

FEW_CANDIDATES = 32
"""Up to so many items of a user are rather scored together with other requests' rows."""


@dataclass
class Piece:
    """Rows of some requests that were read together.

    Attributes:
        requests: numbers of the requests.
        counts: rows of each.
        columns: the model's columns, of all rows.
        ignored: columns that the model does not read.
        faults: bad rows, counted in `columns`.
        user: the one row of a user that all rows share; its columns are not among `columns`.
        user_fault: a bad value of the user.
    """

    requests: list[int]
    counts: list[int]
    columns: Columns
    ignored: tuple[str, ...]
    faults: Faults
    user: Columns | None = None
    user_fault: Fault | None = None


def of_read(served: Served, read: Read, numbers: Sequence[int]) -> list[Piece]:
    """Bodies that were read in one go; `numbers` gives the request of each body."""
    if not any(user is not None for user in read.users):
        faults = Faults()
        columns = _complete(served, read.columns, (), faults)
        return [Piece([numbers[body] for body in read.bodies], read.counts, columns, (), faults)]
    pieces, first = [], 0
    for body, count, user in zip(read.bodies, read.counts, read.users):
        own = {name: column.slice(first, count) for name, column in read.columns.items()}
        first += count
        if user is not None:
            pieces.append(_with_user(served, own, (), Faults(), user, numbers[body], count))
        else:
            faults = Faults()
            pieces.append(Piece([numbers[body]], [count], _complete(served, own, (), faults), (), faults))
    return pieces


def of_request(served: Served, request: ScoreRequest, number: int) -> Piece:
    """One request by itself; raises a DataError if it lacks a column."""
    if request.table is not None:
        faults = Faults()
        columns, unknown = cast_table(request.table, served.reader.types)
        full = _complete(served, columns, unknown, faults)
        return Piece([number], [request.size], full, unknown, faults)
    rows = request.rows
    if not rows:
        empty = {name: pa.array([], kind) for name, kind in served.types.items()}
        return Piece([number], [0], empty, (), Faults())
    faults = Faults()
    columns, unknown, absent = _of_rows(served, rows, faults)
    if request.user is not None:
        return _with_user(served, columns, unknown, faults, request.user, number, len(rows), absent)
    full = _complete(served, columns, unknown, faults, absent)
    return Piece([number], [len(rows)], full, unknown, faults)


def _of_rows(
    served: Served, rows: Sequence[Row], faults: Faults
) -> tuple[Columns, tuple[str, ...], dict[str, Mask]]:
    """Columns, unknown keys, and which rows do not have a column that others have."""
    shape = served.reader.shape(rows[0])
    columns = served.reader.read(rows, shape, faults)
    if columns is not None:
        return columns, shape.unknown, {}
    return *served.reader.read_any(rows, faults), absent_cells(rows)


def _with_user(
    served: Served,
    columns: Columns,
    unknown: tuple[str, ...],
    faults: Faults,
    user: Row,
    number: int,
    count: int,
    absent: dict[str, Mask] | None = None,
) -> Piece:
    """A user with items; few items are rows like any others, many share the user's row."""
    absent = dict(absent or {})
    columns = add_stored(columns, served.stores, served.types, faults, absent)
    user_faults = Faults()
    shared, user_unknown = served.reader.read_any([user], user_faults)
    ignored = tuple(dict.fromkeys(user_unknown + unknown))
    # What stands at an item is about this item, so it wins over the user's.
    shared = {name: value for name, value in shared.items() if name not in columns or name in absent}
    others = {name: k for name, k in served.types.items() if name not in columns or name in absent}
    shared = add_stored(shared, served.stores, others, user_faults)
    every = pa.array(np.zeros(count, np.int64))
    for name in [name for name in shared if name in columns]:
        columns[name] = fill(columns[name], shared.pop(name).take(every), absent[name])
    lacking = missing(served.types, (*columns, *shared), ignored)
    if lacking:
        raise DataError(lacking)
    shared = {name: shared[name] for name in served.types if name in shared}
    own = {name: columns[name] for name in served.types if name in columns}
    if count <= FEW_CANDIDATES or not shared or not own:
        own |= {name: value.take(every) for name, value in shared.items()}
        own, shared = {name: own[name] for name in served.types}, {}
    return Piece([number], [count], own, ignored, faults, shared or None, user_faults.first())


def _complete(
    served: Served,
    columns: Columns,
    unknown: Sequence[str],
    faults: Faults,
    absent: dict[str, Mask] | None = None,
) -> Columns:
    """The model's columns, those of stored features among them; raises a DataError where one is missing."""
    if served.stores:
        columns = add_stored(columns, served.stores, served.types, faults, absent)
    try:
        return {name: columns[name] for name in served.types}
    except KeyError:
        raise DataError(missing(served.types, columns, unknown)) from None
