"""ONN: an embedding of its own for each partner of a product.

Yang et al. 2019, https://arxiv.org/abs/1904.12579

A field of n fields has n vectors: e_i(i) is copied, e_i(j) meets field j.

    y = linear(final([e_1(1), …, e_n(n), ⟨e_i(j), e_j(i)⟩ i<j]))

So fields are n times as wide as a vector, and tables n times as large as those of `pnn`.

```
dense ──▶ dense_mlp ──┐                     ┌──▶ e_i(i) ──────────────┐
                      ├──▶ e [n, n, dim] ───┤                         ├──▶ final ──▶ logits
sparse ───────────────┘                     └──▶ ⟨e_i(j), e_j(i)⟩ ────┘
```
"""

from __future__ import annotations

import torch
from torch import Tensor

from recgrad.models.base import MODELS
from recgrad.models.field_model import FieldModel
from recgrad.models.inputs import Inputs
from recgrad.nn.mlp import MLP, MLPSettings
from recgrad.nn.output_layer import OutputLayer


@MODELS.register("onn")
class ONN(FieldModel):
    """Operation-aware network over the groups `sparse` and, if any, `dense`."""

    pairs: Tensor

    def build(self, *, final: MLPSettings, dense_mlp: MLPSettings | None = None) -> None:
        """Make the layers.

        Args:
            final: arguments of the MLP over copies and products.
            dense_mlp: arguments of the MLP over the dense group; ends as wide as an embedding.
        """
        self.build_fields(dense_mlp)
        if self.dim % self.fields:
            raise ValueError(
                f"fields must be a multiple of their number {self.fields} wide, one vector for each, "
                f"got {self.dim}; set their embedding_dim to {self.fields} times the width of a vector"
            )
        first, second = torch.triu_indices(self.fields, self.fields, offset=1)
        self.register_buffer("pairs", first * self.fields + second, persistent=False)
        self.final = MLP(self.dim + len(first), **final)
        self.output = OutputLayer(self.final.out_features, self.tasks[0].num_logits)

    def predict(self, inputs: Inputs) -> dict[str, Tensor]:
        """The logits."""
        fields, _ = self.split(inputs)
        vectors = fields.reshape(-1, self.fields, self.fields, self.dim // self.fields)
        copies = vectors.diagonal(dim1=1, dim2=2).transpose(1, 2).flatten(1)
        products = (vectors * vectors.transpose(1, 2)).sum(3).flatten(1).index_select(1, self.pairs)
        return self.head(self.output(self.final(torch.cat([copies, products], dim=1))))
