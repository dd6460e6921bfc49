"""What every metric is: sums or kept rows, gathered over ranks, and a pure function of them."""

from __future__ import annotations

import warnings
from typing import Any

import numpy.typing as npt
import torch
import torch.distributed as dist
import torchmetrics
from torch import Tensor

from recgrad.errors import RecgradError

Value = Tensor | dict[str, Tensor]
"""What compute() returns: one number, or several by name."""


class UndefinedMetricWarning(UserWarning):
    """A metric has no value for the rows it saw, and is reported as nan."""


class Metric(torchmetrics.Metric):
    """A metric whose value does not depend on how rows are spread over processes.

    State is either sums, added up over ranks, or kept rows, gathered from all ranks; both
    are part of the state_dict. Ranks may make different numbers of updates, also none;
    compute() is a collective, so every rank must call it.

    Attributes:
        needs_key: update() takes a third argument, the group of each row.
        grouping_key: the field that holds it.
        config_name: the name in the config that it was built from.
    """

    full_state_update = False
    needs_key: bool = False
    grouping_key: str | None = None
    config_name: str = ""

    def __init__(self, **kwargs: Any) -> None:
        # A rank without new rows would return its cached value and leave the others waiting.
        super().__init__(**({"compute_with_cache": False} | kwargs))
        self._quiet = False
        self._row_dtypes: dict[str, torch.dtype] = {}

    @property
    def update_called(self) -> bool:
        """True: a metric without rows says itself that it is undefined."""
        return True

    def add_sum(self, name: str, shape: tuple[int, ...] = (), dtype: torch.dtype = torch.float64) -> None:
        """Declare a state that is added up over ranks."""
        self.add_state(name, torch.zeros(shape, dtype=dtype), dist_reduce_fx="sum", persistent=True)

    def add_rows(self, name: str, dtype: torch.dtype) -> None:
        """Declare a state that keeps one number a row."""
        self._row_dtypes[name] = dtype
        self.add_state(name, [], dist_reduce_fx="cat", persistent=True)

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
        kept, start = self._copy_state_dict(), 0
        self._quiet = True
        try:
            for name, state in kept.items():
                assert isinstance(state, Tensor)
                part = sums[start : start + state.numel()]
                setattr(self, name, part.reshape(state.shape).to(state.dtype))
                start += state.numel()
            value: Value = type(self).compute(self)
            return value
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
    def name(self) -> str:
        """The config name, or the class when it was built by hand."""
        return self.config_name or type(self).__name__

    @property
    def display_name(self) -> str:
        """The name in logs and reports, such as `recall@5`."""
        return self.name

    def _joined(self, name: str) -> Tensor:
        value = getattr(self, name)
        if isinstance(value, Tensor):
            return value
        if not value:
            return torch.empty(0, dtype=self._row_dtypes[name], device=self.device)
        return torch.cat(value)

    def _sync_dist(self, *args: Any, **kwargs: Any) -> None:
        # A rank without rows joins the gather with an empty tensor of the right type.
        for name in self._row_dtypes:
            setattr(self, name, [self._joined(name)])
        super()._sync_dist(*args, **kwargs)

    def _copy_state_dict(self) -> dict[str, Tensor | list[Any]]:
        # Kept rows are never written to, so a copy of the list is a copy of the state.
        state: dict[str, Tensor | list[Any]] = {}
        for name in self._defaults:
            value = getattr(self, name)
            state[name] = list(value) if isinstance(value, list) else value.detach().clone()
        return state

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        for name in self._defaults:
            value = state_dict.get(prefix + name)
            if isinstance(value, Tensor):
                state_dict[prefix + name] = value.to(self.device, copy=True)
            elif isinstance(value, list):
                state_dict[prefix + name] = [item.to(self.device, copy=True) for item in value]
        super()._load_from_state_dict(state_dict, prefix, *args)


def rank() -> int:
    """This process's number, 0 when it is alone."""
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0


def world_size() -> int:
    """How many processes train together."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


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


def finite_target(target: Tensor, rows: int, name: str) -> Tensor:
    """Labels [rows] that must be finite."""
    target = target_of(target, rows, name)
    if target.is_floating_point() and not torch.isfinite(target).all():
        row = int(torch.isfinite(target).logical_not().nonzero()[0])
        raise RecgradError(
            f"{name}: label {target[row].item():g} at row {row} of the batch is not a finite number"
        )
    return target
