"""The local engine's kernels as TorchRec's compute kernel: the shards that one rank holds of some tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torchrec.distributed.embedding_kernel import BaseEmbedding
from torchrec.distributed.embedding_lookup import GroupedEmbeddingsLookup, GroupedPooledEmbeddingsLookup
from torchrec.distributed.embedding_types import EmbeddingComputeKernel, GroupedEmbeddingConfig
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recgrad.embedding.local.engine import Ids, LocalEngine
from recgrad.embedding.sharded.inputs import on_device
from recgrad.embedding.sharded.shard import Kernel, shard_spec
from recgrad.embedding.spec import LookupSpec, TableSpec

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
    """

    def __init__(
        self,
        config: GroupedEmbeddingConfig,
        specs: Mapping[str, TableSpec],
        seed: int,
        *,
        sequence: bool,
        replicated: bool,
    ) -> None:
        super().__init__()
        self._config = config
        self.sequence = sequence
        self.replicated = replicated
        tables = [shard_spec(table, i, specs) for i, table in enumerate(config.embedding_tables)]
        places = [
            spec.name for spec, table in zip(tables, config.embedding_tables) for _ in table.feature_names
        ]
        self._keys = [str(i) for i in range(len(places))]
        lookups = [LookupSpec(key, key, name, sequence=sequence) for key, name in zip(self._keys, places)]
        self.engine = LocalEngine(
            tables,
            lookups,
            keys=() if sequence else self._keys,
            sequence_keys=self._keys if sequence else (),
            seed=seed,
        )

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
        if torch.is_grad_enabled() and not output.requires_grad:
            # Backward is a collective: it must run on every rank, also where all tables are frozen.
            output = output.detach().requires_grad_()
        return output.to(device)

    def named_parameters_by_table(self) -> Iterator[tuple[str, nn.Parameter]]:
        """None: tables are no module parameters."""
        return iter(())

    def flush(self) -> None:
        """Nothing is cached."""

    def purge(self) -> None:
        """Nothing is cached."""


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
