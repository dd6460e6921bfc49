"""Where each tensor of a model's `Parts` comes from: what `FeatureGroups.gather` does, as data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from recgrad.data.features.spec import FeatureSpec, Kind
from recgrad.models.feature_groups import FeatureGroups
from recgrad.models.group_plan import RowFields, SequencePlan
from recgrad.serving.manifest import InputRecord


def input_records(groups: FeatureGroups, wanted: Sequence[str] | None = None) -> dict[str, InputRecord]:
    """The input of each place of the parts of all groups, or of `wanted` ones."""
    plan = groups.plan
    rows = [name for name in plan.rows if wanted is None or name in wanted]
    encoded = {encoder.input for name in rows for encoder in plan.encoders[name]}
    sequences = [s for s in plan.sequences if wanted is None or s in encoded or s in wanted]
    found: list[InputRecord] = []
    for name in rows:
        if name in groups.time_groups:
            found.append(InputRecord(f"times.{name}", "times", features=plan.rows[name].raw))
        else:
            found += _of_rows(groups, f"rows.{name}", plan.rows[name])
    for name in sequences:
        if name in groups.time_groups:
            found.append(InputRecord(f"times.{name}", "times", features=plan.sequences[name].sequence.raw))
        else:
            found += _of_sequence(groups, f"sequences.{name}", plan.sequences[name])
    for i, block in enumerate(groups.dense_embeddings.blocks):
        found.append(_dense(groups, f"numbers.{i}", block))
    return {record.name: record for record in found}


def needed_features(
    groups: FeatureGroups, inputs: Sequence[InputRecord], more: Sequence[str] = ()
) -> tuple[str, ...]:
    """The features that inputs are made of, and `more`, in the order of the config."""
    keys = {lookup.name: lookup.key for lookup in groups.plan.lookups}
    needed = {*more, *(name for record in inputs for name in record.features)}
    needed |= {keys[name] for record in inputs for name in record.lookups}
    return tuple(name for name in groups.plan.features if name in needed)


def _of_rows(groups: FeatureGroups, place: str, fields: RowFields) -> Iterator[InputRecord]:
    if fields.raw:
        yield _dense(groups, f"{place}.raw", fields.raw)
    if fields.lookups:
        width = sum(_lookup_width(groups, name) for name in fields.lookups)
        yield InputRecord(f"{place}.lookups", "lookups", lookups=tuple(fields.lookups), width=width)
    for i, source in enumerate(fields.pooled):
        spec = groups.pooled_feature(source)
        if spec.kind is Kind.SPARSE:
            yield _positions(groups, f"{place}.pooled.{i}.values", (source,), ())
        else:
            yield _positions(groups, f"{place}.pooled.{i}.values", (), (spec.name,))
        yield InputRecord(f"{place}.pooled.{i}.lengths", "lengths", features=(spec.name,))


def _of_sequence(groups: FeatureGroups, place: str, plan: SequencePlan) -> Iterator[InputRecord]:
    fields = plan.sequence
    yield from _of_rows(groups, f"{place}.query", plan.query)
    if fields.lookups or fields.raw:
        yield _positions(groups, f"{place}.columns", fields.lookups, fields.raw)
    for i, feature in enumerate(fields.embedded):
        yield _positions(groups, f"{place}.numbers.{i}", (), (feature,))
    yield InputRecord(f"{place}.lengths", "lengths", features=(fields.features[0],))


def _dense(groups: FeatureGroups, place: str, features: Sequence[str]) -> InputRecord:
    width = sum(_spec(groups, name).value_dim for name in features)
    return InputRecord(place, "dense", features=tuple(features), width=width)


def _positions(
    groups: FeatureGroups, place: str, lookups: Sequence[str], features: Sequence[str]
) -> InputRecord:
    width = sum(_lookup_width(groups, name) for name in lookups)
    width += sum(_spec(groups, name).value_dim for name in features)
    return InputRecord(place, "positions", tuple(features), tuple(lookups), width)


def _spec(groups: FeatureGroups, name: str) -> FeatureSpec:
    return groups.plan.features[name]


def _lookup_width(groups: FeatureGroups, lookup: str) -> int:
    tables = {table.name: table.dim for table in groups.plan.tables}
    return next(tables[item.table] for item in groups.plan.lookups if item.name == lookup)
