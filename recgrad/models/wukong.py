"""WuKong: stacked factorization machines, each layer doubling the degree of the interactions.

Zhang et al. 2024, https://arxiv.org/abs/2403.02545

    X_{l+1} = layer_norm([FMB(X_l), LCB(X_l)] + residual(X_l)),   y = linear(final(flatten(X_L)))

```
dense ──▶ dense_mlp ─┐
                     ├──▶ X [fields, dim] ──▶ layer 1 ──▶ layer 2 ──▶ … ──▶ final ──▶ logits
sparse ──────────────┘
```
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from torch import Tensor, nn

from recgrad.limits import FILLED
from recgrad.models.base import MODELS
from recgrad.models.field_model import FieldModel
from recgrad.models.inputs import Inputs
from recgrad.nn.mlp import MLP, MLPSettings
from recgrad.nn.output_layer import OutputLayer
from recgrad.nn.wukong import WuKongLayer, WuKongLayerSettings


@MODELS.register("wukong")
class WuKong(FieldModel):
    """WuKong over the groups `sparse` and, if any, `dense`."""

    def build(
        self,
        *,
        wukong_layers: Annotated[Sequence[WuKongLayerSettings], FILLED],
        final: MLPSettings,
        dense_mlp: MLPSettings | None = None,
    ) -> None:
        """Make the layers.

        Args:
            wukong_layers: arguments of each `WuKongLayer`.
            final: arguments of the last MLP.
            dense_mlp: arguments of the MLP over the dense group; ends as wide as an embedding.
        """
        if not wukong_layers:
            raise ValueError("wukong_layers must have at least one layer, got none")
        self.build_fields(dense_mlp)
        self.layers = nn.Sequential()
        fields = self.fields
        for arguments in wukong_layers:
            layer = WuKongLayer(fields, self.dim, **arguments)
            self.layers.append(layer)
            fields = layer.out_fields
        self.final = MLP(fields * self.dim, **final)
        self.output = OutputLayer(self.final.out_features, self.tasks[0].num_logits)

    def predict(self, inputs: Inputs) -> dict[str, Tensor]:
        """The logits."""
        fields, _ = self.split(inputs)
        return self.head(self.output(self.final(self.layers(fields).flatten(1))))
