"""Feature groups as a plan: which tables exist, what is looked up, and where each field's columns lie.

```
group "deep"   [ raw dense | dense embeddings | lookups | pooled sequences | sequence encoders ]
group "seq"    query [ raw | dense embeddings | lookups | pooled ]     one vector a row
               sequence [ lookups | raw dense | dense embeddings ]     one vector a position
```
Inside each part the config's order holds, but that lookups of one width stand together. A
group is thus a few slices of what a batch and the engine already hold side by side.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from recgrad.data.features.spec import FeatureSpec, Kind
from recgrad.embedding.living import NUM_ROWS, LivingSpec, living_of
from recgrad.embedding.spec import LookupSpec, TableSpec
from recgrad.errors import ConfigError, Problem, nearest

GROUP_KINDS = ("DEEP", "WIDE", "SEQUENCE", "JAGGED_SEQUENCE")
COMBINES = ("CONCAT", "SUM")


@dataclass(frozen=True)
class SequenceGroup:
    """A sequence inside a DEEP group: row features are the query, sequence features the sequence."""

    name: str
    features: Sequence[str]
    embedding_name_suffix: str = ""


@dataclass(frozen=True)
class EncoderSpec:
    """A sequence encoder inside a DEEP group.

    Attributes:
        kind: the encoder's config name, such as "din_encoder".
        input: the name of a sequence group of the same DEEP group.
        params: the encoder's keyword arguments.
        name: what the encoder's output is called; made from group and number if empty.
    """

    kind: str
    input: str
    params: Mapping[str, Any] = field(default_factory=dict)
    name: str = ""


@dataclass(frozen=True)
class FeatureGroup:
    """Features that a model takes in together.

    Attributes:
        name: as models and towers name it.
        features: names of features.
        kind: DEEP (embeddings side by side), WIDE (its own narrow tables), SEQUENCE or
            JAGGED_SEQUENCE (row features are the query, sequence features the sequence).
        sequences: sequences inside a DEEP group.
        encoders: what turns those sequences into columns of the group.
        embedding_name_suffix: gives the group tables of its own, named `table_suffix`.
        combine: CONCAT (fields of a DEEP group side by side), or SUM (added up).
    """

    name: str
    features: Sequence[str]
    kind: str = "DEEP"
    sequences: Sequence[SequenceGroup] = ()
    encoders: Sequence[EncoderSpec] = ()
    embedding_name_suffix: str = ""
    combine: str = "CONCAT"


@dataclass(frozen=True)
class RowFields:
    """One vector a row: names by where they come from, and widths in column order."""

    raw: tuple[str, ...]
    embedded: tuple[str, ...]
    lookups: tuple[str, ...]
    pooled: tuple[str, ...]
    widths: Mapping[str, int]


@dataclass(frozen=True)
class PositionFields:
    """One vector a position; `features` are all sequence features, whose lengths are equal."""

    lookups: tuple[str, ...]
    raw: tuple[str, ...]
    embedded: tuple[str, ...]
    features: tuple[str, ...]
    widths: Mapping[str, int]


@dataclass(frozen=True)
class SequencePlan:
    """The query and the sequence of a sequence group."""

    query: RowFields
    sequence: PositionFields


@dataclass(frozen=True)
class Plan:
    """What the groups of a model need.

    Attributes:
        tables: embedding tables.
        lookups: uses of tables, those of a group side by side.
        rows: fields of DEEP and WIDE groups.
        sequences: SEQUENCE groups, and sequence groups inside DEEP ones, by name.
        encoders: encoders of each DEEP group.
        features: every feature by name.
        summed: DEEP groups whose fields are added up.
    """

    tables: tuple[TableSpec, ...]
    lookups: tuple[LookupSpec, ...]
    rows: Mapping[str, RowFields]
    sequences: Mapping[str, SequencePlan]
    encoders: Mapping[str, tuple[EncoderSpec, ...]]
    features: Mapping[str, FeatureSpec]
    summed: frozenset[str] = frozenset()

    def tables_of(self, group: str) -> set[str]:
        """The tables that a DEEP or WIDE group looks ids up in, its sequence encoders included."""
        parts = [self.rows[group]]
        names: set[str] = set()
        for encoder in self.encoders[group]:
            parts.append(self.sequences[encoder.input].query)
            names |= set(self.sequences[encoder.input].sequence.lookups)
        names |= {name for fields in parts for name in (*fields.lookups, *fields.pooled)}
        return {lookup.table for lookup in self.lookups if lookup.name in names}


def plan_groups(
    groups: Sequence[FeatureGroup],
    features: Sequence[FeatureSpec],
    *,
    wide_embedding_dim: int = 4,
    wide_init_fn: str | None = None,
) -> Plan:
    """The plan of these groups; all that is wrong with them is raised at once as ConfigError."""
    return _Planner(features, wide_embedding_dim, wide_init_fn).plan(groups)


class _Planner:
    def __init__(self, features: Sequence[FeatureSpec], wide_dim: int, wide_init_fn: str | None) -> None:
        self.features = {spec.name: spec for spec in features}
        self.wide_dim = wide_dim
        self.wide_init_fn = wide_init_fn
        self.tables: dict[str, TableSpec] = {}
        self.suffixes: dict[str, str] = {}
        self.lookups: dict[str, LookupSpec] = {}
        self.problems: list[Problem] = []

    def plan(self, groups: Sequence[FeatureGroup]) -> Plan:
        rows: dict[str, RowFields] = {}
        sequences: dict[str, SequencePlan] = {}
        encoders: dict[str, tuple[EncoderSpec, ...]] = {}
        self._check_names([group.name for group in groups], "feature_groups")
        nested = [sequence.name for group in groups for sequence in group.sequences]
        self._check_names(nested + [g.name for g in groups if "SEQUENCE" in g.kind], "sequence_groups")
        for group in groups:
            self._check_combine(group)
            if group.kind not in GROUP_KINDS:
                self._problem(
                    group.name, f"group_type must be one of {', '.join(GROUP_KINDS)}, got {group.kind}"
                )
            elif group.kind in ("SEQUENCE", "JAGGED_SEQUENCE"):
                self._check_no_encoders(group)
                sequences[group.name] = self._sequence(
                    group.name, group.features, group.embedding_name_suffix
                )
            else:
                if group.kind == "WIDE":
                    self._check_no_encoders(group)
                wide = group.kind == "WIDE"
                specs = self._specs(group.name, group.features, needed=not group.sequences)
                rows[group.name] = self._row_fields(group.name, specs, group.embedding_name_suffix, wide)
                for sequence in group.sequences:
                    suffix = sequence.embedding_name_suffix or group.embedding_name_suffix
                    sequences[sequence.name] = self._sequence(sequence.name, sequence.features, suffix)
                encoders[group.name] = self._encoders(group)
        if self.problems:
            raise ConfigError(self.problems)
        return Plan(
            tuple(self.tables.values()),
            tuple(self.lookups.values()),
            rows,
            sequences,
            encoders,
            self.features,
            frozenset(group.name for group in groups if group.combine == "SUM"),
        )

    def _problem(self, group: str, what: str) -> None:
        self.problems.append(Problem(f"model_config.feature_groups[{group}]", what))

    def _check_names(self, names: Sequence[str], where: str) -> None:
        for name in _twice(names):
            self.problems.append(Problem(f"model_config.{where}", f"two groups are called '{name}'"))

    def _check_no_encoders(self, group: FeatureGroup) -> None:
        if group.sequences or group.encoders:
            self._problem(group.name, "sequence_groups and sequence_encoders belong in DEEP groups only")

    def _check_combine(self, group: FeatureGroup) -> None:
        if group.combine not in COMBINES:
            self._problem(group.name, f"combine must be one of {', '.join(COMBINES)}, got {group.combine}")
        elif group.combine != "CONCAT" and group.kind != "DEEP":
            self._problem(
                group.name, f"combine: {group.combine} belongs in DEEP groups only, got {group.kind}"
            )

    def _specs(self, group: str, names: Iterable[str], needed: bool = True) -> list[FeatureSpec]:
        names = list(names)
        if needed and not names:
            self._problem(group, "feature_names is empty")
        for name in _twice(names):
            self._problem(group, f"feature '{name}' is listed twice")
        for name in names:
            if name not in self.features:
                self._problem(group, f"no feature '{name}'{nearest(name, self.features)}")
        return [self.features[name] for name in dict.fromkeys(names) if name in self.features]

    def _sequence(self, name: str, features: Sequence[str], suffix: str) -> SequencePlan:
        specs = self._specs(name, features)
        of_rows = [spec for spec in specs if not spec.sequence]
        of_positions = [spec for spec in specs if spec.sequence]
        if specs and not of_positions:
            self._problem(name, "has no sequence feature; a sequence group needs at least one")
        query = self._row_fields(name, of_rows, suffix)
        return SequencePlan(query, self._position_fields(name, of_positions, suffix))

    def _row_fields(
        self, group: str, specs: Sequence[FeatureSpec], suffix: str, wide: bool = False
    ) -> RowFields:
        raw: dict[str, int] = {}
        embedded: dict[str, int] = {}
        lookups: dict[str, str] = {}
        pooled: dict[str, str] = {}
        widths: dict[str, int] = {}
        for spec in specs:
            widths[spec.name] = self._width(spec, wide)
            if spec.kind is Kind.DENSE and wide:
                self._problem(
                    group, f"dense feature '{spec.name}' cannot be in a WIDE group; give it boundaries"
                )
            if spec.kind is Kind.SPARSE:
                (pooled if spec.sequence else lookups)[spec.name] = self._lookup(group, spec, suffix, wide)
            elif spec.sequence:
                pooled[spec.name] = spec.name
            elif spec.dense_embedding is not None:
                embedded[spec.name] = spec.embedding_dim
            else:
                raw[spec.name] = spec.value_dim
        # The engine keeps tables of a width together: lookups of equal width side by side are one slice.
        dims = list(dict.fromkeys(widths[name] for name in lookups))
        lookups = {name: lookups[name] for name in sorted(lookups, key=lambda name: dims.index(widths[name]))}
        order = [*raw, *embedded, *lookups, *pooled]
        return RowFields(
            tuple(raw),
            tuple(embedded),
            tuple(lookups.values()),
            tuple(pooled.values()),
            {name: widths[name] for name in order},
        )

    def _position_fields(self, group: str, specs: Sequence[FeatureSpec], suffix: str) -> PositionFields:
        lookups = {s.name: self._lookup(group, s, suffix) for s in specs if s.kind is Kind.SPARSE}
        dense = [s for s in specs if s.kind is Kind.DENSE]
        raw = [s.name for s in dense if s.dense_embedding is None]
        embedded = [s.name for s in dense if s.dense_embedding is not None]
        order = [*lookups, *raw, *embedded]
        return PositionFields(
            tuple(lookups.values()),
            tuple(raw),
            tuple(embedded),
            tuple(order),
            {name: self._width(self.features[name]) for name in order},
        )

    def _width(self, spec: FeatureSpec, wide: bool = False) -> int:
        if spec.kind is Kind.SPARSE:
            return self.wide_dim if wide else spec.embedding_dim
        return spec.value_dim if spec.dense_embedding is None else spec.embedding_dim

    def _lookup(self, group: str, spec: FeatureSpec, suffix: str, wide: bool = False) -> str:
        """File the feature's table and lookup; returns the lookup's name."""
        dim = self._width(spec, wide)
        if spec.num_rows < 1 or dim < 1:
            self._problem(
                group,
                f"feature '{spec.name}' has {spec.num_rows} rows of width {dim}; ids need "
                "num_buckets, a hash size or a vocabulary, and an embedding_dim",
            )
        base = spec.embedding_name or spec.name
        name = base + ("_wide" if wide else "") + (f"_{suffix}" if suffix else "")
        init_fn = (self.wide_init_fn or spec.init_fn) if wide else spec.init_fn
        constraints: Any = spec.embedding_constraints
        living = self._living(group, spec, dim, init_fn)
        table = TableSpec(
            name,
            spec.num_rows if living is None else NUM_ROWS,
            dim,
            init_fn,
            spec.data_type,
            spec.trainable,
            spec.storage,
            () if constraints is None else tuple(constraints.sharding_types),
            () if constraints is None else tuple(constraints.compute_kernels),
            spec.hash,
            living=living,
        )
        known = self.tables.get(name, table)
        # Ids that are not hashed here may have been elsewhere, by any hash.
        self.tables[name] = known = replace(known, hash=known.hash or table.hash)
        if known != replace(table, hash=table.hash or known.hash):
            self._problem(
                group, f"feature '{spec.name}' cannot share table '{name}': {_difference(known, table)}"
            )
        if self.suffixes.setdefault(name, suffix) != suffix:
            self._problem(
                group,
                f"table '{name}' of feature '{spec.name}' is also made by embedding_name_suffix "
                f"'{self.suffixes[name] or suffix}' of another group; choose another suffix",
            )
        lookup = spec.name if name == base else f"{spec.name}@{name}"
        self.lookups[lookup] = LookupSpec(lookup, spec.name, name, spec.pooling, spec.sequence)
        return lookup

    def _living(self, group: str, spec: FeatureSpec, dim: int, init_fn: str | None) -> LivingSpec | None:
        """How rows of the feature's table are given to ids, where its ids are not row numbers."""
        message: Any = spec.dynamicemb
        try:
            living = living_of(spec.zch, message, dim)
        except ValueError as error:
            self._problem(group, f"feature '{spec.name}': {error}")
            return None
        if living is None or message is None or not init_fn:
            return living
        if message.HasField("initializer_args"):
            self._problem(
                group,
                f"feature '{spec.name}': init_fn and dynamicemb.initializer_args are both set; keep one",
            )
        return replace(living, init_fn="")

    def _encoders(self, group: FeatureGroup) -> tuple[EncoderSpec, ...]:
        """The group's encoders with inputs and names filled in."""
        known = [sequence.name for sequence in group.sequences]
        done: list[EncoderSpec] = []
        for i, encoder in enumerate(group.encoders):
            name = encoder.name or f"{group.name}_seq_encoder_{i}"
            source = encoder.input or (known[0] if len(known) == 1 else "")
            if source not in known:
                self._problem(
                    group.name,
                    f"sequence_encoders[{i}].input must be one of its sequence_groups "
                    f"({', '.join(known) or 'it has none'}), got '{encoder.input}'{nearest(source, known)}",
                )
            done.append(replace(encoder, name=name, input=source))
        for unused in sorted(set(known) - {encoder.input for encoder in done}):
            self._problem(group.name, f"sequence group '{unused}' has no sequence_encoder")
        names = [encoder.name for encoder in done]
        for name in _twice([*names, *(name for name in names if name in group.features)]):
            self._problem(group.name, f"two fields are called '{name}'; name the sequence_encoder otherwise")
        return tuple(done)


def _twice(names: Iterable[str]) -> list[str]:
    """Names that occur more than once, sorted."""
    return sorted(name for name, count in Counter(names).items() if count > 1)


def _difference(a: TableSpec, b: TableSpec) -> str:
    """What two tables of one name differ in."""
    pairs = [(field.name, getattr(a, field.name), getattr(b, field.name)) for field in fields(TableSpec)]
    return ", ".join(f"{name} {one} and {other}" for name, one, other in pairs if one != other)
