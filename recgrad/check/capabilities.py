"""What this build can do, as the config check wants to know it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any

from recgrad.check.unsupported import KINDS
from recgrad.config.class_paths import names_class
from recgrad.config.proto.data_pb2 import CustomDataset, DatasetType
from recgrad.config.proto.pipeline_pb2 import PipelineConfig
from recgrad.registry import Registry


@dataclass(frozen=True)
class Home:
    """Where a kind of component lives.

    Attributes:
        package: whose files register the components.
        module: the file of the registry.
        variable: the registry's name there.
    """

    package: str
    module: str
    variable: str


HOMES = {
    "dense_optimizer": Home("recgrad.optim.dense", "optimizer", "DENSE_OPTIMIZERS"),
    "sparse_optimizer": Home("recgrad.optim.sparse", "optimizer", "SPARSE_OPTIMIZERS"),
    "schedule": Home("recgrad.optim.schedules", "schedule", "SCHEDULES"),
    "loss": Home("recgrad.losses", "", "LOSSES"),
    "metric": Home("recgrad.metrics", "", "METRICS"),
    "train_metric": Home("recgrad.metrics", "", "TRAIN_METRICS"),
    "model": Home("recgrad.models", "base", "MODELS"),
    "feature": Home("recgrad.data.features", "registry", "FEATURES"),
    "reader": Home("recgrad.data.readers", "reader", "READERS"),
    "sampler": Home("recgrad.data.samplers", "sampler", "SAMPLERS"),
    "sequence_encoder": Home("recgrad.nn.encoders", "base", "ENCODERS"),
}
"""Where each kind lives. Importing most of them imports torch, so that is left until one is asked for."""


class Registries(Mapping[str, Registry[Any]]):
    """The registry of each kind, imported when it is asked for."""

    def __getitem__(self, kind: str) -> Registry[Any]:
        home = HOMES[kind]
        found: Registry[Any] = getattr(
            import_module(".".join(filter(None, (home.package, home.module)))), home.variable
        )
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(HOMES)

    def __len__(self) -> int:
        return len(HOMES)


REGISTRIES = Registries()

CUSTOM_READER = DatasetType.Name(CustomDataset)

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
