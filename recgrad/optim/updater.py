"""The update step: accumulate, unscale, clip, step the dense and the sparse half, move the rates."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, cast

import torch
from google.protobuf.message import Message
from torch import Tensor
from torch.optim import Optimizer

from recgrad.errors import ConfigError, Problem, RecgradError, nearest
from recgrad.optim.averaging import EMA, evaluation_weights, restored
from recgrad.optim.clipping import GradientClipping, Reduce, total_norm
from recgrad.optim.from_config import build_clipping, build_ema, build_scaler, problems_of
from recgrad.optim.groups import build_dense_optimizers
from recgrad.optim.optimizer_state import check_parts, describe_part, load_optimizer, load_schedule
from recgrad.optim.part import OptimizerPart, averages_weights
from recgrad.optim.precision import LossScaler, autocast, check_precision, set_tf32, unscale_
from recgrad.optim.roles import Role
from recgrad.optim.schedules import Schedule
from recgrad.optim.schedules.reduce_on_plateau import ReduceOnPlateau
from recgrad.optim.sparse_half import SparseHalf, build_sparse_parts


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


class Updater:
    """Turns losses into updates of the dense and the sparse weights, in one order.

    `backward(loss)` then `step()` for each micro-batch. When `accumulation_steps` of them are
    in: unscale → clip → dense step → sparse step → loss scale → EMA → schedules → zero. When
    a gradient is not finite neither half moves, the schedules stay, and the scale backs off.
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
        device_type: where the model runs: cpu or cuda.
        reduce: combines a value over all processes; None for one process.
        track_grad_norm: take the norm of the dense gradients even when they are not clipped.
        keep_gradients: leave the gradients of an update in place until the next backward.
    """

    def __init__(
        self,
        dense: Sequence[OptimizerPart],
        sparse: Sequence[OptimizerPart] = (),
        *,
        accumulation_steps: int = 1,
        mixed_precision: str | None = None,
        grad_scaler: LossScaler | None = None,
        grad_clipping: GradientClipping | None = None,
        ema: EMA | None = None,
        device_type: str = "cpu",
        reduce: Reduce | None = None,
        track_grad_norm: bool = False,
        keep_gradients: bool = False,
    ) -> None:
        if accumulation_steps < 1:
            raise ValueError(f"accumulation_steps must be at least 1, got {accumulation_steps}")
        self.dense = tuple(dense)
        self.sparse = tuple(sparse)
        self.accumulation_steps = accumulation_steps
        self.dtype = check_precision(mixed_precision)
        self.grad_scaler = grad_scaler
        self.grad_clipping = grad_clipping or GradientClipping()
        self.ema = ema
        self.device_type = device_type
        self.reduce = reduce
        self.track_grad_norm = track_grad_norm
        self.keep_gradients = keep_gradients
        self.num_updates = 0
        self.epoch = 0
        self._micro_batches = 0
        self._averaged = False
        self._stale = False
        self._dense_optimizers = _distinct(part.optimizer for part in self.dense)
        self._sparse_optimizers = [
            cast(SparseHalf, optimizer) for optimizer in _distinct(part.optimizer for part in self.sparse)
        ]
        self._averaging = [o for o in self._dense_optimizers if averages_weights(o)]
        if ema is not None and self._averaging:
            raise ValueError(
                "ema and a schedule-free optimizer exclude each other: both average the weights, "
                f"got {type(self._averaging[0]).__name__} and an ema; keep one"
            )
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
    def completes_update(self) -> bool:
        """Whether the next micro-batch is the last of its update (the one to average over processes)."""
        return self._micro_batches == self.accumulation_steps - 1

    @property
    def accumulating(self) -> bool:
        """Whether micro-batches of an unfinished update are in."""
        return self._micro_batches > 0

    @property
    def uses_averaged_weights(self) -> bool:
        """Whether evaluation sees other weights than training."""
        return self.ema is not None or bool(self._averaging)

    @property
    def reestimates_batch_norm(self) -> bool:
        """Whether BatchNorm's statistics must be taken anew under the averaged weights."""
        return bool(self._averaging)

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
        return self._update()

    def flush(self) -> StepResult:
        """Updates with the mean of the micro-batches that are in, when there are some."""
        if self._micro_batches == 0:
            return StepResult(False, False, None, self.rates())
        return self._update()

    def discard(self) -> None:
        """Drops the gradients of the micro-batches that are in."""
        self._micro_batches = 0
        self._zero()

    def start_epoch(self, n: int) -> None:
        """Says that n epochs are finished; schedules by epoch go by it."""
        self.epoch = n
        self._set_rates()

    def observe(self, metrics: Mapping[str, float]) -> None:
        """Hands the results of an evaluation to the schedules that wait for them.

        Every process must hand in the same values.
        """
        for schedule in self.schedules:
            if isinstance(schedule, ReduceOnPlateau):
                if schedule.metric not in metrics:
                    raise RecgradError(
                        f"reduce_on_plateau_learning_rate.metric: the evaluation has no '{schedule.metric}'"
                        f"{nearest(schedule.metric, metrics)} (has: {', '.join(metrics) or 'nothing'})"
                    )
                schedule.observe(float(metrics[schedule.metric]))
        self._set_rates()

    def rates(self) -> dict[str, float]:
        """The learning rate of each part in the next update."""
        return {part.name: float(part.param_groups[0]["lr"]) for part in self.parts if part.groups}

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Evaluation and export see the averaged weights (EMA, schedule-free) in here.

        Afterwards the weights in training are back, bit for bit. Without averages, and inside
        another such context, nothing changes.
        """
        if self._averaged or not self.uses_averaged_weights:
            yield
            return
        with ExitStack() as stack:
            for optimizer in self._averaging:
                stack.enter_context(evaluation_weights(optimizer))
            if self.ema is not None:
                stack.enter_context(self.ema.applied())
            self._averaged = True
            try:
                yield
            finally:
                self._averaged = False

    # The update

    @property
    def _scale(self) -> float:
        return 1.0 if self.grad_scaler is None else self.grad_scaler.scale

    def _update(self) -> StepResult:
        if self._averaged:
            raise RuntimeError("an update inside averaged() would train the averaged weights")
        rates = self.rates()
        gradients = [p.grad for p in self._parameters if p.grad is not None]
        finite = self._unscale(gradients)
        norm = self._clip(gradients) if finite else None
        finite = finite and (norm is None or math.isfinite(norm))
        if finite:
            with self._untouched_gradients():
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

    @contextmanager
    def _untouched_gradients(self) -> Iterator[None]:
        """Undoes what schedule-free optimizers write into gradients that are to be kept."""
        params = [p for o in self._averaging for g in o.param_groups for p in g["params"]]
        with restored([p.grad for p in params if p.grad is not None] if self.keep_gradients else ()):
            yield

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
        if self._averaged:
            raise RuntimeError("state_dict() is the training state; take it outside averaged()")
        return {
            "num_updates": self.num_updates,
            "epoch": self.epoch,
            "parts": {part.name: describe_part(part) for part in self.dense},
            "dense": {part.name: part.optimizer.state_dict() for part in self.dense},
            "sparse": [optimizer.state_dict() for optimizer in self._sparse_optimizers] if sparse else [],
            "schedules": {part.name: part.schedule.state_dict() for part in self.parts},
            "grad_scaler": None if self.grad_scaler is None else self.grad_scaler.state_dict(),
            "ema": None if self.ema is None else self.ema.state_dict(),
            "training_weights": self._training_weights(),
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
            load_schedule(part.schedule, state["schedules"].get(part.name, {}))
        if self.grad_scaler is not None and state["grad_scaler"] is not None:
            self.grad_scaler.load_state_dict(state["grad_scaler"])
        if self.ema is not None and state["ema"] is not None:
            self.ema.load_state_dict(state["ema"])
        with torch.no_grad():
            for name, weight in self._training_weights().items():
                if name in state["training_weights"]:
                    weight.copy_(state["training_weights"][name])
        self._micro_batches = 0
        self._zero()
        self._set_rates()

    def _training_weights(self) -> dict[str, Tensor]:
        if not self.uses_averaged_weights:
            return {}
        found: dict[str, Tensor] = {}
        for part in self.dense:
            if self.ema is None and not averages_weights(part.optimizer):
                continue
            for g, group in enumerate(part.param_groups):
                names = (
                    part.names[g]
                    if part.names
                    else [f"{part.name}.{g}.{i}" for i in range(len(group["params"]))]
                )
                found.update(zip(names, (p.detach() for p in group["params"])))
        return found


def _distinct(optimizers: Iterable[Optimizer]) -> list[Optimizer]:
    return list({id(optimizer): optimizer for optimizer in optimizers}.values())


def build_updater(
    config: Message,
    named_parameters: Iterable[tuple[str, Tensor]],
    sparse: Optimizer | None = None,
    *,
    roles: Mapping[str, Role] | None = None,
    device_type: str = "cpu",
    reduce: Reduce | None = None,
    track_grad_norm: bool = False,
    keep_gradients: bool = False,
    where: str = "train_config",
) -> Updater:
    """The update step that a TrainConfig message describes; sets the TF32 switches of torch as well.

    Args:
        config: the TrainConfig.
        named_parameters: the model's dense parameters.
        sparse: the optimizer of the embedding tables (a `SparseHalf`), when there are some.
        roles: what the parameters are, from `parameter_roles(model)`.
        where: the message's path in the config, for errors.

    The rest is as `Updater` has it.
    """
    train: Any = config
    named = list(named_parameters)
    set_tf32(cudnn=train.cudnn_allow_tf32, matmul=train.cuda_matmul_allow_tf32)
    dense = build_dense_optimizers(
        named, train.dense_optimizer, roles=roles, where=f"{where}.dense_optimizer"
    )
    if train.HasField("gradient_accumulation_steps") and train.gradient_accumulation_steps < 1:
        raise ConfigError([Problem(f"{where}.gradient_accumulation_steps", "must be at least 1, got 0")])
    with problems_of(where):
        return Updater(
            dense,
            ()
            if sparse is None
            else build_sparse_parts(sparse, train.sparse_optimizer, f"{where}.sparse_optimizer"),
            accumulation_steps=train.gradient_accumulation_steps or 1,
            mixed_precision=train.mixed_precision or None,
            grad_scaler=build_scaler(train, where),
            grad_clipping=build_clipping(train, where),
            ema=build_ema(train, named, where),
            device_type=device_type,
            reduce=reduce,
            track_grad_norm=track_grad_norm,
            keep_gradients=keep_gradients,
        )
