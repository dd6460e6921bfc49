"""DBMTL: task towers that see the towers of the tasks they depend on.

Wang et al. 2019, https://arxiv.org/abs/1902.09154

    h_t = mlp_t(x_t),   r_t = relation_mlp_t([h_t, r_a, r_b, …]),   y_t = linear(r_t)

with a, b, … the `relation_tower_names` of t.

```
group ─▶ (mask_net) ─▶ (bottom_mlp) ─▶ (experts, gates) ─┬─▶ mlp 1 ───────────▶ r_1 ─▶ logits_1
                                                         │                       │
                                                         └─▶ mlp 2 ─▶ relation ◀─┘
                                                                        └─▶ r_2 ─▶ logits_2
```
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from recgrad.limits import Parts
from recgrad.models.base import MODELS, only_group
from recgrad.models.group_needs import ONE_DEEP, GroupNeeds
from recgrad.models.inputs import Inputs
from recgrad.models.multi_task import MultiTask, TaskTowerSettings
from recgrad.nn.mask import MaskNet, MaskNetSettings
from recgrad.nn.mlp import MLP, MLPSettings
from recgrad.nn.moe import MMoE
from recgrad.nn.output_layer import OutputLayer


class RelationTower(nn.Module):
    """A task's MLP, the MLP over it and the towers it depends on, and its output layer."""

    def __init__(
        self,
        in_features: int,
        related: int,
        num_logits: int,
        mlp: Mapping[str, Any] | None,
        relation_mlp: Mapping[str, Any] | None,
    ) -> None:
        super().__init__()
        self.mlp = MLP(in_features, **(mlp or {}))
        self.relation = MLP(self.mlp.out_features + related, **(relation_mlp or {}))
        self.out_features = self.relation.out_features
        self.output = OutputLayer(self.out_features, num_logits)

    def forward(self, x: Tensor, related: Sequence[Tensor]) -> Tensor:
        """r_t of the task's input and of the r of the towers it depends on."""
        hidden = self.mlp(x)
        return self.relation(torch.cat([hidden, *related], dim=1) if related else hidden)  # type: ignore[no-any-return]


class RelationTowerSettings(TaskTowerSettings, total=False):
    """A tower that builds on others."""

    relation_tower_names: Sequence[str]
    relation_mlp: MLPSettings


@MODELS.register("dbmtl")
class DBMTL(MultiTask):
    """Deep Bayesian multi-target learning over one group."""

    reads: ClassVar[GroupNeeds | None] = ONE_DEEP

    def build(
        self,
        *,
        towers: Sequence[RelationTowerSettings],
        mask_net: MaskNetSettings | None = None,
        bottom_mlp: MLPSettings | None = None,
        expert_mlp: MLPSettings | None = None,
        gate_mlp: MLPSettings | None = None,
        num_expert: Parts = 3,
    ) -> None:
        """Make the layers.

        Args:
            towers: `mlp`, `relation_tower_names` and `relation_mlp` of each task's tower.
            mask_net: arguments of `recgrad.nn.mask.MaskNet`, before everything; none for none.
            bottom_mlp: arguments of the MLP that all tasks share; none for none.
            expert_mlp: arguments of an expert's MLP; none for no experts.
            gate_mlp: arguments of the MLP before a gate's linear layer.
            num_expert: number of experts.
        """
        if gate_mlp is not None and expert_mlp is None:
            raise ValueError("gate_mlp needs an expert_mlp, got none")
        given = self.given_towers(towers)
        self.group = only_group(self)
        width = self.groups.dim(self.group)
        self.mask_net = None if mask_net is None else MaskNet(width, **mask_net)
        width = width if self.mask_net is None else self.mask_net.out_features
        self.bottom = MLP(width, **(bottom_mlp or {}))
        width = self.bottom.out_features
        self.mixture = None
        if expert_mlp is not None:
            self.mixture = MMoE(width, expert_mlp, num_expert, len(self.tasks), gate_mlp)
            width = self.mixture.out_features
        names = [task.name for task in self.tasks]
        self.related = [_related(names, name, tower) for name, tower in zip(names, given, strict=True)]
        self.order = _order(names, self.related)
        made: dict[int, RelationTower] = {}
        for i in self.order:
            beside = sum(made[j].out_features for j in self.related[i])
            tower = given[i]
            made[i] = RelationTower(
                width, beside, self.tasks[i].num_logits, tower.get("mlp"), tower.get("relation_mlp")
            )
        self.towers = nn.ModuleList(made[i] for i in range(len(names)))

    def predict(self, inputs: Inputs) -> dict[str, Tensor]:
        """The logits of each task."""
        x = inputs[self.group]
        x = self.bottom(x if self.mask_net is None else self.mask_net(x))
        of_task = [x] * len(self.tasks) if self.mixture is None else self.mixture(x).unbind(1)
        relations: dict[int, Tensor] = {}
        for i in self.order:
            relations[i] = self.towers[i](of_task[i], [relations[j] for j in self.related[i]])
        logits: dict[str, Tensor] = {}
        for i, (task, tower) in enumerate(zip(self.tasks, self.towers, strict=True)):
            assert isinstance(tower, RelationTower)
            logits.update(self.head(tower.output(relations[i]), task))
        return logits


def _related(names: Sequence[str], name: str, tower: Mapping[str, Any]) -> list[int]:
    """The numbers of the towers that a tower depends on."""
    related = list(tower.get("relation_tower_names", ()))
    for other in related:
        if other not in names:
            raise ValueError(f"relation_tower_names of '{name}' must be towers, got '{other}'")
    if related and tower.get("relation_mlp") is None:
        raise ValueError(f"relation_tower_names of '{name}' need a relation_mlp, got none")
    return [names.index(other) for other in related]


def _order(names: Sequence[str], related: Sequence[Sequence[int]]) -> list[int]:
    """Towers in an order in which each follows those it depends on."""
    done: list[int] = []
    while len(done) < len(names):
        ready = [i for i in range(len(names)) if i not in done and set(related[i]) <= set(done)]
        if not ready:
            circle = ", ".join(name for i, name in enumerate(names) if i not in done)
            raise ValueError(f"relation_tower_names must not go in a circle, got one among {circle}")
        done += ready
    return done
