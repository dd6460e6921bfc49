"""DLRM: dot products of all pairs of embeddings.

Naumov et al. 2019, https://arxiv.org/abs/1906.00091

    d = dense_mlp(dense),  v = [d, v_1, …, v_n],  y = linear(final([⟨v_i, v_j⟩ i<j, d, v_1 … v_n]))

```
dense ──▶ dense_mlp ──▶ d ─┬────────────────────────────┐
                           ├──▶ dot products of pairs ──┼──▶ final ──▶ logits
sparse ──▶ v_1 … v_n ──────┴──(arch_with_sparse)────────┘
```
"""

from __future__ import annotations

import torch
from torch import Tensor

from recgrad.models.base import MODELS
from recgrad.models.field_model import FieldModel
from recgrad.models.inputs import Inputs
from recgrad.nn.interaction import DotInteraction
from recgrad.nn.mlp import MLP, MLPSettings
from recgrad.nn.output_layer import OutputLayer


@MODELS.register("dlrm")
class DLRM(FieldModel):
    """DLRM over the groups `sparse` and, if any, `dense`."""

    def build(
        self,
        *,
        final: MLPSettings,
        dense_mlp: MLPSettings | None = None,
        arch_with_sparse: bool = True,
    ) -> None:
        """Make the layers.

        Args:
            final: arguments of the last MLP.
            dense_mlp: arguments of the MLP over the dense group; ends as wide as an embedding.
            arch_with_sparse: embeddings themselves go into the last MLP, beside their products.
        """
        self.build_fields(dense_mlp)
        self.arch_with_sparse = arch_with_sparse
        self.interaction = DotInteraction(self.fields)
        width = self.interaction.out_features + (self.dim if self.dense_mlp is not None else 0)
        width += self.sparse_fields * self.dim if arch_with_sparse else 0
        self.final = MLP(width, **final)
        self.output = OutputLayer(self.final.out_features, self.tasks[0].num_logits)

    def predict(self, inputs: Inputs) -> dict[str, Tensor]:
        """The logits."""
        fields, dense = self.split(inputs)
        columns = [self.interaction(fields)]
        if self.arch_with_sparse:
            # All fields side by side are the dense one and the embeddings already.
            columns.append(fields.flatten(1))
        elif dense is not None:
            columns.append(dense)
        return self.head(self.output(self.final(torch.cat(columns, dim=1))))
