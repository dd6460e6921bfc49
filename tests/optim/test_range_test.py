"""The learning-rate range test on losses whose best rate is known."""

from __future__ import annotations

import math

import pytest
import torch

from recgrad.optim.part import OptimizerPart
from recgrad.optim.range_test import range_test, rest, set_rate, smooth, suggest_rate
from recgrad.optim.schedules.constant import Constant


class Quadratic:
    """Plain descent on ½·a·w², which diverges for rates above 2/a."""

    def __init__(self, curvature: float) -> None:
        self.curvature = curvature
        self.w = 1.0
        self.rates: list[float] = []

    def step(self, rate: float) -> float:
        self.rates.append(rate)
        loss = 0.5 * self.curvature * self.w**2
        self.w -= rate * self.curvature * self.w
        return loss


@pytest.mark.parametrize("curvature", [0.1, 1.0, 100.0])
def test_suggests_a_rate_that_descends_well_below_the_divergence(curvature):
    problem = Quadratic(curvature)
    result = range_test(problem.step, start=1e-6, end=1e3, steps=200)
    bound = 2 / curvature
    assert result.diverged
    assert result.suggestion is not None
    assert bound / 200 < result.suggestion < bound / 2
    assert result.rates[-1] < 10 * bound


def test_rates_rise_by_a_constant_factor():
    problem = Quadratic(1e-3)
    result = range_test(problem.step, start=1e-4, end=1e-1, steps=31)
    assert problem.rates[0] == pytest.approx(1e-4)
    assert problem.rates[-1] == pytest.approx(1e-1)
    ratios = [b / a for a, b in zip(problem.rates, problem.rates[1:])]
    assert ratios == pytest.approx([10**0.1] * 30)
    assert not result.diverged
    assert len(result.losses) == len(result.smoothed) == 31


def test_a_loss_that_is_no_number_ends_the_test():
    losses = iter([1.0] * 20 + [math.nan])
    result = range_test(lambda rate: next(losses), steps=50)
    assert result.diverged
    assert len(result.rates) == 20
    with pytest.raises(ValueError, match="a number at the lowest rate, got nan"):
        range_test(lambda rate: math.nan)


def test_a_loss_that_never_falls_gives_no_suggestion():
    rising = iter(range(1, 100))
    assert range_test(lambda rate: next(rising) / 100 + 1, steps=30).suggestion is None


def test_smoothing_does_not_lag():
    """A valley stays where it is."""
    values = [abs(i - 25) / 25 for i in range(51)]
    smoothed = smooth(values, 0.8)
    assert min(range(51), key=smoothed.__getitem__) == 25
    assert smooth([2.0] * 5, 0.8) == pytest.approx([2.0] * 5)


def test_the_steepest_place_of_a_sigmoid_is_its_middle():
    rates = [10 ** (-6 + i / 10) for i in range(61)]
    losses = [1 / (1 + math.exp(3 * (math.log10(r) + 3))) for r in rates]
    assert suggest_rate(rates, losses) == pytest.approx(1e-3, rel=0.01)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"start": 1.0, "end": 0.1}, "0 < start < end, got 1.0 and 0.1"),
        ({"steps": 5}, "steps must be at least 10, got 5"),
        ({"smoothing": 1.0}, r"smoothing must be in \[0, 1\), got 1"),
        ({"divergence": 1.0}, "divergence must be greater than 1, got 1"),
    ],
)
def test_refuses(options, message):
    with pytest.raises(ValueError, match=message):
        range_test(lambda rate: 1.0, **options)


def test_parts_keep_their_ratios():
    def part(*rates):
        groups = [{"params": [torch.nn.Parameter(torch.zeros(1))], "lr": rate} for rate in rates]
        return OptimizerPart("p", torch.optim.SGD(groups), Constant())

    frozen, main, other = part(0.0), part(0.1, 0.3), part(0.02)
    set_rate([frozen, main, other], 1.0)
    assert [g["lr"] for p in (frozen, main, other) for g in p.param_groups] == pytest.approx([0, 1, 3, 0.2])
    rest([main])
    assert [g["lr"] for g in main.param_groups] == [0, 0]
    with pytest.raises(ValueError, match="all parts are frozen"):
        set_rate([frozen], 1.0)
