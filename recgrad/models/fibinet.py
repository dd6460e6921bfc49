"""FiBiNET: fields weighed by their importance, and bilinear products of all pairs.

Huang et al. 2019, https://arxiv.org/abs/1905.09433

    a = relu(W₂ relu(W₁ z)),  z_i = mean(v_i),  u_i = a_i·v_i
    y = linear(deep([(v_i W) ∘ v_j, (u_i W') ∘ u_j for i < j])) + Σ wide

```
dense ──▶ dense_mlp ──┐         ┌──▶ pairs (v_i W) ∘ v_j ──────────────────────┐
                      ├──▶ v ───┤                                              ├──▶ (deep) ──▶ logits
sparse ───────────────┘         └──▶ × importance ──▶ pairs (u_i W') ∘ u_j ────┘        │
(wide) ──▶ Σ ───────────────────────────────────────────────────────────────────────────┘
```
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from recgrad.limits import Count
from recgrad.models.base import MODELS
from recgrad.models.field_model import FieldModel
from recgrad.models.group_needs import GroupNeeds
from recgrad.models.inputs import Inputs
from recgrad.nn.bilinear import BilinearType, PairProducts
from recgrad.nn.mlp import MLP, MLPSettings


class FieldImportance(nn.Module):
    """Fields times a weight of each, relu(W₂ relu(W₁ z)) of the fields' means z (SENET).

    Args:
        fields: number of fields.
        hidden: width between W₁ and W₂.
    """

    def __init__(self, fields: int, hidden: int) -> None:
        super().__init__()
        self.squeeze = nn.Linear(fields, hidden, bias=False)
        self.expand = nn.Linear(hidden, fields, bias=False)

    def forward(self, fields: Tensor) -> Tensor:
        """[rows, fields, dim], weighed."""
        weights = F.relu(self.expand(F.relu(self.squeeze(fields.mean(2)))))
        return fields * weights.unsqueeze(2)


@MODELS.register("fibinet")
class FiBiNET(FieldModel):
    """FiBiNET over the groups `sparse` and, if any, `dense` and `wide`."""

    reads: ClassVar[GroupNeeds | None] = GroupNeeds(
        {"sparse": "DEEP"}, {"dense": "DEEP", "wide": "WIDE"}, alone="DEEP"
    )

    def build(
        self,
        *,
        dense_mlp: MLPSettings | None = None,
        bilinear_type: BilinearType = "field_interaction",
        reduction_ratio: Count = 3,
        deep: MLPSettings | None = None,
    ) -> None:
        """Make the layers.

        Args:
            dense_mlp: arguments of the MLP over the dense group; ends as wide as an embedding.
            bilinear_type: one matrix for all pairs, for each first field, or for each pair.
            reduction_ratio: fields over the hidden width of the importance.
            deep: arguments of the MLP over all products; none for none.
        """
        self.build_fields(dense_mlp)
        self.importance = FieldImportance(self.fields, max(1, self.fields // reduction_ratio))
        self.pairs = PairProducts(self.fields, self.dim, bilinear_type)
        self.weighed_pairs = PairProducts(self.fields, self.dim, bilinear_type)
        self.deep = MLP(2 * self.pairs.out_features, **(deep or {}))
        self.build_output(self.deep.out_features)

    def predict(self, inputs: Inputs) -> dict[str, Tensor]:
        """The logits."""
        fields, _ = self.split(inputs)
        products = [self.pairs(fields), self.weighed_pairs(self.importance(fields))]
        return self.logits(self.deep(torch.cat(products, dim=1)), inputs)
