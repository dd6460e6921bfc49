"""Where dense features lie in the matrix of a batch."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

from recgrad.data.batch import KeyedDense
from recgrad.errors import DataError


class DenseColumns:
    """Takes dense features out of batches; remembers where they lie, since batches of a run lie alike."""

    def __init__(self) -> None:
        self._columns: dict[tuple[object, ...], slice | Tensor] = {}

    def take(self, dense: KeyedDense, names: tuple[str, ...]) -> Tensor:
        """[rows, sum of widths]: these features side by side; a view when they already lie so."""
        key = (dense.keys, dense.dims, names, dense.values.device)
        columns = self._columns.get(key)
        if columns is None:
            columns = self._columns[key] = _find(dense, names)
        if isinstance(columns, slice):
            return dense.values[:, columns]
        return dense.values.index_select(1, columns)


def _find(dense: KeyedDense, names: tuple[str, ...]) -> slice | Tensor:
    missing = [name for name in names if name not in dense.columns]
    if missing:
        raise DataError(f"batch: no dense feature {', '.join(missing)} (has: {', '.join(dense.keys)})")
    spans = [dense.columns[name] for name in names]
    if all(a + n == b for (a, n), (b, _) in pairwise(spans)):
        return slice(spans[0][0], spans[-1][0] + spans[-1][1])
    device = dense.values.device
    return torch.cat([torch.arange(start, start + width, device=device) for start, width in spans])
