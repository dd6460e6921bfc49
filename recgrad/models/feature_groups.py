"""From a batch to the inputs of a model, group by group.

```
Batch ──▶ engine (one call) ──▶ gather: slices, no arithmetic ──▶ forward: dense embeddings,
                                                                  sequence encoders, one cat a group
```
`gather` handles the batch's bookkeeping; `forward` is a function of tensors alone, so that it
can be compiled together with the model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from recgrad.config.messages import to_kwargs
from recgrad.config.proto.feature_pb2 import AutoDisEmbedding
from recgrad.data.batch import Batch, KeyedDense, KeyedJagged
from recgrad.data.features.spec import FeatureSpec, Kind
from recgrad.errors import ConfigError, DataError, Problem
from recgrad.models.group_plan import FeatureGroup, Plan, PositionFields, RowFields, plan_groups
from recgrad.nn.dense_embedding import AutoDis, LinearEmbedding
from recgrad.nn.encoders.base import build_encoder
from recgrad.nn.jagged import Segments, segment_mean, segment_sum


class EmbeddedIds(Protocol):
    """What an embedding engine returns."""

    def pooled(self, names: Sequence[str]) -> Tensor:
        """[rows, sum of widths] of these lookups."""

    def sequence(self, name: str) -> Tensor:
        """[positions, width] of this lookup."""


class FeatureGroups(nn.Module):
    """Feature groups over an embedding engine.

    Args:
        groups: the model's groups.
        features: all features that batches carry, in their order.
        wide_embedding_dim: width of the tables of WIDE groups.
        wide_init_fn: initialiser of those tables; the feature's own if None.
    """

    def __init__(
        self,
        groups: Sequence[FeatureGroup],
        features: Sequence[FeatureSpec],
        *,
        wide_embedding_dim: int = 4,
        wide_init_fn: str | None = None,
    ) -> None:
        super().__init__()
        self.plan = plan_groups(
            groups, features, wide_embedding_dim=wide_embedding_dim, wide_init_fn=wide_init_fn
        )
        self.used: set[str] = set()
        self.keys = tuple(s.name for s in features if s.kind is Kind.SPARSE and not s.sequence)
        self.sequence_keys = tuple(s.name for s in features if s.kind is Kind.SPARSE and s.sequence)
        self._blocks = _dense_blocks(self.plan)
        self.dense_embeddings = nn.ModuleList(_build_block(self.plan, block) for block in self._blocks)
        self._places = {name: (i, j) for i, block in enumerate(self._blocks) for j, name in enumerate(block)}
        self.encoders = nn.ModuleDict()
        for group, specs in self.plan.encoders.items():
            if specs:
                self.encoders[group] = nn.ModuleList(self._build_encoder(group, spec) for spec in specs)
        self._columns: dict[tuple[Any, ...], slice | Tensor] = {}
        self.device = torch.device("cpu")
        # By the identity of its batch, which is kept with it so that no other can take its place.
        self._sent: dict[int, tuple[Batch, Any]] = {}

    def _apply(self, fn: Any, recurse: bool = True) -> FeatureGroups:
        """Remember where `to` and its kin put the module: there may be no parameter to ask."""
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self.device = fn(torch.empty(0, device=self.device)).device
        return self

    def _build_encoder(self, group: str, spec: Any) -> nn.Module:
        query, sequence = self.query_dim(spec.input), self.sequence_dim(spec.input)
        try:
            return build_encoder(spec.kind, query, sequence, spec.params)
        except (TypeError, ValueError) as error:
            where = f"model_config.feature_groups[{group}].sequence_encoders[{spec.name}]"
            raise ConfigError([Problem(where, str(error))]) from error

    def __contains__(self, group: object) -> bool:
        return group in self.plan.rows or group in self.plan.sequences

    def widths(self, group: str) -> dict[str, int]:
        """Columns of each field of a DEEP or WIDE group, in column order."""
        if group not in self.plan.rows:
            kind = "is a sequence group" if group in self.plan.sequences else "does not exist"
            raise ConfigError(
                f"model_config: group '{group}' {kind}; the model needs it as a DEEP or WIDE group "
                f"(there are: {', '.join(self.plan.rows) or 'none'})"
            )
        self.used.add(group)
        widths = dict(self.plan.rows[group].widths)
        if group in self.encoders:
            for spec, encoder in zip(self.plan.encoders[group], self._encoders(group), strict=True):
                widths[spec.name] = encoder.out_features
        return widths

    def dim(self, group: str) -> int:
        """Columns of a DEEP or WIDE group."""
        return sum(self.widths(group).values())

    def field_dim(self, group: str) -> int:
        """The width that all fields of a group have; an error where they differ."""
        widths = self.widths(group)
        if len(set(widths.values())) != 1:
            raise ConfigError(
                f"model_config: fields of group '{group}' must have one width, got "
                + ", ".join(f"{name} {width}" for name, width in widths.items())
            )
        return next(iter(widths.values()))

    def unused(self) -> list[str]:
        """Groups whose width no layer has asked for."""
        return [group for group in (*self.plan.rows, *self.plan.sequences) if group not in self.used]

    def query_dim(self, group: str) -> int:
        """Columns of the query of a sequence group."""
        return sum(self._sequence(group).query.widths.values())

    def sequence_dim(self, group: str) -> int:
        """Columns of a position of a sequence group."""
        return sum(self._sequence(group).sequence.widths.values())

    def _sequence(self, group: str) -> Any:
        if group not in self.plan.sequences:
            raise ConfigError(
                f"model_config: no sequence group '{group}' (there are: "
                f"{', '.join(self.plan.sequences) or 'none'}); set its group_type to SEQUENCE"
            )
        self.used.add(group)
        return self.plan.sequences[group]

    def _encoders(self, group: str) -> Any:
        return self.encoders[group]

    def gather(
        self, batch: Batch, engine: nn.Module | None, groups: Sequence[str] | None = None
    ) -> dict[str, Tensor]:
        """The parts of every group (or of `groups`), as slices of the batch and of the engine's output.

        They are where this module is; the batch and its ids are on the host.
        """
        wanted = self.plan.rows if groups is None else [g for g in groups if g in self.plan.rows]
        inputs = {encoder.input for group in wanted for encoder in self.plan.encoders[group]}
        sequences = [s for s in self.plan.sequences if groups is None or s in inputs or s in groups]
        for name in sequences:
            self._check_lengths(name, self.plan.sequences[name].sequence.features, batch)
        _, sent = self._sent.pop(id(batch), (batch, None))
        ids = self._ids(batch) if sent is None else (sent,)
        embedded: Any = None if engine is None else _Once(engine(*ids), self.device)
        batch = batch.with_inputs_on(self.device)
        parts: dict[str, Tensor] = {}
        for group in wanted:
            self._gather_rows(group, self.plan.rows[group], batch, embedded, parts)
        for name in sequences:
            plan = self.plan.sequences[name]
            self._gather_rows(f"{name}.query", plan.query, batch, embedded, parts)
            self._gather_positions(name, plan.sequence, batch, embedded, parts)
            parts.setdefault("rows", batch.dense.values.new_empty(batch.size, 0))
        for i, block in enumerate(self._blocks):
            if all(name in batch.dense.columns for name in block):
                parts[f"block{i}"] = self._dense(batch.dense, block)
        return parts

    def prepare(self, batch: Batch, engine: Any) -> list[tuple[Batch, Any]]:
        """The ids of a batch and of its negatives, checked, for `send`. Other ranks are not asked."""
        batches = [batch] if batch.negatives is None else [batch, batch.negatives]
        return [(one, engine.prepare(*self._ids(one))) for one in batches]

    def send(self, prepared: Sequence[tuple[Batch, Any]], engine: Any) -> None:
        """Send the ids of a batch to other ranks; the next `gather` of the batch takes them from there."""
        for _, ids in prepared:
            engine.send(ids)
        self._sent = {id(batch): (batch, ids) for batch, ids in prepared}

    def drop_sent(self) -> None:
        """Await what was sent ahead and is not needed, so that no rank leaves while others still receive."""
        for _, ids in self._sent.values():
            ids.arrive()
        self._sent = {}

    def _ids(self, batch: Batch) -> tuple[KeyedJagged, KeyedJagged | None]:
        ids = align(batch.sparse, self.keys, batch.size)
        if not self.sequence_keys:
            return ids, None
        sequences = batch.sequence_sparse or KeyedJagged(
            (), batch.sparse.values[:0], batch.sparse.lengths[:0], ()
        )
        return ids, align(sequences, self.sequence_keys, 0)

    def _gather_rows(
        self, name: str, fields: RowFields, batch: Batch, embedded: EmbeddedIds, parts: dict[str, Tensor]
    ) -> None:
        if fields.raw:
            parts[f"{name}/raw"] = self._dense(batch.dense, fields.raw)
        if fields.lookups:
            parts[f"{name}/lookups"] = embedded.pooled(fields.lookups)
        for source in fields.pooled:
            parts[f"{name}/pooled/{source}"] = self._pool(source, batch, embedded)

    def _gather_positions(
        self, name: str, fields: PositionFields, batch: Batch, embedded: EmbeddedIds, parts: dict[str, Tensor]
    ) -> None:
        columns = [embedded.sequence(lookup) for lookup in fields.lookups]
        columns += [batch.sequence_dense[feature].values for feature in fields.raw]
        for feature in fields.embedded:
            parts[f"{name}/values/{feature}"] = batch.sequence_dense[feature].values
        if columns:
            parts[f"{name}/sequence"] = columns[0] if len(columns) == 1 else torch.cat(columns, dim=1)
        parts[f"{name}/lengths"] = self._lengths(batch, fields.features[0])

    def _check_lengths(self, name: str, features: Sequence[str], batch: Batch) -> None:
        """Refuse a row whose sequences in a group differ in length."""
        first, *others = features
        for other in others:
            if self._sequence_of(other) == self._sequence_of(first):
                continue
            if not torch.equal(self._lengths(batch, first), self._lengths(batch, other)):
                raise DataError(
                    f"group {name}: sequences '{first}' and '{other}' have different lengths in "
                    "a row; features of one sequence group must have a value for each position"
                )

    def _sequence_of(self, feature: str) -> str:
        return self.plan.features[feature].sequence_name or feature

    def _lengths(self, batch: Batch, feature: str) -> Tensor:
        if feature in batch.sequence_lengths:
            return batch.sequence_lengths[feature]
        if feature in batch.sequence_dense:
            return batch.sequence_dense[feature].lengths
        return batch.sequence_lengths[self._sequence_of(feature)]

    def _pool(self, source: str, batch: Batch, embedded: EmbeddedIds) -> Tensor:
        """A sequence feature in a row group: its positions pooled as its ids are."""
        feature = source.partition("@")[0]
        spec = self.plan.features[feature]
        if spec.kind is Kind.SPARSE:
            values = embedded.sequence(source)
        else:
            values = batch.sequence_dense[feature].values
            if spec.dense_embedding is not None:
                values = self._embed(feature, values)
        segments = Segments.from_lengths(self._lengths(batch, feature), values.shape[0])
        return segment_mean(values, segments) if spec.pooling == "mean" else segment_sum(values, segments)

    def _dense(self, dense: KeyedDense, names: tuple[str, ...]) -> Tensor:
        """These dense features side by side: one slice when they already lie so."""
        key = (dense.keys, dense.dims, names, dense.values.device)
        columns = self._columns.get(key)
        if columns is None:
            columns = self._columns[key] = _columns(dense, names)
        if isinstance(columns, slice):
            return dense.values[:, columns]
        return dense.values.index_select(1, columns)

    def _embed(self, feature: str, values: Tensor) -> Tensor:
        """The dense embedding of one sequence feature's positions."""
        block, _ = self._places[feature]
        embedded: Tensor = self.dense_embeddings[block](values)
        return embedded

    def forward(self, parts: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The inputs: `<group>` for DEEP and WIDE groups; `<group>.query` [rows, …],
        `<group>.sequence` [positions, …] and `<group>.lengths` [rows] for sequence groups.
        """
        blocks = {
            i: module(parts[f"block{i}"])
            for i, module in enumerate(self.dense_embeddings)
            if f"block{i}" in parts
        }
        inputs: dict[str, Tensor] = {}
        for name, plan in self.plan.sequences.items():
            if f"{name}/lengths" not in parts:
                continue
            query = self._columns_of(f"{name}.query", plan.query, parts, blocks)
            inputs[f"{name}.query"] = torch.cat(query, dim=1) if query else parts["rows"]
            sequence = [parts[f"{name}/sequence"]] if f"{name}/sequence" in parts else []
            sequence += [self._embed(f, parts[f"{name}/values/{f}"]) for f in plan.sequence.embedded]
            inputs[f"{name}.sequence"] = sequence[0] if len(sequence) == 1 else torch.cat(sequence, dim=1)
            inputs[f"{name}.lengths"] = parts[f"{name}/lengths"]
        for group, fields in self.plan.rows.items():
            columns = self._columns_of(group, fields, parts, blocks)
            if group in self.encoders and f"{self.plan.encoders[group][0].input}.lengths" in inputs:
                columns += self._encode(group, inputs)
            if columns:
                inputs[group] = columns[0] if len(columns) == 1 else torch.cat(columns, dim=1)
        return inputs

    def _columns_of(
        self, name: str, fields: RowFields, parts: Mapping[str, Tensor], blocks: Mapping[int, Tensor]
    ) -> list[Tensor]:
        columns = [parts[f"{name}/raw"]] if f"{name}/raw" in parts else []
        for feature in fields.embedded:
            block, place = self._places[feature]
            if block in blocks:
                width = self.plan.features[feature].embedding_dim
                columns.append(blocks[block][:, place * width : (place + 1) * width])
        if f"{name}/lookups" in parts:
            columns.append(parts[f"{name}/lookups"])
        return columns + [parts[key] for key in parts if key.startswith(f"{name}/pooled/")]

    def _encode(self, group: str, inputs: Mapping[str, Tensor]) -> list[Tensor]:
        return [
            encoder(*(inputs[f"{spec.input}.{part}"] for part in ("query", "sequence", "lengths")))
            for spec, encoder in zip(self.plan.encoders[group], self._encoders(group), strict=True)
        ]


class _Once:
    """An engine's output on a device; it hands out the same columns once, so that they have one gradient."""

    def __init__(self, embedded: EmbeddedIds, device: torch.device) -> None:
        self.embedded = embedded
        self.device = device
        self.taken: dict[tuple[str, ...], Tensor] = {}

    def pooled(self, names: tuple[str, ...]) -> Tensor:
        if names not in self.taken:
            self.taken[names] = self.embedded.pooled(names).to(self.device)
        return self.taken[names]

    def sequence(self, name: str) -> Tensor:
        if (name,) not in self.taken:
            self.taken[(name,)] = self.embedded.sequence(name).to(self.device)
        return self.taken[(name,)]


def align(ids: KeyedJagged, keys: tuple[str, ...], rows: int) -> KeyedJagged:
    """The same ids under exactly these keys; a key that `ids` lacks has `rows` empty bags.

    A batch of one tower's features alone, as negative items are, thus goes through the engine
    of both towers.
    """
    if ids.keys == keys:
        return ids
    counts = tuple(ids.bag_counts[ids.keys.index(key)] if key in ids.keys else rows for key in keys)
    empty = ids.lengths.new_zeros(rows)
    found = {key: ids[key] for key in keys if key in ids.keys}
    lengths = torch.cat([found[key].lengths if key in found else empty for key in keys])
    values = [found[key].values for key in keys if key in found]
    weights = [found[key].weights for key in keys if key in found]
    return KeyedJagged(
        keys,
        torch.cat(values) if values else ids.values[:0],
        lengths,
        counts,
        None if ids.weights is None else torch.cat([w for w in weights if w is not None]),
        ids.single and len(found) == len(keys),
    )


def _columns(dense: KeyedDense, names: tuple[str, ...]) -> slice | Tensor:
    missing = [name for name in names if name not in dense.columns]
    if missing:
        raise DataError(f"batch: no dense feature {', '.join(missing)} (has: {', '.join(dense.keys)})")
    spans = [dense.columns[name] for name in names]
    if all(a + n == b for (a, n), (b, _) in pairwise(spans)):
        return slice(spans[0][0], spans[-1][0] + spans[-1][1])
    device = dense.values.device
    return torch.cat([torch.arange(start, start + width, device=device) for start, width in spans])


def _dense_blocks(plan: Plan) -> list[tuple[str, ...]]:
    """Features with dense embeddings, those of equal settings together; sequence features alone."""
    rows = [*plan.rows.values(), *(sequence.query for sequence in plan.sequences.values())]
    names = dict.fromkeys(name for fields in rows for name in fields.embedded)
    blocks: dict[tuple[Any, ...], list[str]] = {}
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


def _build_block(plan: Plan, block: tuple[str, ...]) -> nn.Module:
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
