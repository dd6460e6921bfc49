"""A model with its losses and metrics: what the trainer trains."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor, nn

from recgrad.data.batch import Batch
from recgrad.errors import ConfigError, DataError
from recgrad.losses.base import weighted_mean
from recgrad.losses.codes import CodeLoss
from recgrad.losses.pareto import pareto_weights
from recgrad.losses.weighting import mean_share, normalize_weights, total_rows
from recgrad.metrics.base import Metric
from recgrad.models.base import Model
from recgrad.models.batch_ids import PreparedBatch
from recgrad.models.tasks import TaskSpec, loss_names
from recgrad.optim.precision import autocast

Outputs = Mapping[str, Tensor]
_ONE_VALUE = "Expected more than 1 value per channel"  # what torch's BatchNorm says of one row


class Task(nn.Module):
    """A model with the losses and metrics of all its heads.

    Batches and metrics are on the host; the model and its losses may be on another device.
    """

    def __init__(self, model: Model, *, sample_weight_fields: Sequence[str] = ()) -> None:
        super().__init__()
        self.model = model
        self.said_sampled = False
        self.predicts_in: torch.dtype | None = (
            None  # of the dense half in evaluation; None for the weights' own
        )
        head = CodesHead if model.learns_codes else Head
        self.heads = nn.ModuleList(head(spec, sample_weight_fields) for spec in model.tasks)

    def place(self, device: torch.device) -> None:
        """Move the dense half of the model, and the losses, to a device."""
        self.model.place(device)
        self.heads.to(device)

    def forward(self, batch: Batch, ids: PreparedBatch | None = None) -> dict[str, Tensor]:
        """The model's outputs; `ids` are those of the batch, if they are on their way already."""
        try:
            with autocast(None if self.training else self.predicts_in, self.model.groups.device.type):
                outputs: dict[str, Tensor] = self.model(batch) if ids is None else self.model(batch, ids)
        except ValueError as error:
            if batch.size == 1 and str(error).startswith(_ONE_VALUE):
                raise DataError(
                    "data: a training batch has one row, and BatchNorm (use_bn, Dice) cannot train on one; "
                    "give the data more rows, or raise data_config.batch_size or batch_cost_size"
                ) from error
            raise
        if self.predicts_in is not None and not self.training:
            return {name: v.float() if v.is_floating_point() else v for name, v in outputs.items()}
        return outputs

    def losses(self, outputs: Outputs, batch: Batch) -> dict[str, Tensor]:
        """Each term by name, and what is minimised as "total": their sum, or their Pareto sum."""
        by_head = [dict(head.losses(outputs, batch)) for head in self.each_head() if head.is_in(outputs)]
        if self.model.averages_candidates and "rows" in outputs:
            share = mean_share(outputs["rows"].shape[0], batch.size)
            by_head = [{name: loss * share for name, loss in head.items()} for head in by_head]
        terms = {name: loss for head in by_head for name, loss in head.items()}
        sums = [torch.stack(list(head.values())).sum() for head in by_head if head]
        total = self._combine(sums, batch.size)
        if "regularization" in outputs:
            terms["regularization"] = outputs["regularization"]
            total = total + outputs["regularization"]
        for name, value in self.model.own_losses(outputs).items():
            terms[name] = value
            total = total + value
        for name, rows in self.model.row_losses(outputs).items():
            terms[name] = self._summed(rows, batch)
            total = total + terms[name]
        terms["total"] = total
        return terms

    def _summed(self, rows: Tensor, batch: Batch) -> Tensor:
        """The sum over the rows of all ranks, or the mean of rows with weights."""
        weights = next(self.each_head()).weighting.rows(batch.labels, batch.sample_weights)
        if weights is not None:
            return weighted_mean(rows, weights)
        return weighted_mean(rows, None) * total_rows(batch.size)

    def _combine(self, losses: Sequence[Tensor], num_rows: int) -> Tensor:
        """The sum of the tasks' losses, weighted by Pareto where the model asks for it; 0 of none."""
        if not losses:
            return torch.zeros(())
        stacked = torch.stack(list(losses))
        if not (self.model.use_pareto_loss_weight and torch.is_grad_enabled()):
            return stacked.sum()
        shared = [parameter for _, parameter in self.model.shared_named_parameters()]
        minimum = [head.weighting.pareto_min_loss_weight for head in self.each_head() if len(head.loss_terms)]
        return (stacked * pareto_weights(losses, shared, minimum, num_rows=num_rows)).sum()

    def predictions(self, outputs: Outputs) -> dict[str, Tensor]:
        """What users see: `probs` (or `y` for regression), with the task's name behind it."""
        own = {name: values for head in self.each_head() for name, values in head.predictions(outputs)}
        return {**own, **self.model.own_predictions(outputs)}

    def update_metrics(self, outputs: Outputs, batch: Batch) -> None:
        """Add a batch to the metrics of evaluation."""
        for head in self.each_head():
            head.update(head.metrics, outputs, batch)

    def compute_metrics(self) -> dict[str, float]:
        """The metrics of evaluation by name."""
        return _values((name, metric) for head in self.each_head() for name, metric in head.metrics.items())

    def metric_directions(self) -> dict[str, bool]:
        """Of each metric of evaluation that has a better end, whether it is the higher one."""
        found = ((n, m.higher_is_better) for head in self.each_head() for n, m in head.metrics.items())
        return {name: higher for name, higher in found if higher is not None}

    def reset_metrics(self) -> None:
        """Forget what the metrics of evaluation have seen."""
        for head in self.each_head():
            for metric in head.metrics.values():
                metric.reset()

    def update_train_metrics(self, outputs: Outputs, batch: Batch) -> None:
        """Add a batch to the decayed metrics of training."""
        with torch.no_grad():
            for head in self.each_head():
                head.update(head.train_metrics, outputs, batch)

    def train_metrics(self) -> dict[str, float]:
        """The decayed metrics of training by name."""
        return _values(
            (name, metric) for head in self.each_head() for name, metric in head.train_metrics.items()
        )

    def train_metrics_state(self) -> dict[str, Any]:
        """What the training metrics remember, for a checkpoint."""
        return {name: m.state_dict() for head in self.each_head() for name, m in head.train_metrics.items()}

    def load_train_metrics_state(self, state: Mapping[str, Any]) -> None:
        """Restore what `train_metrics_state` gave."""
        for head in self.each_head():
            for name, metric in head.train_metrics.items():
                metric.load_state_dict(state[name])

    def each_head(self) -> Iterator[Head]:
        """What the model predicts, task by task."""
        for head in self.heads:
            assert isinstance(head, Head)
            yield head


class Head(nn.Module):
    """The losses and metrics of one of the model's tasks."""

    def __init__(self, spec: TaskSpec, sample_weight_fields: Sequence[str]) -> None:
        super().__init__()
        self.spec = spec
        self.weighting = spec.weighting
        of_model = not spec.name or spec.whole_model
        if self.weighting.sample_weight_name is None and of_model and sample_weight_fields:
            # A model of one task takes the first sample-weight field of the data.
            self.weighting = replace(self.weighting, sample_weight_name=sample_weight_fields[0])
        self.loss_terms = nn.ModuleList(spec.losses)
        self._loss_names = loss_names(spec)
        self.metrics = _named(spec, spec.metrics)
        self.train_metrics = _named(spec, spec.train_metrics)

    def is_in(self, outputs: Outputs) -> bool:
        """Whether the model gave this head's logits: a head for training alone has none in evaluation."""
        return not self.spec.training_only or self.spec.logits in outputs

    def losses(self, outputs: Outputs, batch: Batch) -> Iterator[tuple[str, Tensor]]:
        """The loss terms of this head, by name, weighted; 0 for a batch of no rows."""
        labels = self.labels(batch, outputs)
        weights = self.weighting.rows(batch.labels, batch.sample_weights)
        if weights is not None and "rows" in outputs:
            weights = weights[outputs["rows"].to(weights.device)]
        for name, loss in zip(self._loss_names, self.spec.losses, strict=True):
            session = None if loss.session_name is None else _keys(batch, loss.session_name, outputs)
            if batch.size and (loss.over_vectors or loss.takes_vectors) and "users" in outputs:
                vectors = (outputs["users"], outputs["items"], outputs["own"])
                drawn = {name: outputs[name] for name in ("log_counts",) if name in outputs}
                rows = loss.compare_vectors(*vectors, outputs.get("own_rows"), **drawn)
                value = weighted_mean(rows, weights)
            elif batch.size:
                corrected = loss.corrects_sampling and "corrected" in outputs
                logits = outputs["corrected" if corrected else self.spec.logits]
                value = loss(logits, labels, weights=weights, session=session)
            else:
                value = outputs[self.spec.logits].sum()
                if weights is not None:
                    # Other ranks have rows, and wait for this one's part of the mean weight.
                    normalize_weights(weights.to(value.device))
            yield name, value * self.weighting.weight

    def predictions(self, outputs: Outputs) -> Iterator[tuple[str, Tensor]]:
        """The prediction by the name that users see; none of a head for training alone."""
        if self.spec.training_only:
            return
        if self.spec.retrieval:
            # The own item; the other columns are negatives, which only training and metrics need.
            yield self.prediction_name, outputs[self.spec.logits][:, 0]
        else:
            yield self.prediction_name, self._scores(outputs)

    @property
    def prediction_name(self) -> str:
        """What users see the prediction called."""
        if self.spec.retrieval:
            return f"similarity{self.spec.suffix}"
        return f"{'y' if self.spec.losses[0].predicts == 'values' else 'probs'}{self.spec.suffix}"

    def _scores(self, outputs: Outputs) -> Tensor:
        return self.spec.losses[0].predict(outputs[self.spec.logits])

    def labels(self, batch: Batch, outputs: Outputs) -> Tensor:
        """The label of each row, on the host; the first column is the true item of retrieval models."""
        if self.spec.retrieval:
            return torch.zeros(outputs[self.spec.logits].shape[0], dtype=torch.int64)
        name = self.spec.label_name
        if "lengths" in outputs:
            _check_lengths(batch, name, outputs["lengths"])
        labels = batch.labels[name]
        return ((labels.long() & self.spec.bitmask) != 0).long() if self.spec.bitmask else labels

    def update(self, metrics: Mapping[str, Metric], outputs: Outputs, batch: Batch) -> None:
        """Add a batch to some of this head's metrics, which are on the host."""
        if not metrics:
            return
        scores, labels = self._scores(outputs).detach().cpu(), self.labels(batch, outputs)
        for metric in metrics.values():
            if metric.needs_key:
                assert metric.grouping_key is not None
                metric.update(scores, labels, _keys(batch, metric.grouping_key, outputs))
            else:
                metric.update(scores, labels)


class CodesHead(Head):
    """The losses and metrics of a model of semantic ids, which has no labels."""

    def is_in(self, outputs: Outputs) -> bool:
        """Always."""
        return True

    def losses(self, outputs: Outputs, batch: Batch) -> Iterator[tuple[str, Tensor]]:
        """The loss terms, by name."""
        for name, loss in zip(self._loss_names, self.spec.losses, strict=True):
            assert isinstance(loss, CodeLoss)
            yield name, loss.of_codes(outputs)

    def predictions(self, outputs: Outputs) -> Iterator[tuple[str, Tensor]]:
        """The model gives its codes itself."""
        return iter(())

    @property
    def prediction_name(self) -> str:
        """What users see the codes called."""
        return "codes"

    def update(self, metrics: Mapping[str, Metric], outputs: Outputs, batch: Batch) -> None:
        """Add a batch to the metrics."""
        names = ("reconstruction", "vectors", "codes")
        for metric in metrics.values():
            metric.update(*(outputs[name].detach().cpu() for name in names))


def _keys(batch: Batch, name: str, outputs: Outputs) -> Tensor:
    """The key of each row, or of each of its candidates."""
    keys = batch.keys[name]
    return keys[outputs["rows"].cpu()] if "lengths" in outputs else keys


def _check_lengths(batch: Batch, name: str, candidates: Tensor) -> None:
    """Refuse a row that has not as many labels as candidates."""
    labels = batch.label_lengths[name]
    wrong = (labels != candidates.cpu()).nonzero()
    if len(wrong):
        row = int(wrong[0])
        raise DataError(
            f"label {name}: {int(labels[row])} labels for {int(candidates[row])} candidates "
            f"({batch.name_row(row)}); write one for each, and let sequence_length cut none off"
        )


def _named(spec: TaskSpec, metrics: Sequence[Metric]) -> dict[str, Metric]:
    """Metrics by the names that the log gives them."""
    named: dict[str, Metric] = {}
    for metric in metrics:
        name = f"{metric.display_name}{spec.suffix}"
        if name in named:
            raise ConfigError(f"model_config: metric '{name}' is configured twice; keep one")
        named[name] = metric
    return named


def _values(metrics: Iterator[tuple[str, Metric]]) -> dict[str, float]:
    """The value of each metric by name; one of several values has the name of each before its own."""
    values: dict[str, float] = {}
    for name, metric in metrics:
        value = metric.compute()
        if isinstance(value, Mapping):
            values.update({f"{part}_{name}" if part != name else name: float(v) for part, v in value.items()})
        else:
            values[name] = float(value)
    return values


def as_array(values: Tensor) -> npt.NDArray[Any]:
    """A prediction on the host: codes as they are, other numbers as float32."""
    return (values.float() if values.is_floating_point() else values).cpu().numpy()
