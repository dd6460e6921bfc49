"""What this build can do, as the config check wants to know it."""

from __future__ import annotations

from collections.abc import Iterable

from recgrad.data.features import FEATURES
from recgrad.data.readers import READERS
from recgrad.data.samplers import SAMPLERS
from recgrad.losses import LOSSES
from recgrad.metrics import METRICS, TRAIN_METRICS
from recgrad.models import MODELS
from recgrad.nn import SEQUENCE_ENCODERS
from recgrad.optim.dense import DENSE_OPTIMIZERS
from recgrad.optim.schedules import SCHEDULES
from recgrad.optim.sparse import SPARSE_OPTIMIZERS
from recgrad.registry import Registry

REGISTRIES: dict[str, Registry[object]] = {
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
    "sequence_encoder": SEQUENCE_ENCODERS,
}


def available() -> dict[str, Iterable[str]]:
    """The config names that exist, by kind."""
    return {kind: list(registry) for kind, registry in REGISTRIES.items()}
