"""Samplers of the user's own, named by class_path."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import pyarrow as pa

from recgrad.config.class_paths import names_class
from recgrad.config.messages import struct_to_dict
from recgrad.data.batch import Batch
from recgrad.data.encoder import FeatureEncoder
from recgrad.data.faults import Faults
from recgrad.data.features.base import Feature
from recgrad.data.samplers.sampler import SAMPLERS, Sampler, SamplerSource
from recgrad.errors import DataError


class OwnSampler(Sampler):
    """A sampler of the user's own: `__init__(self, source, *, …)` takes params, and `sample` samples.

    The constructor sets `columns`, the columns of the data that `sample` gets; `encode` makes negatives of
    items that were drawn.
    """

    settings_method: ClassVar[str] = "__init__"

    def __init__(self, source: SamplerSource) -> None:
        self.source = source
        self.columns = ()

    def encode(self, items: Mapping[str, pa.Array]) -> Batch:
        """Items as the `negatives` of a batch: the features that read these columns, and no others, encoded.

        Raises:
            DataError: a value cannot be encoded, or no feature reads these columns alone.
        """
        from recgrad.data.samplers.item_side import item_features  # with readers of tables: slow to import

        features = item_features(self.source.features, list(items))
        if not features:
            raise DataError(
                f"data: no feature reads the columns {', '.join(items)} alone, so items have none"
            )
        faults = Faults()
        rows = len(next(iter(items.values())))
        encoded = FeatureEncoder(features).encode(dict(items), rows, faults)
        if (fault := faults.first()) is not None:
            raise DataError(
                f"feature {fault.feature}: {fault.problem} (column '{fault.column}', row {fault.row} of what "
                f"{type(self).__name__} drew); {fault.remedy}"
            )
        return Batch.of(encoded)

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
