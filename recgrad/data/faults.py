"""Bad rows, found while a batch is encoded.

Encoders look at whole columns, so they find all bad rows of a batch at once and go on; the
loader then stops with the first fault, or drops the bad rows and encodes the rest again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class Fault:
    """One bad value.

    Attributes:
        row: the row in the batch, from 0.
        column: the input column.
        feature: the feature (or label, weight …) that could not take it.
        reason: what is wrong, `{value}` standing for the value; equal for all rows with this fault.
        value: the bad value.
        remedy: what to do about it.
    """

    row: int
    column: str
    feature: str
    reason: str
    value: Any
    remedy: str

    @property
    def problem(self) -> str:
        """The reason with the value in it."""
        text = repr(self.value)
        return self.reason.replace("{value}", text if len(text) <= 80 else text[:77] + "…")

    def __str__(self) -> str:
        return f"feature {self.feature}: {self.problem} (column '{self.column}'); {self.remedy}"


@dataclass(frozen=True)
class _Group:
    rows: npt.NDArray[np.int64]
    column: str
    feature: str
    reason: str
    values: Any
    remedy: str

    def first(self) -> Fault:
        return self.fault(int(np.argmin(self.rows)))

    def fault(self, at: int) -> Fault:
        value = self.values[at]
        value = (
            value.as_py() if hasattr(value, "as_py") else value.item() if hasattr(value, "item") else value
        )
        return Fault(int(self.rows[at]), self.column, self.feature, self.reason, value, self.remedy)


class Faults:
    """The bad rows of one batch."""

    def __init__(self) -> None:
        self._groups: list[_Group] = []

    def add(
        self,
        rows: npt.ArrayLike,
        *,
        column: str,
        feature: str,
        reason: str,
        values: Sequence[Any] | npt.NDArray[Any] | Any,
        remedy: str,
    ) -> None:
        """Note that `rows` are bad, with the bad value of each; no rows is no fault.

        Args:
            rows: rows of the batch; a row may occur more than once.
            column: the input column.
            feature: what the column is read for.
            reason: what is wrong; `{value}` stands for the value.
            values: an array, list or Arrow array, one value for each of `rows`.
            remedy: what the user can do.
        """
        index = np.asarray(rows, np.int64)
        if len(index):
            self._groups.append(_Group(index, column, feature, reason, values, remedy))

    def add_all(self, others: Faults, rows: npt.NDArray[np.int64]) -> None:
        """Note the faults of values of rows: those of value i are of `rows[i]`."""
        self._groups.extend(replace(group, rows=rows[group.rows]) for group in others._groups)

    def __bool__(self) -> bool:
        return bool(self._groups)

    @property
    def rows(self) -> npt.NDArray[np.int64]:
        """The bad rows, sorted, each once."""
        if not self._groups:
            return np.empty(0, np.int64)
        return np.unique(np.concatenate([group.rows for group in self._groups]))

    def first(self) -> Fault | None:
        """The fault of the first bad row; of several there, the one found first."""
        return min(self.firsts(), key=lambda fault: fault.row, default=None)

    def firsts(self) -> list[Fault]:
        """The first fault of each feature and reason, in the order of finding."""
        first: dict[tuple[str, str], Fault] = {}
        for group in self._groups:
            fault = group.first()
            known = first.get((group.feature, group.reason))
            if known is None or fault.row < known.row:
                first[group.feature, group.reason] = fault
        return list(first.values())

    def by_row(self) -> dict[int, Fault]:
        """The fault of each bad row, the one found first; rows sorted."""
        found: dict[int, Fault] = {}
        for group in self._groups:
            for at, row in enumerate(group.rows.tolist()):
                if row not in found:
                    found[row] = group.fault(at)
        return dict(sorted(found.items()))

    def counts(self) -> dict[tuple[str, str], int]:
        """The number of bad rows by (feature, reason); a row with two faults counts in both."""
        rows: dict[tuple[str, str], list[npt.NDArray[np.int64]]] = {}
        for group in self._groups:
            rows.setdefault((group.feature, group.reason), []).append(group.rows)
        return {key: len(np.unique(np.concatenate(parts))) for key, parts in rows.items()}
