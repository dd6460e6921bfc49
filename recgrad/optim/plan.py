"""The rates that a config will give every part over a run, before there is a model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from google.protobuf.message import Message

from recgrad.config.messages import chosen, to_kwargs
from recgrad.errors import ConfigError, Problem
from recgrad.optim.dense import DENSE_OPTIMIZERS
from recgrad.optim.groups import FALLBACK, config_options
from recgrad.optim.part import OptimizerPart, scheduled_rate
from recgrad.optim.schedules import Schedule, build_schedules


@dataclass(frozen=True)
class PlannedPart:
    """A part of the update step, as `Updater.rates()` will name it, with its schedule.

    Attributes:
        name: the part's name.
        base: the optimizer's own rate.
        schedule: what moves it.
        reference: the rate that the schedule is asked about, when it is another part's.
        momentum: whether the optimizer has a momentum for the schedule to move.
    """

    name: str
    base: float
    schedule: Schedule
    reference: float | None = None
    momentum: bool = False

    def rate(self, n: int) -> float:
        """The rate when n updates (epochs when the schedule goes by them) are finished."""
        return scheduled_rate(self.schedule, self.base, self.reference, n)


def plan_parts(config: Message) -> list[PlannedPart]:
    """The parts of a TrainConfig, dense ones first, in the order of the config."""
    train: Any = config
    return [
        *_plan_half(train.dense_optimizer, "dense", "train_config.dense_optimizer", _dense_rates),
        *_plan_half(train.sparse_optimizer, "sparse", "train_config.sparse_optimizer", _sparse_rates),
    ]


_Rates = Callable[[str, Any], Iterator[tuple[str, float, bool]]]


def _plan_half(config: Any, half: str, where: str, rates: _Rates) -> Iterator[PlannedPart]:
    sections = [(half, where, config)]
    for i, part in enumerate(config.part_optimizers):
        sections.append((f"{half}.{part.regex_pattern}", f"{where}.part_optimizers[{i}]", part))
    schedules = build_schedules(config, where=where)
    for (name, place, section), schedule in zip(sections, schedules, strict=True):
        choice = chosen(section, "optimizer")
        if choice is None:
            raise ConfigError([Problem(place, "has no optimizer; add one, such as adam_optimizer { }")])
        main: float | None = None
        for suffix, base, momentum in rates(*choice):
            yield PlannedPart(name + suffix, base, schedule, main, momentum)
            main = base


def _dense_rates(kind: str, message: Any) -> Iterator[tuple[str, float, bool]]:
    """The rates of a dense optimizer and its fallback: (suffix of the name, rate, has momentum)."""
    factory = DENSE_OPTIMIZERS[kind]
    options = config_options(message)
    own = {key: value for key, value in options.items() if not key.startswith(FALLBACK)}
    probe = OptimizerPart("", factory([torch.nn.Parameter(torch.ones(2, 2))], **own), _CYCLED)
    yield "", probe.base_rates[0], probe.cycles_momentum
    if getattr(factory, "fallback", None) is not None:
        yield ".fallback", options[f"{FALLBACK}lr"], True


def _sparse_rates(kind: str, message: Any) -> Iterator[tuple[str, float, bool]]:
    options = to_kwargs(message)
    if "class_path" in options:
        options = options.get("params", {})
    if "lr" not in options:
        raise ConfigError([Problem(f"train_config.sparse_optimizer.{kind}", "params has no lr; add it")])
    yield "", float(options["lr"]), bool(options.get("momentum", options.get("beta1", 0)))


class _Cycled(Schedule):
    """Stands for a schedule that moves momenta, to ask an optimizer whether it has one."""

    def after_warmup(self, base: float, n: int) -> float:
        """Base."""
        return base

    @property
    def cycles_momentum(self) -> bool:
        """Yes."""
        return True


_CYCLED = _Cycled()
