"""The sampler that a config asks for."""

from __future__ import annotations

from collections.abc import Sequence

from recgrad.config.messages import chosen
from recgrad.config.proto.data_pb2 import DataConfig
from recgrad.data.features.base import Feature
from recgrad.data.readers.reader import Reader
from recgrad.data.samplers.sampler import SAMPLERS, Sampler
from recgrad.errors import ConfigError, Problem


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
    reader.check_columns([message.item_id_field])
    schema = reader.schema
    return SAMPLERS[name].build(message, data, features, schema, training=training, seed=seed)
