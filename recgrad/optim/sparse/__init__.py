"""Sparse optimizers: one file each, registered under its config name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from recgrad.lazy import lazy_names
from recgrad.optim.sparse._public import HOMES
from recgrad.optim.sparse.optimizer import SPARSE_OPTIMIZERS, Combined, SparseOptimizer
from recgrad.optim.sparse.rule import State, sparse_rule

__all__ = [*HOMES, "SPARSE_OPTIMIZERS", "Combined", "SparseOptimizer", "State", "sparse_rule"]

if TYPE_CHECKING:
    from recgrad.optim.sparse._public import *  # noqa: F403
else:
    __getattr__, __dir__ = lazy_names(__name__, __all__, HOMES)
