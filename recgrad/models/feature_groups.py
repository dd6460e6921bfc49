"""From a batch to the inputs of a model, group by group.

```
Batch ──▶ engine (one call) ──▶ gather: slices, no arithmetic ──▶ Parts ──▶ forward: dense embeddings,
                                                                  pooling, sequence encoders,
                                                                  one cat or sum a group ──▶ Inputs
```
`gather` handles the batch's bookkeeping; `forward` is a function of tensors alone, so that it
can be compiled, or exported, together with the model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate

import torch
from torch import Tensor, nn

from recgrad.data.batch import Batch
from recgrad.data.features.spec import FeatureSpec, Kind
from recgrad.embedding.engine import EmbeddedIds, EmbeddingEngine, PreparedIds
from recgrad.errors import ConfigError, DataError, Problem
from recgrad.models.batch_ids import BatchIds
from recgrad.models.dense_columns import DenseColumns
from recgrad.models.dense_embeddings import DenseEmbeddings
from recgrad.models.field_columns import Field
from recgrad.models.group_plan import (
    EncoderSpec,
    FeatureGroup,
    RowFields,
    SequencePlan,
    plan_groups,
)
from recgrad.models.inputs import Inputs, Parts, PositionParts, RowParts, SequenceInput, SequenceParts
from recgrad.nn.encoders.base import SequenceEncoder, SequenceFields, build_encoder
from recgrad.nn.jagged import Segments, segment_mean, segment_sum
from recgrad.nn.joining import join

ONE_DIM = "give them one embedding_dim"


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
        self.time_groups: set[str] = set()
        self.features = {
            group.name: (*group.features, *(name for part in group.sequences for name in part.features))
            for group in groups
        }
        sparse = [spec for spec in features if spec.kind is Kind.SPARSE]
        dims = {table.name: table.dim for table in self.plan.tables}
        self.ids = BatchIds(
            tuple(spec.name for spec in sparse if not spec.sequence),
            tuple(spec.name for spec in sparse if spec.sequence),
            {look.name: Field(look.key, dims[look.table]) for look in self.plan.lookups if not look.sequence},
        )
        self.dense_embeddings = DenseEmbeddings(self.plan)
        self._columns = DenseColumns()
        self.encoders = nn.ModuleDict()
        for group, specs in self.plan.encoders.items():
            if specs:
                self.encoders[group] = nn.ModuleList(
                    self._build_encoder(f"feature_groups[{group}].sequence_encoders[{i}]", spec)
                    for i, spec in enumerate(specs)
                )
        for group in self.plan.summed:
            self._equal_width(group, self._field_widths(group), "combine: SUM needs", ONE_DIM)
        self.device = torch.device("cpu")

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> FeatureGroups:
        """Remember where `to` and its kin put the module: there may be no parameter to ask."""
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self.device = fn(torch.empty(0, device=self.device)).device
        return self

    def _build_encoder(self, place: str, spec: EncoderSpec) -> SequenceEncoder:
        query, sequence = self.query_dim(spec.input), self.sequence_dim(spec.input)
        try:
            return build_encoder(spec.kind, query, sequence, spec.params, self._fields(spec.input))
        except (TypeError, ValueError) as error:
            raise ConfigError([Problem(f"model_config.{place}.{spec.kind}", str(error))]) from error

    def _fields(self, group: str) -> SequenceFields:
        """Where the features of a sequence group stand."""
        plan = self._sequence(group)
        own = {*plan.query.lookups, *plan.query.pooled, *plan.sequence.lookups}
        return SequenceFields(
            _spans(plan.query.widths),
            _spans(plan.sequence.widths),
            {lookup.key: lookup.table for lookup in self.plan.lookups if lookup.name in own},
        )

    def __contains__(self, group: object) -> bool:
        return group in self.plan.rows or group in self.plan.sequences

    def widths(self, group: str) -> dict[str, int]:
        """Columns of each field of a DEEP or WIDE group, in column order; a sum is one field, the group's."""
        fields = self._field_widths(group)
        return {group: next(iter(fields.values()))} if group in self.plan.summed else fields

    def _field_widths(self, group: str) -> dict[str, int]:
        """Columns of each field of a DEEP or WIDE group, before a sum."""
        if group not in self.plan.rows:
            kind = "is a sequence group" if group in self.plan.sequences else "does not exist"
            raise ConfigError(
                f"model_config: group '{group}' {kind}; the model needs it as a DEEP or WIDE group "
                f"(there are: {', '.join(self.plan.rows) or 'none'})"
            )
        encoded = {spec.name: encoder.out_features for spec, encoder in self._encoders(group)}
        return {**self.plan.rows[group].widths, **encoded}

    def dim(self, group: str) -> int:
        """Columns of a DEEP or WIDE group."""
        return sum(self.widths(group).values())

    def span_within(self, group: str, other: str) -> tuple[int, int] | None:
        """The columns of row group `other` that are all of `group`; None where it is not one part of it."""
        if group == other:
            return 0, self.dim(group)
        fields, within = self.plan.rows[group], self.plan.rows[other]
        count = len(fields.lookups)
        found = [i for i in range(len(within.lookups)) if within.lookups[i : i + count] == fields.lookups]
        only_lookups = 0 < count == len(fields.widths) and not self._encoders(group)
        if not (found and only_lookups) or {group, other} & self.plan.summed:
            return None
        place = len(within.raw) + len(within.embedded) + found[0]
        widths = list(within.widths.values())
        first = sum(widths[:place])
        return first, first + sum(widths[place : place + count])

    def field_dim(self, group: str, remedy: str = ONE_DIM) -> int:
        """The width that all fields of a group have; an error with the remedy where they differ."""
        return self._equal_width(group, self.widths(group), "needs", remedy)

    def _equal_width(self, group: str, widths: Mapping[str, int], needs: str, remedy: str) -> int:
        first: dict[int, str] = {}
        for name, width in widths.items():
            first.setdefault(width, name)
        if len(first) != 1:
            got = ", ".join(f"'{name}' {width}" for width, name in sorted(first.items()))
            what = f"{needs} features of equal width, got {got}; {remedy}"
            raise ConfigError([Problem(f"model_config.feature_groups[{group}]", what)])
        return next(iter(first))

    def query_dim(self, group: str) -> int:
        """Columns of the query of a sequence group."""
        return sum(self._sequence(group).query.widths.values())

    def sequence_dim(self, group: str) -> int:
        """Columns of a position of a sequence group."""
        return sum(self._sequence(group).sequence.widths.values())

    def take_times(self, group: str) -> None:
        """Have a group of one number a row or position as `Inputs.times`, in float64."""
        fields = self.plan.rows.get(group) or self._sequence(group).sequence
        if len(fields.raw) != 1 or sum(fields.widths.values()) != 1:
            raise ConfigError(
                f"model_config: group '{group}' of times must be one raw_feature of one value, got "
                f"{', '.join(fields.widths) or 'none'}"
            )
        self.time_groups.add(group)

    def lengths(self, batch: Batch, group: str) -> Tensor:
        """[rows]: the positions of each row of a sequence group."""
        return self._lengths(batch, self.sequence_features(group)[0])

    def sequence_features(self, group: str) -> Sequence[str]:
        """The features of positions of a sequence group."""
        return self.plan.sequences[group].sequence.features

    def _sequence(self, group: str) -> SequencePlan:
        if group not in self.plan.sequences:
            raise ConfigError(
                f"model_config: no sequence group '{group}' (there are: "
                f"{', '.join(self.plan.sequences) or 'none'}); set its group_type to SEQUENCE"
            )
        return self.plan.sequences[group]

    def _encoders(self, group: str) -> list[tuple[EncoderSpec, SequenceEncoder]]:
        """The encoders of a DEEP group with what they were made from."""
        if group not in self.encoders:
            return []
        modules = self.encoders[group]
        assert isinstance(modules, nn.ModuleList)
        return list(zip(self.plan.encoders[group], modules, strict=True))  # type: ignore[arg-type]

    def leave_room(self, engine: EmbeddingEngine) -> None:
        """Have an engine leave room for what goes before its lookups in a group, which is then not copied."""
        for name, fields in self.plan.rows.items():
            place = len(fields.raw) + len(fields.embedded)
            last = not fields.pooled and not self._encoders(name) and name not in self.plan.summed
            if fields.lookups and place and last:
                engine.leave_room(fields.lookups, sum(list(fields.widths.values())[:place]))

    def gather(
        self,
        batch: Batch,
        engine: EmbeddingEngine | None,
        groups: Sequence[str] | None = None,
        *,
        ids: PreparedIds | None = None,
    ) -> Parts:
        """The parts of every group (or of `groups`), as slices of the batch and of the engine's output.

        They are where this module is; the batch and its ids are on the host. `ids` are those of the batch, if
        they are on their way already.
        """
        wanted = self.plan.rows if groups is None else [g for g in groups if g in self.plan.rows]
        inputs = {encoder.input for group in wanted for encoder in self.plan.encoders[group]}
        names = [s for s in self.plan.sequences if groups is None or s in inputs or s in groups]
        for name in names:
            self._check_lengths(name, self.plan.sequences[name].sequence.features, batch)
        embedded = None if engine is None else self.ids.look_up(batch, engine, self.device, ids)
        batch = batch.with_inputs_on(self.device)
        times = {
            group: self._gather_times(group, batch)
            for group in (*wanted, *names)
            if group in self.time_groups
        }
        rows = {group: self.plan.rows[group] for group in wanted if group not in times}
        sequences = {name: self.plan.sequences[name] for name in names if name not in times}
        numbers = {
            name
            for fields in (*rows.values(), *(plan.query for plan in sequences.values()))
            for name in fields.embedded
        }
        return Parts(
            {name: self._gather_rows(fields, batch, embedded) for name, fields in rows.items()},
            {name: self._gather_sequence(plan, batch, embedded) for name, plan in sequences.items()},
            self.dense_embeddings.gather(batch.dense, numbers, self._columns),
            times=times,
        )

    def gather_query(self, batch: Batch, engine: EmbeddingEngine | None, group: str) -> Parts:
        """The parts of a sequence group's row features alone, from a batch without its sequences."""
        fields = self._sequence(group).query
        embedded = None if engine is None else self.ids.look_up(batch, engine, self.device, None)
        batch = batch.with_inputs_on(self.device)
        query = self._gather_rows(fields, batch, embedded)
        lengths = torch.zeros(batch.size, dtype=torch.int64, device=self.device)
        numbers = self.dense_embeddings.gather(batch.dense, set(fields.embedded), self._columns)
        return Parts({}, {group: SequenceParts(query, None, (), lengths)}, numbers)

    def query(self, parts: Parts, group: str) -> Tensor:
        """The row features of a sequence group, [rows, query_dim], whatever its sequences are."""
        numbers = {i: self.dense_embeddings[i](values) for i, values in parts.numbers.items()}
        return _joined(self._row_columns(self._sequence(group).query, parts.sequences[group].query, numbers))

    def _gather_times(self, group: str, batch: Batch) -> Tensor:
        if group in self.plan.rows:
            (name,) = self.plan.rows[group].raw
            return batch.precise[name] if name in batch.precise else batch.dense[name].double().squeeze(1)
        (name,) = self.plan.sequences[group].sequence.raw
        return batch.sequence_dense[name].values.double().squeeze(1)

    def _gather_rows(self, fields: RowFields, batch: Batch, embedded: EmbeddedIds | None) -> RowParts:
        lookups = None
        if fields.lookups:
            assert embedded is not None
            lookups = embedded.pooled(fields.lookups)
        return RowParts(
            self._columns.take(batch.dense, fields.raw) if fields.raw else None,
            lookups,
            tuple(self._gather_pooled(source, batch, embedded) for source in fields.pooled),
        )

    def _gather_pooled(self, source: str, batch: Batch, embedded: EmbeddedIds | None) -> PositionParts:
        spec = self.pooled_feature(source)
        if spec.kind is Kind.SPARSE:
            assert embedded is not None
            values = embedded.sequence(source)
        else:
            values = self._positions(batch, spec.name)
        return PositionParts(values, self._lengths(batch, spec.name))

    def _positions(self, batch: Batch, feature: str) -> Tensor:
        """Numbers of a sequence as other numbers are; times alone stay float64."""
        return batch.sequence_dense[feature].values.to(batch.dense.values.dtype)

    def _gather_sequence(
        self, plan: SequencePlan, batch: Batch, embedded: EmbeddedIds | None
    ) -> SequenceParts:
        fields = plan.sequence
        columns = [] if embedded is None else [embedded.sequence(lookup) for lookup in fields.lookups]
        columns += [self._positions(batch, feature) for feature in fields.raw]
        return SequenceParts(
            self._gather_rows(plan.query, batch, embedded),
            _joined(columns) if columns else None,
            tuple(self._positions(batch, feature) for feature in fields.embedded),
            self._lengths(batch, fields.features[0]),
        )

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

    def pooled_feature(self, source: str) -> FeatureSpec:
        """The sequence feature of a lookup, or of that name."""
        return self.plan.features[source.partition("@")[0]]

    def forward(self, parts: Parts) -> Inputs:
        """The inputs of the groups that the parts are of."""
        numbers = {i: self.dense_embeddings[i](values) for i, values in parts.numbers.items()}
        sequences = {
            name: self._sequence_input(self.plan.sequences[name], part, numbers)
            for name, part in parts.sequences.items()
        }
        rows: dict[str, Tensor] = {}
        for group, part in parts.rows.items():
            columns = self._row_columns(self.plan.rows[group], part, numbers)
            for spec, encoder in self._encoders(group):
                given = sequences[spec.input]
                columns.append(encoder(given.query, given.sequence, given.lengths))
            rows[group] = self._combined(group, columns)
        return Inputs(rows, sequences, parts.times)

    def _combined(self, group: str, columns: Sequence[Tensor]) -> Tensor:
        """The fields of a row group as the model sees them: side by side, or added up."""
        if group not in self.plan.summed:
            return join(columns)
        width = self.dim(group)
        # All sizes are said, since those of no rows cannot be inferred.
        fields = [part.reshape(part.shape[0], part.shape[1] // width, width) for part in columns]
        return torch.cat(fields, dim=1).sum(1) if len(fields) > 1 else fields[0].sum(1)

    def _sequence_input(
        self, plan: SequencePlan, part: SequenceParts, numbers: Mapping[int, Tensor]
    ) -> SequenceInput:
        columns = [] if part.columns is None else [part.columns]
        for feature, values in zip(plan.sequence.embedded, part.numbers, strict=True):
            columns.append(self.dense_embeddings.embed_positions(feature, values))
        sequence = _joined(columns)
        query = self._row_columns(plan.query, part.query, numbers)
        none = sequence.new_empty(part.lengths.shape[0], 0)
        return SequenceInput(torch.cat(query, dim=1) if query else none, sequence, part.lengths)

    def _row_columns(self, fields: RowFields, part: RowParts, numbers: Mapping[int, Tensor]) -> list[Tensor]:
        """The fields of one vector a row."""
        columns = [] if part.raw is None else [part.raw]
        columns += [self.dense_embeddings.columns_of(feature, numbers) for feature in fields.embedded]
        if part.lookups is not None:
            columns.append(part.lookups)
        pooled = zip(fields.pooled, part.pooled, strict=True)
        return columns + [self._pool(source, positions) for source, positions in pooled]

    def _pool(self, source: str, part: PositionParts) -> Tensor:
        """A sequence feature in a row group: its positions pooled as its ids are."""
        spec, values = self.pooled_feature(source), part.values
        if spec.dense_embedding is not None:
            values = self.dense_embeddings.embed_positions(spec.name, values)
        segments = Segments.from_lengths(part.lengths, values.shape[0])
        return segment_mean(values, segments) if spec.pooling == "mean" else segment_sum(values, segments)


def _joined(columns: Sequence[Tensor]) -> Tensor:
    """Columns side by side; a single one as it is."""
    return columns[0] if len(columns) == 1 else torch.cat(list(columns), dim=1)


def _spans(widths: Mapping[str, int]) -> dict[str, slice]:
    """The columns of fields of these widths, side by side."""
    ends = list(accumulate(widths.values()))
    return {name: slice(end - width, end) for (name, width), end in zip(widths.items(), ends, strict=True)}
