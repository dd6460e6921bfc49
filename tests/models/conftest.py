"""A plain embedding engine to build models on, and batches made by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from google.protobuf import text_format
from torch import nn

from recgrad.config.proto.model_pb2 import ModelConfig
from recgrad.data.batch import Batch, JaggedDense, KeyedDense, KeyedJagged
from recgrad.data.features.spec import FeatureSpec, Kind
from recgrad.models.build import build_model


class PlainEmbedded:
    def __init__(self, values):
        self.values = values

    def pooled(self, names):
        return torch.cat([self.values[name] for name in names], dim=1)

    def sequence(self, name):
        return self.values[name]

    def take_room(self, names):
        return 0


class PlainEngine(nn.Module):
    """One nn.Parameter a table, bags pooled in a Python loop."""

    def __init__(self, tables, lookups, *, keys, sequence_keys=(), seed=0):
        super().__init__()
        self.lookups, self.keys, self.sequence_keys = lookups, tuple(keys), tuple(sequence_keys)
        generator = torch.Generator().manual_seed(seed + 1)
        self.tables = nn.ParameterDict(
            {t.name: nn.Parameter(torch.randn(t.num_rows, t.dim, generator=generator)) for t in tables}
        )
        self.specs = {t.name: t for t in tables}

    def sums_gradients(self, name):
        return True

    def leave_room(self, names, columns):
        """There is none to leave."""

    def forward(self, ids, sequences=None):
        assert ids.keys == self.keys
        values = {}
        for lookup in self.lookups:
            one = (sequences if lookup.sequence else ids)[lookup.key]
            table = self.tables[lookup.table]
            bags, start = [], 0
            for length in one.lengths.tolist():
                rows = table[one.values[start : start + length]]
                if one.weights is not None:
                    rows = rows * one.weights[start : start + length, None]
                total = rows.sum(0)
                bags.append(total / max(length, 1) if lookup.pooling == "mean" else total)
                start += length
            values[lookup.name] = torch.stack(bags) if bags else table[:0]
        return PlainEmbedded(values)


def make_batch(features, rows, seed=0, labels=(), max_length=4, double=False):
    """A random batch of these features: bags of 0 to 2 ids where value_dim is 0, else value_dim."""
    rng = np.random.default_rng(seed)
    real = torch.float64 if double else torch.float32
    lengths_of = {}
    for spec in features:
        if spec.sequence:
            lengths_of.setdefault(
                spec.sequence_name or spec.name, rng.integers(0, max_length + 1, rows).astype(np.int32)
            )

    def ids(specs, bags_of):
        values, lengths, counts = [], [], []
        for spec in specs:
            bags = bags_of(spec)
            n = np.full(bags, spec.value_dim) if spec.value_dim else rng.integers(0, 3, bags)
            values.append(rng.integers(0, spec.num_rows, n.sum()))
            lengths.append(n)
            counts.append(bags)
        joined = lambda parts, kind: torch.tensor(np.concatenate(parts) if parts else [], dtype=kind)  # noqa: E731
        single = all(spec.value_dim == 1 for spec in specs)
        keys = tuple(spec.name for spec in specs)
        return KeyedJagged(
            keys, joined(values, torch.int64), joined(lengths, torch.int32), tuple(counts), None, single
        )

    sparse = [s for s in features if s.kind is Kind.SPARSE and not s.sequence]
    dense = [s for s in features if s.kind is Kind.DENSE and not s.sequence]
    positions = lambda s: int(lengths_of[s.sequence_name or s.name].sum())  # noqa: E731
    seq_sparse = [s for s in features if s.kind is Kind.SPARSE and s.sequence]
    seq_dense = [s for s in features if s.kind is Kind.DENSE and s.sequence]
    dims = tuple(s.value_dim for s in dense)
    as_lengths = lambda s: torch.from_numpy(lengths_of[s.sequence_name or s.name])  # noqa: E731
    return Batch(
        rows,
        KeyedDense(
            tuple(s.name for s in dense), dims, torch.from_numpy(rng.normal(size=(rows, sum(dims)))).to(real)
        ),
        ids(sparse, lambda s: rows),
        {s.name: as_lengths(s) for s in features if s.sequence},
        ids(seq_sparse, positions) if seq_sparse else None,
        {
            s.name: JaggedDense(
                torch.from_numpy(rng.normal(size=(positions(s), s.value_dim))).to(real), as_lengths(s)
            )
            for s in seq_dense
        },
        {name: torch.from_numpy(rng.integers(0, 2, rows)).float() for name in labels},
    )


def sparse(name, dim=4, rows=11, **options):
    return FeatureSpec(name, Kind.SPARSE, num_rows=rows, embedding_dim=dim, **options)


def dense(name, width=1, **options):
    return FeatureSpec(name, Kind.DENSE, value_dim=width, **options)


@pytest.fixture
def plain_engine():
    return PlainEngine


@pytest.fixture
def batch_of():
    return make_batch


@pytest.fixture
def specs():
    """Makers of feature specs: `specs.sparse(name, dim)`, `specs.dense(name, width)`."""

    class Makers:
        pass

    Makers.sparse, Makers.dense = staticmethod(sparse), staticmethod(dense)
    return Makers


FEATURES = (
    sparse("a"),
    dense("x"),
    sparse("b", value_dim=0, pooling="mean"),
    dense("y", 2),
    sparse("c"),
    sparse("h__item", sequence=True, sequence_name="h", embedding_name="a"),
    dense("h__price", sequence=True, sequence_name="h"),
)
LABELS = ("click", "buy")


def model_config(name):
    """The small config of a model."""
    text = (Path(__file__).parent / "configs" / f"{name}.config").read_text()
    return text_format.Parse(text, ModelConfig())


@pytest.fixture
def features():
    return FEATURES


@pytest.fixture
def config_of():
    return model_config


@pytest.fixture
def build(plain_engine):
    """Build a model of the small configs on the plain engine, in float64 for exact comparison."""

    def make(config, features=FEATURES, engine=PlainEngine, seed=3, double=True, **options):
        config = model_config(config) if isinstance(config, str) else config
        model = build_model(config, features, seed=seed, label_fields=LABELS, engine=engine, **options)
        return model.double() if double else model

    return make


@pytest.fixture
def batch():
    return make_batch(FEATURES, 6, seed=1, labels=LABELS, double=True)
