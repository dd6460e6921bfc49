"""Random negatives that a row's user has no edge to, and hard ones of the user."""

from __future__ import annotations

from typing import ClassVar

from recgrad.data.samplers.negative import NegativeSampler
from recgrad.data.samplers.sampler import SAMPLERS


@SAMPLERS.register("hard_negative_sampler_v2")
class HardNegativeSamplerV2(NegativeSampler):
    """As `negative_sampler_v2`, and for each row the items of its user's hard edges.

    Hard edges are taken as `hard_negative_sampler` takes them.
    """

    item_path: ClassVar[str] = "item_input_path"
    config_name: ClassVar[str] = "hard_negative_sampler_v2"
