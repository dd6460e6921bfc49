"""AutoInt: self-attention over fields.

Song et al. 2019, https://arxiv.org/abs/1810.11921

    v_m ← relu([Σ_k softmax_k(⟨Q_h v_m, K_h v_k⟩) · V_h v_k over heads h] + R v_m),  attention_layers times
    y = linear([v_1, …, v_n, deep(x)]) + Σ wide

`deep` makes it AutoInt+.

```
dense ──▶ dense_mlp ──┐         ┌──▶ attention ──▶ attention ──▶ … ──┐
                      ├──▶ v ───┤                                    ├──▶ linear ──▶ logits
sparse ───────────────┘         └──▶ (deep) ─────────────────────────┤
(wide) ──▶ Σ ────────────────────────────────────────────────────────┘
```
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from recgrad.limits import Count, Share
from recgrad.models.base import MODELS
from recgrad.models.field_model import FieldModel
from recgrad.models.group_needs import GroupNeeds
from recgrad.models.inputs import Inputs
from recgrad.nn.field_attention import FieldAttention
from recgrad.nn.mlp import MLP, MLPSettings


@MODELS.register("autoint")
class AutoInt(FieldModel):
    """AutoInt over the groups `sparse` and, if any, `dense` and `wide`."""

    reads: ClassVar[GroupNeeds | None] = GroupNeeds(
        {"sparse": "DEEP"}, {"dense": "DEEP", "wide": "WIDE"}, alone="DEEP"
    )

    def build(
        self,
        *,
        dense_mlp: MLPSettings | None = None,
        attention_layers: Count = 3,
        attention_dim: Count = 64,
        num_heads: Count = 2,
        use_residual: bool = True,
        use_scale: bool = False,
        dropout_ratio: Share = 0.0,
        deep: MLPSettings | None = None,
    ) -> None:
        """Make the layers.

        Args:
            dense_mlp: arguments of the MLP over the dense group; ends as wide as an embedding.
            attention_layers: number of layers.
            attention_dim: width of a field after a layer, all heads together.
            num_heads: heads of each layer.
            use_residual: add a linear map of a layer's input to its output.
            use_scale: divide products by the root of a head's width.
            dropout_ratio: share of attention weights dropped.
            deep: arguments of an MLP beside the attention (AutoInt+); none for none.
        """
        self.build_fields(dense_mlp)
        widths = [self.dim, *[attention_dim] * attention_layers]
        self.attention = nn.Sequential(
            *(
                FieldAttention(
                    width,
                    attention_dim,
                    num_heads,
                    use_residual=use_residual,
                    use_scale=use_scale,
                    dropout=dropout_ratio,
                )
                for width in widths[:-1]
            )
        )
        self.deep = None if deep is None else MLP(self.fields * self.dim, **deep)
        beside = 0 if self.deep is None else self.deep.out_features
        self.build_output(self.fields * attention_dim + beside)

    def predict(self, inputs: Inputs) -> dict[str, Tensor]:
        """The logits."""
        fields, _ = self.split(inputs)
        x = self.attention(fields).flatten(1)
        if self.deep is not None:
            x = torch.cat([x, self.deep(fields.flatten(1))], dim=1)
        return self.logits(x, inputs)
