"""Sparse optimizers: one file each, registered under its config name."""

from recgrad.optim.sparse.adadelta import Adadelta
from recgrad.optim.sparse.adagrad import Adagrad
from recgrad.optim.sparse.adam import Adam
from recgrad.optim.sparse.ftrl import Ftrl
from recgrad.optim.sparse.lamb import Lamb
from recgrad.optim.sparse.lars_sgd import LarsSGD
from recgrad.optim.sparse.lion import Lion
from recgrad.optim.sparse.optimizer import SPARSE_OPTIMIZERS, Combined, SparseOptimizer
from recgrad.optim.sparse.partial_rowwise_adam import PartialRowWiseAdam
from recgrad.optim.sparse.partial_rowwise_lamb import PartialRowWiseLamb
from recgrad.optim.sparse.rmsprop import RMSprop
from recgrad.optim.sparse.rowwise_adagrad import RowWiseAdagrad
from recgrad.optim.sparse.rule import State, sparse_rule
from recgrad.optim.sparse.sgd import SGD

__all__ = [
    "SGD",
    "SPARSE_OPTIMIZERS",
    "Adadelta",
    "Adagrad",
    "Adam",
    "Combined",
    "Ftrl",
    "Lamb",
    "LarsSGD",
    "Lion",
    "PartialRowWiseAdam",
    "PartialRowWiseLamb",
    "RMSprop",
    "RowWiseAdagrad",
    "SparseOptimizer",
    "State",
    "sparse_rule",
]
