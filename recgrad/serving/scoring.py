"""Scores many requests in one call of the model, and tells each its own bad rows.

The rows of all requests become one table; a request whose rows are bad gets an error, or nulls
for them, and the others do not notice.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from recgrad.data.faults import Fault, Faults
from recgrad.errors import DataError, RecgradError
from recgrad.serving.answers import MAX_SHOWN_FAULTS, BadRow, RequestError, Scored, bad_row
from recgrad.serving.columns import Columns, RowReader, cast_table, missing, plain
from recgrad.serving.joins import FeatureStore, add_stored
from recgrad.serving.requests import Row, ScoreRequest
from recgrad.serving.scorer import BadRowsError, Scorer, Scores

logger = logging.getLogger("recgrad.serving")

Result = Scored | RequestError
FEW_CANDIDATES = 32
"""Up to so many items of a user are rather scored together with other requests' rows."""


@dataclass(frozen=True)
class Served:
    """A model that is served, with its stored features.

    Attributes:
        scorer: the model.
        version: what answers say it is.
        stores: stored features of users and items.
        types: the columns that the model reads, with the types that they are given it in.
        reader: of JSON rows.
    """

    scorer: Scorer
    version: str
    stores: tuple[FeatureStore, ...] = ()
    types: dict[str, pa.DataType] = field(init=False)
    reader: RowReader = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "types", {f.name: plain(f.type) for f in self.scorer.schema})
        keys = {store.key: store.key_type for store in self.stores}
        object.__setattr__(self, "reader", RowReader(self.scorer.schema, keys))
        for store in self.stores:
            store.check(self.types)


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
        user_faults: bad values of users: (request, fault).
    """

    requests: list[int]
    counts: list[int]
    columns: Columns
    ignored: tuple[str, ...]
    faults: Faults
    user: Columns | None = None
    user_faults: list[tuple[int, Fault]] = field(default_factory=list)


def score_requests(served: Served, requests: Sequence[ScoreRequest]) -> list[Result]:
    """The scores, or the error, of each request."""
    results: list[Result | None] = [None] * len(requests)
    pieces = [piece for piece in _pieces(served, requests, results) if piece.requests]
    together = [piece for piece in pieces if piece.user is None]
    groups = [[piece] for piece in pieces if piece.user is not None]
    for group in ([together] if together else []) + groups:
        _score_group(served, requests, group, results)
    return [result if result is not None else RequestError(500, "not scored") for result in results]


def _pieces(served: Served, requests: Sequence[ScoreRequest], results: list[Result | None]) -> list[Piece]:
    """The requests as columns; requests of the same form and shape in one piece."""
    alike: dict[Any, list[int]] = {}
    for number, request in enumerate(requests):
        if request.rows and request.user is None:
            alike.setdefault(tuple(request.rows[0]), []).append(number)
        else:
            alike[number] = [number]
    pieces = []
    for numbers in alike.values():
        request = requests[numbers[0]]
        if request.user is not None:
            attempts = [[number] for number in numbers]
        else:
            attempts = [numbers]
        for attempt in attempts:
            pieces += _read(served, requests, attempt, results)
    return pieces


def _read(
    served: Served, requests: Sequence[ScoreRequest], numbers: list[int], results: list[Result | None]
) -> list[Piece]:
    request = requests[numbers[0]]
    try:
        if request.table is not None:
            return [_of_table(served, request, numbers[0])]
        if request.user is not None:
            return [_of_user(served, request, request.user, numbers[0])]
        faults = Faults()
        piece = _of_rows(served, [requests[number].rows or () for number in numbers], numbers, faults)
        if piece is not None:
            return [piece]
        pieces = []  # rows of one request have different keys: each request by itself
        for number in numbers:
            pieces += [_of_any_rows(served, requests[number].rows or (), number)]
        return pieces
    except RecgradError as error:
        if len(numbers) > 1:
            return [piece for one in numbers for piece in _read(served, requests, [one], results)]
        results[numbers[0]] = RequestError(422, str(error))
        return []


def _of_rows(
    served: Served, parts: Sequence[Sequence[Row]], numbers: list[int], faults: Faults
) -> Piece | None:
    rows = parts[0] if len(parts) == 1 else [row for part in parts for row in part]
    if not rows:
        return _of_any_rows(served, rows, numbers[0])
    shape = served.reader.shape(rows[0])
    columns = served.reader.read(rows, shape, faults)
    if columns is None:
        return None
    full = _complete(served, columns, shape.unknown, faults)
    return Piece(numbers, [len(part) for part in parts], full, shape.unknown, faults)


def _of_any_rows(served: Served, rows: Sequence[Row], number: int) -> Piece:
    faults = Faults()
    if not rows:
        empty = {name: pa.array([], kind) for name, kind in served.types.items()}
        return Piece([number], [0], empty, (), faults)
    columns, unknown = served.reader.read_any(rows, faults)
    return Piece([number], [len(rows)], _complete(served, columns, unknown, faults), unknown, faults)


def _of_table(served: Served, request: ScoreRequest, number: int) -> Piece:
    assert request.table is not None
    faults = Faults()
    columns, unknown = cast_table(request.table, served.reader.types)
    full = _complete(served, columns, unknown, faults)
    return Piece([number], [request.size], full, unknown, faults)


def _of_user(served: Served, request: ScoreRequest, user: Row, number: int) -> Piece:
    """A user with items; few items are rows like any others, many share the user's row."""
    reader, rows = served.reader, request.rows
    if not rows:
        return _of_any_rows(served, (), number)
    faults, user_faults = Faults(), Faults()
    shape = reader.shape(rows[0])
    columns, unknown = reader.read(rows, shape, faults), shape.unknown
    if columns is None:
        columns, unknown = reader.read_any(rows, faults)
    columns = add_stored(columns, served.stores, served.types, faults)
    shared, user_unknown = reader.read_any([user], user_faults)
    ignored = tuple(dict.fromkeys(user_unknown + unknown))
    # What stands at an item is about this item, so it wins over the user's.
    shared = {name: value for name, value in shared.items() if name not in columns}
    others = {name: kind for name, kind in served.types.items() if name not in columns}
    shared = add_stored(shared, served.stores, others, user_faults)
    lacking = missing(served.types, (*columns, *shared), ignored)
    if lacking:
        raise DataError(lacking)
    user_bad = [(number, fault) for fault in user_faults.by_row().values()]
    shared = {name: shared[name] for name in served.types if name in shared}
    if len(rows) <= FEW_CANDIDATES or not shared or not served.types.keys() & columns.keys():
        index = pa.array(np.zeros(len(rows), np.int64))
        columns |= {name: value.take(index) for name, value in shared.items()}
        shared = {}
    own = {name: columns[name] for name in served.types if name in columns}
    return Piece([number], [len(rows)], own, ignored, faults, shared or None, user_bad)


def _complete(served: Served, columns: Columns, unknown: Sequence[str], faults: Faults) -> Columns:
    """The model's columns, those of stored features among them; raises a DataError where one is missing."""
    if served.stores:
        columns = add_stored(columns, served.stores, served.types, faults)
    lacking = missing(served.types, columns, unknown)
    if lacking:
        raise DataError(lacking)
    return {name: columns[name] for name in served.types}


def _score_group(
    served: Served, requests: Sequence[ScoreRequest], group: Sequence[Piece], results: list[Result | None]
) -> None:
    """Score pieces together; if that fails, each of their requests alone, so that one spoils no other."""
    try:
        _Scoring(served, requests, group).run(results)
    except Exception as error:
        numbers = [number for piece in group for number in piece.requests]
        if len(numbers) > 1:
            for number in numbers:
                results[number] = score_requests(served, [requests[number]])[0]
        elif isinstance(error, RecgradError):
            results[numbers[0]] = RequestError(422, str(error))
        else:
            logger.exception("a request could not be scored")
            results[numbers[0]] = RequestError(
                500, f"the model failed ({type(error).__name__}); the server's log has more"
            )


class _Scoring:
    """One call of the model for the rows of several pieces."""

    def __init__(self, served: Served, requests: Sequence[ScoreRequest], group: Sequence[Piece]) -> None:
        self.served = served
        self.requests = requests
        self.group = group
        self.numbers = [number for piece in group for number in piece.requests]
        counts = [count for piece in group for count in piece.counts]
        self.starts = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
        self.total = int(self.starts[-1])
        self.ignored = {number: piece.ignored for piece in group for number in piece.requests}
        self.bad: dict[int, dict[int | None, Fault]] = {}  # request → row (None: its user) → fault
        self.keep = np.ones(self.total, np.bool_)

    def run(self, results: list[Result | None]) -> None:
        """Fill in the results."""
        first = 0
        for piece in self.group:
            self._note(piece.faults, first)
            for number, fault in piece.user_faults:
                self._note_user(number, fault)
            first += sum(piece.counts)
        scores = self._scores()
        for at, number in enumerate(self.numbers):
            results[number] = self._result(at, number, scores)

    def _scores(self) -> Scores:
        """The scores of all rows, NaN in those that are not kept."""
        table = self._table()
        for _ in range(3):  # bad values show in two steps: as values, and as rows of a model
            kept = table if self.keep.all() else table.filter(pa.array(self.keep))
            index = np.flatnonzero(self.keep)
            try:
                scores = self._call(kept)
            except BadRowsError as error:
                self._note(error.faults, 0, index)
                continue
            if len(index) == self.total:
                return scores
            return {name: _spread(values, index, self.total) for name, values in scores.items()}
        raise DataError("rows stay bad after the bad ones were left out")

    def _call(self, table: pa.Table) -> Scores:
        user = self.group[0].user
        if user is not None and table.num_rows:
            return self.served.scorer.score_candidates(pa.table(user), table)
        if user is not None:
            whole = {name: pa.array([], kind) for name, kind in self.served.types.items()}
            return self.served.scorer.score(pa.table(whole))
        return self.served.scorer.score(table)

    def _table(self) -> pa.Table:
        if len(self.group) == 1:
            return pa.table(self.group[0].columns)
        names = list(self.served.types)
        return pa.table({name: pa.concat_arrays([p.columns[name] for p in self.group]) for name in names})

    def _note(self, faults: Faults, first: int, index: npt.NDArray[np.int64] | None = None) -> None:
        if not faults:
            return
        for row, fault in faults.by_row().items():
            place = first + row if index is None else int(index[row])
            at = int(np.searchsorted(self.starts, place, "right")) - 1
            number = self.numbers[at]
            self.bad.setdefault(number, {}).setdefault(place - int(self.starts[at]), fault)
            self._drop(at, place)

    def _note_user(self, number: int, fault: Fault) -> None:
        at = self.numbers.index(number)
        self.bad.setdefault(number, {})[None] = fault
        self.keep[self.starts[at] : self.starts[at + 1]] = False

    def _drop(self, at: int, place: int) -> None:
        if self.requests[self.numbers[at]].on_bad_row == "error":
            self.keep[self.starts[at] : self.starts[at + 1]] = False
        else:
            self.keep[place] = False

    def _result(self, at: int, number: int, scores: Scores) -> Result:
        bad = self.bad.get(number, {})
        if bad and self.requests[number].on_bad_row == "error":
            return bad_rows_error(bad)
        rows = [bad_row(fault, row) for row, fault in list(bad.items())[:MAX_SHOWN_FAULTS]]
        start, stop = int(self.starts[at]), int(self.starts[at + 1])
        own = {name: values[start:stop] for name, values in scores.items()}
        return Scored(own, self.served.version, rows, self.ignored[number])


def bad_rows_error(bad: Mapping[int, Fault] | Mapping[int | None, Fault]) -> RequestError:
    """The error of a request by its bad rows; None is its user."""
    rows = [bad_row(fault, row) for row, fault in list(bad.items())[:MAX_SHOWN_FAULTS]]
    return RequestError(422, _summary(rows, len(bad)), rows, bad_rows=len(bad))


def _summary(rows: Sequence[BadRow], count: int) -> str:
    first = rows[0]
    who = first.feature if first.feature.startswith("column ") else f"feature {first.feature}"
    where = "the user" if first.row is None else f"row {first.row}"
    more = f" (and {count - 1} more bad rows)" if count > 1 else ""
    column = "" if first.feature.startswith("column ") else f"column '{first.column}', "
    return f"{who}: {first.problem} ({column}{where}){more}; {first.remedy}"


def _spread(values: npt.NDArray[np.float32], index: npt.NDArray[np.int64], total: int) -> Any:
    """The values at their rows of all, NaN elsewhere."""
    whole = np.full((total, *values.shape[1:]), np.nan, np.float32)
    whole[index] = values
    return whole


def model_table(served: Served, request: ScoreRequest) -> pa.Table:
    """The rows of one request as the model reads them, each with its user's columns.

    Raises:
        RequestError: rows are bad.
    """
    results: list[Result | None] = [None]
    pieces = _read(served, [request], [0], results)
    if isinstance(results[0], RequestError):
        raise results[0]
    piece = pieces[0]
    bad: dict[int | None, Fault] = {}
    for _, fault in piece.user_faults[:1]:
        bad[None] = fault
    for row, fault in piece.faults.by_row().items():
        bad[row] = fault
    if bad:
        raise bad_rows_error(bad)
    columns = dict(piece.columns)
    if piece.user is not None:
        index = pa.array(np.zeros(request.size, np.int64))
        columns |= {name: value.take(index) for name, value in piece.user.items()}
    return pa.table({name: columns[name] for name in served.types})
