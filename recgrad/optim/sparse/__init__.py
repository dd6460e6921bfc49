"""Sparse optimizers: one file each, registered under its config name."""

from recgrad.optim.sparse.adagrad import Adagrad
from recgrad.optim.sparse.adam import Adam
from recgrad.optim.sparse.optimizer import SPARSE_OPTIMIZERS, Combined, SparseOptimizer
from recgrad.optim.sparse.rule import State, sparse_rule
from recgrad.optim.sparse.sgd import SGD

__all__ = [
    "SGD",
    "SPARSE_OPTIMIZERS",
    "Adagrad",
    "Adam",
    "Combined",
    "SparseOptimizer",
    "State",
    "sparse_rule",
]
