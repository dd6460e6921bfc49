"""xDeepFM: a compressed interaction network beside an MLP.

Lian et al. 2018, https://arxiv.org/abs/1803.05170

    x_{l+1}[o] = Σ_{h,f} W_l[o,h,f]·(x_l[h] ∘ x_0[f]),   y = linear(final([Σ_dim x_1, …, deep(x)]))

```
wide ──▶ x_0 [fields, wide_embedding_dim] ──▶ CIN ──┐
                                                    ├──▶ final ──▶ logits
deep ──▶ MLP ───────────────────────────────────────┘
```
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from recgrad.models.base import MODELS, Model
from recgrad.models.group_needs import GroupNeeds
from recgrad.models.inputs import Inputs
from recgrad.nn.cin import CIN, CINSettings
from recgrad.nn.fm import split_fields
from recgrad.nn.mlp import MLP, MLPSettings
from recgrad.nn.output_layer import OutputLayer


@MODELS.register("xdeepfm")
class XDeepFM(Model):
    """xDeepFM over the groups `wide` (WIDE, the CIN's fields) and `deep`."""

    reads: ClassVar[GroupNeeds | None] = GroupNeeds({"wide": "WIDE", "deep": "DEEP"})

    def build(self, *, cin: CINSettings, deep: MLPSettings, final: MLPSettings) -> None:
        """Make the layers.

        Args:
            cin: arguments of `CIN`.
            deep: arguments of the MLP over the deep group.
            final: arguments of the MLP over both.
        """
        self.dim = self.groups.field_dim("wide")
        self.cin = CIN(len(self.groups.widths("wide")), **cin)
        self.deep = MLP(self.groups.dim("deep"), **deep)
        self.final = MLP(self.cin.out_features + self.deep.out_features, **final)
        self.output = OutputLayer(self.final.out_features, self.tasks[0].num_logits)

    def predict(self, inputs: Inputs) -> dict[str, Tensor]:
        """The logits."""
        products = self.cin(split_fields(inputs["wide"], self.dim))
        return self.head(self.output(self.final(torch.cat([products, self.deep(inputs["deep"])], dim=1))))
