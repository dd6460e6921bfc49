"""Answers to requests: scores and errors, as JSON or Arrow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import msgspec
import pyarrow as pa

from recgrad.data.faults import Fault
from recgrad.data.list_column import Column, ListColumn

JSON = "application/json"
ARROW = "application/vnd.apache.arrow.stream"
TEXT = "text/plain; charset=utf-8"
MAX_MESSAGE = 1000
"""Characters of an error; what a client sent may be in it."""
MAX_SHOWN_FAULTS = 100
"""Bad rows that one answer describes; it counts them all."""

_encoder = msgspec.json.Encoder()


@dataclass(frozen=True)
class Answer:
    """What is sent back.

    Attributes:
        status: of HTTP.
        body: bytes.
        kind: the content type.
        headers: others.
    """

    status: int
    body: bytes
    kind: str = JSON
    headers: tuple[tuple[str, str], ...] = ()


class BadRow(msgspec.Struct, frozen=True):
    """A row that cannot be scored: which one, why, and what to do."""

    row: int | None  # None: the user of all rows
    feature: str
    column: str
    value: Any
    problem: str
    remedy: str


class RequestError(Exception):
    """A request that gets no scores.

    Args:
        status: of HTTP.
        message: what is wrong, with the value and the remedy.
        rows: the bad rows, if it is about rows.
        bad_rows: how many there are, when that is more than `rows` tells of.
    """

    def __init__(
        self, status: int, message: str, rows: Sequence[BadRow] = (), *, bad_rows: int | None = None
    ) -> None:
        message = message if len(message) <= MAX_MESSAGE else message[:MAX_MESSAGE] + "…"
        super().__init__(message)
        self.status = status
        self.message = message
        self.rows = rows
        self.bad_rows = len(rows) if bad_rows is None else bad_rows

    def to_keep(self) -> RequestError:
        """Itself, without what it would keep alive: frames that hold bodies, and whatever holds the error."""
        self.__traceback__ = self.__context__ = self.__cause__ = None
        return self

    def answer(self) -> Answer:
        """The error as JSON."""
        error: dict[str, Any] = {"status": self.status, "message": self.message}
        if self.rows:
            error["bad_rows"] = self.bad_rows
            error["rows"] = self.rows
        headers = (("retry-after", "1"),) if self.status in (429, 503) else ()
        return Answer(self.status, _encoder.encode({"error": error}), headers=headers)


def _few(names: Sequence[str]) -> list[str]:
    """Names that a client sent, so that the answer stays short."""
    return [name if len(name) <= 80 else name[:79] + "…" for name in names[:MAX_SHOWN_FAULTS]]


def plain_content(value: Any) -> Any:
    """Records and mappings as dicts, tuples as lists: what JSON has."""
    if is_dataclass(value) and not isinstance(value, type):
        return {item.name: plain_content(getattr(value, item.name)) for item in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain_content(item) for key, item in value.items()}
    return [plain_content(item) for item in value] if isinstance(value, (list, tuple)) else value


def json_answer(value: Any, status: int = 200) -> Answer:
    """Any value as JSON."""
    return Answer(status, _encoder.encode(value))


def bad_row(fault: Fault, row: int | None) -> BadRow:
    """A fault of a row, in training's words; a long value is cut."""
    value = fault.value
    if not isinstance(value, (int, float, str, bool, type(None))) or len(str(value)) > 80:
        text = str(value)
        value = text if len(text) <= 80 else text[:77] + "…"
    return BadRow(row, fault.feature, fault.column, value, fault.problem, fault.remedy)


@dataclass(frozen=True)
class Scored:
    """The scores of one request.

    Attributes:
        scores: by output, [rows] or [rows, classes], NaN in bad rows; or lists, none in bad rows.
        model: the version of the model that scored.
        bad: the bad rows that have no scores.
        ignored: columns of the request that the model does not read.
    """

    scores: Mapping[str, Column]
    model: str
    bad: Sequence[BadRow] = ()
    ignored: Sequence[str] = ()

    def answer(self, kind: str) -> Answer:
        """As JSON or Arrow; what has no score is null."""
        return self._arrow() if kind == ARROW else self._json()

    def _json(self) -> Answer:
        # A NaN becomes null. Floats are written in full, so that a client gets the very score.
        body: dict[str, Any] = {
            "model": self.model,
            "scores": {name: values.tolist() for name, values in self.scores.items()},
        }
        if self.bad:
            body["bad_rows"] = self.bad
        if self.ignored:
            body["ignored_columns"] = _few(self.ignored)
        return Answer(200, _encoder.encode(body))

    def _arrow(self) -> Answer:
        columns = {}
        for name, values in self.scores.items():
            if isinstance(values, ListColumn):
                columns[name] = values.to_arrow(nan_is_null=True)
            elif values.ndim == 1:
                columns[name] = pa.array(values, from_pandas=True)  # NaN becomes null
            else:
                flat = pa.array(values.reshape(-1), from_pandas=True)
                columns[name] = pa.FixedSizeListArray.from_arrays(flat, values.shape[1])
        facts = {"model": self.model}
        if self.bad:
            facts["bad_rows"] = _encoder.encode(self.bad).decode()
        if self.ignored:
            facts["ignored_columns"] = _encoder.encode(_few(self.ignored)).decode()
        table = pa.table(columns).replace_schema_metadata(facts)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        return Answer(200, sink.getvalue().to_pybytes(), ARROW)
