"""Values that an operator computes from whole columns: one that is built in, or a class of one's own."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from recgrad.config.messages import struct_to_dict
from recgrad.data.features.base import Feature
from recgrad.data.features.columns import Bags, read_bags
from recgrad.data.features.config import bucket_setting, floats_output, ids_output
from recgrad.data.features.frame import Input, Scope
from recgrad.data.features.operators import build_operator
from recgrad.data.features.outputs import FloatOutput, IdOutput
from recgrad.data.features.registry import FEATURES
from recgrad.data.features.text import Text
from recgrad.errors import DataError


@FEATURES.register("custom_feature")
@FEATURES.register("sequence_custom_feature")
class CustomFeature(Feature):
    """What an operator makes of its inputs: floats, or ids by hash, num_buckets, vocabulary or boundaries.

    operator_name is a class of the module operator_lib_file, or one of those that are built in: EditDistance,
    RegexReplace, SeqExpr.
    """

    input_fields: ClassVar[tuple[str, ...]] = ("expression",)

    def expressions(self) -> list[Input]:
        """The inputs, whose texts stay whole."""
        if not self.config.expression:
            raise ValueError("expression must name at least one input")
        self.names = [text.rpartition(":")[2] for text in self.config.expression]
        if len(set(self.names)) < len(self.names):
            raise ValueError("expression names an input twice; keep one")
        return [Input(text) for text in self.config.expression]

    def build_output(self) -> FloatOutput | IdOutput:
        """Floats, ids of buckets between boundaries, or ids of what the operator gives."""
        config = self.config
        if self.setting.generates:
            params = struct_to_dict(config.operator_params)
            self.operator = build_operator(config.operator_name, config.operator_lib_file, params)
        value_dim = config.value_dim if config.HasField("value_dim") else 1
        if bucket_setting(config) in (None, "boundaries"):
            return floats_output(config, self.setting, value_dim=value_dim)
        if config.HasField("normalizer"):
            raise ValueError("normalizer is for floats or boundaries; remove it, or what makes ids")
        return ids_output(config, self.setting, value_dim=value_dim)

    def transform(self, inputs: list[Any], scope: Scope) -> Bags:
        """What the operator computes."""
        columns = {name: as_arrow(bags) for name, bags in zip(self.names, inputs, strict=True)}
        count = len(inputs[0])
        try:
            found = self.operator.compute(columns)
        except (ValueError, TypeError, KeyError, pa.ArrowException) as error:
            raise DataError(f"feature {self.name}: {self.config.operator_name}: {error}") from error
        if isinstance(found, np.ndarray) and found.ndim == 2:
            found = pa.FixedSizeListArray.from_arrays(pa.array(found.reshape(-1)), found.shape[1])
        array = found.combine_chunks() if isinstance(found, pa.ChunkedArray) else pa.array(found)
        if len(array) != count:
            raise DataError(
                f"feature {self.name}: {self.config.operator_name} gave {len(array)} values for {count} "
                "rows; compute must give one a row"
            )
        return read_bags(array, None)


def as_arrow(bags: Bags) -> pa.Array:
    """Bags as an Arrow array: a value a row, null for none; lists where a row has several."""
    values = bags.values.to_arrow() if isinstance(bags.values, Text) else pa.array(bags.values)
    if bags.offsets is None:
        return values
    lengths = bags.lengths
    if len(lengths) and lengths.max() > 1:
        return pa.LargeListArray.from_arrays(pa.array(bags.offsets), values)
    places = np.where(lengths > 0, bags.offsets[:-1], 0)
    return values.take(pa.array(places, mask=lengths == 0))
