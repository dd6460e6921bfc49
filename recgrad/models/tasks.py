"""What a model predicts: its tasks, as losses, metrics and the trainer see them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from recgrad.config.proto.loss_pb2 import LossConfig
from recgrad.config.proto.metric_pb2 import MetricConfig, TrainMetricConfig


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
        weight: factor of the task's loss.
        sample_weight_name: the field of sample weights.
        task_space_indicator_label: rows where this label is above 0 are in the task's space.
        in_task_space_weight: factor of the loss of rows in the space.
        out_task_space_weight: factor of the loss of the other rows.
        pareto_min_loss_weight: least weight under Pareto weighting.
        retrieval: logits [rows, 1 + negatives] are similarities with the true item in column 0, so
            the label is 0 for every row and `label_name` is not read.
    """

    name: str = ""
    label_name: str = ""
    losses: Sequence[LossConfig] = ()
    metrics: Sequence[MetricConfig] = ()
    train_metrics: Sequence[TrainMetricConfig] = ()
    num_class: int = 1
    num_logits: int = 1
    weight: float = 1.0
    sample_weight_name: str | None = None
    task_space_indicator_label: str | None = None
    in_task_space_weight: float = 1.0
    out_task_space_weight: float = 1.0
    pareto_min_loss_weight: float = 0.0
    retrieval: bool = False

    @property
    def suffix(self) -> str:
        """What follows names of this task's outputs and metrics: "" or "_<name>"."""
        return f"_{self.name}" if self.name else ""

    @property
    def logits(self) -> str:
        """The key of its logits in a model's output."""
        return f"logits{self.suffix}"
