"""Words mapped to numbers, and several numbers of a row made one."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from recgrad.config.messages import to_kwargs
from recgrad.data.features.base import Feature
from recgrad.data.features.buckets import Vocabulary
from recgrad.data.features.columns import Bags
from recgrad.data.features.config import bucket_setting, floats_output, ids_output, separator_of
from recgrad.data.features.frame import Input, Scope
from recgrad.data.features.keys import COMBINERS, check_combiner, combine, texts_of
from recgrad.data.features.outputs import FloatOutput, IdOutput, numbers_of
from recgrad.data.features.registry import FEATURES
from recgrad.data.features.text import Text


@FEATURES.register("combine_feature")
@FEATURES.register("sequence_combine_feature")
class CombineFeature(Feature):
    """The sum, mean, min, max or count of a row's numbers, or of those that value_map gives its words.

    Words that value_map does not know hold no number. With num_buckets the result is cut to an
    integer, towards zero.
    """

    combiners: ClassVar[tuple[str, ...]] = COMBINERS

    def expressions(self) -> list[Input]:
        """The one column."""
        return [Input(self.config.expression, separator=separator_of(self.config))]

    def build_output(self) -> FloatOutput | IdOutput:
        """Floats, ids below num_buckets, or ids of buckets between boundaries."""
        self.combiner = check_combiner(self.config.combiner, optional=False)
        numbers = to_kwargs(self.config)["value_map"]
        self.words = (
            Vocabulary({word: i for i, word in enumerate(numbers)}, len(numbers), 0) if numbers else None
        )
        self.numbers = np.array([*numbers.values(), np.nan])
        self.whole = bucket_setting(self.config) == "num_buckets"
        if self.whole:
            if self.config.HasField("normalizer"):
                raise ValueError("normalizer is for floats or boundaries, not num_buckets; remove one")
            return ids_output(self.config, self.setting, value_dim=1)
        return floats_output(self.config, self.setting, value_dim=1)

    def transform(self, inputs: list[Any], scope: Scope) -> Bags:
        """One number for each bag that has any."""
        bags: Bags = inputs[0]
        report = scope.report(bags, self.inputs[0].name)
        if self.words is None:
            numbers = Bags(numbers_of(bags.values, report), bags.offsets)
        else:
            index = self.words(texts_of(bags.values, report), report)
            mapped = Bags(self.numbers[index], bags.offsets)
            known = index < len(self.numbers) - 1
            numbers = mapped if known.all() else mapped.keep(known)
        result = combine(numbers, self.combiner)
        assert not isinstance(result.values, Text)
        return Bags(np.trunc(result.values), result.offsets) if self.whole else result
