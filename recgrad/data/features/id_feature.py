"""Categories and ids: numbers or texts, one or several in a row, with weights if need be."""

from __future__ import annotations

from typing import ClassVar

from recgrad.data.features.base import Feature
from recgrad.data.features.config import ids_output, separator_of
from recgrad.data.features.frame import Input
from recgrad.data.features.outputs import IdOutput
from recgrad.data.features.registry import FEATURES


@FEATURES.register("id_feature")
@FEATURES.register("sequence_id_feature")
class IdFeature(Feature):
    """Ids of a column's values by num_buckets, hash or vocabulary."""

    makes_ids: ClassVar[bool] = True

    @property
    def weighted(self) -> bool:
        """Whether ids carry weights."""
        return bool(self.config.weighted)

    def expressions(self) -> list[Input]:
        """The one column."""
        return [Input(self.config.expression, separator=separator_of(self.config), pairs=self.weighted)]

    def build_output(self) -> IdOutput:
        """Ids; the first value_dim of a row or position, by default all of a row and one of a position."""
        alone = self.setting.sequence is not None and self.setting.mode != "FG_NONE"
        value_dim = 1 if alone and not self.config.HasField("value_dim") else self.config.value_dim
        return ids_output(self.config, self.setting, value_dim=value_dim, weighted=self.weighted)
