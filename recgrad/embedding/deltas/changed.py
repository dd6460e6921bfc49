"""What became of tables: whole rows, and columns of rows that are put together when a delta is written.

A rank that holds some columns of a table writes them to a file of its own, which the first rank reads.
"""

from __future__ import annotations

import io
from collections.abc import Iterable
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


class ChangedTable(NamedTuple):
    """What became of a table, or of some columns of it.

    Attributes:
        name, dim: of the table.
        features: that read it.
        keys: of rows that have changed.
        weights: their values, float32 [keys, dim], or [keys, columns].
        gone: keys without a row.
        stand_ins: what ids without a row read, [rows, dim]; None where that has not changed.
        first_column: where the columns begin in the table.
    """

    name: str
    dim: int
    features: str
    keys: Array
    weights: Array
    gone: Array
    stand_ins: Array | None
    first_column: int = 0

    @property
    def whole(self) -> bool:
        """It has all columns."""
        return int(self.weights.shape[1]) == self.dim


def join_pieces(pieces: list[ChangedTable]) -> list[ChangedTable]:
    """Pieces that have all columns as one table each, those with fewer as they are; empty ones left out."""
    filled = [piece for piece in pieces if len(piece.keys) or len(piece.gone) or piece.stand_ins is not None]
    whole = groupby((piece for piece in filled if piece.whole), lambda piece: piece.name)
    return [*(_stacked(list(same)) for _, same in whole), *(piece for piece in filled if not piece.whole)]


def _stacked(pieces: list[ChangedTable]) -> ChangedTable:
    """Rows of several pieces of one table."""
    if len(pieces) == 1:
        return pieces[0]
    keys, weights, gone = (
        np.concatenate([getattr(piece, name) for piece in pieces]) for name in ("keys", "weights", "gone")
    )
    return pieces[0]._replace(keys=keys, weights=weights, gone=gone)


def join_columns(pieces: Iterable[ChangedTable]) -> list[ChangedTable]:
    """Whole rows of the columns that all ranks have of them.

    The same ids come to all columns of a table, so they have changed in the same rows.
    """
    found: list[ChangedTable] = []
    ordered = sorted(pieces, key=lambda piece: (piece.name, piece.first_column))
    for _, same in groupby(ordered, lambda piece: piece.name):
        parts = [_by_key(piece) for piece in same]
        widths = [part.weights.shape[1] for part in parts]
        assert [part.first_column for part in parts] == [sum(widths[:i]) for i in range(len(parts))]
        assert sum(widths) == parts[0].dim
        assert all(np.array_equal(part.keys, parts[0].keys) for part in parts)
        assert all(np.array_equal(part.gone, parts[0].gone) for part in parts)
        found.append(parts[0]._replace(weights=np.concatenate([part.weights for part in parts], axis=1)))
    return found


def _by_key(piece: ChangedTable) -> ChangedTable:
    """Rows in the order of their keys, which that of slots need not be the same on all ranks."""
    order = np.argsort(piece.keys)
    return piece._replace(keys=piece.keys[order], weights=piece.weights[order], gone=np.sort(piece.gone))


_ARRAYS = "keys", "weights", "gone"


def save_columns(file: Any, pieces: list[ChangedTable]) -> None:
    """Write columns of tables to a file."""
    arrays: dict[str, Array] = {}
    for i, piece in enumerate(pieces):
        arrays |= {f"{i}.{name}": getattr(piece, name) for name in _ARRAYS}
        arrays[f"{i}.words"] = np.array([piece.name, piece.features])
        arrays[f"{i}.place"] = np.array([piece.dim, piece.first_column])
    np.savez(file, **arrays)  # type: ignore[arg-type]


def load_columns(content: bytes) -> list[ChangedTable]:
    """What `save_columns` wrote."""
    with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
        found = []
        for i in range(len(arrays) // (len(_ARRAYS) + 2)):
            name, features = arrays[f"{i}.words"].tolist()
            dim, first = arrays[f"{i}.place"].tolist()
            keys, weights, gone = (arrays[f"{i}.{what}"] for what in _ARRAYS)
            found.append(ChangedTable(name, dim, features, keys, weights, gone, None, first))
        return found
