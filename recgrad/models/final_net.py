"""FINAL (FinalNet): layers that multiply two linear maps, in one block or two.

Zhu et al. 2023, https://doi.org/10.1145/3539618.3591988

    a, b = linear(x),   layer(x) = act(norm([a, a∘b]))  or  act(norm(a + a∘b))
    y = linear(block1([v, gate(v)∘v]))                          without `block2`
    y = ½(y₁ + y₂),   y₂ = linear(block2(v))                    with `block2`

With two blocks each learns from their mean too: the loss of y₁ and of y₂ against the prediction of y,
through which no gradient flows, is added in training (`distillation` in the log).

```
dense ──▶ dense_mlp ──┐         ┌──▶ (field gate) ──▶ block1 ──▶ y₁ ──┐
                      ├──▶ v ───┤                                     ├──▶ mean ──▶ logits
sparse ───────────────┘         └──▶ (block2) ────────────────▶ y₂ ──┘
```
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from recgrad.models.base import MODELS
from recgrad.models.field_model import FieldModel
from recgrad.models.inputs import Inputs
from recgrad.nn.factorized import FactorizedMLP, FieldGate, ResidualType
from recgrad.nn.output_layer import OutputLayer

STREAMS = ("stream1", "stream2")


@MODELS.register("final_net")
class FinalNet(FieldModel):
    """FINAL over the groups `sparse` and, if any, `dense`."""

    def build(
        self,
        *,
        block1: Mapping[str, Any],
        block2: Mapping[str, Any] | None = None,
        dense_mlp: Mapping[str, Any] | None = None,
        use_field_gate: bool = True,
        residual_type: ResidualType = "concat",
    ) -> None:
        """Make the layers.

        Args:
            block1: arguments of the first block's layers, as an MLP has them.
            block2: arguments of the second block's; none for one block.
            dense_mlp: arguments of the MLP over the dense group; ends as wide as an embedding.
            use_field_gate: the first block sees the gated fields beside the fields.
            residual_type: concat or sum, see `FactorizedMLP`.
        """
        self.build_fields(dense_mlp)
        width, classes = self.fields * self.dim, self.tasks[0].num_logits
        self.gate = FieldGate(self.fields) if use_field_gate else None
        first = 2 * width if use_field_gate else width
        self.block1 = FactorizedMLP(first, residual_type=residual_type, **block1)
        self.output1 = OutputLayer(self.block1.out_features, classes)
        self.block2 = None
        if block2 is not None:
            self.block2 = FactorizedMLP(width, residual_type=residual_type, **block2)
            self.output2 = OutputLayer(self.block2.out_features, classes)

    def predict(self, inputs: Inputs) -> dict[str, Tensor]:
        """The logits; in training those of both blocks too."""
        fields, _ = self.split(inputs)
        gated = fields if self.gate is None else self.gate(fields)
        first = self.output1(self.block1(gated.flatten(1)))
        if self.block2 is None:
            return self.head(first)
        second = self.output2(self.block2(fields.flatten(1)))
        outputs = self.head(0.5 * (first + second))
        return {**outputs, **dict(zip(STREAMS, (first, second), strict=True))} if self.training else outputs

    def own_losses(self, outputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """How far each of two blocks is from their mean."""
        if STREAMS[0] not in outputs:
            return {}
        logits = outputs[self.tasks[0].logits].detach().float()
        losses = self.tasks[0].losses
        terms = []
        for stream in (outputs[name].float() for name in STREAMS):
            if losses and losses[0].predicts == "values":
                terms.append(F.mse_loss(stream.squeeze(1), logits, reduction="sum"))
            elif logits.dim() == 1:
                terms.append(
                    F.binary_cross_entropy_with_logits(
                        stream.squeeze(1), torch.sigmoid(logits), reduction="sum"
                    )
                )
            else:
                terms.append(F.cross_entropy(stream, torch.softmax(logits, dim=1), reduction="sum"))
        return {"distillation": (terms[0] + terms[1]) / max(logits.shape[0], 1)}
