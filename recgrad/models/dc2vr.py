"""DC2VR: towers that are corrected for the towers of the tasks before them.

    h_t = mlp_t(x_t),   o_t = dropout((h_t R − sg([o_a, o_b, …]) S) Rᵀ + h_t),   y_t = linear(o_t)

with a, b, … the `intervention_tower_names` of t, sg(·) without gradient, and matrices R and S of low_rank_dim
columns that are orthonormal at all times: within the subspace of R the tower is compared with what the
others know. A tower without low_rank_dim has o_t = h_t. The correction is that of Wu et al. 2024,
https://arxiv.org/abs/2404.03592, for representations of language models.

```
group ─▶ (bottom_mlp) ─▶ (experts, gates) ─┬─▶ mlp 1 ─▶ o_1 ──────────────────▶ logits_1
                                           │             │ sg
                                           └─▶ mlp 2 ─▶ correction ─▶ o_2 ────▶ logits_2
```
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from recgrad.models.base import MODELS, only_group
from recgrad.models.group_needs import ONE_DEEP, GroupNeeds
from recgrad.models.inputs import Inputs
from recgrad.models.multi_task import MultiTask
from recgrad.nn.mlp import MLP, MLPSettings
from recgrad.nn.moe import MMoE
from recgrad.nn.orthonormal import Orthonormal
from recgrad.nn.output_layer import OutputLayer


class InterventionTower(nn.Module):
    """A task's MLP, its correction (if any) and its output layer.

    Args:
        in_features: width of the input.
        source: width of the outputs that it is corrected for; 0 for no correction.
        num_logits: width of the output layer.
        mlp: arguments of the MLP; none for none.
        low_rank_dim: columns of R and S.
        dropout_ratio: after the correction.
    """

    def __init__(
        self,
        in_features: int,
        source: int,
        num_logits: int,
        mlp: Mapping[str, Any] | None,
        low_rank_dim: int,
        dropout_ratio: float,
    ) -> None:
        super().__init__()
        self.mlp = MLP(in_features, **(mlp or {}))
        self.out_features = self.mlp.out_features
        self.corrects = source > 0
        if self.corrects:
            self.of_own = Orthonormal(self.out_features, low_rank_dim)
            self.of_source = Orthonormal(source, low_rank_dim)
            self.dropout = nn.Dropout(dropout_ratio)
        self.output = OutputLayer(self.out_features, num_logits)

    def forward(self, x: Tensor, source: Sequence[Tensor]) -> Tensor:
        """o of the task's input and of the o of the towers that it is corrected for."""
        hidden: Tensor = self.mlp(x)
        if not self.corrects:
            return hidden
        basis = self.of_own()
        other = torch.cat([o.detach() for o in source], dim=1) @ self.of_source()
        corrected: Tensor = self.dropout((hidden @ basis - other) @ basis.t() + hidden)
        return corrected


@MODELS.register("dc2vr")
class DC2VR(MultiTask):
    """Towers corrected for the tasks before, over one group."""

    reads: ClassVar[GroupNeeds | None] = ONE_DEEP

    def build(
        self,
        *,
        towers: Sequence[Mapping[str, Any]],
        bottom_mlp: MLPSettings | None = None,
        expert_mlp: MLPSettings | None = None,
        gate_mlp: MLPSettings | None = None,
        num_expert: int = 3,
    ) -> None:
        """Make the layers.

        Args:
            towers: `mlp`, `intervention_tower_names`, `low_rank_dim` and `dropout_ratio` of each tower.
            bottom_mlp: arguments of the MLP that all tasks share; none for none.
            expert_mlp: arguments of an expert's MLP; none for no experts.
            gate_mlp: arguments of the MLP before a gate's linear layer.
            num_expert: number of experts.
        """
        if gate_mlp is not None and expert_mlp is None:
            raise ValueError("gate_mlp needs an expert_mlp, got none")
        given = self.given_towers(towers)
        self.group = only_group(self)
        self.bottom = MLP(self.groups.dim(self.group), **(bottom_mlp or {}))
        width = self.bottom.out_features
        self.mixture = None
        if expert_mlp is not None:
            self.mixture = MMoE(width, expert_mlp, num_expert, len(self.tasks), gate_mlp)
            width = self.mixture.out_features
        names = [task.name for task in self.tasks]
        self.sources: list[list[int]] = []
        made: list[InterventionTower] = []
        for number, (task, tower) in enumerate(zip(self.tasks, given, strict=True)):
            self.sources.append(_sources(names[:number], task.name, tower))
            made.append(
                InterventionTower(
                    width,
                    sum(made[i].out_features for i in self.sources[-1]),
                    task.num_logits,
                    tower.get("mlp"),
                    tower.get("low_rank_dim") or 0,
                    tower.get("dropout_ratio", 0.1),
                )
            )
        self.towers = nn.ModuleList(made)

    def predict(self, inputs: Inputs) -> dict[str, Tensor]:
        """The logits of each task."""
        x = self.bottom(inputs[self.group])
        of_task = [x] * len(self.tasks) if self.mixture is None else self.mixture(x).unbind(1)
        done: list[Tensor] = []
        logits: dict[str, Tensor] = {}
        for task, tower, own, sources in zip(self.tasks, self.towers, of_task, self.sources, strict=True):
            assert isinstance(tower, InterventionTower)
            done.append(tower(own, [done[i] for i in sources]))
            logits.update(self.head(tower.output(done[-1]), task))
        return logits


def _sources(before: Sequence[str], name: str, tower: Mapping[str, Any]) -> list[int]:
    """The numbers of the towers that a tower is corrected for."""
    sources = list(tower.get("intervention_tower_names", ()))
    for other in sources:
        if other not in before:
            raise ValueError(f"intervention_tower_names of '{name}' must be towers before it, got '{other}'")
    if bool(sources) != bool(tower.get("low_rank_dim")):
        missing = "low_rank_dim" if sources else "intervention_tower_names"
        raise ValueError(
            f"low_rank_dim and intervention_tower_names of '{name}' go together; {missing} is missing"
        )
    return [before.index(other) for other in sources]
