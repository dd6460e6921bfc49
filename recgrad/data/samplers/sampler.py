"""What every sampler is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, TypedDict

import pyarrow as pa

from recgrad.config.proto.data_pb2 import DataConfig
from recgrad.data.batch import Batch
from recgrad.data.features.base import Feature
from recgrad.data.readers.reader import Reader
from recgrad.registry import Registry


class Place(NamedTuple):
    """Where a batch lies. Draws depend on the seed and this alone.

    A batch has the same draws when another rank takes it over within the epoch. Batches that are cut by
    cost are cut again then, and those that begin elsewhere get other draws.

    Attributes:
        epoch: the epoch.
        rank: the rank whose plan has the batch.
        row: number of the batch's first row in the epoch.
    """

    epoch: int
    rank: int
    row: int


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


class Sampler(ABC):
    """Gives a batch what its rows are compared with.

    Attributes:
        columns: the columns of the data that it reads.
        draws: items that are drawn, those of the batch's own rows, all that there are,
            or those that each position of a history is compared with.
        Settings: the fields of its message, with limits in their types.
    """

    columns: tuple[str, ...]
    draws: ClassVar[Literal["items", "rows", "all", "positions"]] = "items"
    settings_method: ClassVar[str] = "Settings"

    class Settings(TypedDict, total=False):
        """The fields of its message that have limits."""

    @classmethod
    def provides(cls, config: Any, features: Sequence[Feature]) -> frozenset[str]:
        """Names of features that it brings itself, so that they are not read from the rows."""
        return frozenset()

    def own_columns(self, columns: Mapping[str, pa.Array]) -> dict[str, pa.Array]:
        """The columns of the features that it provides, as rows with these `self.columns` have them."""
        return {}

    @classmethod
    @abstractmethod
    def check(cls, config: Any, features: Sequence[Feature]) -> None:
        """Refuse what needs no data to be refused, with ConfigError."""

    @classmethod
    @abstractmethod
    def build(cls, config: Any, source: SamplerSource) -> Sampler:
        """The sampler of a config message, made for `source`."""

    @abstractmethod
    def sample(self, batch: Batch, columns: Mapping[str, pa.Array], place: Place) -> Batch:
        """The batch with what was drawn for it.

        Args:
            batch: encoded rows.
            columns: `self.columns` of these rows.
            place: what draws depend on, with the seed.
        """


SAMPLERS: Registry[type[Sampler]] = Registry("sampler", "recgrad.data.samplers")
