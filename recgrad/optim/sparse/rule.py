"""What the rule of a sparse optimizer is: a short function that numba compiles into the update kernel."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from numba import njit


def sparse_rule(function: Callable[..., None]) -> Any:
    """Compile a rule `rule(w, g, states, rows, dim, h)` for use in the update kernel.

    Some rows at a time are laid out flat: row r, element d is at r · dim + d.

    - w: float32, the weights; the rule changes them.
    - g: float32, the summed gradients; the rule may use them as scratch.
    - states: float32 [states, …]; states[k] is laid out like w, or, for a state of one number a
      row, has row r at r.
    - rows, dim: how much of the arrays is in use.
    - h: float32, what the optimizer's `scalars` returned.

    Keep constants in float32 (`np.float32(1)`): a Python float makes the arithmetic double.
    Sums may be reordered; NaN and infinities are respected.
    """
    return njit(nogil=True, error_model="numpy", fastmath={"reassoc", "contract", "nsz"})(function)


@dataclass(frozen=True)
class State:
    """One state that an optimizer keeps for each row.

    Attributes:
        name: as checkpoints know it.
        per_row: one number a row instead of one for each element.
        initial: the hyperparameter that holds its value in a new row; zero when None.
    """

    name: str
    per_row: bool = False
    initial: str | None = None
