"""The dot product of two sparse vectors of `key:value` items."""

from __future__ import annotations

from typing import Any

import numpy as np

from recgrad.data.features.base import Feature
from recgrad.data.features.columns import Bags, take_values
from recgrad.data.features.config import floats_output, separator_of
from recgrad.data.features.frame import Input, Pairs, Scope
from recgrad.data.features.keys import combine, find_in_bags, keys_of
from recgrad.data.features.outputs import FloatOutput, IdOutput, numbers_of
from recgrad.data.features.registry import FEATURES


@FEATURES.register("kv_dot_product")
@FEATURES.register("sequence_kv_dot_product")
class KvDotProduct(Feature):
    """Σ over keys in both query and document of the product of their values.

    A key without a value counts 1, so two lists of keys give the size of their overlap. Of
    equal keys in the document the last holds. An empty default_value counts as "0".
    """

    def expressions(self) -> list[Input]:
        """The query and the document."""
        separator = separator_of(self.config)
        return [
            Input(self.config.query, separator=separator, pairs=True),
            Input(self.config.document, separator=separator, pairs=True),
        ]

    def build_output(self) -> FloatOutput | IdOutput:
        """Floats, or buckets when boundaries are set."""
        if self.config.HasField("kv_delimiter"):
            raise ValueError(
                "kv_delimiter is a number in the schema and cannot name a delimiter; keys end at ':'"
            )
        return floats_output(self.config, self.setting, value_dim=1, fallback="0")

    def transform(self, inputs: list[Any], scope: Scope) -> Bags:
        """The products; a row without a query or a document has none."""
        query, document = inputs
        q_keys, q_values = self._weights(query, scope, 0)
        d_keys, d_values = self._weights(document, scope, 1)
        at = find_in_bags(q_keys, d_keys)
        products = np.where(at >= 0, q_values * (d_values[at] if len(d_values) else 0.0), 0.0)
        sums = combine(Bags(products, q_keys.starts), "sum")
        there = d_keys.lengths > 0
        if there.all():
            return sums
        return sums.keep(there[sums.bag_of(np.arange(len(sums.values)))])

    def _weights(self, pairs: Pairs, scope: Scope, i: int) -> tuple[Bags, Any]:
        report = scope.report(pairs.keys, self.inputs[i].name)
        keys = Bags(keys_of(pairs.keys.values, report), pairs.keys.offsets)
        weights = np.ones(len(pairs.has))
        given = Bags(take_values(pairs.values, pairs.has), None)
        index = np.flatnonzero(pairs.has)
        weights[pairs.has] = numbers_of(given.values, lambda where, *rest: report(index[where], *rest))
        return keys, weights
