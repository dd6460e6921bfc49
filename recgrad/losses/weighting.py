"""Weights of rows and of tasks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.distributed as dist
from google.protobuf.message import Message
from torch import Tensor

from recgrad.config.messages import to_kwargs
from recgrad.ranks import sum_, world_size


def normalize_weights(weights: Tensor, group: dist.ProcessGroup | None = None) -> Tensor:
    """w / mean(w), the mean over the rows of all ranks; zeros when all weights are 0.

    A collective when several processes train together: every rank calls it for every
    batch, also with no rows.
    """
    total = torch.stack(
        [weights.sum(dtype=torch.float64), weights.new_tensor(weights.numel(), dtype=torch.float64)]
    )
    total = sum_(total.detach(), group)
    mean = total[0] / total[1].clamp_min(1)
    return torch.where(mean == 0, torch.zeros_like(weights), weights / mean.to(weights.dtype))


def total_rows(rows: int, group: dist.ProcessGroup | None = None) -> int:
    """The rows of all ranks; a collective, as `normalize_weights` is."""
    return int(sum_(torch.tensor(float(rows), dtype=torch.float64), group))


def mean_share(values: int, rows: int, group: dist.ProcessGroup | None = None) -> float:
    """The factor of this rank's mean of so many values with which the mean by rows is that of all values.

    A collective, as `normalize_weights` is: values · Σ rows / (rows · Σ values) over the ranks.
    """
    if world_size(group) == 1:
        return 1.0
    total = sum_(torch.tensor([float(values), float(rows)], dtype=torch.float64), group)
    return float(values * total[1] / (max(rows, 1) * total[0].clamp_min(1)))


def task_space_weights(indicator: Tensor, inside: float, outside: float) -> Tensor:
    """`inside` for rows whose indicator label is above 0, `outside` for the rest, [rows]."""
    return torch.where(indicator.reshape(-1) > 0, inside, outside)


@dataclass(frozen=True)
class TaskWeighting:
    """How one task of a multi-task model weighs its rows and itself.

    Row weights are sample weight × task-space weight, not normalised: a Loss does that.
    The task's loss is then multiplied by `weight`.

    Attributes:
        weight: factor of the task's loss.
        sample_weight_name: field of the sample weights.
        task_space_indicator_label: label that is above 0 for rows inside the task's space,
            such as the clicked rows of a conversion task.
        in_task_space_weight: weight of the rows inside.
        out_task_space_weight: weight of the rows outside.
        pareto_min_loss_weight: least weight of the task when Pareto weights are in use.
    """

    weight: float = 1.0
    sample_weight_name: str | None = None
    task_space_indicator_label: str | None = None
    in_task_space_weight: float = 1.0
    out_task_space_weight: float = 1.0
    pareto_min_loss_weight: float = 0.0

    @classmethod
    def from_config(cls, tower: Message) -> TaskWeighting:
        """The fields of a TaskTower, BayesTaskTower, InterventionTaskTower or FusionSubTaskConfig."""
        kwargs = to_kwargs(tower)
        return cls(**{name: kwargs[name] for name in cls.__dataclass_fields__ if name in kwargs})

    def rows(self, labels: Mapping[str, Tensor], sample_weights: Mapping[str, Tensor]) -> Tensor | None:
        """The weights of a batch's rows, [rows], or None when every row counts the same."""
        weights = None
        if self.sample_weight_name:
            weights = sample_weights[self.sample_weight_name].reshape(-1)
        if self.task_space_indicator_label:
            space = task_space_weights(
                labels[self.task_space_indicator_label], self.in_task_space_weight, self.out_task_space_weight
            )
            weights = space if weights is None else weights * space
        return weights
