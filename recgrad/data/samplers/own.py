"""Samplers of the user's own, named by class_path."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from recgrad.config.class_paths import names_class
from recgrad.config.messages import struct_to_dict
from recgrad.data.features.base import Feature
from recgrad.data.samplers.sampler import SAMPLERS, Sampler, SamplerSource


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
    def build(cls, config: Any, source: SamplerSource) -> Sampler:
        """The sampler made with its params."""
        sampler = cls(source, **struct_to_dict(config.params))
        source.reader.check_columns(sampler.columns)
        return sampler


def sampler_class(name: str, message: Any) -> type[Sampler]:
    """The class of the sampler that a config chooses; one of the user's own is imported."""
    if not names_class(message.DESCRIPTOR):
        return SAMPLERS[name]
    return SAMPLERS.resolve_subclass(message.class_path, OwnSampler, "__init__ and sample")
