"""Multi-tower: one MLP for each feature group, joined by a final MLP.

    y = linear(final([mlp_1(group_1), mlp_2(group_2), …]))

```
group_1 ──▶ MLP ──┐
group_2 ──▶ MLP ──┼──▶ final ──▶ logits
   …              │
din group ▶ DIN ──┘   (multi_tower_din only)
```
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, TypedDict

import torch
from torch import Tensor, nn

from recgrad.limits import FILLED
from recgrad.models.base import MODELS, Model
from recgrad.models.group_needs import DeepInput
from recgrad.models.inputs import Inputs
from recgrad.nn.mlp import MLP, MLPSettings
from recgrad.nn.output_layer import OutputLayer


class TowerSettings(TypedDict, total=False):
    """A tower over a group."""

    input: DeepInput
    mlp: MLPSettings


@MODELS.register("multi_tower")
class MultiTower(Model):
    """One MLP for each tower's group; a tower without `mlp` passes its group on as it is."""

    def build(self, *, towers: Annotated[Sequence[TowerSettings], FILLED], final: MLPSettings) -> None:
        """Make the layers.

        Args:
            towers: `input` (a group's name) and `mlp` (arguments of its MLP) of each tower.
            final: arguments of the MLP over all towers.
        """
        self.build_towers(towers, final)

    def build_towers(self, towers: Sequence[TowerSettings], final: MLPSettings, more: int = 0) -> None:
        """Towers, the MLP over them and `more` further columns, and the output layer."""
        self.inputs = [tower["input"] for tower in towers]
        twice = [name for name in self.inputs if self.inputs.count(name) > 1]
        if twice:
            raise ValueError(f"towers must have inputs of their own, got '{twice[0]}' twice")
        self.tower_mlps = nn.ModuleList(
            MLP(self.groups.dim(tower["input"]), **tower.get("mlp", {})) for tower in towers
        )
        width = more + sum(mlp.out_features for mlp in self.tower_mlps if isinstance(mlp, MLP))
        self.final = MLP(width, **final)
        self.output = OutputLayer(self.final.out_features, self.tasks[0].num_logits)

    def tower_outputs(self, inputs: Inputs) -> list[Tensor]:
        """The output of each tower."""
        return [mlp(inputs[name]) for name, mlp in zip(self.inputs, self.tower_mlps, strict=True)]

    def predict(self, inputs: Inputs) -> dict[str, Tensor]:
        """The logits."""
        return self.head(self.output(self.final(torch.cat(self.tower_outputs(inputs), dim=1))))
