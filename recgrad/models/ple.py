"""PLE: experts of each task beside shared ones, extracted layer after layer.

Tang et al. 2020, https://doi.org/10.1145/3383313.3412236

    x_t' = Σ_e softmax(gate_t(x_t))_e · [own experts of t, shared experts]_e
    x_s' = Σ_e softmax(gate_s(x_s))_e · [experts of all tasks, shared experts]_e

```
              ┌─▶ experts of task 1 ─▶ gate 1 ─▶ … ─▶ tower 1 ─▶ logits_1
group x ──────┼─▶ shared experts ────▶ gate s ─▶ …
              └─▶ experts of task 2 ─▶ gate 2 ─▶ … ─▶ tower 2 ─▶ logits_2
               extraction_networks[0]           [1] …
```
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar

from torch import Tensor, nn

from recgrad.limits import FILLED
from recgrad.models.base import MODELS, only_group
from recgrad.models.group_needs import ONE_DEEP, GroupNeeds
from recgrad.models.inputs import Inputs
from recgrad.models.multi_task import MultiTask, TaskTowerSettings
from recgrad.nn.moe import ExtractionLayer, ExtractionSettings


@MODELS.register("ple")
class PLE(MultiTask):
    """Progressive layered extraction over one group."""

    reads: ClassVar[GroupNeeds | None] = ONE_DEEP

    def build(
        self,
        *,
        extraction_networks: Annotated[Sequence[ExtractionSettings], FILLED],
        towers: Sequence[TaskTowerSettings] | None = None,
    ) -> None:
        """Make the layers.

        Args:
            extraction_networks: `network_name` and the arguments of `ExtractionLayer`, layer by layer.
            towers: `mlp` of each task's tower.
        """
        self.group = only_group(self)
        shared = self.groups.dim(self.group)
        widths = [shared] * len(self.tasks)
        self.networks = nn.ModuleDict()
        for i, given in enumerate(extraction_networks):
            arguments = dict(given)
            name = arguments.pop("network_name", f"layer{i}")
            if name in self.networks:
                raise ValueError(f"extraction_networks must have names of their own, got '{name}' twice")
            last = i == len(extraction_networks) - 1
            layer = ExtractionLayer(widths, shared, last=last, **arguments)
            self.networks[name] = layer
            widths = [layer.out_features] * len(self.tasks)
            shared = layer.out_features if layer.shared_gate is not None else shared
        self.build_towers(towers, widths)

    def predict(self, inputs: Inputs) -> dict[str, Tensor]:
        """The logits of each task."""
        shared = inputs[self.group]
        tasks = [shared] * len(self.tasks)
        for network in self.networks.values():
            tasks, shared = network(tasks, shared)
        return self.outputs(tasks)
