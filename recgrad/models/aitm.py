"""AITM: towers that pass on what they know along a chain of events.

Xi et al. 2021, https://arxiv.org/abs/2105.08489

    q_t = mlp_t(x),   z_1 = q_1,   u_t = relu(linear(z_{t−1}))
    z_t = Σ_{s ∈ {u_t, q_t}} softmax_s(⟨K_t s, Q_t s⟩/√d) · V_t s,   y_t = linear(z_t)

Training adds calibration_weight · mean(max(p_t − p_{t−1}, 0)) for each t: a later event is never likelier
than an earlier one (`calibration` in the log).

```
            ┌──▶ mlp 1 ──▶ z_1 ──┬──────────────▶ logits_1
group x ────┤                    ▼ u_2
            └──▶ mlp 2 ──▶ attention ──▶ z_2 ──▶ logits_2 ──▶ …
```
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from recgrad.limits import Rate
from recgrad.models.base import MODELS, only_group
from recgrad.models.group_needs import ONE_DEEP, GroupNeeds
from recgrad.models.inputs import Inputs
from recgrad.models.multi_task import MultiTask, TaskTowerSettings
from recgrad.nn.mlp import MLP
from recgrad.nn.output_layer import OutputLayer


class TransferTower(nn.Module):
    """A task's MLP, the attention over it and what the task before passed on, and the output layer.

    Args:
        in_features: width of the group.
        before: width of z of the task before; 0 for the first.
        num_logits: width of the output.
        mlp: arguments of the MLP; none for none.
    """

    def __init__(self, in_features: int, before: int, num_logits: int, mlp: Mapping[str, Any] | None) -> None:
        super().__init__()
        self.mlp = MLP(in_features, **(mlp or {}))
        self.out_features = width = self.mlp.out_features
        if before:
            self.passed = nn.Linear(before, width)
            self.project = nn.Linear(width, 3 * width)
        self.output = OutputLayer(width, num_logits)

    def forward(self, x: Tensor, before: Tensor | None) -> Tensor:
        """z of the task."""
        own: Tensor = self.mlp(x)
        if before is None:
            return own
        both = torch.stack([F.relu(self.passed(before)), own], dim=1)
        key, query, value = self.project(both).chunk(3, dim=2)
        weights = torch.softmax((key * query).sum(2, keepdim=True) / math.sqrt(self.out_features), dim=1)
        passed: Tensor = (weights * value).sum(1)
        return passed


@MODELS.register("aitm")
class AITM(MultiTask):
    """Adaptive information transfer over one group: towers in the order of the events."""

    reads: ClassVar[GroupNeeds | None] = ONE_DEEP

    def build(
        self, *, calibration_weight: Rate = 0.6, towers: Sequence[TaskTowerSettings] | None = None
    ) -> None:
        """Make the layers.

        Args:
            calibration_weight: of the loss that keeps later events from being likelier.
            towers: `mlp` of each task's tower.
        """
        given = self.given_towers(towers)
        if len(given) < 2:
            raise ValueError(f"task_towers must be at least 2 events, got {len(given)}")
        self.probabilities_only()
        self.group, self.calibration_weight = only_group(self), calibration_weight
        width, before, made = self.groups.dim(self.group), 0, []
        for task, tower in zip(self.tasks, given, strict=True):
            made.append(TransferTower(width, before, task.num_logits, tower.get("mlp")))
            before = made[-1].out_features
        self.towers = nn.ModuleList(made)

    def predict(self, inputs: Inputs) -> dict[str, Tensor]:
        """The logits of each event."""
        x, before = inputs[self.group], None
        logits: dict[str, Tensor] = {}
        for task, tower in zip(self.tasks, self.towers, strict=True):
            assert isinstance(tower, TransferTower)
            before = tower(x, before)
            logits.update(self.head(tower.output(before), task))
        return logits

    def own_losses(self, outputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """How much likelier later events are said to be than earlier ones."""
        if not self.calibration_weight:
            return {}
        probabilities = torch.sigmoid(torch.stack([outputs[task.logits].float() for task in self.tasks]))
        excess = F.relu(probabilities[1:] - probabilities[:-1]).sum()
        return {"calibration": self.calibration_weight * excess / max(probabilities.shape[1], 1)}
