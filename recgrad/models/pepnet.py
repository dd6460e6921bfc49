"""PEPNet: embeddings scaled for the domain, hidden layers scaled for the user.

Chang et al. 2023, https://arxiv.org/abs/2302.01115

    x = all ∘ γ·sigmoid(gate([domain, all]))                               EPNet
    h_{l+1} = act(linear_l(h_l)) ∘ γ·sigmoid(gate_l([uia, x])),  h_0 = x   PPNet, for each task

```
domain ──▶ gate ──┐
all ──────────────∘──▶ x ──▶ layer ──∘──▶ layer ──∘──▶ tower ──▶ logits     for each task
uia (user, item, author) ──▶ gates ──┴────────────┘
```
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn

from recgrad.data.batch import Batch
from recgrad.errors import ConfigError, DataError
from recgrad.limits import Count, Share
from recgrad.models.base import MODELS
from recgrad.models.batch_ids import PreparedBatch
from recgrad.models.group_needs import GroupNeeds
from recgrad.models.inputs import Inputs
from recgrad.models.multi_task import MultiTask, TaskTower, TaskTowerSettings
from recgrad.nn.gate import EmbeddingGate, GatedMLP


@MODELS.register("pepnet")
class PEPNet(MultiTask):
    """PEPNet over the groups `all`, and where they exist `domain` (EPNet) and `uia` (PPNet).

    With `domain_input_name` each task has a tower for each domain. The logits of domain i are
    `logits_<task>_<i>`; `logits_<task>` are those of the row's own domain, the label field of
    that name, where the batch has it.
    """

    reads: ClassVar[GroupNeeds | None] = GroupNeeds({"all": "DEEP"}, {"domain": "DEEP", "uia": "DEEP"})

    def build(
        self,
        *,
        towers: Sequence[TaskTowerSettings] | None = None,
        epnet_hidden_unit: int | None = None,
        epnet_gamma: float = 2.0,
        ppnet_hidden_units: Sequence[Count] = (),
        ppnet_activation: str = "nn.ReLU",
        ppnet_dropout_ratio: Sequence[Share] = (),
        ppnet_gamma: float = 2.0,
        domain_input_name: str | None = None,
        task_domain_num: Count = 1,
    ) -> None:
        """Make the layers.

        Args:
            towers: `mlp` of each task's tower.
            epnet_hidden_unit: hidden width of EPNet's gate; as wide as `all` by default.
            epnet_gamma: largest factor of EPNet.
            ppnet_hidden_units: widths of PPNet's layers.
            ppnet_activation: their activation.
            ppnet_dropout_ratio: their dropout.
            ppnet_gamma: largest factor of PPNet.
            domain_input_name: the label field with the row's domain, 0 … task_domain_num − 1.
            task_domain_num: number of domains.
        """
        given = self.given_towers(towers)
        self._check(epnet_hidden_unit, ppnet_hidden_units, domain_input_name, task_domain_num)
        width = self.groups.dim("all")
        self.epnet = None
        if "domain" in self.groups:
            hidden = epnet_hidden_unit or width
            self.epnet = EmbeddingGate(width, self.groups.dim("domain"), hidden, epnet_gamma)
        self.ppnets = None
        if "uia" in self.groups:
            prior = self.groups.dim("uia")
            self.ppnets = nn.ModuleList(
                GatedMLP(width, prior, ppnet_hidden_units, ppnet_activation, ppnet_dropout_ratio, ppnet_gamma)
                for _ in self.tasks
            )
            width = ppnet_hidden_units[-1]
        self.domain_input_name, self.domains = domain_input_name, task_domain_num
        if domain_input_name is None:
            self.build_towers(given, [width] * len(self.tasks))
            return
        self.towers = nn.ModuleList(
            nn.ModuleList(TaskTower(width, task.num_logits, tower.get("mlp")) for _ in range(task_domain_num))
            for task, tower in zip(self.tasks, given, strict=True)
        )

    def _check(
        self, epnet_hidden: int | None, ppnet_hidden: Sequence[int], domain: str | None, domains: int
    ) -> None:
        if epnet_hidden is not None and "domain" not in self.groups:
            raise ConfigError("model_config.pepnet.epnet_hidden_unit: needs a feature group 'domain'")
        if bool(ppnet_hidden) != ("uia" in self.groups):
            raise ConfigError("model_config.pepnet: ppnet_hidden_units and a feature group 'uia' go together")
        if domain is None and domains != 1:
            raise ConfigError("model_config.pepnet.task_domain_num: needs a domain_input_name")

    def forward(self, batch: Batch, ids: PreparedBatch | None = None) -> dict[str, Tensor]:
        """The logits of each task."""
        outputs = super().forward(batch, ids)
        if self.domain_input_name is None or self.domain_input_name not in batch.labels:
            return outputs
        domain = batch.labels[self.domain_input_name].long()
        if domain.numel() and not 0 <= int(domain.min()) <= int(domain.max()) < self.domains:
            raise DataError(
                f"label {self.domain_input_name}: domains go from 0 to {self.domains - 1} (task_domain_num), "
                f"got {int(domain.min())} to {int(domain.max())}"
            )
        rows = torch.arange(domain.shape[0], device=domain.device)
        for task in self.tasks:
            every = torch.stack([outputs[f"{task.logits}_{i}"] for i in range(self.domains)], dim=1)
            outputs[task.logits] = every[rows, domain]
        return outputs

    def predict(self, inputs: Inputs) -> dict[str, Tensor]:
        """The logits of each task, or of each task in each domain."""
        x = inputs["all"] if self.epnet is None else self.epnet(inputs["all"], inputs["domain"])
        if self.ppnets is None:
            of_task = [x] * len(self.tasks)
        else:
            of_task = [ppnet(x, inputs["uia"]) for ppnet in self.ppnets]
        if self.domain_input_name is None:
            return self.outputs(of_task)
        logits: dict[str, Tensor] = {}
        for task, towers, own in zip(self.tasks, self.towers, of_task, strict=True):
            assert isinstance(towers, nn.ModuleList)
            for i, tower in enumerate(towers):
                logits[f"{task.logits}_{i}"] = self.head(tower(own), task)[task.logits]
        return logits
