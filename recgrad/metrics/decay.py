"""Training metrics: values that follow the recent batches."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from recgrad.limits import Count, Share, keep_limits
from recgrad.metrics.base import Metric, Value
from recgrad.ranks import gather_tensors, world_size


@keep_limits
class Decayed(Metric):
    """A metric over windows of decay_step updates: value = decay·value + (1−decay)·new.

    The first window's value counts whole, and until it ends the value is that of the rows
    so far. A window in which the metric is undefined changes nothing.

    update() talks to no other process. With several, each closed window waits as a few
    numbers until compute(), where the ranks' windows of the same number are added up and
    folded into the value; so compute() is a collective, and the state grows by those few
    numbers a window between two of its calls. Ranks are expected to update together; a
    window that reaches compute() after its number was folded elsewhere is left out.

    Args:
        metric: what is measured.
        decay_rate: how much of the old value stays.
        decay_step: updates in a window.
    """

    value: Tensor
    steps: Tensor
    folded: Tensor
    closed: Tensor

    def __init__(
        self, metric: Metric, *, decay_rate: Share = 0.9, decay_step: Count = 100, **kwargs: Any
    ) -> None:
        # The windows are gathered and folded here, once for all ranks.
        super().__init__(**({"sync_on_compute": False} | kwargs))
        if isinstance(self, nn.Module) != isinstance(metric, nn.Module):
            # The state of the one would not be part of the state_dict of the other.
            raise TypeError("metric must be a torchmetrics.Metric if and only if this is one")
        self.metric = metric
        self.decay_rate, self.decay_step = decay_rate, decay_step
        value = metric.value_of_sums(torch.zeros_like(metric.sums()))
        self.names = list(value) if isinstance(value, dict) else None
        self.declare("value", torch.full((len(self.names or [1]),), torch.nan, dtype=torch.float64), None)
        self.declare("steps", torch.tensor(0), None)
        self.declare("folded", torch.tensor(0), None)
        self.declare("closed", torch.zeros((0, 1 + metric.sums().numel()), dtype=torch.float64), None)

    @property
    def display_name(self) -> str:
        """That of the metric."""
        return self.metric.display_name

    @property
    def value_names(self) -> list[str]:
        """Those of the metric."""
        return self.metric.value_names

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Take in a batch."""
        self.metric.update(preds, target)
        self.steps += 1
        if self.steps % self.decay_step == 0:
            self.closed = torch.cat([self.closed, self._window(int(self.steps) // self.decay_step)])
            self.metric.reset()
            if world_size(self.process_group) == 1:
                self._fold(self.closed)

    def forward(self, preds: Tensor, target: Tensor) -> Value:
        """Take in a batch and return the decayed value."""
        self.update(preds, target)
        return self.compute()

    def measure(self) -> Value:
        """The decayed value; a collective when there are several processes."""
        so_far = None
        if world_size(self.process_group) > 1:
            parts = gather_tensors(torch.cat([self._window(0), self.closed]), self.process_group)
            self._fold(torch.cat([part[1:] for part in parts]))
            so_far = torch.cat([part[:1] for part in parts]).sum(0)
        value = self.value.clone()
        if value.isnan().any():
            # No window that has ended says anything; the rows since then may.
            so_far = self._window(0)[0] if so_far is None else so_far
            value = torch.where(value.isnan(), self._value_of(so_far[1:]), value)
        if value.isnan().all():
            self.undefined(f"{self.metric.name} has no value for the rows so far")
        return value[0] if self.names is None else dict(zip(self.names, value))

    def reset(self) -> None:
        """Forget everything."""
        super().reset()
        self.metric.reset()

    def _window(self, number: int) -> Tensor:
        """The sums of the open window, with its number in front, [1, 1 + n]."""
        sums = self.metric.sums()
        return torch.cat([sums.new_tensor([number]), sums])[None]

    def _value_of(self, sums: Tensor) -> Tensor:
        value = self.metric.value_of_sums(sums)
        return torch.stack(list(value.values())) if isinstance(value, dict) else value[None]

    def _fold(self, windows: Tensor) -> None:
        """Fold windows of all ranks into the value in the order of their numbers."""
        for number in sorted(set(windows[:, 0].long().tolist())):
            if number <= self.folded:
                continue
            new = self._value_of(windows[windows[:, 0] == number, 1:].sum(0))
            mixed = self.decay_rate * self.value + (1 - self.decay_rate) * new
            self.value = torch.where(new.isnan(), self.value, torch.where(self.value.isnan(), new, mixed))
            self.folded = torch.full_like(self.folded, number)
        self.closed = self.closed[:0]
