"""ESMM: the probabilities of a chain of events, each learned on all rows.

Ma et al. 2018, https://arxiv.org/abs/1804.07931

    p_1 = σ(tower_1(x)),   p_t = p_{t−1}·σ(tower_t(x))

Tower t gives the probability of its event among rows that had the one before (a purchase after a click);
what is learned, on every row, is the product p_t, the probability of the event itself. So the label of
a later tower is 0 wherever that of an earlier one is. Prediction writes both: `probs_<tower>` is p_t, and
`probs_<tower>_given_<tower before>` the factor.

```
            ┌──▶ tower 1 ──▶ p(click) ─────────────┬─────▶ logits_1
group x ────┤                                      ×
            └──▶ tower 2 ──▶ p(purchase | click) ──┴─────▶ logits_2
```
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from torch import Tensor

from recgrad.models.base import MODELS, only_group
from recgrad.models.group_needs import ONE_DEEP, GroupNeeds
from recgrad.models.inputs import Inputs
from recgrad.models.multi_task import MultiTask, TaskTowerSettings


def logit_of_product(a: Tensor, b: Tensor) -> Tensor:
    """log(pq / (1 − pq)) for p = σ(a), q = σ(b), exact for logits of any size.

    1/(pq) − 1 = e^{−a} + e^{−b} + e^{−a−b}.
    """
    return -torch.logsumexp(torch.stack([-a, -b, -a - b]), dim=0)


@MODELS.register("esmm")
class ESMM(MultiTask):
    """Entire-space multi-task model over one group: towers in the order of the events."""

    reads: ClassVar[GroupNeeds | None] = ONE_DEEP

    def build(self, *, towers: Sequence[TaskTowerSettings] | None = None) -> None:
        """Make the layers.

        Args:
            towers: `mlp` of each task's tower.
        """
        if len(self.tasks) < 2:
            raise ValueError(f"task_towers must be at least 2 events, got {len(self.tasks)}")
        self.probabilities_only()
        self.group = only_group(self)
        self.build_towers(towers, [self.groups.dim(self.group)] * len(self.tasks))

    def predict(self, inputs: Inputs) -> dict[str, Tensor]:
        """The logits of each event, and of each but the first given the one before."""
        own = list(self.outputs([inputs[self.group]] * len(self.tasks)).values())
        outputs, given = {self.tasks[0].logits: own[0]}, {}
        for before, task, logits in zip(self.tasks, self.tasks[1:], own[1:], strict=False):
            outputs[task.logits] = logit_of_product(outputs[before.logits], logits)
            given[f"{task.logits}_given_{before.name}"] = logits
        return {**outputs, **given}

    def own_predictions(self, outputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The probability of each event but the first among rows that had the one before."""
        names = {
            f"{task.suffix}_given_{before.name}"
            for before, task in zip(self.tasks, self.tasks[1:], strict=False)
        }
        return {f"probs{name}": torch.sigmoid(outputs[f"logits{name}"]) for name in sorted(names)}
