"""EulerNet: products of fields to learned powers, as sums of complex logarithms.

Tian et al. 2023, https://arxiv.org/abs/2304.10711

    z_j = μ_j·e^{i·v_j},   z ← Euler layers (`recgrad.nn.euler`),   y = linear(Re z) + linear(Im z)

with one linear layer for both parts.

```
dense ──▶ dense_mlp ──┐
                      ├──▶ v ──▶ μ·cos v, μ·sin v ──▶ Euler layer ──▶ … ──▶ linear of both, added ──▶ logits
sparse ───────────────┘
```
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from recgrad.limits import Count, Share
from recgrad.models.base import MODELS
from recgrad.models.field_model import FieldModel
from recgrad.models.inputs import Inputs
from recgrad.nn.euler import EulerLayer
from recgrad.nn.mlp import MLPSettings
from recgrad.nn.output_layer import OutputLayer


@MODELS.register("eulernet")
class EulerNet(FieldModel):
    """EulerNet over the groups `sparse` and, if any, `dense`."""

    def build(
        self,
        *,
        layer_sizes: Sequence[Count],
        dense_mlp: MLPSettings | None = None,
        use_ln: bool = False,
        explicit_dropout_ratio: Share = 0.0,
        implicit_dropout_ratio: Share = 0.0,
    ) -> None:
        """Make the layers.

        Args:
            layer_sizes: order vectors of each layer.
            dense_mlp: arguments of the MLP over the dense group; ends as wide as an embedding.
            use_ln: layer norms after each layer.
            explicit_dropout_ratio: dropout of logarithms and arguments.
            implicit_dropout_ratio: dropout before linear layers.
        """
        if not layer_sizes:
            raise ValueError("layer_sizes must have at least one size, got none")
        self.build_fields(dense_mlp)
        self.modulus = nn.Parameter(torch.ones(self.fields, 1))
        self.layers = nn.ModuleList(
            EulerLayer(
                before,
                after,
                self.dim,
                use_ln=use_ln,
                explicit_dropout=explicit_dropout_ratio,
                implicit_dropout=implicit_dropout_ratio,
            )
            for before, after in pairwise([self.fields, *layer_sizes])
        )
        self.output = OutputLayer(layer_sizes[-1] * self.dim, self.tasks[0].num_logits)
        nn.init.xavier_normal_(self.output.weight)

    def predict(self, inputs: Inputs) -> dict[str, Tensor]:
        """The logits."""
        fields, _ = self.split(inputs)
        real, imaginary = self.modulus * torch.cos(fields), self.modulus * torch.sin(fields)
        for layer in self.layers:
            real, imaginary = layer(real, imaginary)
        return self.head(self.output(real.flatten(1)) + self.output(imaginary.flatten(1)))
