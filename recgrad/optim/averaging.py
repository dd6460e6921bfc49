"""Averaged weights for evaluation and export: the EMA, schedule-free weights, BatchNorm's statistics."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from recgrad.errors import CheckpointError
from recgrad.limits import Share, keep_limits
from recgrad.optim import foreach
from recgrad.optim.part import OptimizerPart, averages_weights, distinct_optimizers
from recgrad.optim.roles import batch_norms

BatchNorm: TypeAlias = nn.modules.batchnorm._BatchNorm
Statistics: TypeAlias = list[list[Tensor]]
"""The running mean, variance and count of each BatchNorm layer."""


@keep_limits
class EMA:
    """An exponential moving average of weights: a = decay·a + (1 − decay)·w after every update.

    The first update copies the weights, so that their random beginning leaves no trace.

    Args:
        named_parameters: the weights to average.
        decay: the share of the old average that is kept, in [0, 1).
    """

    def __init__(self, named_parameters: Iterable[tuple[str, Tensor]], decay: Share = 0.999) -> None:
        self.decay = decay
        self.updates = 0
        self.parameters = dict(named_parameters)
        self.averages = {name: p.detach().clone() for name, p in self.parameters.items()}

    @torch.no_grad()
    def update(self) -> None:
        """Takes the weights after an update into the average."""
        averages, weights = list(self.averages.values()), list(self.parameters.values())
        if averages and self.updates == 0:
            foreach.copy_(averages, weights)
        elif averages:
            foreach.lerp_(averages, weights, 1 - self.decay)
        self.updates += 1

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Puts the averages in place of the weights, and the weights back afterwards."""
        with restored(self.parameters.values()):
            with torch.no_grad():
                for name, parameter in self.parameters.items():
                    parameter.copy_(self.averages[name])
            yield

    def state_dict(self) -> dict[str, Any]:
        """The averages by name, and how many updates are in them."""
        return {"updates": self.updates, "averages": dict(self.averages)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes back what `state_dict` gave."""
        odd = set(state["averages"]) ^ set(self.averages)
        if odd:
            raise CheckpointError(
                f"ema: the averages do not fit the model (differ: {', '.join(sorted(odd))})"
            )
        self.updates = state["updates"]
        for name, average in self.averages.items():
            average.copy_(state["averages"][name])


class Averages:
    """The weights that evaluation sees in place of those in training; false when they are the same.

    Args:
        dense: the dense optimizers, of which schedule-free ones average their own weights.
        ema: an average of all dense weights.
    """

    def __init__(self, dense: Sequence[OptimizerPart], ema: EMA | None) -> None:
        self.ema = ema
        self.optimizers = [o for o in distinct_optimizers(dense) if averages_weights(o)]
        self.in_place = False
        if ema is not None and self.optimizers:
            raise ValueError(
                "ema and a schedule-free optimizer exclude each other: both average the weights, "
                f"got {type(self.optimizers[0]).__name__} and an ema; keep one"
            )
        self._averaged_parts = [part for part in dense if ema is not None or averages_weights(part.optimizer)]

    def __bool__(self) -> bool:
        return self.ema is not None or bool(self.optimizers)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Puts the averages in place of the weights, and the weights back afterwards, bit for bit.

        Without averages, and inside another such context, nothing changes.
        """
        if self.in_place or not self:
            yield
            return
        with ExitStack() as stack:
            for optimizer in self.optimizers:
                stack.enter_context(evaluation_weights(optimizer))
            if self.ema is not None:
                stack.enter_context(self.ema.applied())
            self.in_place = True
            try:
                yield
            finally:
                self.in_place = False

    def training_weights(self) -> dict[str, Tensor]:
        """The weights in training by name, of the parts that have an average."""
        found: dict[str, Tensor] = {}
        for part in self._averaged_parts:
            for g, group in enumerate(part.param_groups):
                names = (
                    part.names[g]
                    if part.names
                    else [f"{part.name}.{g}.{i}" for i in range(len(group["params"]))]
                )
                found.update(zip(names, (p.detach() for p in group["params"])))
        return found

    @contextmanager
    def untouched_gradients(self, kept: bool) -> Iterator[None]:
        """Undoes what schedule-free optimizers write into gradients, when they are to be kept."""
        params = [p for o in self.optimizers for g in o.param_groups for p in g["params"]]
        with restored([p.grad for p in params if p.grad is not None] if kept else ()):
            yield


@contextmanager
def evaluation_weights(optimizer: Optimizer) -> Iterator[None]:
    """Puts the weights that a schedule-free optimizer averages into the model, for a while.

    Afterwards the weights in training are back bit for bit. (The optimizer's own `eval()` and
    `train()` compute one from the other and round, so that evaluating would change the run.)
    """
    running: Any = optimizer
    with restored(p for group in optimizer.param_groups for p in group["params"]):
        running.eval()
        try:
            yield
        finally:
            running.train()


@contextmanager
def restored(parameters: Iterable[Tensor]) -> Iterator[None]:
    """Gives parameters their values back at the end, whatever happened in between."""
    parameters = list(parameters)
    values = [p.detach().clone() for p in parameters]
    try:
        yield
    finally:
        with torch.no_grad():
            for parameter, value in zip(parameters, values):
                parameter.copy_(value)


class ReestimatedBatchNorm:
    """BatchNorm statistics that fit averaged weights, gathered once for the same weights.

    Running means and variances were gathered under the weights in training; averaged weights
    have others.
    """

    def __init__(self) -> None:
        self._updates: int | None = None
        self._statistics: Statistics = []

    @contextmanager
    def applied(self, model: nn.Module, updates: int, forward: Callable[[], object]) -> Iterator[None]:
        """Gives the model's BatchNorm layers the statistics of the weights now in it, for a while.

        Args:
            model: afterwards it has the old statistics and modes back.
            updates: how many updates the weights have had; the same number means the same weights.
            forward: runs the model over some batches.
        """
        norms = batch_norms(model)
        old = _statistics(norms)
        if self._updates != updates:
            self._statistics = estimate_batch_norm(model, forward)
            self._updates = updates
        try:
            _put(norms, self._statistics)
            yield
        finally:
            _put(norms, old)


def estimate_batch_norm(model: nn.Module, forward: Callable[[], object]) -> Statistics:
    """The statistics of the BatchNorm layers under the weights now in the model.

    They are the plain means over the batches that `forward` runs the model on. Everything but
    the BatchNorm layers is in evaluation mode meanwhile, so dropout does not disturb them.
    Afterwards the model has its own statistics and modes back.
    """
    norms = batch_norms(model)
    if not norms:
        return []
    old, momenta = _statistics(norms), [norm.momentum for norm in norms]
    modes = [(module, module.training) for module in model.modules()]
    try:
        model.eval()
        for norm in norms:
            norm.reset_running_stats()
            norm.momentum = None
            norm.train()
        with torch.no_grad():
            forward()
        return _statistics(norms)
    finally:
        _put(norms, old)
        for norm, momentum in zip(norms, momenta):
            norm.momentum = momentum
        for module, mode in modes:
            module.training = mode


def _buffers(norm: BatchNorm) -> list[Tensor]:
    return [b for b in (norm.running_mean, norm.running_var, norm.num_batches_tracked) if b is not None]


def _statistics(norms: Iterable[BatchNorm]) -> Statistics:
    return [[buffer.clone() for buffer in _buffers(norm)] for norm in norms]


def _put(norms: Iterable[BatchNorm], statistics: Statistics) -> None:
    for norm, values in zip(norms, statistics):
        for buffer, value in zip(_buffers(norm), values):
            buffer.copy_(value)
