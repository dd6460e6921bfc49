"""Random negatives for all rows, and hard ones of each row's user."""

from __future__ import annotations

from typing import ClassVar

from recgrad.data.samplers.negative import NegativeSampler
from recgrad.data.samplers.sampler import SAMPLERS


@SAMPLERS.register("hard_negative_sampler")
class HardNegativeSampler(NegativeSampler):
    """As `negative_sampler`, and for each row the items of its user's hard edges.

    Of a user's edges those of largest weight are taken, `num_hard_sample` at most, and among equals the first
    of the file; an edge to the row's own item is left out.
    """

    item_path: ClassVar[str] = "item_input_path"
    config_name: ClassVar[str] = "hard_negative_sampler"
