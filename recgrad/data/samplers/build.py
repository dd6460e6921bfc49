"""The sampler that a config asks for."""

from __future__ import annotations

from collections.abc import Sequence

from google.protobuf.message import Message

from recgrad.config.messages import chosen
from recgrad.config.proto.data_pb2 import DataConfig
from recgrad.config.proto.pipeline_pb2 import PipelineConfig
from recgrad.data.features.base import Feature
from recgrad.data.readers.reader import Reader
from recgrad.data.samplers.sampler import SAMPLERS, Sampler
from recgrad.errors import ConfigError, Problem
from recgrad.limits import limits_of


def leaves_unused(config: PipelineConfig) -> bool:
    """Whether the model takes the items of other rows as negatives, so that drawn ones would not be used."""
    model = config.model_config.WhichOneof("model")
    in_batch = model is not None and getattr(getattr(config.model_config, model), "in_batch_negative", False)
    sampler = SAMPLERS.get(str(config.data_config.WhichOneof("sampler")))
    return bool(in_batch) and sampler is not None and sampler.draws != "rows"


def provided_features(config: PipelineConfig, features: Sequence[Feature]) -> frozenset[str]:
    """Names of features that the sampler brings, so that rows of the data need not have their columns."""
    picked = chosen(config.data_config, "sampler")
    if picked is None or picked[0] not in SAMPLERS or leaves_unused(config):
        return frozenset()
    return SAMPLERS[picked[0]].provides(picked[1], features)


def build_sampler(
    data: DataConfig, features: Sequence[Feature], reader: Reader, *, training: bool, seed: int
) -> Sampler | None:
    """The sampler of `data_config` for the data of `reader`, or None when it names none."""
    picked = chosen(data, "sampler")
    if picked is None:
        return None
    name, message = picked
    if name not in SAMPLERS:
        known = ", ".join(SAMPLERS)
        raise ConfigError([Problem(f"data_config.{name}", f"this sampler is not supported; use {known}")])
    _check_limits(name, message)
    named = [getattr(message, field, "") for field in ("item_id_field", "user_id_field")]
    reader.check_columns([column for column in named if column])
    return SAMPLERS[name].build(message, data, features, reader, training=training, seed=seed)


def _check_limits(name: str, message: Message) -> None:
    """Refuse settings outside the limits of the sampler's class, also where no check was made before."""
    given = {field.name: value for field, value in message.ListFields()}
    problems = [
        Problem(f"data_config.{name}.{setting}{place}", what)
        for setting, limit in limits_of(SAMPLERS[name]).items()
        if setting in given
        for place, what in limit.problems(given[setting])
    ]
    if problems:
        raise ConfigError(problems)
