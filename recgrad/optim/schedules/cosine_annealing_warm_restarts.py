"""Cosine waves that start afresh."""

from __future__ import annotations

from dataclasses import dataclass

from recgrad.limits import Count, Rate
from recgrad.optim.schedules.cosine_annealing import half_cosine
from recgrad.optim.schedules.schedule import SCHEDULES, Schedule


@SCHEDULES.register("cosine_annealing_warm_restarts_learning_rate")
@dataclass(kw_only=True, eq=False)
class CosineAnnealingWarmRestarts(Schedule):
    """Falls along half a cosine wave, jumps back to the base rate, and again, each wave T_mult times as long.

    min + (base − min)·(1 + cos(π·t/T))/2 with t the count in the wave and T its length:
    T_0, T_0·T_mult, T_0·T_mult², … The wave is found in whole numbers: a logarithm in
    floating point misses restarts (T_mult 3 at the fifth).

    Paper: Loshchilov and Hutter 2017, SGDR: stochastic gradient descent with warm restarts.
    """

    T_0: Count
    T_mult: Count = 1
    min_learning_rate: Rate = 0.0

    def after_warmup(self, base: float, n: int) -> float:
        """The rate at the place in the wave that n falls in."""
        place, length = self.wave(n)
        return self.min_learning_rate + (base - self.min_learning_rate) * half_cosine(place / length)

    def wave(self, n: int) -> tuple[int, int]:
        """The count inside the wave that n falls in, and that wave's length."""
        if self.T_mult == 1:
            return n % self.T_0, self.T_0
        place, length = n, self.T_0
        while place >= length:
            place -= length
            length *= self.T_mult
        return place, length
