"""MaskNet: features multiplied by masks that are computed from the features.

Wang et al. 2021, https://arxiv.org/abs/2102.07619

    mask = linear(relu(linear(x))),   block(h) = relu(layer_norm(linear(h ∘ mask)))

```
parallel   x ──▶ layer norm ──┬──▶ block 1 ──┐
                              ├──▶ block 2 ──┼──▶ (top_mlp) ──▶ logits
                              └──▶ …         ┘
serial     x ──▶ layer norm ──▶ block 1 ──▶ block 2 ──▶ … ──▶ (top_mlp) ──▶ logits
```
"""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from recgrad.models.base import MODELS, Model, only_group
from recgrad.models.group_needs import ONE_DEEP, GroupNeeds
from recgrad.models.inputs import Inputs
from recgrad.nn.mask import MaskNet as MaskBlocks
from recgrad.nn.mask import MaskNetSettings
from recgrad.nn.output_layer import OutputLayer


@MODELS.register("mask_net")
class MaskNet(Model):
    """MaskNet over one group."""

    reads: ClassVar[GroupNeeds | None] = ONE_DEEP

    def build(self, *, mask_net_module: MaskNetSettings) -> None:
        """Make the layers.

        Args:
            mask_net_module: arguments of `recgrad.nn.mask.MaskNet`.
        """
        self.group = only_group(self)
        self.blocks = MaskBlocks(self.groups.dim(self.group), **mask_net_module)
        self.output = OutputLayer(self.blocks.out_features, self.tasks[0].num_logits)

    def predict(self, inputs: Inputs) -> dict[str, Tensor]:
        """The logits."""
        return self.head(self.output(self.blocks(inputs[self.group])))
