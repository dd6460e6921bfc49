"""What every metric is: sums or kept rows, gathered over ranks, and a pure function of them."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, NamedTuple

import numpy.typing as npt
import torch
from torch import Tensor

from recgrad.errors import RecgradError
from recgrad.ranks import gather_tensors, rank, world_size

Value = Tensor | dict[str, Tensor]
"""What compute() returns: one number, or several by name."""


class UndefinedMetricWarning(UserWarning):
    """A metric has no value for the rows it saw, and is reported as nan."""


class Overruled(NamedTuple):
    """Settings of a metric that have no effect because of another one.

    Attributes:
        by: the setting that overrules them when it is set.
        settings: those without effect.
        harmless: those of them that configs of TorchEasyRec may well hold, which is worth a hint only.
    """

    by: str
    settings: tuple[str, ...]
    harmless: tuple[str, ...] = ()


class Metric(ABC):
    """A metric whose value does not depend on how rows are spread over processes.

    State is either sums, added up over ranks, or kept rows, gathered from all ranks; both
    are part of the state_dict. Ranks may make different numbers of updates, also none;
    compute() is a collective, so every rank must call it.

    What users import from `recgrad.metrics` is a `torchmetrics.Metric` as well; a run does
    without, as importing torchmetrics takes as long as importing torch.

    Attributes:
        needs_key: update() takes a third argument, the group of each row.
        grouping_key: the field that holds it.
        config_name: the name in the config that it was built from.
        compares: what it takes: probabilities, one value per row, or the ranks of items.
        num_classes: the fewest and the most classes of a task that it fits; None for no end.
        instead: what to use for other numbers of classes.
        keeps_rows_with: settings that have it keep all rows, which is for evaluation alone.
        overruled: what leaves which of its settings without effect, the strongest first.
        higher_is_better: which of two values is the better one, as torchmetrics has it; None if
            neither end is.

    Args:
        sync_on_compute: whether compute() gathers the state of all ranks.
        process_group: the ranks; all of them when left out.
    """

    needs_key: bool = False
    grouping_key: str | None = None
    config_name: str = ""
    compares: ClassVar[Literal["probabilities", "values", "ranks"]] = "probabilities"
    num_classes: ClassVar[tuple[int, int | None]] = (1, None)
    instead: ClassVar[str] = ""
    keeps_rows_with: ClassVar[tuple[str, ...]] = ()
    overruled: ClassVar[tuple[Overruled, ...]] = ()
    higher_is_better: bool | None = None

    def __init__(self, *, sync_on_compute: bool = True, process_group: Any = None) -> None:
        self.sync_on_compute = sync_on_compute
        self.process_group = process_group
        self._defaults: dict[str, Any] = {}
        self._reduce: dict[str, str | None] = {}
        self._begin()

    def _begin(self) -> None:
        self._quiet = False
        self._row_dtypes: dict[str, torch.dtype] = {}

    # What a subclass gives

    @abstractmethod
    def update(self, *args: Any, **kwargs: Any) -> None:
        """Take in a batch: predictions, labels and, where needs_key is set, keys."""

    @abstractmethod
    def measure(self) -> Value:
        """The value of the state as it is."""

    # What it is used by

    def compute(self) -> Value:
        """The value of all rows of all ranks; a collective when there are several."""
        if not self.sync_on_compute or world_size(self.process_group) == 1:
            return self.measure()
        own = {name: getattr(self, name) for name in self._defaults}
        try:
            for name in own:
                setattr(self, name, self._gathered(name))
            return self.measure()
        finally:
            for name, state in own.items():
                setattr(self, name, state)

    def reset(self) -> None:
        """Forget everything."""
        for name, default in self._defaults.items():
            setattr(self, name, _copy(default))

    def state_dict(self) -> dict[str, Any]:
        """What it has seen, by name; of a metric inside it under that one's name and a dot."""
        state = {name: _copy(getattr(self, name)) for name in self._defaults}
        for name, metric in self._inner():
            state.update({f"{name}.{key}": value for key, value in metric.state_dict().items()})
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over a copy of what `state_dict` gave."""
        if odd := sorted(set(self.state_dict()) ^ set(state)):
            raise ValueError(f"{self.name}: another state than the metric's (differ: {', '.join(odd)})")
        for name, default in self._defaults.items():
            value = state[name]
            if self._reduce[name] == "sum" and value.shape != default.shape:
                sizes = f"{list(value.shape)}, the metric's is {list(default.shape)}"
                raise ValueError(f"{self.name}: the state '{name}' is {sizes}")
            setattr(self, name, _copy(value))
        for name, metric in self._inner():
            start = f"{name}."
            metric.load_state_dict({k[len(start) :]: v for k, v in state.items() if k.startswith(start)})

    # What a subclass is written with

    def add_sum(self, name: str, shape: tuple[int, ...] = (), dtype: torch.dtype = torch.float64) -> None:
        """Declare a state that is added up over ranks."""
        self.declare(name, torch.zeros(shape, dtype=dtype), "sum")

    def add_rows(self, name: str, dtype: torch.dtype) -> None:
        """Declare a state that keeps one number a row."""
        self._row_dtypes[name] = dtype
        self.declare(name, [], "cat")

    def declare(self, name: str, default: Tensor | list[Any], reduce: str | None) -> None:
        """Declare a state, and what is done with it over ranks: sum, max, cat, or nothing."""
        self._defaults[name] = default
        self._reduce[name] = reduce
        setattr(self, name, _copy(default))

    def keep(self, **columns: Tensor) -> None:
        """Keep a batch's rows."""
        for name, values in columns.items():
            getattr(self, name).append(values.detach().to(self._row_dtypes[name], copy=True))

    def column(self, name: str) -> npt.NDArray[Any]:
        """All kept values of a row state."""
        return self._joined(name).cpu().numpy()

    def sums(self) -> Tensor:
        """The summed states end to end, float64 [n]; what ranks and windows are added up by."""
        return torch.cat([getattr(self, name).reshape(-1).double() for name in self._defaults])

    def value_of_sums(self, sums: Tensor) -> Value:
        """The metric of such sums, without a warning where it is undefined."""
        kept, start = {name: getattr(self, name) for name in self._defaults}, 0
        self._quiet = True
        try:
            for name, state in kept.items():
                part = sums[start : start + state.numel()]
                setattr(self, name, part.reshape(state.shape).to(state.dtype))
                start += state.numel()
            return self.measure()
        finally:
            self._quiet = False
            for name, state in kept.items():
                setattr(self, name, state)

    def undefined(self, reason: str) -> Tensor:
        """nan, with a warning from the first rank that says why."""
        if not self._quiet and rank() == 0:
            warnings.warn(f"{self.name}: {reason}; reported as nan", UndefinedMetricWarning, stacklevel=4)
        return self.scalar(float("nan"))

    def scalar(self, value: float) -> Tensor:
        """A number as a float64 tensor on the metric's device."""
        return torch.tensor(value, dtype=torch.float64, device=self.device)

    @property
    def device(self) -> torch.device:
        """Where the state is."""
        return torch.device("cpu")

    @property
    def name(self) -> str:
        """The config name, or the class when it was built by hand."""
        return self.config_name or type(self).__name__

    @property
    def display_name(self) -> str:
        """The name in logs and reports, such as `recall@5`."""
        return self.name

    @property
    def value_names(self) -> list[str]:
        """What logs and reports call its values: one, or one for each part."""
        return [self.display_name]

    def _inner(self) -> list[tuple[str, Metric]]:
        return [(name, value) for name, value in vars(self).items() if isinstance(value, Metric)]

    def _joined(self, name: str) -> Tensor:
        value = getattr(self, name)
        if isinstance(value, Tensor):
            return value
        if not value:
            return torch.empty(0, dtype=self._row_dtypes[name], device=self.device)
        return torch.cat(value)

    def _gathered(self, name: str) -> Tensor | list[Tensor]:
        """A state over all ranks."""
        reduce = self._reduce[name]
        if reduce == "cat":
            # A rank without rows joins with an empty tensor of the right type.
            return gather_tensors(self._joined(name), self.process_group)
        parts = torch.stack(gather_tensors(getattr(self, name), self.process_group))
        return parts.amax(0) if reduce == "max" else parts.sum(0)


def _copy(state: Tensor | list[Tensor]) -> Tensor | list[Tensor]:
    return state.clone() if isinstance(state, Tensor) else [part.clone() for part in state]


def scores_of(preds: Tensor, name: str) -> Tensor:
    """Scores [rows]; of two columns the second, the probability of a positive; nan is an error."""
    preds = preds.detach()
    if preds.dim() == 2 and preds.shape[1] in (1, 2):
        preds = preds[:, -1]
    if preds.dim() != 1:
        raise ValueError(f"{name}: preds must be [rows] or [rows, 2], got {list(preds.shape)}")
    check_numbers(preds, name)
    return preds


def check_numbers(preds: Tensor, name: str) -> None:
    """Raise when a score is nan: a ranking of it would mean nothing."""
    if preds.is_floating_point() and preds.numel() and torch.isnan(preds.sum()):
        wrong = torch.isnan(preds).reshape(preds.shape[0], -1).any(1)
        if not wrong.any():  # inf − inf
            return
        raise RecgradError(
            f"{name}: {int(wrong.sum())} of {preds.shape[0]} predictions are nan, the first at row "
            f"{int(wrong.nonzero()[0])} of the batch; the model has diverged, try a smaller learning rate"
        )


def probabilities_of(preds: Tensor, name: str) -> Tensor:
    """Scores [rows] that must be probabilities."""
    preds = scores_of(preds, name)
    if preds.numel():
        low, high = preds.aminmax()
        if low < 0 or high > 1:
            raise RecgradError(
                f"{name}: predictions must be probabilities in [0, 1], got {low.item():g} … {high.item():g}"
            )
    return preds


def binary_of(target: Tensor, rows: int, name: str) -> Tensor:
    """Labels [rows] that must be 0 or 1, as int8."""
    target = target_of(target, rows, name)
    binary = target.to(torch.int8)
    wrong = (binary != target) | (binary.bitwise_and(~1) != 0)
    if wrong.any():
        row = int(wrong.nonzero()[0])
        raise RecgradError(f"{name}: label {target[row].item():g} at row {row} of the batch is not 0 or 1")
    return binary


def target_of(target: Tensor, rows: int, name: str) -> Tensor:
    """Labels [rows]."""
    target = target.detach().reshape(-1)
    if target.numel() != rows:
        raise ValueError(f"{name}: target must have one label for each of {rows} rows, got {target.numel()}")
    return target


def check_soft_labels(labels: Tensor, name: str) -> Tensor:
    """The labels, which must lie in [0, 1]."""
    if labels.numel():
        wrong = (labels < 0) | (labels > 1) | (labels != labels)
        if wrong.any():
            row = int(wrong.nonzero()[0])
            raise RecgradError(
                f"{name}: label {labels[row].item():g} at row {row} of the batch is not in [0, 1]"
            )
    return labels


def values_of(preds: Tensor, name: str) -> Tensor:
    """Predicted numbers [rows]; nan is an error."""
    preds = preds.detach()
    if preds.dim() == 2 and preds.shape[1] == 1:
        preds = preds[:, 0]
    if preds.dim() != 1:
        raise ValueError(f"{name}: preds must be [rows], got {list(preds.shape)}")
    check_numbers(preds, name)
    return preds


def class_scores_of(preds: Tensor, num_class: int, name: str) -> Tensor:
    """Scores [rows, classes]; nan is an error."""
    preds = preds.detach()
    if preds.dim() != 2 or preds.shape[1] != num_class:
        raise ValueError(f"{name}: preds must be [rows, {num_class}], got {list(preds.shape)}")
    check_numbers(preds, name)
    return preds


def finite_target(target: Tensor, rows: int, name: str) -> Tensor:
    """Labels [rows] that must be finite."""
    target = target_of(target, rows, name)
    if target.is_floating_point() and not torch.isfinite(target).all():
        row = int(torch.isfinite(target).logical_not().nonzero()[0])
        raise RecgradError(
            f"{name}: label {target[row].item():g} at row {row} of the batch is not a finite number"
        )
    return target
