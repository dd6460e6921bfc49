"""Learning-rate schedules: one file a schedule, each a pure function of the number of finished updates."""

from __future__ import annotations

from typing import TYPE_CHECKING

from recgrad.lazy import lazy_names
from recgrad.optim.schedules.schedule import SCHEDULES, Schedule, build_schedule, build_schedules

__all__ = [
    "Constant",
    "CosineAnnealing",
    "CosineAnnealingWarmRestarts",
    "ExponentialDecay",
    "InverseSqrt",
    "LinearDecay",
    "ManualStep",
    "OneCycle",
    "PolynomialDecay",
    "ReduceOnPlateau",
    "SCHEDULES",
    "Schedule",
    "Sequence",
    "StepDecay",
    "WarmupStableDecay",
    "build_schedule",
    "build_schedules",
]

if TYPE_CHECKING:
    from recgrad.optim.schedules.constant import Constant
    from recgrad.optim.schedules.cosine_annealing import CosineAnnealing
    from recgrad.optim.schedules.cosine_annealing_warm_restarts import CosineAnnealingWarmRestarts
    from recgrad.optim.schedules.exponential_decay import ExponentialDecay
    from recgrad.optim.schedules.inverse_sqrt import InverseSqrt
    from recgrad.optim.schedules.linear_decay import LinearDecay
    from recgrad.optim.schedules.manual_step import ManualStep
    from recgrad.optim.schedules.one_cycle import OneCycle
    from recgrad.optim.schedules.polynomial_decay import PolynomialDecay
    from recgrad.optim.schedules.reduce_on_plateau import ReduceOnPlateau
    from recgrad.optim.schedules.sequence import Sequence
    from recgrad.optim.schedules.step_decay import StepDecay
    from recgrad.optim.schedules.warmup_stable_decay import WarmupStableDecay
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        __all__,
        {
            "Constant": "recgrad.optim.schedules.constant",
            "CosineAnnealing": "recgrad.optim.schedules.cosine_annealing",
            "CosineAnnealingWarmRestarts": "recgrad.optim.schedules.cosine_annealing_warm_restarts",
            "ExponentialDecay": "recgrad.optim.schedules.exponential_decay",
            "InverseSqrt": "recgrad.optim.schedules.inverse_sqrt",
            "LinearDecay": "recgrad.optim.schedules.linear_decay",
            "ManualStep": "recgrad.optim.schedules.manual_step",
            "OneCycle": "recgrad.optim.schedules.one_cycle",
            "PolynomialDecay": "recgrad.optim.schedules.polynomial_decay",
            "ReduceOnPlateau": "recgrad.optim.schedules.reduce_on_plateau",
            "Sequence": "recgrad.optim.schedules.sequence",
            "StepDecay": "recgrad.optim.schedules.step_decay",
            "WarmupStableDecay": "recgrad.optim.schedules.warmup_stable_decay",
        },
    )
