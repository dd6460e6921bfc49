"""Adagrad with one accumulator a row, a sixteenth of the state at dim 16."""

from __future__ import annotations

import numpy as np

from recgrad.optim import usual_rates
from recgrad.optim.sparse.adagrad import Adagrad
from recgrad.optim.sparse.optimizer import SPARSE_OPTIMIZERS
from recgrad.optim.sparse.rowwise import square_sum, subtract
from recgrad.optim.sparse.rule import State, sparse_rule


@sparse_rule
def rowwise_adagrad(w, g, states, rows, dim, h):  # type: ignore[no-untyped-def]
    """s += mean(g²); w −= ηg/(√s + ε)."""
    lr, eps = h[0], h[1]
    total = states[0]
    for r in range(rows):
        s = total[r] + square_sum(g, r, dim) / np.float32(dim)
        total[r] = s
        subtract(w, g, r, dim, lr / (np.sqrt(s) + eps))


@SPARSE_OPTIMIZERS.register("rowwise_adagrad_optimizer")
@usual_rates.ADAGRAD
class RowWiseAdagrad(Adagrad):
    """s += mean(g²) over the row; w −= ηg/(√s + ε); s starts at `initial_accumulator_value`."""

    rule = staticmethod(rowwise_adagrad)
    whole_rows = True
    states = (State("sum", per_row=True, initial="initial_accumulator_value"),)
