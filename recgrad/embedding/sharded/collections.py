"""TorchRec's embedding collections with the shards in Recgrad's own kernels."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

from torch import nn
from torchrec.distributed.embedding import EmbeddingCollectionSharder, ShardedEmbeddingCollection
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder, ShardedEmbeddingBagCollection
from torchrec.distributed.sharding.dp_sequence_sharding import DpSequenceEmbeddingSharding
from torchrec.distributed.sharding.dp_sharding import DpPooledEmbeddingSharding
from torchrec.distributed.types import ParameterSharding, ShardingEnv

from recgrad.embedding.spec import SHARDING_TYPES


class _Replica(nn.Module):
    """Stands where TorchRec has DistributedDataParallel: replicas are averaged when the optimizer steps."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *args: Any) -> Any:
        return self.module(*args)


def _wrap_replicas(lookups: list[nn.Module], shardings: Iterable[Any], kind: type[Any]) -> None:
    for i, sharding in enumerate(shardings):
        if isinstance(sharding, kind):
            lookups[i] = _Replica(lookups[i])


class PooledCollection(ShardedEmbeddingBagCollection):  # type: ignore[misc]
    """Sums of bags over sharded tables that hold no module parameters."""

    def init_data_parallel(self) -> None:
        """Data-parallel tables have no parameters that torch could average."""
        _wrap_replicas(self._lookups, self._embedding_shardings, DpPooledEmbeddingSharding)

    def reset_parameters(self) -> None:
        """Rows draw their initial values when they are first seen."""


class SequenceCollection(ShardedEmbeddingCollection):  # type: ignore[misc]
    """Vectors of single ids over sharded tables that hold no module parameters."""

    def init_data_parallel(self) -> None:
        """Data-parallel tables have no parameters that torch could average."""
        _wrap_replicas(self._lookups, self._sharding_type_to_sharding.values(), DpSequenceEmbeddingSharding)

    def reset_parameters(self) -> None:
        """Rows draw their initial values when they are first seen."""


class _OwnKernels:
    """What our sharders have in common, before TorchRec's in the order of classes."""

    collection: ClassVar[Any]

    def sharding_types(self, compute_device_type: str) -> list[str]:
        """What our kernels know; TorchRec itself leaves row-wise out on CPUs."""
        return list(SHARDING_TYPES)

    def shard(
        self,
        module: Any,
        params: dict[str, ParameterSharding],
        env: ShardingEnv,
        device: Any = None,
        module_fqn: str | None = None,
    ) -> Any:
        """The module's tables spread as `params` says."""
        return self.collection(
            module=module,
            table_name_to_parameter_sharding=params,
            env=env,
            device=device,
            module_fqn=module_fqn,
        )


class PooledSharder(_OwnKernels, EmbeddingBagCollectionSharder):  # type: ignore[misc]
    """Makes a `PooledCollection` of an EmbeddingBagCollection."""

    collection = PooledCollection


class SequenceSharder(_OwnKernels, EmbeddingCollectionSharder):  # type: ignore[misc]
    """Makes a `SequenceCollection` of an EmbeddingCollection."""

    collection = SequenceCollection
