"""The dense embeddings of a model's features: numbers that become vectors."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch
from torch import Tensor, nn

from recgrad.config.messages import to_kwargs
from recgrad.config.proto.feature_pb2 import AutoDisEmbedding
from recgrad.data.batch import KeyedDense
from recgrad.errors import ConfigError, Problem
from recgrad.models.dense_columns import DenseColumns
from recgrad.models.group_plan import Plan
from recgrad.nn.dense_embedding import AutoDis, LinearEmbedding


class DenseEmbeddings(nn.ModuleList):
    """Modules that embed numbers; row features of equal settings share one, each with weights of its own.

    Args:
        plan: of the model's groups.

    Attributes:
        blocks: the features of each module, in the order in which its output has them.
    """

    def __init__(self, plan: Plan) -> None:
        blocks = _blocks(plan)
        super().__init__(_build(plan, block) for block in blocks)
        self.blocks = blocks
        self._features = {name: plan.features[name] for block in blocks for name in block}
        self._places = {name: (i, j) for i, block in enumerate(blocks) for j, name in enumerate(block)}

    def gather(self, dense: KeyedDense, needed: Collection[str], columns: DenseColumns) -> dict[int, Tensor]:
        """The numbers of each module that a needed row feature has, by the module's index.

        Features that share a module with a needed one but are not in the batch, since it has one tower's
        features alone, count as 0; nothing reads what becomes of them.
        """
        found: dict[int, Tensor] = {}
        for i, block in enumerate(self.blocks):
            if not any(name in needed for name in block):
                continue
            if all(name in needed or name in dense.columns for name in block):
                found[i] = columns.take(dense, block)
            else:
                found[i] = torch.cat([self._numbers(dense, name, needed, columns) for name in block], dim=1)
        return found

    def _numbers(
        self, dense: KeyedDense, name: str, needed: Collection[str], columns: DenseColumns
    ) -> Tensor:
        if name in needed or name in dense.columns:
            return columns.take(dense, (name,))
        return dense.values.new_zeros(dense.values.shape[0], self._features[name].value_dim)

    def columns_of(self, name: str, outputs: Mapping[int, Tensor]) -> Tensor:
        """[rows, embedding_dim] of a row feature, from the outputs of modules by their index."""
        block, place = self._places[name]
        width = self._features[name].embedding_dim
        return outputs[block][:, place * width : (place + 1) * width]

    def embed_positions(self, name: str, values: Tensor) -> Tensor:
        """[positions, embedding_dim] of a sequence feature, which has a module to itself."""
        embedded: Tensor = self[self._places[name][0]](values)
        return embedded


def _blocks(plan: Plan) -> list[tuple[str, ...]]:
    """Features with dense embeddings, those of equal settings together; sequence features alone."""
    rows = [*plan.rows.values(), *(sequence.query for sequence in plan.sequences.values())]
    names = dict.fromkeys(name for fields in rows for name in fields.embedded)
    blocks: dict[tuple[str, bytes, int, int], list[str]] = {}
    for name in names:
        spec = plan.features[name]
        message = spec.dense_embedding
        assert message is not None
        settings = (type(message).__name__, message.SerializeToString(), spec.embedding_dim, spec.value_dim)
        blocks.setdefault(settings, []).append(name)
    of_positions = [name for sequence in plan.sequences.values() for name in sequence.sequence.embedded]
    pooled = [
        name
        for fields in rows
        for name in fields.pooled
        if name in plan.features and plan.features[name].dense_embedding is not None
    ]
    return [*map(tuple, blocks.values()), *((name,) for name in dict.fromkeys(of_positions + pooled))]


def _build(plan: Plan, block: tuple[str, ...]) -> nn.Module:
    spec = plan.features[block[0]]
    message = spec.dense_embedding
    where = f"feature {block[0]}"
    if spec.embedding_dim < 1:
        raise ConfigError([Problem(where, "a dense embedding needs an embedding_dim of at least 1")])
    if isinstance(message, AutoDisEmbedding):
        if spec.value_dim != 1:
            raise ConfigError([Problem(where, f"autodis needs value_dim 1, got {spec.value_dim}; use mlp")])
        return AutoDis(len(block), spec.embedding_dim, **to_kwargs(message))
    return LinearEmbedding(len(block), spec.embedding_dim, spec.value_dim)
