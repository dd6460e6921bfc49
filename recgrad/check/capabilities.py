"""What this build can do, as the config check wants to know it."""

from __future__ import annotations

from typing import Any

from recgrad.data.features.registry import FEATURES
from recgrad.data.readers.reader import READERS
from recgrad.data.samplers.sampler import SAMPLERS
from recgrad.losses import LOSSES
from recgrad.metrics import METRICS, TRAIN_METRICS
from recgrad.models.base import MODELS
from recgrad.nn.encoders.base import ENCODERS
from recgrad.optim.dense import DENSE_OPTIMIZERS
from recgrad.optim.schedules import SCHEDULES
from recgrad.optim.sparse import SPARSE_OPTIMIZERS
from recgrad.registry import Registry

REGISTRIES: dict[str, Registry[Any]] = {
    "dense_optimizer": DENSE_OPTIMIZERS,
    "sparse_optimizer": SPARSE_OPTIMIZERS,
    "schedule": SCHEDULES,
    "loss": LOSSES,
    "metric": METRICS,
    "train_metric": TRAIN_METRICS,
    "model": MODELS,
    "feature": FEATURES,
    "reader": READERS,
    "sampler": SAMPLERS,
    "sequence_encoder": ENCODERS,
}

CUSTOM = {
    "sparse_optimizer": ("custom_optimizer",),
    "schedule": ("custom_learning_rate",),
    "loss": ("custom_loss",),
    "metric": ("custom_metric",),
    "model": ("custom_model",),
}
"""Config names of the user's own classes that no registry holds: what builds the kind imports them."""


def available() -> dict[str, list[str]]:
    """The config names that exist, by kind."""
    return {kind: [*registry, *CUSTOM.get(kind, ())] for kind, registry in REGISTRIES.items()}
