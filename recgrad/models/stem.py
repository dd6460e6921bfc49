"""STEM: experts of each task over tables of its own, open to other tasks without gradients.

Su et al. 2024, https://arxiv.org/abs/2308.13537

    E_t = experts_t(x_t),  E_s = experts_s(x_s)
    h_t = Σ softmax(gate_t([x_t, x_s])) · [sg(E_1), …, E_t, …, sg(E_n), E_s],   y_t = tower_t(h_t)

with sg(·) without gradient: all experts help a task forwards, and a task's gradients reach only its own
experts and tables, and the shared ones. The paper's gates add x_t and x_s; here they stand side by side,
so that groups may differ.

```
group of task 1 ──▶ experts 1 ──┬──────────▶ Σ by gate 1 ──▶ tower 1 ──▶ logits_1
group `shared`  ──▶ experts s ──┼──▶ both
group of task 2 ──▶ experts 2 ──┴──────────▶ Σ by gate 2 ──▶ tower 2 ──▶ logits_2
```
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from recgrad.limits import Count
from recgrad.models.base import MODELS
from recgrad.models.inputs import Inputs
from recgrad.models.multi_task import MultiTask, TaskTowerSettings
from recgrad.nn.mlp import MLP, MLPSettings
from recgrad.nn.moe import Experts

SHARED = "shared"


class StemGate(nn.Sequential):
    """softmax of a linear layer over an MLP (if any).

    Args:
        in_features: width of the input.
        experts: number of weights.
        mlp: arguments of the MLP; none for none.
    """

    def __init__(self, in_features: int, experts: int, mlp: Mapping[str, Any] | None) -> None:
        hidden = MLP(in_features, **(mlp or {}))
        super().__init__(hidden, nn.Linear(hidden.out_features, experts), nn.Softmax(dim=1))


@MODELS.register("stem")
class STEM(MultiTask):
    """STEM over the group `shared` and a group of each tower's name, with tables of its own."""

    def build(
        self,
        *,
        expert_mlp: MLPSettings,
        num_task_expert: Count = 1,
        num_shared_expert: Count = 1,
        gate_mlp: MLPSettings | None = None,
        towers: Sequence[TaskTowerSettings] | None = None,
    ) -> None:
        """Make the layers.

        Args:
            expert_mlp: arguments of an expert's MLP.
            num_task_expert: experts of each task.
            num_shared_expert: shared experts.
            gate_mlp: arguments of the MLP before a gate's linear layer; none for linear gates.
            towers: `mlp` of each task's tower.
        """
        names = [task.name for task in self.tasks]
        if odd := [group for group in self.groups.plan.rows if group not in (*names, SHARED)]:
            raise ValueError(f"feature_groups must be those of the tasks and '{SHARED}', got '{odd[0]}'")
        for name in names:
            self._own_tables(name)
        widths = {name: self.groups.dim(name) for name in (*names, SHARED)}
        self.experts = nn.ModuleList(Experts(num_task_expert, widths[name], **expert_mlp) for name in names)
        self.shared = Experts(num_shared_expert, widths[SHARED], **expert_mlp)
        every = num_task_expert * len(names) + num_shared_expert
        self.gates = nn.ModuleList(StemGate(widths[name] + widths[SHARED], every, gate_mlp) for name in names)
        self.build_towers(towers, [self.shared.out_features] * len(names))

    def _own_tables(self, name: str) -> None:
        """Refuse a task's group that has tables in common with another group."""
        if name == SHARED:
            raise ValueError(f"task_towers must not be called '{SHARED}', the name of the common group")
        rows = self.groups.plan.rows
        if name not in rows:
            return  # asking for its width says what is missing
        tables = self.groups.plan.tables_of(name)
        for other in rows:
            common = tables & self.groups.plan.tables_of(other) if other != name else set()
            if common:
                raise ValueError(
                    f"the group '{name}' must have tables of its own, got '{min(common)}', which '{other}' "
                    "has too; give each an embedding_name_suffix"
                )

    def predict(self, inputs: Inputs) -> dict[str, Tensor]:
        """The logits of each task."""
        own = [experts(inputs[task.name]) for experts, task in zip(self.experts, self.tasks, strict=True)]
        shared, common = inputs[SHARED], self.shared(inputs[SHARED])
        mixed = []
        for number, (gate, task) in enumerate(zip(self.gates, self.tasks, strict=True)):
            seen = [experts if i == number else experts.detach() for i, experts in enumerate(own)]
            weights = gate(torch.cat([inputs[task.name], shared], dim=1))
            mixed.append(torch.bmm(weights.unsqueeze(1), torch.cat([*seen, common], dim=1)).squeeze(1))
        return self.outputs(mixed)
