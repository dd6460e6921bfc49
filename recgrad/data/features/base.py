"""What all feature kinds share: their inputs, FG modes, sequences, defaults and specs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from recgrad.config.messages import chosen
from recgrad.data.faults import Faults
from recgrad.data.features.columns import (
    Bags,
    ColumnTypeError,
    kept_offsets,
    read_bags,
    read_pairs,
    read_positions,
)
from recgrad.data.features.config import Setting, hash_of
from recgrad.data.features.frame import Frame, Input, Pairs, Scope, Slots
from recgrad.data.features.outputs import Dense, FloatOutput, IdOutput, Sparse
from recgrad.data.features.spec import FeatureSpec, Kind
from recgrad.data.features.weights import weighed
from recgrad.data.hashing import Ints
from recgrad.errors import DataError

MODES = ("FG_NONE", "FG_NORMAL", "FG_DAG", "FG_BUCKETIZE")
_TABLE_SETTINGS = (
    "embedding_name",
    "pooling",
    "init_fn",
    "trainable",
    "data_type",
    "embedding_constraints",
    "storage",
)
SIDES = ("user", "item", "context", "feature", "const")


INPUT_FIELDS = ("expression", "map", "key", "nested_map", "pkey", "skey", "query", "title", "document")
"""Fields that say where a feature's values come from."""


class Feature:
    """A feature of one kind: what it reads, how it is encoded, and what models see of it.

    A kind overrides `expressions` (its inputs), `build_output` (its last step) and, unless it
    passes its one input on, `transform`.

    Attributes:
        makes_ids: it has ids whatever its settings; others have floats unless a setting makes ids of them.
        input_fields: the fields of its message that say where values come from.
        combiners: the words that its `combiner` may be.
        takes_float64: its numbers may be kept in double precision.
    """

    makes_ids: ClassVar[bool] = False
    input_fields: ClassVar[tuple[str, ...]] = INPUT_FIELDS
    combiners: ClassVar[tuple[str, ...]] = ()
    takes_float64: ClassVar[bool] = False

    @classmethod
    def build(cls, config: Any, setting: Setting) -> list[Feature]:
        """The features of a message: one, but for groups."""
        return [cls(config, setting)]

    def __init__(self, config: Any, setting: Setting) -> None:
        self.config = config
        self.setting = setting
        self.name = f"{setting.prefix}{config.feature_name}"
        self.stub = bool(config.stub_type)
        _check_common(config, setting)
        self.inputs = self._build_inputs()
        self._check_sequence_fields()
        self.needs: tuple[Feature, ...] = ()
        self.output = self.build_output()
        self.spec = self._build_spec()

    # What a kind says.

    def expressions(self) -> list[Input]:
        """The inputs as the config names them: `name` holds the expression, such as "user:age"."""
        raise NotImplementedError

    def build_output(self) -> IdOutput | FloatOutput:
        """The last step."""
        raise NotImplementedError

    def transform(self, inputs: list[Any], scope: Scope) -> Bags:
        """The values of each bag, from the inputs' bags (or pairs)."""
        bags: Bags = inputs[0]
        return bags

    @property
    def weighted(self) -> bool:
        """Whether ids carry weights."""
        return False

    # What holds for all kinds.

    @property
    def dependencies(self) -> tuple[str, ...]:
        """Features whose results this one reads."""
        return tuple(source.name for source in self.inputs if source.source == "feature")

    @property
    def columns(self) -> tuple[str, ...]:
        """Input columns, each once."""
        return tuple(dict.fromkeys(source.name for source in self.inputs if source.source == "column"))

    def link(self, features: Mapping[str, Feature]) -> None:
        """Find the features that inputs name, and take over whether they are sequences."""
        linked = []
        for source in self.inputs:
            if source.source == "feature":
                name = source.name if source.name in features else f"{self.setting.prefix}{source.name}"
                if name not in features:
                    raise ValueError(f"'feature:{source.name}' must name a feature of this config")
                source = replace(source, name=name, sequence=features[name].spec.sequence)
            linked.append(source)
        self.inputs = tuple(linked)
        self.needs = tuple(features[name] for name in self.dependencies)
        sequences = [source for source in self.inputs if source.sequence]
        if self.setting.sequence is None and sequences:
            raise ValueError(
                f"input '{sequences[0].name}' is a sequence; use the sequence_ kind of this feature"
            )
        if self.setting.sequence is not None and not sequences:
            raise ValueError(
                "a sequence feature must have a sequence among its inputs; name it in sequence_fields"
            )

    def encode(self, frame: Frame, faults: Faults) -> Sparse | Dense:
        """The ids or floats of a batch; bad rows are noted in `faults`."""
        try:
            if self.setting.sequence is None:
                inputs = [self._read(frame, source) for source in self.inputs]
                return self._finish(inputs, Scope(faults, self.name, None))
            return self._encode_sequence(frame, faults)
        except ColumnTypeError as error:
            columns = ", ".join(f"'{name}'" for name in self.columns)
            kind = self.config.DESCRIPTOR.name
            raise DataError(
                f"feature {self.name}: column {columns}: {error}; {kind} cannot read it"
            ) from error

    def _finish(self, inputs: list[Any], scope: Scope) -> Sparse | Dense:
        bags: Any = self.transform(inputs, scope) if self.setting.generates else inputs[0]
        if self.weighted:
            bags = weighed(bags, scope, self.inputs[0].name)
        return self.output(bags, scope.report(bags, self.inputs[0].name))

    def _read(self, frame: Frame, source: Input) -> Any:
        if source.source == "feature":
            bags = frame.results[source.name].bags()
            return Pairs.of(bags) if source.pairs else bags
        array = frame.array(source, self.spec.use_mask)
        if source.pairs:
            return Pairs(*read_pairs(array, source.separator or "\x1d"))
        if source.slots:
            return Slots(*read_positions(array, source.separator or "\x1d", None))
        return read_bags(array, source.separator)

    def _encode_sequence(self, frame: Frame, faults: Faults) -> Sparse | Dense:
        assert self.setting.sequence is not None
        sequences = {
            i: self._read_positions(frame, source) for i, source in enumerate(self.inputs) if source.sequence
        }
        row_offsets = self._same_lengths(sequences, faults)
        rows = np.repeat(np.arange(frame.size), np.diff(row_offsets))
        inputs: list[Any] = []
        for i, source in enumerate(self.inputs):
            if i in sequences:
                bags = sequences[i][0]
                inputs.append(Pairs.of(bags) if source.pairs else bags)
            else:
                inputs.append(self._read(frame, source).take(rows))
        return replace(self._finish(inputs, Scope(faults, self.name, rows)), row_offsets=row_offsets)

    def _same_lengths(self, sequences: dict[int, tuple[Bags, Ints]], faults: Faults) -> Ints:
        """The offsets that all sequences have; rows where they differ are faults without positions."""
        first = next(iter(sequences.values()))[1]
        wrong = np.zeros(len(first) - 1, np.bool_)
        for i, (_, offsets) in sequences.items():
            if np.array_equal(first, offsets):
                continue
            lengths = np.diff(offsets)
            differ = lengths != np.diff(first)
            faults.add(
                np.flatnonzero(differ),
                column=self.inputs[i].name,
                feature=self.name,
                reason="has {value} positions, not as many as the other inputs",
                values=lengths[differ],
                remedy="make the sequences of a row equally long",
            )
            wrong |= differ
        if wrong.any():
            for i, (bags, offsets) in sequences.items():
                keep = np.repeat(~wrong, np.diff(offsets))
                sequences[i] = (bags.take(np.flatnonzero(keep)), kept_offsets(offsets, keep))
        return next(iter(sequences.values()))[1]

    def _read_positions(self, frame: Frame, source: Input) -> tuple[Bags, Ints]:
        assert self.setting.sequence is not None
        if source.source == "feature":
            result = frame.results[source.name]
            assert result.row_offsets is not None
            return result.bags(), result.row_offsets
        array = frame.array(source, self.spec.use_mask)
        bags, offsets = read_positions(array, self.setting.sequence.delimiter, source.separator)
        longest = self.setting.sequence.length
        lengths = np.diff(offsets)
        if longest and len(lengths) and lengths.max() > longest:
            keep = np.arange(len(bags)) - np.repeat(offsets[:-1], lengths) < longest
            bags, offsets = bags.take(np.flatnonzero(keep)), kept_offsets(offsets, keep)
        if self.output.has_default:  # always, but for FG_NONE without fg_encoded_default_value
            bags, offsets = _with_positions(bags, offsets)
        return bags, offsets

    def _build_inputs(self) -> tuple[Input, ...]:
        sequence = self.setting.sequence is not None
        if not self.setting.generates:
            separator = self.setting.multival_sep
            return (Input(self.name, sequence=sequence, separator=separator, pairs=self.weighted),)
        expressions = self.expressions()
        return tuple(self._resolve(source, len(expressions) == 1) for source in expressions)

    def _resolve(self, source: Input, alone: bool) -> Input:
        """The column, feature or constant that an expression names."""
        side, colon, name = source.name.partition(":")
        if not colon:
            side, name = "", side
        if not name or (colon and side not in SIDES):
            raise ValueError(
                f"an expression must be side:name with a side of {', '.join(SIDES)}, got {source.name!r}"
            )
        if side == "const":
            return replace(source, name=name, source="const")
        if side == "feature" and self.setting.mode == "FG_DAG":
            return replace(source, name=name, source="feature")
        if self.setting.sequence is None:
            return replace(source, name=name)
        fields = list(self.config.sequence_fields)
        is_sequence = name in fields if fields else alone or side == "item"
        column = f"{self.setting.prefix}{name}" if is_sequence else name
        return replace(source, name=column, sequence=is_sequence)

    def _check_sequence_fields(self) -> None:
        prefix = self.setting.prefix
        names = {source.name.removeprefix(prefix) for source in self.inputs} | {s.name for s in self.inputs}
        unknown = [name for name in self.config.sequence_fields if name not in names]
        if unknown and self.setting.generates:
            raise ValueError(f"sequence_fields must name inputs of the feature, got {', '.join(unknown)}")

    def _build_spec(self) -> FeatureSpec:
        config, output = self.config, self.output
        sparse = isinstance(output, IdOutput) or output.boundaries is not None
        embedding = chosen(config, "dense_emb") if "dense_emb" in config.DESCRIPTOR.oneofs_by_name else None
        if embedding and sparse:
            raise ValueError(f"{embedding[0]} is for float values, but this feature makes ids; keep one")
        if embedding and not config.embedding_dim:
            raise ValueError(f"{embedding[0]} needs embedding_dim, the width of its output")
        if not sparse:
            assert isinstance(output, FloatOutput)
            output.double = output.value_dim == 1 and (
                self.setting.sequence is not None or config.data_type == "FP64"
            )
            for name in _TABLE_SETTINGS:
                if config.HasField(name) and not (name == "data_type" and output.double):
                    raise ValueError(f"{name} is of an embedding table, and floats have none; remove it")
        num_rows = 0
        if isinstance(output, IdOutput):
            num_rows = output.bucketizer.num_rows
        elif output.boundaries is not None:
            num_rows = output.boundaries.num_rows
        return FeatureSpec(
            name=self.name,
            kind=Kind.SPARSE if sparse else Kind.DENSE,
            sequence=self.setting.sequence is not None,
            sequence_name=self.setting.sequence.name if self.setting.sequence else None,
            value_dim=output.value_dim,
            num_rows=num_rows,
            hash=hash_of(output),
            embedding_dim=config.embedding_dim if sparse or embedding else 0,
            embedding_name=config.embedding_name or f"{self.name}_emb",
            pooling=config.pooling.lower(),
            weighted=self.weighted,
            init_fn=config.init_fn if config.HasField("init_fn") else None,
            trainable=config.trainable,
            data_type=config.data_type,
            storage=config.DESCRIPTOR.fields_by_name["storage"]
            .enum_type.values_by_number[config.storage]
            .name,
            use_mask=config.use_mask,
            dense_embedding=embedding[1] if embedding else None,
            embedding_constraints=(
                config.embedding_constraints if config.HasField("embedding_constraints") else None
            ),
            zch=_message(config, "zch"),
            dynamicemb=_message(config, "dynamicemb"),
        )


def _with_positions(bags: Bags, offsets: Ints) -> tuple[Bags, Ints]:
    """Rows without positions get one empty one, for the default to fill."""
    lengths = np.diff(offsets)
    if not len(lengths) or lengths.min() > 0:
        return bags, offsets
    longer = np.maximum(lengths, 1)
    new = np.repeat(lengths == 0, longer)
    bag_lengths = np.zeros(len(new), np.int64)
    bag_lengths[~new] = bags.lengths
    return (
        Bags(bags.values, np.concatenate([[0], np.cumsum(bag_lengths)]), bags.weights),
        np.concatenate([[0], np.cumsum(longer)]),
    )


def _message(config: Any, name: str) -> Any:
    """A message that a feature sets; None for one that it does not, or its kind does not have."""
    has = name in config.DESCRIPTOR.fields_by_name and config.HasField(name)
    return getattr(config, name) if has else None


def _check_common(config: Any, setting: Setting) -> None:
    """Refuse what cannot hold for any kind."""
    if not config.feature_name:
        raise ValueError("feature_name must not be empty")
    if config.pooling.lower() not in ("sum", "mean"):
        raise ValueError(f"pooling must be sum or mean, got {config.pooling!r}")
    if config.HasField("storage") and (_message(config, "zch") or _message(config, "dynamicemb")):
        raise ValueError("storage is of tables whose ids are row numbers; remove it beside zch or dynamicemb")
    if config.stub_type and setting.mode == "FG_NORMAL":
        raise ValueError("stub_type needs fg_mode FG_DAG: only there features read each other")
    if setting.sequence is None or setting.sequence.name is not None:
        for name in ("sequence_length", "sequence_delim"):
            if config.HasField(name):
                where = "the sequence_feature" if setting.sequence else "a sequence_ kind of this feature"
                raise ValueError(f"{name} belongs to {where}; remove it here")
    if setting.sequence is None and config.sequence_fields:
        raise ValueError("sequence_fields is for sequence features; remove it")
