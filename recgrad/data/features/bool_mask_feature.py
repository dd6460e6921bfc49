"""The values of a column where a second column is true."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pyarrow.compute as pc

from recgrad.data.arrow_columns import as_numbers
from recgrad.data.features.base import Feature
from recgrad.data.features.buckets import Report
from recgrad.data.features.columns import Bags, Values, gather
from recgrad.data.features.config import ids_output, separator_of
from recgrad.data.features.frame import Input, Scope, Slots
from recgrad.data.features.outputs import BagIndex, IdOutput
from recgrad.data.features.registry import FEATURES
from recgrad.data.features.text import Mask, Text


@FEATURES.register("bool_mask_feature")
@FEATURES.register("sequence_bool_mask_feature")
class BoolMaskFeature(Feature):
    """Ids of the values whose mask is true; a mask holds booleans, numbers (0 is false) or true/false."""

    makes_ids: ClassVar[bool] = True

    def expressions(self) -> list[Input]:
        """The values and the mask."""
        if len(self.config.expression) != 2:
            count = len(self.config.expression)
            raise ValueError(f"a bool_mask_feature must have 2 expressions, values and mask, got {count}")
        separator = separator_of(self.config)
        return [Input(text, separator=separator, slots=True) for text in self.config.expression]

    def build_output(self) -> IdOutput:
        """Ids of the values that are kept."""
        return ids_output(self.config, self.setting, value_dim=self.config.value_dim)

    def transform(self, inputs: list[Any], scope: Scope) -> Bags:
        """The values that are kept; a row without values needs no masks."""
        values, masks = _aligned(*inputs)
        keep = _truth(masks.values, scope.report(masks, self.inputs[1].name))
        there = values.lengths > 0
        wrong = (values.lengths != masks.lengths) & there
        if wrong.any():
            bad = np.flatnonzero(wrong)
            scope.report(values, self.inputs[1].name)(
                BagIndex(bad),
                "has {value} masks, not one for each value",
                masks.lengths[bad],
                f"make '{self.inputs[0].name}' and '{self.inputs[1].name}' equally long in each row",
            )
            values = values.keep(np.repeat(~wrong, values.lengths))
        keep = keep[gather(masks.starts, np.flatnonzero(there & ~wrong))[0]]
        return values.keep(keep)


def _aligned(values: Any, masks: Any) -> tuple[Bags, Bags]:
    """Values and masks in bags; where a row has as many masks as items, those of empty items are left out."""
    if isinstance(values, Slots) and isinstance(masks, Slots):
        rows = np.flatnonzero(np.diff(values.offsets) == np.diff(masks.offsets))
        keep = np.ones(len(masks.items), np.bool_)
        full = values.items.lengths > 0
        keep[gather(masks.offsets, rows)[0]] = full[gather(values.offsets, rows)[0]]
        masks = masks if keep.all() else masks.keep(keep)
    value_bags, mask_bags = (given.bags if isinstance(given, Slots) else given for given in (values, masks))
    return value_bags, mask_bags


def _truth(values: Values, report: Report) -> Mask:
    if not isinstance(values, Text):
        return np.asarray(values != 0)
    lower = pc.utf8_lower(values.to_arrow())
    true, false = (
        as_numbers(pc.is_in(lower, value_set=Text.of_words(words).to_arrow()))
        for words in (("true", "1"), ("false", "0"))
    )
    bad = ~(true | false)
    if bad.any():
        report(
            bad, "mask {value} is neither true nor false", values.take(bad), "write true or false, or 1 or 0"
        )
    return np.asarray(true)
