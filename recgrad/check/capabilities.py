"""What this build can do, as the config check wants to know it."""

from __future__ import annotations

from functools import cache
from typing import Any

from recgrad.check.unsupported import KINDS
from recgrad.config.class_paths import names_class
from recgrad.config.proto.pipeline_pb2 import PipelineConfig
from recgrad.data.features.registry import FEATURES
from recgrad.data.readers.build import CUSTOM as CUSTOM_READER
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

CLASS_PATH_FIELDS = {CUSTOM_READER: "custom_reader"}
"""The field that names the class, where it is not the config name itself."""


def schema_messages(kind: str) -> dict[str, Any]:
    """The message of each config name of a kind: the members of the oneofs that choose it."""
    return {
        field.name: field.message_type
        for (message, oneof), other in KINDS.items()
        if other == kind
        for field in messages()[message].oneofs_by_name[oneof].fields
    }


def custom_names(kind: str) -> list[str]:
    """Config names of the user's own classes of a kind, which take a class_path."""
    found = [name for name, message in schema_messages(kind).items() if names_class(message)]
    return [*found, CUSTOM_READER] if kind == "reader" else found


def available() -> dict[str, list[str]]:
    """The config names that exist, by kind."""
    return {kind: sorted({*registry, *custom_names(kind)}) for kind, registry in REGISTRIES.items()}


@cache
def messages() -> dict[str, Any]:
    """The messages of the schema, by name."""
    found: dict[str, Any] = {}
    stack: list[Any] = [PipelineConfig.DESCRIPTOR]
    while stack:
        message = stack.pop()
        if message.name not in found:
            found[message.name] = message
            stack += [field.message_type for field in message.fields if field.message_type is not None]
    return found
