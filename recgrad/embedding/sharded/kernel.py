"""The local engine's kernels inside TorchRec's collections.

TorchRec's sharded collections send ids to the ranks of their rows, and vectors back. Between the two is a
compute kernel; `ShardKernel` is ours, over the shards that one rank holds of some tables. `shard_kernels`
puts it (or FBGEMM's, see fused.py) in its place; the sharders make collections without parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torchrec.distributed.embedding import EmbeddingCollectionSharder, ShardedEmbeddingCollection
from torchrec.distributed.embedding_kernel import BaseEmbedding
from torchrec.distributed.embedding_lookup import GroupedEmbeddingsLookup, GroupedPooledEmbeddingsLookup
from torchrec.distributed.embedding_types import EmbeddingComputeKernel, GroupedEmbeddingConfig
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder, ShardedEmbeddingBagCollection
from torchrec.distributed.sharding.dp_sequence_sharding import DpSequenceEmbeddingSharding
from torchrec.distributed.sharding.dp_sharding import DpPooledEmbeddingSharding
from torchrec.distributed.types import ParameterSharding, ShardingEnv
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recgrad.embedding.engine import Ids
from recgrad.embedding.local.engine import LocalEngine
from recgrad.embedding.sharded.ids import on_device
from recgrad.embedding.sharded.table import Kernel, shard_spec
from recgrad.embedding.spec import SHARDING_TYPES, LookupSpec, TableSpec

KERNEL = EmbeddingComputeKernel.CUSTOMIZED_KERNEL.value
"""TorchRec's name for kernels that it does not know."""


class ShardKernel(BaseEmbedding):  # type: ignore[misc]
    """Looks up the ids that TorchRec sends to this rank, in shards that a local engine keeps.

    Args:
        config: TorchRec's group of shards.
        specs: the whole tables by name.
        seed: of the initial values.
        sequence: give a vector for each id instead of a sum for each bag.
        replicated: every rank holds these tables whole.
        place_of: by feature, the place of the key that its ids are of, where `look_up` is given the ids of
            each key once; None where TorchRec gives them, feature by feature.

    Attributes:
        features, dims: what it gives vectors of, in the order of their columns, and how many each has.
        places: of the keys that it needs, ascending.
        blocks: what `look_up` gives, features and their dim in the order of columns; a block for each dim.
        feature_places: of the key of each feature.
    """

    def __init__(
        self,
        config: GroupedEmbeddingConfig,
        specs: Mapping[str, TableSpec],
        seed: int,
        *,
        sequence: bool,
        replicated: bool,
        place_of: Mapping[str, int] | None = None,
    ) -> None:
        super().__init__()
        self._config = config
        self.sequence = sequence
        self.replicated = replicated
        tables = [shard_spec(table, i, specs) for i, table in enumerate(config.embedding_tables)]
        held = [(spec, name) for spec, t in zip(tables, config.embedding_tables) for name in t.feature_names]
        self.features = tuple(name for _, name in held)
        self.dims = tuple(spec.dim for spec, _ in held)
        places = range(len(held)) if place_of is None else [place_of[name] for name in self.features]
        self.feature_places = dict(zip(self.features, places))
        self.places = tuple(sorted(set(places)))
        self._keys = [str(i) for i in range(len(held))]
        lookups = [
            LookupSpec(own, str(place), spec.name, sequence=sequence)
            for own, place, (spec, _) in zip(self._keys, places, held)
        ]
        keys = [str(place) for place in self.places]
        self.engine = LocalEngine(
            tables,
            lookups,
            keys=() if sequence else keys,
            sequence_keys=keys if sequence else (),
            seed=seed,
        )
        of_key = dict(zip(self._keys, self.features))
        names = [list(group.columns) for group in self.engine.groups.values()]
        self._block_keys = [own for own in names if own]
        self.blocks = [
            ([of_key[key] for key in own], self.engine.tables[self.engine.lookups[own[0]].table].dim)
            for own in self._block_keys
        ]

    @property
    def config(self) -> GroupedEmbeddingConfig:
        """TorchRec's group of shards."""
        return self._config

    def forward(self, features: KeyedJaggedTensor) -> Tensor:
        """[bags, sum of dims], or the vectors of all ids one after another."""
        device = features.device()
        features = on_device(features, torch.device("cpu"))  # where the tables are, whatever the model is on
        values = features.values().to(torch.int64)
        if self.sequence:
            ids = Ids(values, values[:0], features.length_per_key(), single=True)
            embedded = self.engine(None, ids)
            output = torch.cat([embedded.sequence(key).reshape(-1) for key in self._keys])
        else:
            bags = (features.stride(),) * len(self._keys)
            ids = Ids(values, features.lengths(), bags, features.weights_or_none())
            output = self.engine(ids).pooled(self._keys)
        return _with_gradient(output).to(device)

    def look_up(self, ids: Ids) -> list[Tensor]:
        """[bags, columns] of each of `blocks`: the sums of bags, from the ids of each key once."""
        embedded = self.engine(ids)
        return [embedded.pooled(keys) for keys in self._block_keys]

    def named_parameters_by_table(self) -> Iterator[tuple[str, nn.Parameter]]:
        """None: tables are no module parameters."""
        return iter(())

    def flush(self) -> None:
        """Nothing is cached."""

    def purge(self) -> None:
        """Nothing is cached."""


def _with_gradient(output: Tensor) -> Tensor:
    """Backward is a collective: it must run on every rank, also where all tables are frozen."""
    wanted = torch.is_grad_enabled() and not output.requires_grad
    return output.detach().requires_grad_() if wanted else output


@contextmanager
def shard_kernels(make: Callable[[GroupedEmbeddingConfig, bool, bool], Kernel]) -> Iterator[None]:
    """While entered, TorchRec builds its customized kernels by `make(config, sequence, replicated)`.

    TorchRec has a name for kernels of others but no place to register them.
    """
    kinds: tuple[tuple[Any, bool], ...] = (
        (GroupedPooledEmbeddingsLookup, False),
        (GroupedEmbeddingsLookup, True),
    )
    originals = [(kind, kind._create_embedding_kernel) for kind, _ in kinds]
    for (kind, sequence), (_, original) in zip(kinds, originals):
        kind._create_embedding_kernel = _creator(original, make, sequence)
    try:
        yield
    finally:
        for kind, original in originals:
            kind._create_embedding_kernel = original


def _creator(original: Any, make: Any, sequence: bool) -> Any:
    def create(lookup: Any, config: GroupedEmbeddingConfig, *args: Any, **kwargs: Any) -> Any:
        if config.compute_kernel.value != KERNEL:
            return original(lookup, config, *args, **kwargs)
        # A table that every rank holds whole has no place in the global one.
        return make(config, sequence, config.embedding_tables[0].local_metadata is None)

    return create


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
    qcomm_codecs_registry: Any  # how tensors travel, of TorchRec's sharder

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
            qcomm_codecs_registry=self.qcomm_codecs_registry,
            device=device,
            module_fqn=module_fqn,
        )


class PooledSharder(_OwnKernels, EmbeddingBagCollectionSharder):  # type: ignore[misc]
    """Makes a `PooledCollection` of an EmbeddingBagCollection."""

    collection = PooledCollection


class SequenceSharder(_OwnKernels, EmbeddingCollectionSharder):  # type: ignore[misc]
    """Makes a `SequenceCollection` of an EmbeddingCollection."""

    collection = SequenceCollection
