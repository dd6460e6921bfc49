"""Values of a primary and a secondary key in a row's nested map."""

from __future__ import annotations

from typing import Any

import numpy as np

from recgrad.data.features.base import Feature
from recgrad.data.features.columns import Bags, ColumnTypeError, gather, kept_offsets
from recgrad.data.features.config import bucket_setting, floats_output, ids_output, separator_of
from recgrad.data.features.frame import Input, Scope
from recgrad.data.features.keys import combine, find_in_bags, keys_of
from recgrad.data.features.outputs import FloatOutput, IdOutput, numbers_of
from recgrad.data.features.registry import FEATURES
from recgrad.data.features.text import Text, cut, halve, join
from recgrad.data.hashing import Ints

_ALL = "ALL"


@FEATURES.register("match_feature")
@FEATURES.register("sequence_match_feature")
class MatchFeature(Feature):
    """The values under pkey and skey of `pk1^sk1:0.2,sk2:0.3|pk2^sk4:0.1`; ALL matches any key.

    Several numbers that match are added up; several texts are several ids.
    """

    def expressions(self) -> list[Input]:
        """The nested map, and the keys that are not ALL."""
        separator = separator_of(self.config)
        keys = [self.config.pkey, self.config.skey]
        return [
            Input(self.config.nested_map),
            *(Input(key, separator=separator) for key in keys if key != _ALL),
        ]

    def build_output(self) -> FloatOutput | IdOutput:
        """Ids of texts or integers, ids of number buckets, or floats."""
        config = self.config
        setting = bucket_setting(config)
        self.discrete = (
            config.need_discrete
            or config.show_pkey
            or config.show_skey
            or setting not in (None, "boundaries")
        )
        if self.discrete and setting in (None, "boundaries"):
            raise ValueError(
                "need_discrete, show_pkey and show_skey make ids;"
                " set hash_bucket_size, num_buckets or a vocabulary"
            )
        if self.discrete:
            if config.HasField("normalizer"):
                raise ValueError("normalizer is for numbers, but this feature makes ids of texts; remove it")
            return ids_output(config, self.setting, value_dim=config.value_dim)
        if config.value_dim > 1:
            raise ValueError(f"value_dim of a match_feature of numbers must be 1, got {config.value_dim}")
        return floats_output(config, self.setting, value_dim=config.value_dim)

    def transform(self, inputs: list[Any], scope: Scope) -> Bags:
        """The values that match."""
        primary, secondary, values, offsets = self._entries(inputs[0], scope)
        keep = np.ones(len(values), np.bool_)
        keys = iter(zip(inputs[1:], self.inputs[1:], strict=True))
        for setting, entries in ((self.config.pkey, primary), (self.config.skey, secondary)):
            if setting == _ALL:
                continue
            bags, source = next(keys)
            wanted = Bags(keys_of(bags.values, scope.report(bags, source.name)), bags.offsets)
            keep &= find_in_bags(Bags(entries, offsets), wanted) >= 0
        matched = Bags(values.take(keep), kept_offsets(offsets, keep))
        if not self.discrete:
            report = scope.report(matched, self.inputs[0].name)
            return combine(Bags(numbers_of(matched.values, report), matched.offsets), "sum")
        shown = [primary] if self.config.show_pkey else []
        shown += [secondary] if self.config.show_skey else []
        if not shown:
            return matched
        return Bags(join([*(text.take(keep) for text in shown), values.take(keep)], "_"), matched.offsets)

    def _entries(self, maps: Bags, scope: Scope) -> tuple[Text, Text, Text, Ints]:
        """Primary key, secondary key and value of each entry, and where each bag's entries begin."""
        report = scope.report(maps, self.inputs[0].name)
        if not isinstance(maps.values, Text):
            if len(maps.values):
                raise ColumnTypeError("a nested map must be text such as 'pk^sk:value,sk:value|pk^sk:value'")
            maps = Bags(
                Text(np.frombuffer(b"", np.uint8), np.empty(0, np.int64), np.empty(0, np.int64)), maps.offsets
            )
        assert isinstance(maps.values, Text)
        blocks, cuts = cut(maps.values, "|")
        block_bags = Bags(blocks, np.arange(len(maps.values) + 1) if cuts is None else cuts)
        primary, rest, has = halve(blocks, "^")
        items, item_cuts = cut(rest, ",")
        item_starts = np.arange(len(blocks) + 1) if item_cuts is None else item_cuts
        secondary, values, valued = halve(items, ":")
        owner = np.repeat(np.arange(len(blocks)), np.diff(item_starts))
        bad_block = ~has
        bad_block[owner[~valued]] = True
        if bad_block.any():
            text = block_bags.bag_of(bad_block)
            remedy = "write maps as pk^sk:value,sk:value|pk^sk:value"
            report(text, "{value} is no nested map", maps.values.take(text), remedy)
        index, _ = gather(item_starts, np.arange(len(blocks)))
        offsets = item_starts[block_bags.starts][maps.starts]
        return primary.take(owner), secondary.take(index), values.take(index), offsets
