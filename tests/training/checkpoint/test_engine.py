"""Tables of the local engine through checkpoints: a continued run ends with the same bits."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from recgrad.embedding.local.engine import Ids, LocalEngine
from recgrad.embedding.spec import LookupSpec, TableSpec
from recgrad.optim.sparse import SPARSE_OPTIMIZERS
from recgrad.training.checkpoint import (
    CheckpointManager,
    Snapshot,
    TableRows,
    diff_snapshots,
    read_checkpoint,
    restore,
)

TABLES = (
    TableSpec("user", 1000, 8, storage="COMPACT"),
    TableSpec("item", 60, 8, storage="PLAIN"),
    TableSpec("word", 500, 4, data_type="BF16"),
)
QUICK = ("adam_optimizer", "rowwise_adagrad_optimizer")


def build(kind="adam_optimizer", tables=TABLES, seed=0):
    lookups = [LookupSpec(spec.name, spec.name, spec.name) for spec in tables]
    engine = LocalEngine(tables, lookups, keys=[spec.name for spec in tables], seed=seed)
    return engine, SPARSE_OPTIMIZERS[kind](engine, lr=0.05)


def train(engine, optimizer, first, last, tables=TABLES):
    """Steps first … last − 1, each with ids and gradients of its own."""
    for step in range(first, last):
        rng = np.random.default_rng(step)
        ids = [torch.from_numpy(rng.integers(0, min(spec.num_rows, 60), 16)) for spec in tables]
        out = engine(Ids(torch.cat(ids), torch.ones(16 * len(tables), dtype=torch.int32), [16] * len(tables)))
        loss = sum((out.pooled([spec.name]) - rng.standard_normal()).square().sum() for spec in tables)
        loss.backward()
        optimizer.step()


def capture(step, engine, optimizer):
    tables = []
    for name, table in engine.tables.items():
        ids, weights = engine.export_table(name)
        tables.append(
            TableRows(name, table.spec.num_rows, table.spec.dim, ids, weights, optimizer.export_state(name))
        )
    return Snapshot(step, {"model": {}}, tables)


def resume(snapshot, engine, optimizer):
    for table in snapshot.tables:
        engine.import_table(table.name, table.row_ids, table.weights)
        optimizer.import_state(table.name, table.row_ids, dict(table.states))


def differing(first, second):
    return [item for item in diff_snapshots(first, second) if not item.equal]


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(
            kind, marks=() if kind in QUICK else pytest.mark.slow
        )  # each kind compiles its own kernel
        for kind in SPARSE_OPTIMIZERS
    ],
)
def test_half_a_run_and_its_continuation_are_the_whole_run_bit_for_bit(tmp_path, kind):
    whole = build(kind)
    train(*whole, 0, 10)

    half = build(kind)
    train(*half, 0, 5)
    manager = CheckpointManager(tmp_path)
    manager.save(capture(5, *half))

    continued = build(kind)
    resume(read_checkpoint(manager.latest()), *continued)
    train(*continued, 5, 10)
    assert differing(capture(10, *whole), capture(10, *continued)) == []


def test_a_checkpoint_holds_the_touched_rows_alone(tmp_path):
    engine, optimizer = build()
    train(engine, optimizer, 0, 1)
    manager = CheckpointManager(tmp_path)
    manager.save(capture(1, engine, optimizer))
    for table in read_checkpoint(manager.latest()).tables:
        assert 0 < len(table.row_ids) <= 16


def restored_into(tmp_path, tables):
    """A trained snapshot, an engine of other tables that took it, and the report."""
    source = build()
    train(*source, 0, 5)
    manager = CheckpointManager(tmp_path)
    manager.save(capture(5, *source))
    snapshot = read_checkpoint(manager.latest())
    engine, optimizer = build(tables=tables, seed=3)
    report = restore(snapshot, model=nn.Module(), engine=engine, sparse_optimizer=optimizer)
    return snapshot, capture(5, engine, optimizer), report


def test_any_storage_reads_any_other_s_rows(tmp_path):
    tables = (
        TableSpec("user", 1000, 8, storage="PLAIN"),
        TableSpec("item", 60, 8, storage="COMPACT"),
        TableSpec("word", 500, 4),
    )
    snapshot, taken, report = restored_into(tmp_path, tables)
    assert differing(snapshot, taken) == []
    assert report.optimizer_restored == ("user", "item", "word")


def test_tables_that_grew_and_shrank_keep_the_rows_that_fit_with_their_states(tmp_path):
    tables = (
        TableSpec("user", 5000, 8),
        TableSpec("item", 30, 8),
        TableSpec("word", 500, 4, data_type="BF16"),
    )
    snapshot, taken, report = restored_into(tmp_path, tables)
    before, after = ({table.name: table for table in s.tables} for s in (snapshot, taken))
    assert np.array_equal(before["user"].row_ids, after["user"].row_ids)
    assert np.array_equal(before["user"].weights, after["user"].weights)
    fits = before["item"].row_ids < 30
    assert 0 < fits.sum() < len(fits)
    assert np.array_equal(before["item"].row_ids[fits], after["item"].row_ids)
    for name, state in before["item"].states.items():
        assert np.array_equal(state[fits] if state.ndim else state, after["item"].states[name])
    assert {table.name: table.dropped_rows for table in report.tables} == {
        "user": 0,
        "item": int((~fits).sum()),
        "word": 0,
    }


def test_frozen_tables_are_restored_without_an_optimizer_state(tmp_path):
    tables = (TableSpec("user", 1000, 8, trainable=False), *TABLES[1:])
    source = build()
    train(*source, 0, 3)
    engine, optimizer = build(tables=tables)
    report = restore(capture(3, *source), model=nn.Module(), engine=engine, sparse_optimizer=optimizer)
    assert report.optimizer_restored == ("item", "word")
    assert np.array_equal(engine.export_table("user")[1], source[0].export_table("user")[1])
