"""Costs of rows, by which batches may be cut."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Floats = npt.NDArray[np.float64]


def cost_values(column: pa.Array) -> Floats:
    """The costs of rows; a null is nan."""
    values: Floats = column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    return values


def are_costs(values: Floats, limit: int) -> npt.NDArray[np.bool_]:
    """Which values a batch can hold: above 0 and at most the limit. Rows with others are bad."""
    return (values > 0) & (values <= limit)
