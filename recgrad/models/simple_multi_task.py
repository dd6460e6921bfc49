"""Simple multi-task: one tower for each task on the same embeddings.

    y_t = tower_t(x)

```
            ┌──▶ tower 1 ──▶ logits_1
group x ────┼──▶ tower 2 ──▶ logits_2
            └──▶ …
```
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from torch import Tensor

from recgrad.models.base import MODELS, only_group
from recgrad.models.group_needs import ONE_DEEP, GroupNeeds
from recgrad.models.inputs import Inputs
from recgrad.models.multi_task import MultiTask, TaskTowerSettings


@MODELS.register("simple_multi_task")
class SimpleMultiTask(MultiTask):
    """Towers over one group, sharing nothing but embeddings."""

    reads: ClassVar[GroupNeeds | None] = ONE_DEEP

    def build(self, *, towers: Sequence[TaskTowerSettings] | None = None) -> None:
        """Make the layers.

        Args:
            towers: `mlp` of each task's tower.
        """
        self.group = only_group(self)
        self.build_towers(towers, [self.groups.dim(self.group)] * len(self.tasks))

    def predict(self, inputs: Inputs) -> dict[str, Tensor]:
        """The logits of each task."""
        return self.outputs([inputs[self.group]] * len(self.tasks))
