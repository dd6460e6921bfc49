"""GDCN: a cross network whose crosses pass a gate, beside an MLP or before it.

Wang et al. 2023, https://arxiv.org/abs/2311.04635

    x_{l+1} = x_0 ∘ (W_l x_l + b_l) ∘ σ(V_l x_l) + x_l
    y = linear([x_L, deep(x_0)])  parallel,     y = linear(deep(x_L))  stacked

```
parallel   group x ──┬──▶ gated cross ──┐             stacked   group x ──▶ gated cross ──▶ deep ──▶ logits
                     └──▶ (deep) ───────┴──▶ logits
```
"""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from torch import Tensor

from recgrad.limits import Count
from recgrad.models.base import MODELS, Model, only_group
from recgrad.models.group_needs import ONE_DEEP, GroupNeeds
from recgrad.models.inputs import Inputs
from recgrad.nn.cross import GatedCross
from recgrad.nn.mlp import MLP, MLPSettings
from recgrad.nn.output_layer import OutputLayer


@MODELS.register("gdcn")
class GDCN(Model):
    """Gated deep & cross network over one group."""

    reads: ClassVar[GroupNeeds | None] = ONE_DEEP

    def build(
        self,
        *,
        cross_num: Count = 3,
        deep: MLPSettings | None = None,
        structure: Literal["parallel", "stacked"] = "parallel",
    ) -> None:
        """Make the layers.

        Args:
            cross_num: number of cross layers.
            deep: arguments of the MLP; none for none.
            structure: the MLP is beside the cross network, on the group, or after it.
        """
        if structure == "stacked" and deep is None:
            raise ValueError("structure stacked needs a deep, got none")
        self.group = only_group(self)
        self.stacked = structure == "stacked"
        width = self.groups.dim(self.group)
        self.cross = GatedCross(width, cross_num)
        self.deep = None if deep is None else MLP(width, **deep)
        beside = 0 if self.deep is None else self.deep.out_features
        self.output = OutputLayer(beside if self.stacked else width + beside, self.tasks[0].num_logits)

    def predict(self, inputs: Inputs) -> dict[str, Tensor]:
        """The logits."""
        x = inputs[self.group]
        crossed = self.cross(x)
        if self.deep is not None:
            crossed = self.deep(crossed) if self.stacked else torch.cat([crossed, self.deep(x)], dim=1)
        return self.head(self.output(crossed))
