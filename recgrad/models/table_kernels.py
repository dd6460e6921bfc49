"""The kernels and the ways to be spread that a config allows for each table of several processes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from recgrad.config import PipelineConfig
from recgrad.config.messages import chosen
from recgrad.config.names import joiner_of
from recgrad.embedding.build import optimizers_by_table
from recgrad.embedding.sharded.choice import KernelChoice, choose_kernels
from recgrad.embedding.spec import LookupSpec, TableSpec

_FIELDS = ("sharding_types", "compute_kernels")
_GLOBAL = "train_config.global_embedding_constraints"


def has_constraints(config: PipelineConfig) -> bool:
    """Whether the config says anything about them."""
    everywhere = config.train_config.global_embedding_constraints
    own = (feature.embedding_constraints for _, _, feature in _features(config))
    return any(getattr(message, field) for message in (everywhere, *own) for field in _FIELDS)


def kernels_of_tables(
    config: PipelineConfig,
    tables: Sequence[TableSpec],
    lookups: Sequence[LookupSpec],
    devices: Sequence[str] = ("cpu", "cuda"),
) -> dict[str, KernelChoice]:
    """What each table gets on one of the devices.

    A feature's constraints go before those of train_config.

    Raises:
        ConfigError: what the config allows for a table cannot be had there.
    """
    everywhere = config.train_config.global_embedding_constraints
    specs = [
        replace(
            spec,
            sharding_types=spec.sharding_types or tuple(everywhere.sharding_types),
            compute_kernels=spec.compute_kernels or tuple(everywhere.compute_kernels),
        )
        for spec in tables
    ]
    optimizers = optimizers_by_table(config.train_config.sparse_optimizer, [spec.name for spec in tables])
    return choose_kernels(specs, optimizers, devices=devices, paths=_paths(config, tables, lookups))


def _paths(
    config: PipelineConfig, tables: Sequence[TableSpec], lookups: Sequence[LookupSpec]
) -> Mapping[tuple[str, str], str]:
    """By table and field, where the config has what holds for it."""
    own = {name: (path, feature.embedding_constraints) for name, path, feature in _features(config)}
    paths = {(spec.name, field): f"{_GLOBAL}.{field}" for spec in tables for field in _FIELDS}
    for lookup in lookups:
        path, constraints = own.get(lookup.key, ("", None))
        for field in _FIELDS:
            if constraints is not None and getattr(constraints, field):
                paths[lookup.table, field] = f"{path}.embedding_constraints.{field}"
    return paths


def _features(config: PipelineConfig) -> Iterator[tuple[str, str, Any]]:
    """Name, path and message of all features that may have a table; the members of sequences one by one."""
    for i, item in enumerate(config.feature_configs):
        choice, message = _chosen(item)
        path = f"feature_configs[{i}].{choice}"
        if choice != "sequence_feature":
            yield from _with_constraints(message.feature_name, path, message)
            continue
        for j, member in enumerate(message.features):
            kind, inner = _chosen(member)
            name = f"{message.sequence_name}{joiner_of(config)}{inner.feature_name}"
            yield from _with_constraints(name, f"{path}.features[{j}].{kind}", inner)


def _chosen(feature: Any) -> tuple[str, Any]:
    choice = chosen(feature, "feature")
    assert choice is not None  # the check has seen to it
    return choice


def _with_constraints(name: str, path: str, message: Any) -> Iterator[tuple[str, str, Any]]:
    if "embedding_constraints" in message.DESCRIPTOR.fields_by_name:
        yield name, path, message
