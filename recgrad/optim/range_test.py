"""The learning-rate range test: raise the rate until the loss gives way, and see where it fell best."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated

from recgrad.limits import Range, Share, keep_limits
from recgrad.optim.part import OptimizerPart


@dataclass(frozen=True)
class RangeTest:
    """What a range test saw.

    Attributes:
        rates: the rates tried, rising.
        losses: the loss of each step, before its update.
        smoothed: the losses, each averaged with its neighbours on both sides.
        suggestion: the rate at which the smoothed loss fell fastest; None when it never fell.
        lowest: the rate at which it was lowest.
        diverged: whether the test ended because the loss gave way.
    """

    rates: tuple[float, ...]
    losses: tuple[float, ...]
    smoothed: tuple[float, ...]
    suggestion: float | None
    lowest: float
    diverged: bool


@keep_limits
def range_test(
    step: Callable[[float], float],
    *,
    start: float = 1e-6,
    end: float = 10.0,
    steps: Annotated[int, Range("[10, ∞)")] = 100,
    smoothing: Share = 0.8,
    divergence: Annotated[float, Range("(1, ∞)")] = 4.0,
) -> RangeTest:
    """Makes updates at rates that rise from start to end by a constant factor, and watches the loss.

    The test ends early when the running average of the losses, which keeps `smoothing` of
    itself at each step, exceeds `divergence` times the lowest so far, or is no number. The
    suggestion is where the loss, smoothed from both sides so that it does not lag behind the
    rate, fell most steeply over the logarithm of the rate, before its lowest point. Smith 2017.

    Args:
        step: makes one update at a rate, and returns the loss it started from.
    """
    if not 0 < start < end:
        raise ValueError(f"start and end must be 0 < start < end, got {start} and {end}")
    factor = (end / start) ** (1 / (steps - 1))
    rates: list[float] = []
    losses: list[float] = []
    lowest_average = math.inf
    diverged = False
    for i in range(steps):
        rate = start * factor**i
        loss = step(rate)
        average = running_average([*losses, loss], smoothing)[-1]
        if not math.isfinite(average) or average > divergence * lowest_average:
            diverged = True
            break
        lowest_average = min(lowest_average, average)
        rates.append(rate)
        losses.append(loss)
    if not rates:
        raise ValueError(f"the loss must be a number at the lowest rate, got {loss}")
    smoothed = smooth(losses, smoothing)
    lowest = min(range(len(smoothed)), key=smoothed.__getitem__)
    suggestion = suggest_rate(rates, smoothed)
    return RangeTest(tuple(rates), tuple(losses), tuple(smoothed), suggestion, rates[lowest], diverged)


def running_average(values: Sequence[float], keep: float) -> list[float]:
    """At each value the average of it and those before, each weighted `keep` times the next one."""
    averages: list[float] = []
    total = weight = 0.0
    for value in values:
        total = keep * total + value
        weight = keep * weight + 1
        averages.append(total / weight)
    return averages


def smooth(values: Sequence[float], keep: float) -> list[float]:
    """The mean of the running averages from the left and from the right."""
    left = running_average(values, keep)
    right = running_average(list(reversed(values)), keep)[::-1]
    return [(a + b) / 2 for a, b in zip(left, right)]


def suggest_rate(rates: Sequence[float], smoothed: Sequence[float], *, window: int = 5) -> float | None:
    """The rate at which the loss falls most steeply over log(rate), before its lowest point.

    The slope at a point is that of the straight line fitted through `window` points about it,
    so that one lucky batch does not decide. None when the loss falls nowhere.
    """
    lowest = min(range(len(smoothed)), key=smoothed.__getitem__)
    half = window // 2
    logs = [math.log(rate) for rate in rates]
    best: tuple[float, int] | None = None
    for i in range(half, min(lowest, len(rates) - 1 - half) + 1):
        slope = _slope(logs[i - half : i + half + 1], smoothed[i - half : i + half + 1])
        if slope < 0 and (best is None or slope < best[0]):
            best = (slope, i)
    return None if best is None else rates[best[1]]


def _slope(x: Sequence[float], y: Sequence[float]) -> float:
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    above = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y))
    return above / sum((a - mean_x) ** 2 for a in x)


def set_rate(parts: Sequence[OptimizerPart], rate: float) -> None:
    """Sets the rate of the first part that is not frozen, and of the others in their ratios to it.

    It holds for one update: the next ones' rates are the schedules' again.
    """
    bases = [base for part in parts for base in part.base_rates if base > 0]
    if not bases:
        raise ValueError("there must be a rate greater than 0 to test, got none: all parts are frozen")
    for part in parts:
        for group, base in zip(part.param_groups, part.base_rates):
            group["lr"] = rate * base / bases[0]


def rest(parts: Sequence[OptimizerPart]) -> None:
    """Sets the rate of all parts to 0, for one update."""
    for part in parts:
        for group in part.param_groups:
            group["lr"] = 0.0
