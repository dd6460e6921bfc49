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

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from recgrad.models.base import MODELS, Model
from recgrad.models.inputs import Inputs
from recgrad.nn.mlp import MLP


@MODELS.register("multi_tower")
class MultiTower(Model):
    """One MLP for each tower's group; a tower without `mlp` passes its group on as it is."""

    def build(self, *, towers: Sequence[Mapping[str, Any]], final: Mapping[str, Any]) -> None:
        """Make the layers.

        Args:
            towers: `input` (a group's name) and `mlp` (arguments of its MLP) of each tower.
            final: arguments of the MLP over all towers.
        """
        if not towers:
            raise ValueError("towers must have at least one tower, got none")
        self.build_towers(towers, final)

    def build_towers(
        self, towers: Sequence[Mapping[str, Any]], final: Mapping[str, Any], more: int = 0
    ) -> None:
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
        self.output = nn.Linear(self.final.out_features, self.tasks[0].num_logits)

    def tower_outputs(self, inputs: Inputs) -> list[Tensor]:
        """The output of each tower."""
        return [mlp(inputs[name]) for name, mlp in zip(self.inputs, self.tower_mlps, strict=True)]

    def predict(self, inputs: Inputs) -> dict[str, Tensor]:
        """The logits."""
        return self.head(self.output(self.final(torch.cat(self.tower_outputs(inputs), dim=1))))
