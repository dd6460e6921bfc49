"""What happens to bad rows: stop at the first, or skip and count them."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from recgrad.data.faults import Fault, Faults
from recgrad.data.readers.reader import PARTITION, BadValue
from recgrad.errors import DataError

Rows = npt.NDArray[np.integer[Any]]

logger = logging.getLogger("recgrad.data")

MIN_ROWS = 10_000
"""The share of bad rows is first looked at after so many rows, and once more at the end of an epoch."""


@dataclass(frozen=True)
class Skipped:
    """Bad rows that were left out of one unit.

    Attributes:
        rows: row of the unit, sorted.
        firsts: (kind, message) of the first of each kind, located.
        counts: rows by kind.
    """

    rows: npt.NDArray[np.int64]
    firsts: tuple[tuple[str, str], ...]
    counts: dict[str, int]


def add_unparsed(faults: Faults, bad: Sequence[BadValue]) -> None:
    """Note values that the reader could not parse."""
    for item in bad:
        faults.add(
            [item.row],
            column=item.column or "",
            feature=f"column {item.column}" if item.column else "message" if item.remedy else "line",
            reason=item.reason,
            values=[item.value],
            remedy=item.remedy
            or (
                "correct the file, or the type in data_config.input_fields"
                if item.column
                else "correct the line, or data_config.delimiter"
            ),
        )


def describe(fault: Fault, file: str, row: int) -> str:
    """One bad value with its place: `feature x: id 991 … (column 'x', row 8812 of part-1); remedy`."""
    who = fault.feature if fault.feature.startswith(_ROLES) else f"feature {fault.feature}"
    column = f"column '{fault.column}', " if fault.column else ""
    return f"{who}: {fault.problem} ({column}{place(file, row)}); {fault.remedy}"


def place(file: str, row: int) -> str:
    """A row of a file, or of a partition of a stream."""
    return f"{'offset' if file.startswith(PARTITION) else 'row'} {row} of {file}"


_ROLES = ("label ", "sample weight ", "key ", "sample cost ", "column ", "line", "message")


def fail(faults: Faults, files: Sequence[str], file_index: Rows, rows: Rows) -> None:
    """Raise a DataError for the first bad row."""
    fault = faults.first()
    if fault is not None:
        raise DataError(describe(fault, files[file_index[fault.row]], rows[fault.row]))


def skip(faults: Faults, files: Sequence[str], file_index: Rows, rows: Rows) -> Skipped:
    """The bad rows of a unit, counted by kind."""
    firsts = tuple(
        (_kind(fault.feature, fault.reason), describe(fault, files[file_index[fault.row]], rows[fault.row]))
        for fault in faults.firsts()
    )
    counts = {_kind(feature, reason): count for (feature, reason), count in faults.counts().items()}
    return Skipped(faults.rows, firsts, counts)


def _kind(feature: str, reason: str) -> str:
    """What bad values of all rows have in common."""
    return f"{feature}: {reason.replace('{value}', '…')}"


class BadRowTally:
    """Counts skipped rows over an epoch and stops when there are too many.

    Args:
        max_ratio: the largest share of bad rows, taken as the decimal number that it is written as.
        rows: rows seen before, when an epoch is resumed.
        bad: bad rows among them.
    """

    def __init__(self, max_ratio: float, rows: int = 0, bad: int = 0) -> None:
        self.max_ratio = max_ratio
        self.rows = rows
        self.bad = bad
        self._limit = Fraction(repr(max_ratio))  # 0.29 · 100 is less than 29 in floats
        self._counts: Counter[str] = Counter()

    def add(self, rows: int, bad: int) -> None:
        """Count the rows of a batch."""
        self.rows += rows
        self.bad += bad
        if self.rows >= MIN_ROWS:
            self.check()

    def note(self, skipped: Skipped) -> None:
        """Count by kind; the first of each kind is logged."""
        for kind, message in skipped.firsts:
            if kind not in self._counts:
                logger.warning("skipping a bad row: %s", message)
        self._counts.update(skipped.counts)

    def check(self) -> None:
        """Raise a DataError when the share of bad rows is too large."""
        if self.bad > self._limit * self.rows:
            kinds = "; ".join(f"{count} × {kind}" for kind, count in self._counts.most_common(5))
            raise DataError(
                f"data: {self.bad} of {self.rows} rows are bad, more than data_config.max_bad_row_ratio "
                f"{self.max_ratio:g} ({kinds}); correct the data, or raise the ratio"
            )

    def finish(self) -> None:
        """Check a last time and log what was skipped."""
        self.check()
        for kind, count in self._counts.most_common():
            logger.warning("skipped %d bad rows: %s", count, kind)
