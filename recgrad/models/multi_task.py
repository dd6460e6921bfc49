"""What multi-task models share: a tower for each task, over an input for each task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from torch import Tensor, nn

from recgrad.models.base import Model
from recgrad.nn.mlp import MLP, MLPSettings
from recgrad.nn.output_layer import OutputLayer


class TaskTowerSettings(TypedDict, total=False):
    """The tower of a task."""

    mlp: MLPSettings


class TaskTower(nn.Sequential):
    """An MLP (if any) and a linear layer to the task's logits.

    Args:
        in_features: width of the input.
        num_logits: width of the output.
        mlp: arguments of the MLP; none for none.
    """

    def __init__(self, in_features: int, num_logits: int, mlp: MLPSettings | None = None) -> None:
        hidden = MLP(in_features, **(mlp or {}))
        super().__init__(hidden, OutputLayer(hidden.out_features, num_logits))


class MultiTask(Model):
    """A model with a tower for each task in `self.towers`, in the order of `self.tasks`."""

    def build_towers(self, towers: Sequence[Mapping[str, Any]] | None, widths: Sequence[int]) -> None:
        """Make the tower of each task over an input of the given width.

        Args:
            towers: `mlp` of each tower; none gives each task a linear layer.
            widths: of each task's input.
        """
        given = self.given_towers(towers)
        self.towers = nn.ModuleList(
            TaskTower(width, task.num_logits, tower.get("mlp"))
            for tower, task, width in zip(given, self.tasks, widths, strict=True)
        )

    def given_towers(self, towers: Sequence[Mapping[str, Any]] | None) -> Sequence[Mapping[str, Any]]:
        """The settings of each task's tower, none for None; refuses tasks that they do not fit."""
        names = [task.name for task in self.tasks]
        if len(set(names)) != len(names):
            # Their outputs would overwrite each other.
            raise ValueError(f"tasks must have names of their own, got {names}")
        given: Sequence[Mapping[str, Any]] = [{} for _ in names] if towers is None else towers
        if len(given) != len(names):
            raise ValueError(f"there must be a tower for each of {len(names)} tasks, got {len(given)}")
        return given

    def probabilities_only(self) -> None:
        """Refuse tasks of more than one logit, or that predict values: events have probabilities."""
        for task in self.tasks:
            if task.num_logits != 1:
                raise ValueError(f"task '{task.name}' must have one logit, got {task.num_logits}")
            for loss in task.losses:
                if loss.predicts != "probabilities":
                    raise ValueError(
                        f"task '{task.name}' must have losses of probabilities, got {loss.config_name}"
                    )

    def outputs(self, inputs: Sequence[Tensor]) -> dict[str, Tensor]:
        """The logits of all tasks from the input of each tower."""
        logits: dict[str, Tensor] = {}
        for task, tower, x in zip(self.tasks, self.towers, inputs, strict=True):
            logits.update(self.head(tower(x), task))
        return logits
