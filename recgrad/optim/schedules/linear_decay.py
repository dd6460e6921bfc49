"""The straight line down."""

from __future__ import annotations

from dataclasses import dataclass, field

from recgrad.optim.schedules.polynomial_decay import PolynomialDecay
from recgrad.optim.schedules.schedule import SCHEDULES


@SCHEDULES.register("linear_decay_learning_rate")
@dataclass(kw_only=True, eq=False)
class LinearDecay(PolynomialDecay):
    """Falls in a straight line from the base rate to min_learning_rate over decay_size, and stays there.

    min + (base − min)·(1 − n/decay_size), n counted from the end of the warm-up.
    """

    power: float = field(default=1.0, init=False)
