"""Crosses: every combination of the values of several columns is one id."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from recgrad.data.features.base import Feature
from recgrad.data.features.columns import Bags
from recgrad.data.features.config import ids_output, separator_of
from recgrad.data.features.frame import Input, Scope
from recgrad.data.features.keys import texts_of
from recgrad.data.features.outputs import IdOutput
from recgrad.data.features.registry import FEATURES
from recgrad.data.features.text import join
from recgrad.data.hashing import Ints


@FEATURES.register("combo_feature")
@FEATURES.register("sequence_combo_feature")
class ComboFeature(Feature):
    """Ids of `a_b` for each value a of the first column and b of the second, and so on."""

    makes_ids: ClassVar[bool] = True

    def expressions(self) -> list[Input]:
        """Two columns or more."""
        if len(self.config.expression) < 2:
            raise ValueError(
                f"a combo_feature must have at least 2 expressions, got {len(self.config.expression)}"
            )
        separator = separator_of(self.config)
        return [Input(text, separator=separator) for text in self.config.expression]

    def build_output(self) -> IdOutput:
        """Ids of the joined texts."""
        return ids_output(self.config, self.setting, value_dim=self.config.value_dim)

    def transform(self, inputs: list[Any], scope: Scope) -> Bags:
        """The joined texts; a row where one input is missing has none."""
        texts = [
            texts_of(bags.values, scope.report(bags, source.name))
            for bags, source in zip(inputs, self.inputs, strict=True)
        ]
        if all(bags.offsets is None for bags in inputs):
            return Bags(join(texts, "_"))
        picks, offsets = cross([bags.starts for bags in inputs])
        return Bags(join([text.take(pick) for text, pick in zip(texts, picks, strict=True)], "_"), offsets)


def cross(offsets: list[Ints]) -> tuple[list[Ints], Ints]:
    """All combinations within each bag, the last input changing fastest.

    Returns:
        For each input the positions of its values in the combinations, and where each bag begins.
    """
    lengths = [np.diff(starts) for starts in offsets]
    total = np.prod(lengths, axis=0)
    begins = np.concatenate([[0], np.cumsum(total)])
    within = np.arange(begins[-1]) - np.repeat(begins[:-1], total)
    picks: list[Ints] = []
    for starts, length in zip(reversed(offsets), reversed(lengths), strict=True):
        size = np.repeat(length, total)
        picks.append(np.repeat(starts[:-1], total) + within % size)
        within //= size
    return picks[::-1], begins
