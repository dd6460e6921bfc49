"""The sampler that a config asks for."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

from recgrad.config.class_paths import names_class
from recgrad.config.messages import chosen, struct_to_dict
from recgrad.config.proto.data_pb2 import DataConfig
from recgrad.config.proto.pipeline_pb2 import PipelineConfig
from recgrad.data.features.base import Feature
from recgrad.data.samplers.own import sampler_class
from recgrad.data.samplers.sampler import SAMPLERS, Sampler, SamplerSource
from recgrad.errors import ConfigError, Problem
from recgrad.limits import limits_of


def leaves_unused(config: PipelineConfig) -> bool:
    """Whether the model takes the items of other rows as negatives, so that drawn ones would not be used."""
    model = config.model_config.WhichOneof("model")
    in_batch = model is not None and getattr(getattr(config.model_config, model), "in_batch_negative", False)
    sampler = _chosen_class(config.data_config) if in_batch else None
    return sampler is not None and sampler.draws != "rows"


def provided_features(config: PipelineConfig, features: Sequence[Feature]) -> frozenset[str]:
    """Names of features that the sampler brings, so that rows of the data need not have their columns."""
    picked, sampler = chosen(config.data_config, "sampler"), _chosen_class(config.data_config)
    if picked is None or sampler is None or leaves_unused(config):
        return frozenset()
    return sampler.provides(picked[1], features)


def _chosen_class(data: DataConfig) -> type[Sampler] | None:
    """The class of the sampler that the data name; None where there is none."""
    picked = chosen(data, "sampler")
    if picked is None or not (picked[0] in SAMPLERS or names_class(picked[1].DESCRIPTOR)):
        return None
    return checked_class(*picked)


def checked_class(name: str, message: Any) -> type[Sampler]:
    """The class of a sampler, whose settings are within the limits that it has."""
    if name not in SAMPLERS and not names_class(message.DESCRIPTOR):
        known = ", ".join(SAMPLERS)
        raise ConfigError([Problem(f"data_config.{name}", f"this sampler is not supported; use {known}")])
    given, inside = {field.name: value for field, value in message.ListFields()}, ""
    try:
        cls = sampler_class(name, message)
        if names_class(message.DESCRIPTOR):
            given, inside = struct_to_dict(message.params), ".params"
            inspect.signature(cls).bind(None, **given)
    except (TypeError, ValueError) as error:
        raise ConfigError([Problem(f"data_config.{name}", str(error))]) from error
    problems = [
        Problem(f"data_config.{name}{inside}.{setting}{place}", what)
        for setting, limit in limits_of(cls).items()
        if setting in given
        for place, what in limit.problems(given[setting])
    ]
    if problems:
        raise ConfigError(problems)
    return cls


def build_sampler(source: SamplerSource) -> Sampler | None:
    """The sampler that `data_config` names, made for `source`; None when it names none."""
    picked = chosen(source.data, "sampler")
    if picked is None:
        return None
    name, message = picked
    cls = checked_class(name, message)
    named = [getattr(message, field, "") for field in ("item_id_field", "user_id_field")]
    source.reader.check_columns([column for column in named if column])
    try:
        return cls.build(message, source)
    except (TypeError, ValueError) as error:
        if not names_class(message.DESCRIPTOR):
            raise
        raise ConfigError([Problem(f"data_config.{name}", str(error))]) from error
