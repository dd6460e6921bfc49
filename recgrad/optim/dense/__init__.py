"""Dense optimizers: one file an optimizer, each a torch.optim.Optimizer made from config fields."""

from recgrad.optim.dense.optimizer import DENSE_OPTIMIZERS, Params

__all__ = ["DENSE_OPTIMIZERS", "Params"]
