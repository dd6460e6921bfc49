"""DCN V2: a low-rank cross network, before or beside an MLP.

Wang et al. 2021, https://arxiv.org/abs/2008.13535

    x_{l+1} = x_0 ∘ (V_l U_l x_l + b_l) + x_l,   y = linear(final([x_L, deep(x)]))

```
          ┌──▶ (backbone) ──▶ cross ──┐
group x ──┤                           ├──▶ final ──▶ logits
          └──▶ (deep) ────────────────┘
```
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from recgrad.models.base import MODELS, Model, only_group
from recgrad.models.group_needs import ONE_DEEP, GroupNeeds
from recgrad.models.inputs import Inputs
from recgrad.nn.cross import CrossV2, CrossV2Settings
from recgrad.nn.mlp import MLP, MLPSettings
from recgrad.nn.output_layer import OutputLayer


@MODELS.register("dcn_v2")
class DCNV2(Model):
    """Deep & cross network V2 over one group."""

    reads: ClassVar[GroupNeeds | None] = ONE_DEEP

    def build(
        self,
        *,
        cross: CrossV2Settings,
        final: MLPSettings,
        backbone: MLPSettings | None = None,
        deep: MLPSettings | None = None,
    ) -> None:
        """Make the layers.

        Args:
            cross: arguments of `CrossV2`.
            final: arguments of the last MLP.
            backbone: arguments of an MLP before the cross network; none for none.
            deep: arguments of an MLP beside it, on the group itself; none for none.
        """
        self.group = only_group(self)
        width = self.groups.dim(self.group)
        self.backbone = MLP(width, **(backbone or {}))
        self.cross = CrossV2(self.backbone.out_features, **cross)
        self.deep = None if deep is None else MLP(width, **deep)
        beside = 0 if self.deep is None else self.deep.out_features
        self.final = MLP(self.cross.out_features + beside, **final)
        self.output = OutputLayer(self.final.out_features, self.tasks[0].num_logits)

    def predict(self, inputs: Inputs) -> dict[str, Tensor]:
        """The logits."""
        x = inputs[self.group]
        crossed = self.cross(self.backbone(x))
        if self.deep is not None:
            crossed = torch.cat([crossed, self.deep(x)], dim=1)
        return self.head(self.output(self.final(crossed)))
