"""Fine-tuning: what fits is taken, what does not is said."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from torch import nn

from recgrad.embedding.spec import TableSpec
from recgrad.errors import CheckpointError
from recgrad.optim.averaging import EMA
from recgrad.optim.part import OptimizerPart
from recgrad.optim.schedules.constant import Constant
from recgrad.optim.updater import Updater
from recgrad.training.checkpoint import Snapshot, TableRows, read_checkpoint, restore, write_checkpoint


class Table:
    def __init__(self, spec):
        self.spec = spec

    def row_ranges(self):
        return [(0, self.spec.num_rows)]


class Tables:
    """An engine of plain dicts, which also is the optimizer of its tables."""

    def __init__(self, *specs, states=(("m", 2),)):
        self.tables = {spec.name: Table(spec) for spec in specs}
        self.rows = {spec.name: {} for spec in specs}
        self.row_states = {spec.name: {} for spec in specs}
        self.states = states
        self.updates = {}

    def import_table(self, name, row_ids, weights):
        assert all(0 <= row < self.tables[name].spec.num_rows for row in row_ids)
        self.rows[name].update(zip(row_ids.tolist(), weights.tolist()))

    def living_tables(self):
        return {}

    def state_shapes(self, table):
        return {"t": (), **{name: (width,) for name, width in self.states}}

    def import_state(self, table, row_ids, states):
        assert set(states) == {"t", *(name for name, _ in self.states)}
        self.updates[table] = int(states["t"])
        self.row_states[table].update(zip(row_ids.tolist(), states["m"].tolist()))


def net(hidden=3, seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, hidden), nn.BatchNorm1d(hidden), nn.Linear(hidden, 1))


def updater_of(model, kind=torch.optim.Adam, ema=None, **options):
    names, parameters = zip(*model.named_parameters())
    optimizer = kind(parameters, lr=0.1, **options)
    return Updater([OptimizerPart("dense", optimizer, Constant(), names=[names])], ema=ema)


def train(model, updater, steps=3):
    for _ in range(steps):
        updater.backward(model(torch.randn(8, 4)).square().mean())
        updater.step()


def rows(name="user", ids=(1, 5, 90), num_rows=100, dim=2):
    ids = np.array(ids, dtype=np.int64)
    weights = np.stack([ids] * dim, 1).astype(np.float32)
    return TableRows(
        name, num_rows, dim, ids, weights, {"m": weights[:, :2] * np.float32(0.5), "t": np.array(9)}
    )


@pytest.fixture
def trained():
    model = net()
    updater = updater_of(model)
    train(model, updater)
    return model, updater


@pytest.fixture
def snapshot(trained, tmp_path):
    model, updater = trained
    tree = {"model": dict(model.state_dict()), "updater": updater.state_dict()}
    return read_checkpoint(
        write_checkpoint(tmp_path / "c", Snapshot(42, tree, [rows(), rows("item", (0, 7), 10)]))
    )


USER, ITEM = TableSpec("user", 100, 2), TableSpec("item", 10, 2)


def test_the_same_model_takes_everything(snapshot, trained):
    model, engine = net(seed=1), Tables(USER, ITEM)
    updater = updater_of(model)
    report = restore(snapshot, model=model, engine=engine, sparse_optimizer=engine, updater=updater)
    for name, value in trained[0].state_dict().items():
        assert model.state_dict()[name].equal(value)
    for mine, theirs in zip(model.parameters(), trained[0].parameters()):
        own, other = updater.dense[0].optimizer.state[mine], trained[1].dense[0].optimizer.state[theirs]
        assert own.keys() == other.keys() >= {"exp_avg", "exp_avg_sq", "step"}
        assert all(own[key].equal(other[key]) for key in own)
    assert engine.rows == {"user": {1: [1, 1], 5: [5, 5], 90: [90, 90]}, "item": {0: [0, 0], 7: [7, 7]}}
    assert engine.row_states["user"] == {1: [0.5, 0.5], 5: [2.5, 2.5], 90: [45, 45]}
    assert engine.updates == {"user": 9, "item": 9}
    assert report.step == 42
    assert set(report.restored) == set(model.state_dict())
    assert (report.renamed, report.reinitialised, report.unused, report.optimizer_afresh) == ((), (), (), ())
    assert set(report.optimizer_restored) == {*dict(model.named_parameters()), "user", "item"}


def test_a_fine_tuned_run_counts_its_own_steps(snapshot):
    model = net(seed=1)
    updater = updater_of(model)
    restore(snapshot, model=model, updater=updater)
    assert updater.num_updates == 0


def test_the_restored_weights_are_the_model_s_own_memory(snapshot):
    model = net(seed=1)
    updater = updater_of(model)
    restore(snapshot, model=model, updater=updater)
    before = [t.clone() for t in snapshot.tree["model"].values()]
    train(model, updater)
    assert all(a.equal(b) for a, b in zip(before, snapshot.tree["model"].values()))


def test_only_the_weights_when_the_optimizer_is_ignored(snapshot, trained):
    model, engine = net(seed=1), Tables(USER, ITEM)
    updater = updater_of(model)
    report = restore(
        snapshot, model=model, engine=engine, sparse_optimizer=engine, updater=updater, ignore_optimizer=True
    )
    assert not updater.dense[0].optimizer.state
    assert engine.row_states == {"user": {}, "item": {}}
    assert engine.rows["user"]
    assert report.optimizer_restored == ()
    assert model[0].weight.equal(trained[0][0].weight)


def test_a_weight_of_another_shape_begins_anew_with_its_optimizer_state(snapshot, trained):
    model = net(seed=1)
    model[2] = nn.Linear(3, 2)
    before = model[2].weight.clone()
    updater = updater_of(model)
    report = restore(snapshot, model=model, updater=updater)
    assert model[2].weight.equal(before)
    assert [(item.name, item.reason) for item in report.reinitialised] == [
        ("2.weight", "shape [1, 3] in the checkpoint, [2, 3] here"),
        ("2.bias", "shape [1] in the checkpoint, [2] here"),
    ]
    assert {item.name for item in report.optimizer_afresh} == {"2.weight", "2.bias"}
    optimizer = updater.dense[0].optimizer
    assert model[2].weight not in optimizer.state
    theirs = trained[1].dense[0].optimizer.state[trained[0][0].weight]
    assert optimizer.state[model[0].weight]["exp_avg"].equal(theirs["exp_avg"])
    assert "2.weight" in report.unused
    train(model, updater)


def test_missing_and_unused_are_told_apart(snapshot):
    model = nn.Sequential(*net(), nn.Linear(1, 1))
    report = restore(snapshot, model=model, engine=Tables(USER, TableSpec("new", 5, 2)))
    assert {item.name: item.reason for item in report.reinitialised} == {
        "3.weight": "not in the checkpoint",
        "3.bias": "not in the checkpoint",
        "new": "not in the checkpoint",
    }
    assert report.unused == ("item",)


def test_another_optimizer_begins_anew(snapshot):
    model = net(seed=1)
    updater = updater_of(model, torch.optim.Adagrad)
    report = restore(snapshot, model=model, updater=updater)
    assert {item.reason for item in report.optimizer_afresh} == {
        "trained by Adam in the checkpoint, by Adagrad here"
    }
    train(model, updater)


def test_an_average_begins_at_the_restored_weights(snapshot):
    model = net(seed=1)
    updater = updater_of(model, ema=EMA(model.named_parameters()))
    restore(snapshot, model=model, updater=updater)
    with updater.averaged():
        assert model[0].weight.equal(snapshot.tree["model"]["0.weight"])


def test_a_table_that_shrank_drops_and_counts_rows(snapshot):
    engine = Tables(TableSpec("user", 50, 2), ITEM)
    report = restore(snapshot, model=net(), engine=engine, sparse_optimizer=engine)
    assert engine.rows["user"] == {1: [1, 1], 5: [5, 5]}
    assert list(engine.row_states["user"]) == [1, 5]
    (user,) = [table for table in report.tables if table.name == "user"]
    assert (user.rows, user.dropped_rows, user.old_num_rows, user.num_rows) == (2, 1, 100, 50)
    assert "user: 2 rows, 1 dropped (the table shrank from 100 to 50 rows)" in str(report)


def test_a_table_that_grew_keeps_all_rows(snapshot):
    report = restore(snapshot, model=net(), engine=Tables(TableSpec("user", 10**9, 2), ITEM))
    assert "user: 3 rows (the table grew from 100 to 1,000,000,000 rows)" in str(report)


def test_a_table_of_another_width_begins_anew(snapshot):
    engine = Tables(TableSpec("user", 100, 8), ITEM)
    report = restore(snapshot, model=net(), engine=engine)
    assert engine.rows["user"] == {}
    assert [(item.name, item.reason) for item in report.reinitialised] == [
        ("user", "rows of width 2 in the checkpoint, 8 here")
    ]


@pytest.mark.parametrize("states", [(("v", 2),), (("m", 1),), (("m", 2), ("v", 2))], ids=str)
def test_row_states_of_another_optimizer_are_left_out_whole(snapshot, states):
    """Half of Adam's moments would be worse than none."""
    engine = Tables(USER, ITEM, states=states)
    report = restore(snapshot, model=net(), engine=engine, sparse_optimizer=engine)
    assert engine.row_states == {"user": {}, "item": {}}
    assert {item.name for item in report.optimizer_afresh} == {"user", "item"}
    assert "optimizer" in str(report)


def test_nothing_that_fits_is_an_error(snapshot):
    with pytest.raises(CheckpointError, match="nothing in the checkpoint of step 42 fits"):
        restore(snapshot, model=nn.Bilinear(2, 3, 4), engine=Tables(TableSpec("x", 1, 1)))


def write_map(tmp_path, text):
    path = tmp_path / "map.txt"
    path.write_text(text)
    return path


class Renamed(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = net(seed=1)


MAP = """# this model      the checkpoint
first.weight\t0.weight
first.bias 0.bias

last.weight   2.weight
person user
"""


def test_a_map_renames_weights_tables_and_their_optimizer_states(snapshot, trained, tmp_path):
    model, engine = Renamed(), Tables(TableSpec("person", 100, 2), ITEM)
    updater = updater_of(model)
    report = restore(
        snapshot,
        model=model,
        engine=engine,
        sparse_optimizer=engine,
        updater=updater,
        param_map=write_map(tmp_path, MAP),
    )
    assert model.first.weight.equal(trained[0][0].weight)
    theirs = trained[1].dense[0].optimizer.state[trained[0][0].weight]
    assert updater.dense[0].optimizer.state[model.first.weight]["exp_avg"].equal(theirs["exp_avg"])
    assert engine.rows["person"] == {1: [1, 1], 5: [5, 5], 90: [90, 90]}
    assert engine.row_states["person"]
    assert set(report.renamed) == {
        ("first.weight", "0.weight"),
        ("first.bias", "0.bias"),
        ("last.weight", "2.weight"),
        ("person", "user"),
    }
    assert "norm.weight" in {item.name for item in report.reinitialised}
    assert "2.bias" in report.unused
    assert "renamed        first.weight (there: 0.weight)" in str(report)


def test_a_map_may_spell_tables_as_torchrec_does(snapshot, tmp_path):
    engine = Tables(TableSpec("person", 100, 2))
    text = "model.ebc.embedding_bags.person.weight old.ec.embeddings.user.weight\n"
    report = restore(snapshot, model=net(), engine=engine, param_map=write_map(tmp_path, text))
    assert report.renamed == (("person", "user"),)


def test_a_map_may_fill_a_table_from_a_pretrained_matrix(snapshot, tmp_path):
    engine = Tables(TableSpec("word", 2, 4))
    report = restore(snapshot, model=net(), engine=engine, param_map=write_map(tmp_path, "word 0.weight"))
    expected = snapshot.tree["model"]["0.weight"][:2].tolist()
    assert engine.rows["word"] == {0: expected[0], 1: expected[1]}
    assert [(table.rows, table.dropped_rows) for table in report.tables] == [(2, 1)]


def test_all_problems_of_a_map_are_told_at_once(snapshot, tmp_path):
    path = write_map(tmp_path, "0.weigt 0.weight\n0.bias 0.bia\n1.weight\n2.bias 0.bias\n2.bias 2.bias\n")
    with pytest.raises(CheckpointError) as caught:
        restore(snapshot, model=net(), param_map=path)
    lines = str(caught.value).splitlines()
    assert lines[0] == f"{path}:1 this model has no '0.weigt'; did you mean '0.weight'?"
    assert lines[1] == f"{path}:2 the checkpoint has no '0.bia'; did you mean '0.bias'?"
    assert lines[2].startswith(f"{path}:3 must be 'name_in_this_model name_in_checkpoint'")
    assert lines[3] == f"{path}:5 '2.bias' is mapped twice; keep one line"


def test_a_map_that_is_not_there(snapshot, tmp_path):
    with pytest.raises(CheckpointError, match=r"fine_tune_ckpt_param_map .*absent: cannot be read"):
        restore(snapshot, model=net(), param_map=tmp_path / "absent")


def test_a_checkpoint_without_weights(tmp_path):
    with pytest.raises(CheckpointError, match="no weights under 'model'"):
        restore(Snapshot(1, {"model": {"a": 3}}), model=net())


@pytest.mark.parametrize("bounds", [None, [0, 2, 4]], ids=["row ranges", "slices of columns"])
def test_a_table_in_several_files_goes_in_piece_by_piece(tmp_path, monkeypatch, cut, bounds):
    ids = tuple(range(0, 60, 3))
    table = rows(ids=ids, dim=4)
    table = dataclasses.replace(table, states={"m": table.weights * np.float32(0.5), "t": np.array(9)})
    parts = cut.row_wise(table, 3) if bounds is None else cut.column_wise(table, bounds)
    snapshot = read_checkpoint(write_checkpoint(tmp_path / "c", Snapshot(3, {"model": {}}, parts)))
    pieces = TableRows.pieces
    monkeypatch.setattr(TableRows, "pieces", lambda self, rows: pieces(self, rows, max_rows=4))
    sizes = []
    engine = Tables(TableSpec("user", 50, 4), states=(("m", 4),))
    take = engine.import_table
    engine.import_table = lambda name, ids, weights: (sizes.append(len(ids)), take(name, ids, weights))
    report = restore(snapshot, model=nn.Identity(), engine=engine, sparse_optimizer=engine)
    assert engine.rows["user"] == {row: [row] * 4 for row in ids if row < 50}
    assert engine.row_states["user"] == {row: [row / 2] * 4 for row in ids if row < 50}
    assert engine.updates == {"user": 9}
    assert sizes == [4, 4, 4, 4, 1]
    assert (report.tables[0].rows, report.tables[0].dropped_rows) == (17, 3)
