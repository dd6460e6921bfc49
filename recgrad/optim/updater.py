"""The update step: accumulate, unscale, clip, step the dense and the sparse half, move the rates."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from recgrad.errors import CheckpointError, RecgradError, nearest
from recgrad.limits import Count, keep_limits
from recgrad.optim.averaging import EMA, Averages
from recgrad.optim.clipping import GradientClipping, Reduce, total_norm
from recgrad.optim.optimizer_state import check_parts, describe_part, load_optimizer, load_schedule
from recgrad.optim.part import OptimizerPart, distinct_optimizers
from recgrad.optim.precision import LossScaler, autocast, check_precision, unscale_
from recgrad.optim.schedules import Schedule
from recgrad.optim.sparse_half import SparseHalf


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a call of `Updater.step` did; true when it made an update.

    Attributes:
        updated: weights were updated.
        skipped: the accumulation was full, but gradients were not finite: nothing moved.
        grad_norm: the norm of the gradients before clipping, when it was taken.
        rates: the learning rate of each part in this update.
    """

    updated: bool
    skipped: bool
    grad_norm: float | None
    rates: Mapping[str, float]

    def __bool__(self) -> bool:
        return self.updated


@keep_limits
class Updater:
    """Turns losses into updates of the dense and the sparse weights, in one order.

    `backward(loss)` then `step()` for each micro-batch. When `accumulation_steps` of them are
    in: average over processes → unscale → clip → dense step → sparse step → loss scale → EMA →
    schedules → zero. When a gradient is not finite neither half moves, the schedules stay, and
    the scale backs off.
    Rates are those of the count of finished updates, and are set before the first backward of
    an update, so that an engine that updates inside backward sees them too.

    Args:
        dense: the dense optimizers.
        sparse: parts of the optimizer of the embedding tables (a `SparseHalf`).
        accumulation_steps: micro-batches to an update; the update uses their mean gradient.
        mixed_precision: BF16 or FP16; None for none.
        grad_scaler: scales the loss.
        grad_clipping: clips the gradients.
        ema: an average of the dense weights, for evaluation.
        device_type: of the device that the model runs on, such as cpu or cuda.
        reduce: combines a value over all processes; None for one process.
        synchronize: makes the dense gradients the mean over all processes; None for one process.
        track_grad_norm: take the norm of the dense gradients even when they are not clipped.
        keep_gradients: leave the gradients of an update in place until the next backward.
    """

    def __init__(
        self,
        dense: Sequence[OptimizerPart],
        sparse: Sequence[OptimizerPart] = (),
        *,
        accumulation_steps: Count = 1,
        mixed_precision: str | None = None,
        grad_scaler: LossScaler | None = None,
        grad_clipping: GradientClipping | None = None,
        ema: EMA | None = None,
        device_type: str = "cpu",
        reduce: Reduce | None = None,
        synchronize: Callable[[Sequence[Any]], None] | None = None,
        track_grad_norm: bool = False,
        keep_gradients: bool = False,
    ) -> None:
        self.dense = tuple(dense)
        self.sparse = tuple(sparse)
        self.accumulation_steps = accumulation_steps
        self.dtype = check_precision(mixed_precision)
        self.grad_scaler = grad_scaler
        self.grad_clipping = grad_clipping or GradientClipping()
        self.ema = ema
        self._averages = Averages(self.dense, ema)
        self.device_type = device_type
        self.reduce = reduce
        self.synchronize = synchronize
        self.track_grad_norm = track_grad_norm
        self.keep_gradients = keep_gradients
        self.num_updates = 0
        self.epoch = 0
        self._micro_batches = 0
        self._unproven = False  # whether a loaded state has been used
        self._stale = False
        self._dense_optimizers = distinct_optimizers(self.dense)
        self._sparse_optimizers = [
            cast(SparseHalf, optimizer) for optimizer in distinct_optimizers(self.sparse)
        ]
        self._parameters = [
            p
            for optimizer in self._dense_optimizers
            for group in optimizer.param_groups
            for p in group["params"]
        ]
        names = [part.name for part in self.parts]
        if len(set(names)) != len(names):
            raise ValueError(f"parts must have names of their own, got {names}")
        self._set_rates()

    # The loop

    @property
    def parts(self) -> tuple[OptimizerPart, ...]:
        """The dense and the sparse parts."""
        return self.dense + self.sparse

    @property
    def schedules(self) -> list[Schedule]:
        """The schedules of all parts, each once."""
        return list({id(part.schedule): part.schedule for part in self.parts}.values())

    @property
    def watches(self) -> bool:
        """Whether a schedule waits for evaluations."""
        return any(schedule.metric is not None for schedule in self.schedules)

    @property
    def accumulating(self) -> bool:
        """Whether micro-batches of an unfinished update are in."""
        return self._micro_batches > 0

    @property
    def reestimates_batch_norm(self) -> bool:
        """Whether BatchNorm's statistics must be taken again under the averaged weights."""
        return bool(self._averages.optimizers)

    def autocast(self) -> AbstractContextManager[Any]:
        """The context in which to run the model and the loss."""
        return autocast(self.dtype, self.device_type)

    def backward(self, loss: Tensor) -> None:
        """Adds the gradients of a micro-batch's mean loss, its share of the update's mean."""
        if self._stale:
            self._zero()
        factor = self._scale / self.accumulation_steps
        (loss if factor == 1 else loss * factor).backward()  # type: ignore[no-untyped-call]

    def step(self) -> StepResult:
        """Counts a micro-batch, and updates when it completes the accumulation."""
        self._micro_batches += 1
        if self._micro_batches < self.accumulation_steps:
            return StepResult(False, False, None, self.rates())
        return self._first_update() if self._unproven else self._update()

    def flush(self) -> StepResult:
        """Updates with the mean of the micro-batches that are in, when there are some."""
        if self._micro_batches == 0:
            return StepResult(False, False, None, self.rates())
        return self._first_update() if self._unproven else self._update()

    def _first_update(self) -> StepResult:
        """The first update with a loaded state: only here do optimizers look at all that is in it."""
        try:
            result = self._update()
        except RecgradError:
            raise
        except Exception as error:
            raise CheckpointError(
                f"the optimizer state of the checkpoint does not fit this model: {type(error).__name__}: "
                f"{error}; leave it out with --ignore_restore_optimizer"
            ) from error
        self._unproven = False
        return result

    def start_epoch(self, n: int) -> None:
        """Says that n epochs are finished; schedules by epoch go by it."""
        self.epoch = n
        self._set_rates()

    def observe(self, metrics: Mapping[str, float]) -> None:
        """Hands the results of an evaluation to the schedules that wait for them.

        Every process must hand in the same values.
        """
        for schedule in self.schedules:
            if schedule.metric is None:
                continue
            if schedule.metric not in metrics:
                raise RecgradError(
                    f"the metric of {type(schedule).__name__}: the evaluation has no '{schedule.metric}'"
                    f"{nearest(schedule.metric, metrics)} (has: {', '.join(metrics) or 'nothing'})"
                )
            schedule.observe(float(metrics[schedule.metric]))
        self._set_rates()

    def rates(self) -> dict[str, float]:
        """The learning rate of each part in the next update."""
        return {part.name: float(part.param_groups[0]["lr"]) for part in self.parts if part.groups}

    def averaged(self) -> AbstractContextManager[None]:
        """Evaluation and export see the averaged weights (EMA, schedule-free) in here.

        Afterwards the weights in training are back, bit for bit. Without averages, and inside
        another such context, nothing changes.
        """
        return self._averages.applied()

    # The update

    @property
    def _scale(self) -> float:
        return 1.0 if self.grad_scaler is None else self.grad_scaler.scale

    def _update(self) -> StepResult:
        if self._averages.in_place:
            raise RuntimeError("an update inside averaged() would train the averaged weights")
        rates = self.rates()
        if self.synchronize is not None:
            self.synchronize(self._parameters)
        gradients = [p.grad for p in self._parameters if p.grad is not None]
        finite = self._unscale(gradients)
        norm = self._clip(gradients) if finite else None
        finite = finite and (norm is None or math.isfinite(norm))
        if finite:
            with self._averages.untouched_gradients(self.keep_gradients):
                for dense in self._dense_optimizers:
                    dense.step()
            for sparse in self._sparse_optimizers:
                sparse.step()
        if self.grad_scaler is not None:
            self.grad_scaler.update(overflow=not finite)
        if finite:
            self.num_updates += 1
            if self.ema is not None:
                self.ema.update()
            self._set_rates()
        self._micro_batches = 0
        self._stale = self.keep_gradients
        if not self._stale:
            self._zero()
        return StepResult(finite, not finite, norm, rates)

    def _unscale(self, gradients: list[Tensor]) -> bool:
        """Takes out the loss scale, and what an incomplete accumulation lacks; all finite?"""
        factor = self.accumulation_steps / self._micro_batches / self._scale
        if self.grad_scaler is None and factor == 1:
            return True
        finite = unscale_(gradients, factor)
        for sparse in self._sparse_optimizers:
            finite = sparse.unscale_(factor) and finite
        if self.reduce is not None:
            finite = not bool(self.reduce(torch.tensor(float(not finite)), "max"))
        return finite

    def _clip(self, gradients: list[Tensor]) -> float | None:
        norm = self.grad_clipping.apply(gradients, self._sparse_optimizers, self.reduce)
        if norm is None and self.track_grad_norm:
            norm = total_norm(gradients, (), self.grad_clipping.norm_type)
        return norm

    def _zero(self) -> None:
        for dense in self._dense_optimizers:
            dense.zero_grad()
        for sparse in self._sparse_optimizers:
            sparse.zero_grad()
        self._stale = False

    def _set_rates(self) -> None:
        for part in self.parts:
            part.set_rates(self.epoch if part.schedule.by_epoch else self.num_updates)

    # The state

    def state_dict(self, *, sparse: bool = False) -> dict[str, Any]:
        """All that an exact resume needs besides the model and its tables, between two updates.

        The state of the tables' rows goes with the tables (`SparseOptimizer.export_state`);
        with `sparse` it is in here as well, whole.

        With averaged weights it holds the weights in training too, so that the model's own
        may be saved inside `averaged()`: what a checkpoint calls the weights are then those
        that were evaluated, and `load_state_dict` puts the ones in training back.
        """
        if self._micro_batches:
            raise RuntimeError(
                f"state_dict() is for between updates; {self._micro_batches} micro-batches are in"
            )
        if self._averages.in_place:
            raise RuntimeError("state_dict() is the training state; take it outside averaged()")
        return {
            "num_updates": self.num_updates,
            "epoch": self.epoch,
            "parts": {part.name: describe_part(part) for part in self.dense},
            "dense": {part.name: part.optimizer.state_dict() for part in self.dense},
            "sparse": [optimizer.state_dict() for optimizer in self._sparse_optimizers] if sparse else [],
            "schedules": {part.name: part.schedule.state_dict() for part in self.parts},
            "schedule_kinds": {part.name: type(part.schedule).__qualname__ for part in self.parts},
            "grad_scaler": None if self.grad_scaler is None else self.grad_scaler.state_dict(),
            "ema": None if self.ema is None else self.ema.state_dict(),
            "training_weights": self._averages.training_weights(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes back what `state_dict` gave; load the model's weights before.

        Settings (rates, betas, weight decay …) stay as this updater was built; what has been
        learned and counted comes from the state.
        """
        check_parts(self.dense, state)
        self.num_updates = state["num_updates"]
        self.epoch = state["epoch"]
        for part in self.dense:
            load_optimizer(part.optimizer, state["dense"][part.name])
        for optimizer, own in zip(self._sparse_optimizers, state["sparse"]):
            optimizer.load_state_dict(own)
        for part in self.parts:
            kind = state.get("schedule_kinds", {}).get(part.name)
            load_schedule(part, state["schedules"].get(part.name, {}), kind)
        if self.grad_scaler is not None and state["grad_scaler"] is not None:
            self.grad_scaler.load_state_dict(state["grad_scaler"])
        if self.ema is not None and state["ema"] is not None:
            self.ema.load_state_dict(state["ema"])
        with torch.no_grad():
            for name, weight in self._averages.training_weights().items():
                if name in state["training_weights"]:
                    weight.copy_(state["training_weights"][name])
        self._micro_batches = 0
        self._unproven = True
        self._zero()
        self._set_rates()
