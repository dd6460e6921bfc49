"""Rows in whatever form a user has them, as an Arrow table and back."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from recgrad.data.list_column import ListColumn
from recgrad.errors import DataError

KINDS = "a pandas or polars DataFrame, an Arrow table, a dict of columns or a list of dicts"


@dataclass(frozen=True)
class GivenRows:
    """Rows as a table, and how results go back in the form in which the rows came.

    Attributes:
        table: the rows.
        back: results, arrays by column name, in that form.
    """

    table: pa.Table
    back: Callable[[Mapping[str, Any]], Any]


_MIXED = (str, int, float, type(None))
"""Values that may stand in one column, and become texts then."""


def given_rows(rows: Any, schema: pa.Schema | None = None) -> GivenRows:
    """Rows as a table; plain Python values get the types of `schema` where they fit.

    Raises:
        DataError: they are of another kind, or a column is of mixed types.
    """
    try:
        return _given_rows(rows, schema)
    except (pa.ArrowException, TypeError, ValueError) as error:
        text = str(error).strip().partition("\n")[0]
        raise DataError(f"rows: cannot be read as a table ({text}); give {KINDS}") from error


def _given_rows(rows: Any, schema: pa.Schema | None) -> GivenRows:
    if isinstance(rows, pa.RecordBatch):
        rows = pa.Table.from_batches([rows])
    if isinstance(rows, pa.Table):
        return GivenRows(rows, _arrow)
    module = type(rows).__module__.partition(".")[0]
    if module == "pandas" and hasattr(rows, "columns"):
        return GivenRows(pa.Table.from_pandas(rows, preserve_index=False), lambda r: _pandas(r, rows.index))
    if module == "polars" and hasattr(rows, "to_arrow"):
        rows = rows.collect() if hasattr(rows, "collect") else rows
        return GivenRows(_plain_types(rows.to_arrow()), _polars)
    if isinstance(rows, Mapping):
        columns = {name: _column(values, name, schema) for name, values in rows.items()}
        return GivenRows(pa.table(columns), _columns)
    if isinstance(rows, Sequence) and not isinstance(rows, (str, bytes)):
        wrong = next((row for row in rows if not isinstance(row, Mapping)), None)
        if wrong is not None:
            raise TypeError(f"a row is {type(wrong).__name__}, not a dict")
        names = list(dict.fromkeys(name for row in rows for name in row))
        if not rows and schema is not None:
            return GivenRows(schema.empty_table(), _dicts)
        found = {name: _column([row.get(name) for row in rows], name, schema) for name in names}
        return GivenRows(pa.table(found), _dicts)
    raise TypeError(f"got {type(rows).__module__}.{type(rows).__name__}")


def _column(values: Any, name: str, schema: pa.Schema | None) -> Any:
    """A column of Python values or arrays; with the type of the schema where every value fits it."""
    at = -1 if schema is None else schema.get_field_index(name)
    if isinstance(values, (pa.Array, pa.ChunkedArray)):
        return values
    if at >= 0 and schema is not None:
        try:
            return pa.array(values, schema.field(at).type)
        except (pa.ArrowException, TypeError, OverflowError):
            pass  # the features say what is wrong with it, if anything
    try:
        return pa.array(values)
    except (pa.ArrowException, TypeError, OverflowError) as error:
        texts = isinstance(values, Sequence) and all(type(value) in _MIXED for value in values)
        if schema is None or not texts:
            text = str(error).strip().partition("\n")[0]
            raise TypeError(f"column '{name}': {text}") from error
        # To be scored, numbers among texts are read as texts, so that features say which row is wrong.
        return pa.array([None if value is None else str(value) for value in values], pa.string())


def _plain_types(table: pa.Table) -> pa.Table:
    """Without the large and view types of polars, which features do not read."""
    fields = []
    for field in table.schema:
        kind = field.type
        if pa.types.is_large_string(kind) or getattr(pa.types, "is_string_view", lambda _: False)(kind):
            kind = pa.string()
        elif pa.types.is_large_list(kind):
            inner = pa.string() if pa.types.is_large_string(kind.value_type) else kind.value_type
            kind = pa.list_(inner)
        fields.append(pa.field(field.name, kind))
    return table.cast(pa.schema(fields))


def _arrow(results: Mapping[str, Any]) -> pa.Table:
    return pa.table({name: _arrow_column(values) for name, values in results.items()})


def _arrow_column(values: Any) -> pa.Array:
    if isinstance(values, ListColumn):
        return values.to_arrow()
    if values.ndim == 1:
        return pa.array(values)
    flat = pa.array(np.ascontiguousarray(values).reshape(-1))
    return pa.FixedSizeListArray.from_arrays(flat, int(np.prod(values.shape[1:])))


def _pandas(results: Mapping[str, Any], index: Any) -> Any:
    columns = {
        name: values if getattr(values, "ndim", 0) == 1 else _each_row(values)
        for name, values in results.items()
    }
    return sys.modules["pandas"].DataFrame(columns, index=index)


def _polars(results: Mapping[str, Any]) -> Any:
    polars = sys.modules["polars"]
    columns = {
        name: polars.from_arrow(values.to_arrow()) if isinstance(values, ListColumn) else values
        for name, values in results.items()
    }
    return polars.DataFrame(columns)


def _each_row(values: Any) -> list[Any]:
    """The array of each row."""
    if isinstance(values, ListColumn):
        return np.split(values.values, values.lengths.cumsum()[:-1]) if len(values) else []
    return list(values)


def _columns(results: Mapping[str, Any]) -> dict[str, Any]:
    return {
        n: _each_row(values) if isinstance(values, ListColumn) else values for n, values in results.items()
    }


def _dicts(results: Mapping[str, Any]) -> list[dict[str, Any]]:
    lists = {name: values.tolist() for name, values in results.items()}
    count = len(next(iter(lists.values()))) if lists else 0
    return [{name: values[i] for name, values in lists.items()} for i in range(count)]
