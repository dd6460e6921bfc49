"""Random negatives that a row's user has no edge to."""

from __future__ import annotations

from typing import ClassVar

from recgrad.data.samplers.negative import NegativeSampler
from recgrad.data.samplers.sampler import SAMPLERS


@SAMPLERS.register("negative_sampler_v2")
class NegativeSamplerV2(NegativeSampler):
    """Draws items by weight, with replacement, for all rows together; a row leaves out what its user has.

    Left out are the row's own item and the items of its user's positive edges. Other rows keep them, so that
    popular items are negatives as often as their weight says.
    """

    item_path: ClassVar[str] = "item_input_path"
    config_name: ClassVar[str] = "negative_sampler_v2"
