"""Refuse rows, weights and optimizer states that do not fit their table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from recgrad.embedding.spec import TableSpec
from recgrad.errors import CheckpointError, DataError

Array = npt.NDArray[Any]


def check_rows(spec: TableSpec, rows: Array) -> None:
    """Raise a DataError unless all row numbers are the table's."""
    bad = np.flatnonzero((rows < 0) | (rows >= spec.num_rows))
    if len(bad):
        raise DataError(f"table '{spec.name}': row {rows[bad[0]]} is outside its {spec.num_rows} rows")


def check_weights(spec: TableSpec, rows: Array, weights: Array) -> None:
    """Raise a CheckpointError unless there are weights [rows, dim]."""
    expected = (len(rows), spec.dim)
    if weights.shape != expected:
        raise CheckpointError(f"table '{spec.name}': weights are {weights.shape}, expected {expected}")


def check_states(
    spec: TableSpec, widths: Mapping[str, int], rows: Array, values: Mapping[str, Array]
) -> None:
    """Raise a CheckpointError unless there is every state of the optimizer, by name, [rows, width]."""
    if set(values) != set(widths):
        raise CheckpointError(
            f"table '{spec.name}': the optimizer keeps {sorted(widths)}, the checkpoint has {sorted(values)};"
            " resume with the optimizer the checkpoint was trained with, or without its state"
            " (--ignore_restore_optimizer)"
        )
    for name, value in values.items():
        expected = (len(rows), widths[name])
        if np.size(value) != len(rows) * widths[name]:
            raise CheckpointError(
                f"table '{spec.name}': state '{name}' is {np.shape(value)}, expected {expected}"
            )
