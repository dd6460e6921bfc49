"""Numbers: normalized floats or vectors of them, or ids of the buckets they fall in."""

from __future__ import annotations

from typing import ClassVar

from recgrad.data.features.base import Feature
from recgrad.data.features.config import floats_output, separator_of
from recgrad.data.features.frame import Input
from recgrad.data.features.outputs import FloatOutput, IdOutput
from recgrad.data.features.registry import FEATURES


@FEATURES.register("raw_feature")
@FEATURES.register("sequence_raw_feature")
class RawFeature(Feature):
    """The numbers of a column, value_dim of them in a row."""

    takes_float64: ClassVar[bool] = True

    def expressions(self) -> list[Input]:
        """The one column."""
        return [Input(self.config.expression, separator=separator_of(self.config))]

    def build_output(self) -> FloatOutput | IdOutput:
        """Floats, or buckets when boundaries are set."""
        if self.config.value_dim < 1:
            raise ValueError(f"value_dim must be at least 1, got {self.config.value_dim}")
        return floats_output(self.config, self.setting, value_dim=self.config.value_dim)
