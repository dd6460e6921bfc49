"""Mean squared error."""

from __future__ import annotations

from torch import Tensor

from recgrad.metrics import METRICS, TRAIN_METRICS
from recgrad.metrics.mean_error import MeanError


@TRAIN_METRICS.register("mean_squared_error")
@METRICS.register("mean_squared_error")
class MeanSquaredError(MeanError):
    """Mean of (prediction − label)²; nan without rows."""

    def error(self, difference: Tensor) -> Tensor:
        """The error of each row."""
        return difference.square()
