"""Wide & Deep: a linear model of ids beside an MLP of embeddings.

Cheng et al. 2016, https://arxiv.org/abs/1606.07792

    y = Σ wide + linear(deep(x))                     without `final`
    y = linear(final([Σ wide, deep(x)]))             with `final`

```
wide ──▶ Σ ────────┐
                   ├──▶ (+ or final) ──▶ logits
deep ──▶ MLP ──────┘
```
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from recgrad.models.base import MODELS, Model
from recgrad.models.group_needs import GroupNeeds
from recgrad.models.inputs import Inputs
from recgrad.nn.mlp import MLP, MLPSettings
from recgrad.nn.output_layer import OutputLayer


@MODELS.register("wide_and_deep")
class WideAndDeep(Model):
    """Wide & Deep over the groups `wide` (WIDE) and `deep`.

    With several classes and no `final`, one linear layer over [Σ wide, deep] gives the logits,
    since a sum that all classes share would cancel in the softmax.
    """

    reads: ClassVar[GroupNeeds | None] = GroupNeeds({"wide": "WIDE", "deep": "DEEP"})

    def build(self, *, deep: MLPSettings, final: MLPSettings | None = None) -> None:
        """Make the layers.

        Args:
            deep: arguments of the MLP over the deep group.
            final: arguments of the MLP over both parts; none adds them up.
        """
        self.deep = MLP(self.groups.dim("deep"), **deep)
        classes = self.tasks[0].num_logits
        self.adds_up = final is None and classes == 1
        width = self.deep.out_features + (0 if self.adds_up else 1)
        self.final = MLP(width, **(final or {}))
        self.output = OutputLayer(self.final.out_features, classes)

    def predict(self, inputs: Inputs) -> dict[str, Tensor]:
        """The logits."""
        wide = inputs["wide"].sum(1, keepdim=True)
        deep = self.deep(inputs["deep"])
        if self.adds_up:
            return self.head(wide + self.output(deep))
        return self.head(self.output(self.final(torch.cat([wide, deep], dim=1))))
