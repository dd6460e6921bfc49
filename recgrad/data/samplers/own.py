"""Samplers of the user's own, named by class_path."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from recgrad.config.class_paths import names_class
from recgrad.config.messages import struct_to_dict
from recgrad.config.proto.data_pb2 import DataConfig
from recgrad.data.features.base import Feature
from recgrad.data.readers.reader import Reader
from recgrad.data.samplers.sampler import SAMPLERS, Sampler


@dataclass(frozen=True)
class SamplerSource:
    """What a sampler is made for.

    Attributes:
        data: data_config.
        features: the encoders of all features.
        reader: of the rows that it samples for.
        training: whether those are of training.
        seed: draws depend on it, and on the place of the batch, alone.
    """

    data: DataConfig
    features: Sequence[Feature]
    reader: Reader
    training: bool
    seed: int


class OwnSampler(Sampler):
    """A sampler of the user's own: `__init__(self, source, *, …)` takes params, and `sample` samples.

    The constructor sets `columns`, the columns of the data that `sample` gets.
    """

    settings_method: ClassVar[str] = "__init__"

    def __init__(self, source: SamplerSource) -> None:
        self.source = source
        self.columns = ()

    @classmethod
    def check(cls, config: Any, features: Sequence[Feature]) -> None:
        """Nothing more than the limits of the constructor's signature; may be overridden."""

    @classmethod
    def build(
        cls,
        config: Any,
        data: DataConfig,
        features: Sequence[Feature],
        reader: Reader,
        *,
        training: bool,
        seed: int,
    ) -> Sampler:
        """The sampler made with its params."""
        source = SamplerSource(data, features, reader, training, seed)
        sampler = cls(source, **struct_to_dict(config.params))
        reader.check_columns(sampler.columns)
        return sampler


def sampler_class(name: str, message: Any) -> type[Sampler]:
    """The class of the sampler that a config chooses; one of the user's own is imported."""
    if not names_class(message.DESCRIPTOR):
        return SAMPLERS[name]
    return SAMPLERS.resolve_subclass(message.class_path, OwnSampler, "__init__ and sample")
