"""An optimizer (or some of its parameter groups) with the schedule that drives it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from google.protobuf.message import Message
from torch.optim import Optimizer

from recgrad.config.messages import chosen
from recgrad.errors import ConfigError, Problem, RecgradError
from recgrad.optim.schedules import Schedule


class OptimizerPart:
    """Parameter groups of one optimizer that follow one schedule, from the rates they have now.

    Args:
        name: what rates and the log call it, such as `dense` or `sparse.user_.*`.
        optimizer: the optimizer.
        schedule: its schedule.
        groups: the positions of its parameter groups; all when left out.
        reference: the rate that the schedule is asked about, when it is another part's; this
            part then keeps its ratio to it, so that rates written out in the schedule (as in
            manual_step_learning_rate) are scaled and not copied.
        names: the parameters' names, group by group.
    """

    def __init__(
        self,
        name: str,
        optimizer: Optimizer,
        schedule: Schedule,
        *,
        groups: Sequence[int] | None = None,
        reference: float | None = None,
        names: Sequence[Sequence[str]] = (),
    ) -> None:
        self.name = name
        self.optimizer = optimizer
        self.schedule = schedule
        self.groups = tuple(range(len(optimizer.param_groups)) if groups is None else groups)
        self.base_rates = tuple(float(group["lr"]) for group in self.param_groups)
        self.reference = reference
        self.names = tuple(tuple(group) for group in names)
        self._cycled = tuple(
            schedule.cycles_momentum and takes_momentum(optimizer, group) for group in self.param_groups
        )

    @property
    def cycles_momentum(self) -> bool:
        """Whether the schedule moves the momentum of any of the groups."""
        return any(self._cycled)

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The parameter groups of this part."""
        return [self.optimizer.param_groups[i] for i in self.groups]

    def rate(self, base: float, n: int) -> float:
        """The rate of update n+1 for a group of the given base rate."""
        return scheduled_rate(self.schedule, base, self.reference, n)

    def set_rates(self, n: int) -> float:
        """Sets the rate (and momentum) of update n+1 on the groups; returns the first rate."""
        momentum = self.schedule.momentum(n) if self.cycles_momentum else None
        rates = [self.rate(base, n) for base in self.base_rates]
        for group, rate, cycled in zip(self.param_groups, rates, self._cycled):
            group["lr"] = rate
            if cycled and momentum is not None:
                set_momentum(group, momentum)
        return rates[0] if rates else 0.0


def scheduled_rate(schedule: Schedule, base: float, reference: float | None, n: int) -> float:
    """The rate of update n+1 for a base rate; with a reference, in its ratio to that one's rate.

    Raises:
        RecgradError: the schedule, one of the user's own, gives what cannot be a rate.
    """
    rate = float(schedule.rate(reference or base, n))
    if not 0 <= rate < math.inf:
        raise RecgradError(
            f"the schedule {type(schedule).__name__} gives the rate {rate} "
            f"after {n} {'epochs' if schedule.by_epoch else 'updates'}; it must be finite and at least 0"
        )
    return rate * (base / reference) if reference else rate


def distinct_optimizers(parts: Iterable[OptimizerPart]) -> list[Optimizer]:
    """The optimizers of parts, each once."""
    return list({id(part.optimizer): part.optimizer for part in parts}.values())


def averages_weights(optimizer: Optimizer) -> bool:
    """Whether the optimizer evaluates other weights than it trains, as schedule-free ones do.

    Such optimizers have `train()` and `eval()`, which put the one or the other into the model.
    """
    return callable(getattr(optimizer, "train", None)) and callable(getattr(optimizer, "eval", None))


def takes_momentum(optimizer: Optimizer, group: dict[str, Any]) -> bool:
    """Whether a schedule may move the group's momentum (or beta1): it has one, and not 0.

    Schedule-free optimizers have none to give: their averaged weights are kept implicitly, by
    a momentum that never changes.
    """
    if averages_weights(optimizer):
        return False
    value = group.get("momentum", group["betas"][0] if "betas" in group else group.get("beta1", 0))
    return bool(value > 0)


def set_momentum(group: dict[str, Any], momentum: float) -> None:
    """Sets the group's momentum, or its beta1."""
    if "momentum" in group:
        group["momentum"] = momentum
    elif "betas" in group:
        group["betas"] = (momentum, *group["betas"][1:])
    else:
        group["beta1"] = momentum


def check_momentum(part: OptimizerPart, config: Message, where: str) -> None:
    """Refuses a cycle_momentum that was written down where there is no momentum to cycle.

    Args:
        part: the part built from the message.
        config: the message with the learning_rate oneof.
        where: its path in the config, for errors.
    """
    choice = chosen(config, "learning_rate")
    if choice is None or part.cycles_momentum:
        return
    name, message = choice
    written = {field.name: value for field, value in message.ListFields()}
    if written.get("cycle_momentum"):
        kind = type(part.optimizer).__name__
        raise ConfigError(
            [Problem(f"{where}.{name}.cycle_momentum", f"{kind} has no momentum to cycle; leave it out")]
        )
