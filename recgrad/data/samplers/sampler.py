"""What a sampler offers the loader."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from recgrad.config.proto.data_pb2 import DataConfig
from recgrad.data.batch import Batch
from recgrad.data.features.base import Feature
from recgrad.registry import Registry


class Sampler(ABC):
    """Draws items that are shared by all rows of a batch.

    Attributes:
        item_id_field: the column that holds the items of the batch's own rows.
    """

    item_id_field: str

    @classmethod
    @abstractmethod
    def check(cls, config: Any, features: Sequence[Feature]) -> None:
        """Refuse what needs no data to be refused, with ConfigError."""

    @classmethod
    @abstractmethod
    def build(
        cls,
        config: Any,
        data: DataConfig,
        features: Sequence[Feature],
        schema: pa.Schema,
        *,
        training: bool,
        seed: int,
    ) -> Sampler:
        """The sampler of a config message; `schema` holds the columns of the training data."""

    @abstractmethod
    def sample(self, own: pa.Array, epoch: int, row: int, rank: int) -> Batch:
        """Encoded features of sampled items.

        Args:
            own: the items of the batch's rows; none of them is drawn.
            epoch: the epoch.
            row: number of the batch's first row in the epoch.
            rank: the rank whose plan has the batch. Draws depend on the seed and these alone, so a
                batch has the same negatives when another rank takes it over within the epoch. Batches that
                are cut by cost are cut anew then, and those that begin elsewhere get other draws.
        """


SAMPLERS: Registry[type[Sampler]] = Registry("sampler", "recgrad.data.samplers")
