"""Optimizers, schedules and the update step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from recgrad.lazy import lazy_names

__all__ = [
    "DENSE_OPTIMIZERS",
    "OptimizerPart",
    "SCHEDULES",
    "SPARSE_OPTIMIZERS",
    "Schedule",
    "SparseOptimizer",
    "Updater",
    "build_updater",
    "dense",
    "schedules",
    "sparse",
]

if TYPE_CHECKING:
    from recgrad.optim import dense, schedules, sparse
    from recgrad.optim.dense import DENSE_OPTIMIZERS
    from recgrad.optim.from_config import build_updater
    from recgrad.optim.part import OptimizerPart
    from recgrad.optim.schedules import SCHEDULES, Schedule
    from recgrad.optim.sparse import SPARSE_OPTIMIZERS, SparseOptimizer
    from recgrad.optim.updater import Updater
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        __all__,
        {
            "DENSE_OPTIMIZERS": "recgrad.optim.dense",
            "OptimizerPart": "recgrad.optim.part",
            "SCHEDULES": "recgrad.optim.schedules",
            "SPARSE_OPTIMIZERS": "recgrad.optim.sparse",
            "Schedule": "recgrad.optim.schedules",
            "SparseOptimizer": "recgrad.optim.sparse",
            "Updater": "recgrad.optim.updater",
            "build_updater": "recgrad.optim.from_config",
            "dense": "recgrad.optim.dense",
            "schedules": "recgrad.optim.schedules",
            "sparse": "recgrad.optim.sparse",
        },
    )
