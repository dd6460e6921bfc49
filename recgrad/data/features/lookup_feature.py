"""Values that a row's keys have in the row's map, such as the user's clicks in the item's category."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from recgrad.data.features.base import Feature
from recgrad.data.features.buckets import Report
from recgrad.data.features.columns import Bags, take_values
from recgrad.data.features.config import bucket_setting, floats_output, ids_output, separator_of
from recgrad.data.features.frame import Input, Pairs, Scope
from recgrad.data.features.keys import COMBINERS, check_combiner, combine, find_in_bags, keys_of, texts_of
from recgrad.data.features.outputs import BagIndex, FloatOutput, IdOutput, numbers_of
from recgrad.data.features.registry import FEATURES
from recgrad.data.features.text import Text, cut, join


@FEATURES.register("lookup_feature")
@FEATURES.register("sequence_lookup_feature")
class LookupFeature(Feature):
    """The map's value for each key: combined numbers, or ids of the values.

    A map is a map column or text of `key:value` items between \\x1d; of equal keys the last holds.
    """

    combiners: ClassVar[tuple[str, ...]] = (*COMBINERS, "")  # or the values as they are

    def expressions(self) -> list[Input]:
        """The map and the key."""
        return [
            Input(self.config.map, separator="\x1d", pairs=True),
            Input(self.config.key, separator=separator_of(self.config)),
        ]

    def build_output(self) -> FloatOutput | IdOutput:
        """Ids of texts or integers, ids of number buckets, or floats."""
        config = self.config
        setting = bucket_setting(config)
        self.combiner = check_combiner(config.combiner, optional=True)
        self.discrete = config.need_discrete or config.need_key or setting not in (None, "boundaries")
        if self.discrete and setting in (None, "boundaries"):
            raise ValueError(
                "need_discrete and need_key make ids; set hash_bucket_size, num_buckets or a vocabulary"
            )
        if self.discrete:
            if config.HasField("combiner") and self.combiner:
                raise ValueError("combiner is for numbers, but this feature makes ids of texts; remove it")
            if config.HasField("normalizer"):
                raise ValueError("normalizer is for numbers, but this feature makes ids of texts; remove it")
            return ids_output(config, self.setting, value_dim=config.value_dim)
        self.width = config.value_dim if config.HasField("value_dim") else 0
        return floats_output(config, self.setting, value_dim=self.width)

    def transform(self, inputs: list[Any], scope: Scope) -> Bags:
        """The values found, combined if they are numbers."""
        pairs: Pairs = inputs[0]
        keys: Bags = inputs[1]
        report = scope.report(keys, self.inputs[1].name)
        hay = pairs.keys
        if isinstance(keys.values, Text) or isinstance(hay.values, Text):
            map_report = scope.report(hay, self.inputs[0].name)
            keys = Bags(keys_of(keys.values, report), keys.offsets)
            hay = Bags(keys_of(hay.values, map_report), hay.offsets)
        at = find_in_bags(keys, hay)
        found = keys.keep((at >= 0) & pairs.has[at] if len(pairs.has) else at >= 0)
        at = at[(at >= 0) & pairs.has[at]] if len(pairs.has) else at[:0]
        values = Bags(take_values(pairs.values, at), found.offsets)
        report = scope.report(values, self.inputs[0].name)
        if not self.discrete:
            return self._numbers(values, report)
        if not self.config.need_key:
            return values
        texts = [keys_of(found.values, report), texts_of(values.values, report)]
        return Bags(join(texts, "_"), values.offsets)

    def _numbers(self, bags: Bags, report: Report) -> Bags:
        if self.width <= 1:
            numbers = Bags(numbers_of(bags.values, report), bags.offsets)
            return combine(numbers, self.combiner) if self.combiner else numbers
        return self._vectors(bags, report)

    def _vectors(self, bags: Bags, report: Report) -> Bags:
        """Vectors of value_dim numbers, combined place by place."""
        texts = texts_of(bags.values, report)
        parts, cuts = cut(texts, self.config.value_separator)
        inner = Bags(parts, cuts)
        wrong = inner.lengths != self.width
        if wrong.any():
            report(
                wrong,
                "{value} has not value_dim " + f"{self.width} numbers",
                texts.take(wrong),
                "make all values of the map equally long",
            )
            parts = parts.take(np.repeat(~wrong, inner.lengths))
            bags = bags.keep(~wrong)
        owner = Bags(parts, bags.starts * self.width)
        numbers = numbers_of(parts, lambda where, *rest: report(BagIndex(owner.bag_of(where)), *rest))
        if not self.combiner:
            return Bags(numbers, owner.offsets)
        places = [
            combine(Bags(numbers[place :: self.width], bags.starts), self.combiner)
            for place in range(self.width)
        ]
        merged = np.stack([np.asarray(place.values) for place in places], axis=1).reshape(-1)
        return Bags(merged, places[0].starts * self.width)
