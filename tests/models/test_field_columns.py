"""What is noted of the ids that columns were looked up by, and what a model makes of it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from recgrad.data.batch import KeyedJagged
from recgrad.embedding.local.engine import LocalEngine
from recgrad.embedding.spec import LookupSpec, TableSpec
from recgrad.models.batch_ids import BatchIds
from recgrad.models.field_columns import Field
from recgrad.nn import distinct_layer, relu_layers
from recgrad.nn.distinct_layer import find_distinct
from recgrad.nn.field_ids import field_ids
from recgrad.nn.mlp import MLP
from recgrad.optim.sparse import SGD

ROWS = 600
SIZES = {"a": 5, "b": 9, "c": 500}


def make_engine():
    tables = [TableSpec(name, size, 16, "nn.init.normal_") for name, size in SIZES.items()]
    return LocalEngine(tables, [LookupSpec(name, name, name) for name in SIZES], keys=tuple(SIZES))


def make_ids(*, several=False, missing=False, seed=0):
    rng = np.random.default_rng(seed)
    lengths = {name: np.ones(ROWS, np.int32) for name in SIZES}
    if missing:
        lengths["a"] = (rng.random(ROWS) < 0.8).astype(np.int32)
    if several:
        lengths["b"] = rng.integers(0, 3, ROWS).astype(np.int32)
    values = [rng.integers(0, size, lengths[name].sum()) for name, size in SIZES.items()]
    joined = torch.from_numpy(np.concatenate(list(lengths.values())))
    return KeyedJagged(
        tuple(SIZES), torch.from_numpy(np.concatenate(values)), joined, (ROWS,) * 3, None,
        single=not (several or missing),
    )  # fmt: skip


class OneBatch:
    def __init__(self, ids):
        self.sparse, self.size, self.sequence_sparse = ids, ROWS, None


def looked_up(engine, ids):
    keys = BatchIds(tuple(SIZES), (), {name: Field(name, 16) for name in SIZES})
    return keys.look_up(OneBatch(ids), engine, torch.device("cpu")).pooled(list(SIZES))


@pytest.mark.parametrize(
    ("how", "spans"),
    [
        ({}, ((0, 16), (16, 16))),
        ({"missing": True}, ((0, 16), (16, 16))),
        ({"several": True}, ((0, 16),)),
    ],
)
def test_fields_of_few_ids_are_found(how, spans):
    x = looked_up(make_engine(), make_ids(**how))
    assert find_distinct(x).spans == spans


def test_nothing_is_noted_where_rows_are_scored():
    engine = make_engine()
    with torch.no_grad():
        assert field_ids(looked_up(engine, make_ids())) is None
    assert field_ids(looked_up(engine.eval(), make_ids())) is None


def test_weighted_ids_are_left_out():
    ids = make_ids()
    weighted = KeyedJagged(ids.keys, ids.values, ids.lengths, ids.bag_counts, torch.rand(len(ids.values)))
    assert field_ids(looked_up(make_engine(), weighted)) is None


def test_a_table_whose_gradients_are_clamped_row_by_row_is_left_out():
    engine = make_engine()
    clamps = {"gradient_clipping": True, "max_gradient": 1e-3}
    tables = list(engine.tables.values())
    SGD([{"params": tables[:1], **clamps}, {"params": tables[1:]}], lr=1.0)
    assert find_distinct(looked_up(engine, make_ids())).spans == ((16, 16),)
    again = SGD(make_engine().tables.values(), lr=1.0)
    saved = SGD(make_engine().tables.values(), lr=1.0, **clamps).state_dict()
    again.load_state_dict(saved)
    assert all(table.clamped for table in again.tables.values())


@pytest.mark.parametrize("how", [{}, {"missing": True}, {"several": True}])
def test_a_step_is_that_of_products_by_row(monkeypatch, how):
    monkeypatch.setattr(relu_layers, "own_products", lambda: True)
    monkeypatch.setattr(relu_layers, "MIN_OUTPUTS", 1)
    found = []
    for by_row in (False, True):
        if by_row:
            monkeypatch.setattr(distinct_layer, "_find", lambda *_: None)
        torch.manual_seed(0)
        engine, block = make_engine(), MLP(48, [40, 8])
        optimizer = SGD(engine.tables.values(), lr=0.1)
        for seed in range(3):
            out = block(looked_up(engine, make_ids(seed=seed, **how)))
            (out * out).mean().backward()
            optimizer.step()
        found.append([torch.from_numpy(engine.export_table(name)[1]) for name in SIZES])
        found[-1] += [p.grad for p in block.parameters()]
    for ours, others in zip(*found, strict=True):
        torch.testing.assert_close(ours, others, rtol=1e-4, atol=1e-6)
