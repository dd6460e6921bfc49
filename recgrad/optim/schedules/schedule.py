"""What every learning-rate schedule is: a rate from a base rate and a count."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any

from google.protobuf.message import Message

from recgrad.config.messages import chosen, to_kwargs
from recgrad.errors import ConfigError, Problem, RecgradError
from recgrad.limits import Rate, Size, keep_limits, required_of
from recgrad.registry import Registry

CUSTOM = "custom_learning_rate"
"""The config name of a schedule of the user's own, which no registry holds."""

SCHEDULES: Registry[type[Schedule]] = Registry("schedule", "recgrad.optim.schedules")


@keep_limits
@dataclass(kw_only=True, eq=False)
class Schedule(ABC):
    """A learning rate as a function of the count of finished updates.

    `rate(base, n)` is the rate of update n+1, where n updates (epochs when `by_epoch`) are
    finished. It depends on nothing else, so a run that resumes at n goes on with the same
    rate. A base rate of 0 stays 0: what is frozen stays frozen.

    All schedules share the warm-up: while n < warmup_size the rate rises in a straight line
    from warmup_learning_rate, (s − w)·n/warmup_size + w, where s is the rate the schedule
    starts at (the base rate for most); the schedule itself counts from the end of the warm-up.

    Attributes:
        metric: the metric of the evaluation that `observe` is told, or None.

    Args:
        warmup_size: how many updates (epochs when by_epoch) the warm-up takes.
        warmup_learning_rate: the rate the warm-up starts at.
        by_epoch: count finished epochs instead of finished updates.
    """

    warmup_size: Size = 0
    warmup_learning_rate: Rate = 0.0
    by_epoch: bool = False
    metric: str | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        """Refuse settings that do not go together."""
        if self.warmup_learning_rate > 0 and self.warmup_size == 0:
            raise ValueError(
                "warmup_learning_rate needs a warmup_size of at least 1, "
                f"got {self.warmup_learning_rate} with 0"
            )

    def rate(self, base: float, n: int) -> float:
        """The rate of update n+1 for an optimizer whose own rate is `base`."""
        if base == 0:
            return 0.0
        if n < self.warmup_size:
            return self._warm(self.start(base), n)
        return self.after_warmup(base, n - self.warmup_size)

    def _warm(self, target: float, n: int) -> float:
        return (target - self.warmup_learning_rate) * n / self.warmup_size + self.warmup_learning_rate

    def start(self, base: float) -> float:
        """The rate that the warm-up leads to."""
        return base

    @abstractmethod
    def after_warmup(self, base: float, n: int) -> float:
        """The rate when n updates are finished since the end of the warm-up."""

    def momentum(self, n: int) -> float | None:
        """The momentum (or beta1) of update n+1; None leaves it to the optimizer."""
        return None

    @property
    def cycles_momentum(self) -> bool:
        """Whether `momentum` says anything."""
        return False

    @property
    def warms_up(self) -> bool:
        """Whether it begins below the rate that it reaches."""
        return self.warmup_size > 0

    @property
    def moves(self) -> bool:
        """Whether the rate changes at all."""
        return True

    def unusual(self, length: int | None) -> tuple[str, str] | None:
        """A setting (or "") and what is unusual in it for a run of some length; None if nothing is.

        Args:
            length: in the unit that it counts; None if nobody knows.
        """
        return None

    def observe(self, value: float) -> bool:
        """Takes the value of `metric` after an evaluation; says whether the rate has changed."""
        return False

    def state_dict(self) -> dict[str, Any]:
        """What cannot be computed from n: nothing, but for schedules driven by evaluation."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes back what `state_dict` gave."""
        if state:
            raise ValueError(f"{type(self).__name__} has no state, got {sorted(state)}")

    @classmethod
    def from_config(cls, message: Message) -> Schedule:
        """The schedule that a message of the config describes."""
        return cls(**to_kwargs(message))


def build_schedule(message: Message, *, where: str = "learning_rate") -> Schedule:
    """The schedule chosen in the `learning_rate` oneof of a message; constant when none is.

    Args:
        message: an optimizer's (or a stage's) message.
        where: the message's path in the config, for errors.
    """
    choice = chosen(message, "learning_rate")
    if choice is None:
        return SCHEDULES["constant_learning_rate"]()
    name, config = choice
    if name == CUSTOM:
        return _build_custom(config, f"{where}.{name}")
    schedule = SCHEDULES[name]
    missing = set(required_of(schedule)) - set(to_kwargs(config))
    if missing:
        raise ConfigError(
            Problem(f"{where}.{name}.{field}", "is not set, and has no default") for field in sorted(missing)
        )
    try:
        return schedule.from_config(config)
    except ConfigError as error:
        raise ConfigError(Problem(f"{where}.{name}.{p.where}", p.what) for p in error.problems) from error
    except ValueError as error:
        raise ConfigError([Problem(f"{where}.{name}", str(error))]) from error


def _build_custom(config: Any, where: str) -> Schedule:
    """A schedule of the user's own, named by its import path or entry point and made with params.

    Nothing is called before it is known to be a schedule: a path may name any function.
    """
    options = to_kwargs(config)
    if "class_path" not in options:
        raise ConfigError([Problem(f"{where}.class_path", "is not set, and has no default")])
    try:
        found = SCHEDULES.resolve(options["class_path"])
    except RecgradError as error:
        raise ConfigError([Problem(where, str(error))]) from error
    if not issubclass(found, Schedule):
        wanted = "must name a subclass of recgrad.optim.schedules.Schedule"
        remedy = "subclass it and write after_warmup(base, n)"
        raise ConfigError(
            [Problem(f"{where}.class_path", f"{wanted}, got '{options['class_path']}'; {remedy}")]
        )
    try:
        return found(**options.get("params", {}))
    except (TypeError, ValueError) as error:
        raise ConfigError([Problem(where, str(error))]) from error


def build_schedules(config: Message, *, where: str) -> list[Schedule]:
    """The schedule of a half's main optimizer, then those of its part_optimizers.

    A part without one of its own follows the main one's, the very same object.

    Args:
        config: a DenseOptimizer or SparseOptimizer message.
        where: its path in the config, for errors.
    """
    message: Any = config
    main = build_schedule(message, where=where)
    return [main] + [
        main
        if chosen(part, "learning_rate") is None
        else build_schedule(part, where=f"{where}.part_optimizers[{i}]")
        for i, part in enumerate(message.part_optimizers)
    ]
