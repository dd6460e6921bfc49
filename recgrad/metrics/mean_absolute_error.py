"""Mean absolute error."""

from __future__ import annotations

from torch import Tensor

from recgrad.metrics import METRICS, TRAIN_METRICS
from recgrad.metrics.mean_error import MeanError


@TRAIN_METRICS.register("mean_absolute_error")
@METRICS.register("mean_absolute_error")
class MeanAbsoluteError(MeanError):
    """Mean of |prediction − label|; nan without rows."""

    def error(self, difference: Tensor) -> Tensor:
        """The error of each row."""
        return difference.abs()
