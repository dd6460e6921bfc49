"""Scores many requests in one call of the model, and tells each its own bad rows.

The rows of all requests become one table; a request whose rows are bad gets an error, or nulls
for them, and the others do not notice.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from recgrad.data.faults import Fault, Faults
from recgrad.data.list_column import Column, ListColumn
from recgrad.errors import DataError, RecgradError
from recgrad.serving.answers import MAX_SHOWN_FAULTS, BadRow, RequestError, Scored, bad_row
from recgrad.serving.json_rows import Read, brackets
from recgrad.serving.part import BadRowsError
from recgrad.serving.pieces import Piece, of_read, of_request
from recgrad.serving.quick import MAX_BODIES, MAX_BYTES, MAX_ROWS
from recgrad.serving.requests import JSON_KINDS, OnBadRow, ScoreRequest, plain_kind
from recgrad.serving.scorer import Scores
from recgrad.serving.served import Served

logger = logging.getLogger("recgrad.serving")

Result = Scored | RequestError


class Body:
    """A request before and after it is read.

    Args:
        data: the body, b"" if it was read already.
        kind: its content type.
        decode: reads it; may raise a RequestError.
        query: it has a query, which `decode` knows.
        about: about how many rows it has, and no fewer; 0 if nobody has looked.
        quick: the quick way has not refused it.

    Attributes:
        rows: how many there are, when it is read.
    """

    def __init__(
        self,
        data: bytes,
        kind: str,
        decode: Callable[[], ScoreRequest],
        *,
        query: bool = False,
        about: int = 0,
        quick: bool = True,
    ) -> None:
        self.data = data
        self.kind = kind
        self.plain = bool(data) and not query and plain_kind(kind) in JSON_KINDS
        self.quick = self.plain and quick
        self.decode = decode
        self.about = about or brackets(data)
        self.rows = 0
        self.on_bad_row: OnBadRow = "error"

    @cached_property
    def request(self) -> ScoreRequest:
        """The request, read in the way that takes everything."""
        request = self.decode()
        self.rows, self.on_bad_row = request.size, request.on_bad_row
        return request


def score_bodies(served: Served, bodies: Sequence[Body], max_rows: int) -> list[Result]:
    """The scores, or the error, of each request."""
    results: list[Result | None] = [None] * len(bodies)
    pieces: list[Piece] = []
    left = _score_quickly(served, bodies, max_rows, results)
    fast = [at for at in left if bodies[at].plain]
    slow = [at for at in left if not bodies[at].plain]
    if fast:
        groups, odd = served.bodies.read([bodies[at].data for at in fast], max_rows)
        slow += [fast[at] for at in odd]
        for group in groups:
            for body, rows, nulls in zip(group.bodies, group.counts, group.nulls):
                bodies[fast[body]].rows = rows
                bodies[fast[body]].on_bad_row = "null" if nulls else "error"
            if _score_read(served, group, fast, results):
                continue
            try:
                pieces += of_read(served, group, fast)
            except RecgradError:
                slow += [fast[body] for body in group.bodies]  # each by itself finds its own error
    for number in slow:
        try:
            pieces.append(of_request(served, bodies[number].request, number))
        except RequestError as error:
            results[number] = error.to_keep()
        except RecgradError as error:
            results[number] = RequestError(422, str(error))
    together = [piece for piece in pieces if piece.user is None]
    alone = [[piece] for piece in pieces if piece.user is not None]
    for group_ in ([together] if together else []) + alone:
        _score_group(served, bodies, group_, results)
    return [result if result is not None else RequestError(500, "not scored") for result in results]


def _score_quickly(
    served: Served, bodies: Sequence[Body], max_rows: int, results: list[Result | None]
) -> list[int]:
    """Score plain requests the quick way, some at a time; returns the numbers of those that are left."""
    quick = served.quick
    if quick is None or served.stores:
        return list(range(len(bodies)))
    left = [at for at, body in enumerate(bodies) if not body.quick]
    for group in _quick_groups(bodies):
        try:
            found = quick.score([bodies[at].data for at in group], max_rows)
        except Exception:  # the other ways find which request it is, and the words for it
            found = None
        if found is None:
            left += group
            continue
        scores, counts = found
        if len(group) == 1:
            results[group[0]] = Scored(scores, served.version)
            bodies[group[0]].rows = counts[0]
            continue
        first = 0
        for at, count in zip(group, counts):
            own = {name: values[first : first + count] for name, values in scores.items()}
            results[at] = Scored(own, served.version)
            bodies[at].rows = count
            first += count
    return left


def _quick_groups(bodies: Sequence[Body]) -> Iterator[list[int]]:
    """The numbers of bodies for the quick way, as many at a time as are scored together."""
    group: list[int] = []
    rows = size = 0
    for at, body in enumerate(bodies):
        if not body.quick:
            continue
        more, bytes_ = body.about, len(body.data)
        if group and (rows + more > MAX_ROWS or size + bytes_ > MAX_BYTES or len(group) == MAX_BODIES):
            yield group
            group, rows, size = [], 0, 0
        group.append(at)
        rows, size = rows + more, size + bytes_
    if group:
        yield group


def _score_read(served: Served, read: Read, numbers: Sequence[int], results: list[Result | None]) -> bool:
    """Score bodies straight from what was read of them; False if they must become tables first."""
    if served.stores or not served.takes_cells or any(user is not None for user in read.users):
        return False
    try:
        scores = served.scorer.score_cells(read.cells)
    except Exception:  # the other way finds which request it is, and the words for it
        return False
    if scores is None:
        return False
    first = 0
    for body, count in zip(read.bodies, read.counts):
        own = {name: values[first : first + count] for name, values in scores.items()}
        results[numbers[body]] = Scored(own, served.version)
        first += count
    return True


def score_requests(served: Served, requests: Sequence[ScoreRequest]) -> list[Result]:
    """The scores, or the error, of requests that were read."""
    return score_bodies(served, [Body(b"", "", lambda one=one: one) for one in requests], 0)  # type: ignore[misc]


def _score_group(
    served: Served, bodies: Sequence[Body], group: Sequence[Piece], results: list[Result | None]
) -> None:
    """Score pieces together; if that fails, each of their requests alone, so that one spoils no other."""
    try:
        _Scoring(served, bodies, group).run(results)
    except Exception as error:
        numbers = [number for piece in group for number in piece.requests]
        if len(numbers) > 1:
            for number in numbers:
                try:
                    results[number] = score_requests(served, [bodies[number].request])[0]
                except RequestError as own:
                    results[number] = own.to_keep()
        elif isinstance(error, RecgradError):
            results[numbers[0]] = RequestError(422, str(error))
        else:
            logger.exception("a request could not be scored")
            results[numbers[0]] = RequestError(
                500, f"the model failed ({type(error).__name__}); the server's log has more"
            )


class _Scoring:
    """One call of the model for the rows of several pieces."""

    def __init__(self, served: Served, bodies: Sequence[Body], group: Sequence[Piece]) -> None:
        self.served = served
        self.bodies = bodies
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
            if piece.user_fault is not None:
                self._note_user(piece.requests[0], piece.user_fault)
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

    def _call(self, table: pa.RecordBatch) -> Scores:
        user = self.group[0].user
        if user is not None and table.num_rows:
            return self.served.scorer.score_candidates(pa.table(user), table)
        if user is not None:
            whole = {name: pa.array([], kind) for name, kind in self.served.types.items()}
            return self.served.scorer.score(pa.table(whole))
        return self.served.scorer.score(table)

    def _table(self) -> pa.RecordBatch:
        columns = self.group[0].columns
        if len(self.group) > 1:
            columns = {name: pa.concat_arrays([p.columns[name] for p in self.group]) for name in columns}
        return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))

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
        if self.bodies[self.numbers[at]].on_bad_row == "error":
            self.keep[self.starts[at] : self.starts[at + 1]] = False
        else:
            self.keep[place] = False

    def _result(self, at: int, number: int, scores: Scores) -> Result:
        bad = self.bad.get(number, {})
        if bad and self.bodies[number].on_bad_row == "error":
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


def _spread(values: Column, index: npt.NDArray[np.int64], total: int) -> Column:
    """The values at their rows of all, NaN elsewhere; no list elsewhere."""
    if isinstance(values, ListColumn):
        return values.spread(index, total)
    whole = np.full((total, *values.shape[1:]), np.nan, np.float32)
    whole[index] = values
    return whole


def model_table(served: Served, request: ScoreRequest) -> pa.Table:
    """The rows of one request as the model reads them, each with its user's columns.

    Raises:
        RequestError: rows are bad.
    """
    try:
        piece = of_request(served, request, 0)
    except DataError as error:
        raise RequestError(422, str(error)) from None
    bad: dict[int | None, Fault] = {} if piece.user_fault is None else {None: piece.user_fault}
    for row, fault in piece.faults.by_row().items():
        bad[row] = fault
    if bad:
        raise bad_rows_error(bad)
    columns = dict(piece.columns)
    if piece.user is not None:
        index = pa.array(np.zeros(request.size, np.int64))
        columns |= {name: value.take(index) for name, value in piece.user.items()}
    return pa.table({name: columns[name] for name in served.types})
