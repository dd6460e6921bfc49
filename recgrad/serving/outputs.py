"""What a program gives for rows, and what it needs of their sequences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from recgrad.data.faults import Faults
from recgrad.data.features.base import Feature
from recgrad.data.list_column import Column, in_lists

Lengths = Mapping[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class Outputs:
    """Outputs of a program.

    Attributes:
        arrays: each, [rows, …]; of lists, all values of the first row first.
        lengths: values of each row, where outputs are lists; None for one a row.
    """

    arrays: list[npt.NDArray[np.float32]]
    lengths: npt.NDArray[Any] | None = None

    def columns(self, named: Mapping[str, npt.NDArray[np.float32]]) -> dict[str, Column]:
        """Arrays of these rows as columns."""
        return {name: in_lists(values, self.lengths) for name, values in named.items()}

    def none(self) -> Outputs:
        """Those of no rows."""
        lengths = None if self.lengths is None else self.lengths[:0]
        return Outputs([values[:0].copy() for values in self.arrays], lengths)


def join_outputs(parts: Sequence[Outputs]) -> Outputs:
    """The outputs of rows one after another."""
    if len(parts) == 1:
        return parts[0]
    arrays = [np.concatenate(values) for values in zip(*(part.arrays for part in parts), strict=True)]
    lengths = [part.lengths for part in parts if part.lengths is not None]
    return Outputs(arrays, np.concatenate(lengths) if lengths else None)


class LengthCheck:
    """Finds rows whose sequences differ in length where a model needs them equal.

    Members of one sequence feature are equally long by themselves; others are compared here.

    Args:
        equal: names of features that must be equally long.
        features: by name.
    """

    def __init__(self, equal: Sequence[Sequence[str]], features: Mapping[str, Feature]) -> None:
        self._equal = []
        for names in equal:
            of_sequences = {features[name].spec.sequence_name or name: features[name] for name in names}
            if len(of_sequences) > 1:
                self._equal.append(list(of_sequences.values()))

    def check(self, lengths: Lengths, faults: Faults) -> None:
        """Note the rows; features whose lengths are not given are left out."""
        for first, *others in self._equal:
            for other in others:
                if first.name not in lengths or other.name not in lengths:
                    continue
                own = lengths[other.name]
                wrong = np.flatnonzero(own != lengths[first.name])
                faults.add(
                    wrong,
                    column=(other.columns or (other.name,))[0],
                    feature=other.name,
                    reason=f"{{value}} values, and feature {first.name} has another number of them",
                    values=own[wrong],
                    remedy="give every event one",
                )
