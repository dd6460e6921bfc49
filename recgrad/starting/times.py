"""Columns of times: in which form they are, and where a share of the rows ends."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recgrad.errors import DataError
from recgrad.starting.profile import Column, is_text

_ISO = re.compile(r"\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d(\.\d+)?)?)?Z?\Z")
_SHAPE = re.compile(r"\d+")
_LOOKED = 2000


@dataclass(frozen=True)
class TimeFormat:
    """How times are written: `what` in words, `day` if values are whole days."""

    what: str
    day: bool


def time_format(column: Column, values: pa.ChunkedArray, *, strict: bool) -> TimeFormat | None:
    """The form of a column of times; None where it has none that is in order.

    Raises:
        DataError: if strict, instead of None, with the reason.
    """
    kind = column.kind
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        return TimeFormat(str(kind), bool(pa.types.is_date(kind)))
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        low, high = column.low, column.high
        if low is not None and low >= 19000101 and high <= 21001231 and _are_days(values):
            return TimeFormat("days as YYYYMMDD", True)
        for what, unit in (("seconds", 1), ("milliseconds", 10**3), ("microseconds", 10**6)):
            if low is not None and 5e8 * unit <= low and high <= 4.2e9 * unit:
                return TimeFormat(f"{what} since 1970", False)
        if strict and low is not None:
            return TimeFormat("numbers in the order of time", False)
    if is_text(kind):
        texts = [text.strip() for text in values.drop_null()[:_LOOKED].to_pylist()]
        lengths = {len(text) for text in texts}
        if len(lengths) == 1 and all(_ISO.match(text) for text in texts):
            return TimeFormat("ISO texts, which sort as times do", lengths == {10})
        if strict:
            raise DataError(_no_order(column.name, texts))
    if strict:
        raise DataError(f"init: --time {column.name}: {kind} is no time; give numbers, dates or timestamps")
    return None


def _no_order(name: str, texts: list[str]) -> str:
    """Why texts cannot be put in the order of time."""
    shapes = {_SHAPE.sub("9", text): text for text in reversed(texts)}
    several = f"{len(shapes)} formats" if len(shapes) > 1 else "a format that does not sort"
    return (
        f"init: --time {name}: texts in {several} ({', '.join(map(repr, sorted(shapes.values())[:3]))}); "
        "write ISO times (2022-05-06 12:30:00) or seconds, or use --split random"
    )


def _are_days(values: pa.ChunkedArray) -> bool:
    numbers = np.unique(np.asarray(values.drop_null().cast(pa.float64(), safe=False)))[:_LOOKED]
    months, days = numbers // 100 % 100, numbers % 100
    return bool(((months >= 1) & (months <= 12) & (days >= 1) & (days <= 31)).all())


def cut_of(values: pa.ChunkedArray, share: float) -> Any:
    """The time at which about the last `share` of the rows begins; None where all rows have one time."""
    known = values.drop_null()
    order = pc.sort_indices(known)
    cut = known[order[int(len(known) * (1 - share))].as_py()].as_py()
    return cut if cut != known[order[0].as_py()].as_py() else None
