"""The straight line down."""

from __future__ import annotations

from recgrad.optim.schedules.polynomial_decay import PolynomialDecay
from recgrad.optim.schedules.schedule import SCHEDULES


@SCHEDULES.register("linear_decay_learning_rate")
class LinearDecay(PolynomialDecay):
    """Falls in a straight line from the base rate to min_learning_rate over decay_size, and stays there.

    min + (base − min)·(1 − n/decay_size), n counted from the end of the warm-up.
    """

    def __init__(
        self,
        *,
        decay_size: int,
        min_learning_rate: float = 0.0,
        warmup_learning_rate: float = 0.0,
        warmup_size: int = 0,
        by_epoch: bool = False,
    ) -> None:
        super().__init__(
            decay_size=decay_size,
            power=1.0,
            min_learning_rate=min_learning_rate,
            warmup_learning_rate=warmup_learning_rate,
            warmup_size=warmup_size,
            by_epoch=by_epoch,
        )
