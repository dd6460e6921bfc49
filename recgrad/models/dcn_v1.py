"""DCN: a cross network beside an MLP.

Wang et al. 2017, https://arxiv.org/abs/1708.05123

    x_{l+1} = x_0·⟨w_l, x_l⟩ + b_l + x_l,   y = linear(final([x_L, deep(x_0)]))

```
          ┌──▶ cross ──┐
group x ──┤            ├──▶ final ──▶ logits
          └──▶ deep ───┘
```
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from recgrad.models.base import MODELS, Model, only_group
from recgrad.models.group_needs import ONE_DEEP, GroupNeeds
from recgrad.models.inputs import Inputs
from recgrad.nn.cross import Cross, CrossSettings
from recgrad.nn.mlp import MLP, MLPSettings
from recgrad.nn.output_layer import OutputLayer


@MODELS.register("dcn_v1")
class DCNV1(Model):
    """Deep & cross network over one group."""

    reads: ClassVar[GroupNeeds | None] = ONE_DEEP

    def build(self, *, cross: CrossSettings, deep: MLPSettings, final: MLPSettings) -> None:
        """Make the layers.

        Args:
            cross: arguments of `Cross`.
            deep: arguments of the MLP beside it.
            final: arguments of the MLP over both.
        """
        self.group = only_group(self)
        width = self.groups.dim(self.group)
        self.cross = Cross(width, **cross)
        self.deep = MLP(width, **deep)
        self.final = MLP(width + self.deep.out_features, **final)
        self.output = OutputLayer(self.final.out_features, self.tasks[0].num_logits)

    def predict(self, inputs: Inputs) -> dict[str, Tensor]:
        """The logits."""
        x = inputs[self.group]
        return self.head(self.output(self.final(torch.cat([self.cross(x), self.deep(x)], dim=1))))
