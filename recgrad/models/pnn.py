"""PNN: fields and products of fields before an MLP.

Qu et al. 2016, https://arxiv.org/abs/1611.00144, and 2018, https://arxiv.org/abs/1807.00311

    p = ⟨v_i, v_j⟩ i<j  (inner),   p = (Σv)(Σv)ᵀ  (outer),   p = v_iᵀ W_ij v_j i<j  (kernel)
    y = linear(final([v_1, …, v_n, p]))

```
dense ──▶ dense_mlp ──┐         ┌──▶ products ──┐
                      ├──▶ v ───┤               ├──▶ final ──▶ logits
sparse ───────────────┘         └───────────────┘
```
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from recgrad.models.base import MODELS
from recgrad.models.field_model import FieldModel
from recgrad.models.inputs import Inputs
from recgrad.nn.bilinear import PairProducts
from recgrad.nn.interaction import DotInteraction
from recgrad.nn.mlp import MLP, MLPSettings
from recgrad.nn.output_layer import OutputLayer


class OuterProduct(nn.Module):
    """(Σv)(Σv)ᵀ of fields v [rows, fields, dim], as [rows, dim²]: the sum of all outer products."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.out_features = dim * dim

    def forward(self, fields: Tensor) -> Tensor:
        """The product."""
        total = fields.sum(1)
        return (total.unsqueeze(2) * total.unsqueeze(1)).flatten(1)


class KernelProducts(PairProducts):
    """v_iᵀ W_ij v_j for all i < j of fields v [rows, fields, dim], as [rows, pairs]."""

    def __init__(self, fields: int, dim: int) -> None:
        super().__init__(fields, dim)
        self.dim, self.out_features = dim, self.out_features // dim

    def forward(self, fields: Tensor) -> Tensor:
        """The products."""
        return super().forward(fields).view(-1, self.out_features, self.dim).sum(2)


@MODELS.register("pnn")
class PNN(FieldModel):
    """Product-based network over the groups `sparse` and, if any, `dense`."""

    def build(
        self,
        *,
        final: MLPSettings,
        dense_mlp: MLPSettings | None = None,
        product_type: Literal["inner", "outer", "kernel"] = "inner",
    ) -> None:
        """Make the layers.

        Args:
            final: arguments of the MLP over fields and products.
            dense_mlp: arguments of the MLP over the dense group; ends as wide as an embedding.
            product_type: inner products of pairs (IPNN), the outer product of the sum (OPNN), or
                products of pairs by a matrix of each (KPNN).
        """
        self.build_fields(dense_mlp)
        self.products: DotInteraction | OuterProduct | KernelProducts
        if product_type == "inner":
            self.products = DotInteraction(self.fields)
        elif product_type == "outer":
            self.products = OuterProduct(self.dim)
        else:
            self.products = KernelProducts(self.fields, self.dim)
        self.final = MLP(self.fields * self.dim + self.products.out_features, **final)
        self.output = OutputLayer(self.final.out_features, self.tasks[0].num_logits)

    def predict(self, inputs: Inputs) -> dict[str, Tensor]:
        """The logits."""
        fields, _ = self.split(inputs)
        x = torch.cat([fields.flatten(1), self.products(fields)], dim=1)
        return self.head(self.output(self.final(x)))
