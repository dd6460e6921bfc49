"""MMoE: experts shared by all tasks, mixed by a gate of each task.

Ma et al. 2018, https://doi.org/10.1145/3219819.3220007

    x_t = Σ_e softmax(gate_t(x))_e · expert_e(x),   y_t = tower_t(x_t)

```
          ┌─▶ expert 1 ─┐
group x ──┼─▶ expert 2 ─┼─▶ Σ by gate_t(x) ──▶ tower_t ──▶ logits_t     for each task t
          └─▶ …        ─┘
```
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from torch import Tensor

from recgrad.limits import Parts
from recgrad.models.base import MODELS, only_group
from recgrad.models.group_needs import ONE_DEEP, GroupNeeds
from recgrad.models.inputs import Inputs
from recgrad.models.multi_task import MultiTask, TaskTowerSettings
from recgrad.nn.mlp import MLPSettings
from recgrad.nn.moe import MMoE as Mixture


@MODELS.register("mmoe")
class MMoE(MultiTask):
    """Multi-gate mixture of experts over one group."""

    reads: ClassVar[GroupNeeds | None] = ONE_DEEP

    def build(
        self,
        *,
        expert_mlp: MLPSettings,
        num_expert: Parts = 3,
        gate_mlp: MLPSettings | None = None,
        towers: Sequence[TaskTowerSettings] | None = None,
    ) -> None:
        """Make the layers.

        Args:
            expert_mlp: arguments of an expert's MLP.
            num_expert: number of experts.
            gate_mlp: arguments of the MLP before a gate's linear layer; none for linear gates.
            towers: `mlp` of each task's tower.
        """
        self.group = only_group(self)
        tasks = len(self.tasks)
        self.mixture = Mixture(self.groups.dim(self.group), expert_mlp, num_expert, tasks, gate_mlp)
        self.build_towers(towers, [self.mixture.out_features] * tasks)

    def predict(self, inputs: Inputs) -> dict[str, Tensor]:
        """The logits of each task."""
        return self.outputs(self.mixture(inputs[self.group]).unbind(1))
