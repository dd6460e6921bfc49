"""What a model predicts: its tasks, as losses, metrics and the trainer see them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from recgrad.errors import ConfigError
from recgrad.losses import CUSTOM, Loss
from recgrad.losses.weighting import TaskWeighting
from recgrad.metrics.base import Metric


@dataclass(frozen=True)
class TaskSpec:
    """One thing that a model predicts.

    Attributes:
        name: "" for models of one task, else the tower's name.
        label_name: the label's field.
        losses: losses on its logits, added up.
        metrics: metrics of evaluation.
        train_metrics: metrics of training.
        num_class: classes; 1 for a single logit.
        num_logits: width of the output: num_class, or more when a loss needs more.
        weighting: how it weighs its rows and itself.
        training_only: it helps to train another task: evaluation and prediction leave it out.
        whole_model: the losses and metrics are the model's, although it has a name.
        retrieval: logits [rows, 1 + negatives] are similarities with the true item in column 0, so
            the label is 0 for every row and `label_name` is not read.
        bitmask: the label is whether one of these bits of the column is set; 0 takes it as it is.
    """

    name: str = ""
    label_name: str = ""
    losses: Sequence[Loss] = ()
    metrics: Sequence[Metric] = ()
    train_metrics: Sequence[Metric] = ()
    num_class: int = 1
    num_logits: int = 1
    weighting: TaskWeighting = field(default_factory=TaskWeighting)
    training_only: bool = False
    whole_model: bool = False
    retrieval: bool = False
    bitmask: int = 0

    @property
    def suffix(self) -> str:
        """What follows names of this task's outputs and metrics: "" or "_<name>"."""
        return f"_{self.name}" if self.name else ""

    @property
    def logits(self) -> str:
        """The key of its logits in a model's output."""
        return f"logits{self.suffix}"


def loss_names(spec: TaskSpec) -> list[str]:
    """What the log calls the losses of a task: their config names, the user's own by their class."""
    names: list[str] = []
    for loss in spec.losses:
        own = loss.config_name == CUSTOM
        name = f"{type(loss).__name__ if own else loss.config_name}{spec.suffix}"
        if name in names:
            raise ConfigError(f"model_config: loss '{name}' is configured twice; keep one")
        names.append(name)
    return names
