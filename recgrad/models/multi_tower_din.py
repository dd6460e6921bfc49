"""Multi-tower with Deep Interest Networks: attention of the candidate over the user's history.

Zhou et al. 2018, https://arxiv.org/abs/1706.06978

    din(q, s) = Σ_t softmax_t(mlp([q, s_t, q − s_t, q∘s_t])) · s_t
    y = linear(final([mlp_1(group_1), …, din_1(q, s), …]))

```
group_1 ────────────────────────▶ MLP ──┐
   …                                    ├──▶ final ──▶ logits
sequence group ▶ query, sequence ▶ DIN ─┘
```
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

import torch
from torch import Tensor, nn

from recgrad.models.base import MODELS
from recgrad.models.group_needs import SequenceInput
from recgrad.models.inputs import Inputs
from recgrad.models.multi_tower import MultiTower, TowerSettings
from recgrad.nn.encoders.din import DINEncoder
from recgrad.nn.mlp import MLPSettings


class DINTowerSettings(TypedDict):
    """Attention over a sequence group."""

    input: SequenceInput
    attn_mlp: MLPSettings


@MODELS.register("multi_tower_din")
class MultiTowerDIN(MultiTower):
    """MLP towers over DEEP groups and DIN towers over SEQUENCE groups."""

    def build(
        self,
        *,
        towers: Sequence[TowerSettings],
        final: MLPSettings,
        din_towers: Sequence[DINTowerSettings] = (),
    ) -> None:
        """Make the layers.

        Args:
            towers: `input` (a group's name) and `mlp` (arguments of its MLP) of each tower.
            final: arguments of the MLP over all towers.
            din_towers: `input` (a sequence group's name) and `attn_mlp` of each DIN.
        """
        if not [*towers, *din_towers]:
            raise ValueError("towers and din_towers must have at least one tower, got none")
        self.din_inputs = [tower["input"] for tower in din_towers]
        self.dins = nn.ModuleList(
            DINEncoder(
                self.groups.query_dim(tower["input"]),
                self.groups.sequence_dim(tower["input"]),
                tower["attn_mlp"],
            )
            for tower in din_towers
        )
        self.build_towers(towers, final, sum(self.groups.sequence_dim(name) for name in self.din_inputs))

    def predict(self, inputs: Inputs) -> dict[str, Tensor]:
        """The logits."""
        outputs = self.tower_outputs(inputs)
        for name, din in zip(self.din_inputs, self.dins, strict=True):
            given = inputs.sequences[name]
            outputs.append(din(given.query, given.sequence, given.lengths))
        return self.head(self.output(self.final(torch.cat(outputs, dim=1))))
