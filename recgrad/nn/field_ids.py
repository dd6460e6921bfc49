"""Which ids the columns of a matrix were looked up by, for layers that can make use of ids that repeat.

It is a note on the tensor itself: whatever makes another tensor of it loses the note, so that no layer takes
columns for embeddings that are none any more. The few functions that leave columns as they are carry it on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from torch import Tensor

Array = npt.NDArray[np.int64]
_NOTE = "_recgrad_field_ids"


class FieldIds(NamedTuple):
    """Fields of a matrix: columns that are a function of an id, the same in all rows that have it.

    Attributes:
        columns: [fields], the first column of each.
        widths: [fields].
        ids: [fields], where the ids are: int64, one for each row, or for each row that has one.
        lengths: [fields], where the number of ids of each row is: int32; 0 for one id in each. The columns of
            a row without one are 0, and a row with several makes its field useless.
        kept: what has these addresses.
        found: what a reader has made of them, for the next one.
    """

    columns: Array
    widths: Array
    ids: Array
    lengths: Array
    kept: Any
    found: list[Any]


def note_field_ids(x: Tensor, fields: FieldIds) -> Tensor:
    """x, with what some of its columns were looked up by.

    Who reads it may leave the gradient of all rows with one id in the first of them: only the sum over these
    rows may matter to what x was made of.
    """
    setattr(x, _NOTE, fields)
    return x


def field_ids(x: Tensor) -> FieldIds | None:
    """What was noted on x."""
    return getattr(x, _NOTE, None)


def carry_field_ids(x: Tensor, columns: Sequence[Tensor]) -> Tensor:
    """x, which is `columns` side by side, with what was noted on those."""
    found: list[FieldIds] = []
    first = 0
    for part in columns:
        if (fields := field_ids(part)) is not None:
            found.append(fields._replace(columns=fields.columns + first))
        first += part.shape[1]
    if not found:
        return x
    firsts, widths, ids, lengths = (
        np.concatenate(of_one) for of_one in zip(*(fields[:4] for fields in found), strict=True)
    )
    return note_field_ids(x, FieldIds(firsts, widths, ids, lengths, [of.kept for of in found], []))
