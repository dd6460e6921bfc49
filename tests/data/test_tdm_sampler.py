"""Rows of a tree's nodes: ancestors, other nodes of each level, and what rows of users become."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from recgrad.data.batch import Batch, JaggedDense, KeyedDense, KeyedJagged
from recgrad.data.samplers.tdm import level_weights
from recgrad.data.samplers.tree import draw_nodes
from recgrad.data.taking import beside, take_rows
from recgrad.errors import ConfigError, DataError

FEATURES = """
feature_configs { id_feature { feature_name: "user" expression: "user:user"
  embedding_dim: 4 num_buckets: 50 } }
feature_configs { id_feature { feature_name: "item" expression: "item:item"
  embedding_dim: 4 num_buckets: 100 } }
feature_configs { id_feature { feature_name: "level" expression: "item:tree_level"
  embedding_dim: 4 num_buckets: 9 } }
feature_configs { raw_feature { feature_name: "price" expression: "item:price" use_mask: true } }
feature_configs { sequence_id_feature { feature_name: "clicks" expression: "user:clicks"
  embedding_dim: 4 num_buckets: 100 sequence_length: 5 } }
"""
MODEL = "losses { binary_cross_entropy {} }"
LEVELS = 4  # 1, 2, 4 and 8 nodes; leaves are items 0 to 7, node c of an inner level is 8 + c + 1


def codes(item):
    """The codes of a leaf's ancestors, the root first: a binary tree of 8 leaves."""
    code = 7 + item
    found = []
    while code:
        code = (code - 1) // 2
        found.insert(0, code)
    return found


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    lines = ["id:int64\tweight:float\tfeature:string", "-1\t1.0\t-1:9:0.5"]
    lines += [f"{9 + c}\t{1.0 + c % 3}\t{int(np.log2(c + 1))}:{9 + c}:{c}" for c in range(7)]
    lines += [f"{i}\t{1.0 + i}\t3:{i}:{i * 0.5}" for i in range(8)]
    (tmp_path / "nodes.txt").write_text("\n".join(lines) + "\n")
    edges = ["src_id:int64\tdst_id:int64\tweight:float"]
    edges += [f"{i}\t{9 + c}\t1.0" for i in range(8) for c in codes(i)[1:]]
    (tmp_path / "edges.txt").write_text("\n".join(edges) + "\n")
    rng = np.random.default_rng(0)
    table = pa.table(
        {
            "id": np.arange(60),
            "user": np.arange(60) % 50,
            "item": rng.integers(0, 8, 60),
            "label": np.ones(60, np.int64),
            "clicks": pa.array([rng.integers(0, 8, n).tolist() for n in rng.integers(1, 6, 60)]),
        }
    )
    pq.write_table(table, tmp_path / "clicks.parquet")
    return tmp_path


def text(folder: Path, extra: str = "layer_num_sample: [0, 1, 2, 3]", data: str = "") -> str:
    return (
        f"batch_size: 10 num_workers: 2 label_fields: 'label' {data} tdm_sampler {{ "
        f"item_input_path: '{folder}/nodes.txt' edge_input_path: '{folder}/edges.txt' "
        f"predict_edge_input_path: 'none' attr_fields: 'price' item_id_field: 'item' {extra} }}"
    )


@pytest.fixture
def batches(tree, open_loader):
    def read(*args, epoch=0, data="", **options):
        config = text(tree, *args, data=data)
        loader = open_loader(str(tree / "clicks.parquet"), config, features=FEATURES, model=MODEL, **options)
        return list(loader.epoch(epoch))

    return read


def rows_of(batch):
    """(user, node, level, price, label) of each row."""
    return list(
        zip(
            batch.sparse["user"].values.tolist(),
            batch.sparse["item"].values.tolist(),
            batch.sparse["level"].values.tolist(),
            batch.dense["price"][:, 0].tolist(),
            batch.labels["label"].tolist(),
        )
    )


@pytest.mark.parametrize("training", [True, False])
def test_rows_are_leaves_ancestors_and_other_nodes_of_each_level(training, tree, batches):
    clicks = pq.read_table(tree / "clicks.parquet")
    history = dict(zip(clicks["id"].to_pylist(), clicks["clicks"].to_pylist()))
    for batch in batches(training=training):
        size = 10
        assert batch.size == size * (1 + 2 + 6)
        rows = rows_of(batch)
        for i in range(size):
            user, leaf, level, price, label = rows[i]
            assert (level, price, label) == (3, leaf * 0.5, 1)
            above = rows[size + 2 * i : size + 2 * i + 2]
            assert above == [(user, 9 + c, at, float(c), 1) for at, c in enumerate(codes(leaf)[1:], 1)]
            drawn = rows[3 * size + 6 * i : 3 * size + 6 * i + 6]
            assert [row[2] for row in drawn] == [1, 2, 2, 3, 3, 3]
            assert {row[0] for row in drawn} == {user}
            assert all(row[4] == 0 for row in drawn)
            own = {leaf, *(9 + c for c in codes(leaf))}
            nodes = [row[1] for row in drawn]
            assert not own & set(nodes)
            assert len(set(nodes)) == 6
        ends = batch.sequence_lengths["clicks"].cumsum(0).tolist()
        values = batch.sequence_sparse["clicks"].values.tolist()
        for row, (number, end) in enumerate(zip(batch.origin.row.tolist(), ends)):
            assert values[end - int(batch.sequence_lengths["clicks"][row]) : end] == history[number]


def test_draws_follow_the_weights_of_successive_draws(tree, open_loader):
    """Two of three other leaves at a time: chi-square against the probability of each ordered pair."""
    config = text(tree, "layer_num_sample: [0, 0, 0, 2]")
    loader = open_loader(str(tree / "clicks.parquet"), config, features=FEATURES, model=MODEL)
    sampler = loader._encoder.sampler
    own = np.full((40_000, 1), 2)
    drawn = draw_nodes(sampler.tree, own, np.array([3]), np.array([2]), np.uint64(5))
    weights = sampler.tree.nodes.weights[sampler.tree.rows(np.arange(8), 3)]
    weights = np.where(np.arange(8) == 2, 0, weights)
    statistic, pairs = 0.0, 0
    for a, b in permutations([0, 1, 3, 4, 5, 6, 7], 2):
        chance = weights[a] / weights.sum() * weights[b] / (weights.sum() - weights[a])
        found = ((drawn[:, 0] == a) & (drawn[:, 1] == b)).sum()
        statistic += (found - 40_000 * chance) ** 2 / (40_000 * chance)
        pairs += 1
    assert pairs == 42
    assert statistic < 75  # 99.9 % of 41 degrees of freedom


def test_all_other_nodes_of_a_level_can_be_drawn(batches):
    for batch in batches("layer_num_sample: [0, 1, 3, 7]"):
        rows = rows_of(batch)
        for i in range(10):
            nodes = {row[1] for row in rows[30 + 11 * i : 30 + 11 * i + 11]}
            assert len(nodes) == 11


@pytest.mark.parametrize(
    ("kind", "expected"),
    [("UNIFORM", [1, 1, 1, 1]), ("ARITHMETIC", [1, 2, 3, 4]), ("RECIPROCAL", [1 / 4, 1 / 3, 1 / 2, 1])],
)
def test_levels_are_kept_by_their_weights(kind, expected):
    np.testing.assert_allclose(level_weights(kind, 4), expected)


@pytest.mark.parametrize(
    ("kind", "chance"), [("UNIFORM", 1 / 2), ("ARITHMETIC", 1 / 3), ("RECIPROCAL", 1 / 3)]
)
def test_a_batch_keeps_some_inner_levels_and_the_leaves(kind, chance, batches):
    first = total = 0
    for epoch in range(40):
        for batch in batches(
            f"layer_num_sample: [0, 1, 2, 3] remain_ratio: 0.5 probability_type: '{kind}'", epoch=epoch
        ):
            levels = set(batch.sparse["level"].values.tolist())
            assert levels in ({1, 3}, {2, 3})
            first += 1 in levels
            total += 1
    assert abs(first - total * chance) < 4 * np.sqrt(total * chance * (1 - chance))


def test_draws_depend_on_seed_epoch_and_place_alone(tree, open_loader, batches):
    def values(found):
        return [batch.sparse.values.tolist() for batch in found]

    assert values(batches()) == values(batches())
    assert values(batches()) != values(batches(seed=1))
    assert values(batches()) != values(batches(epoch=1))
    path, config = str(tree / "clicks.parquet"), text(tree)
    loader = open_loader(path, config, features=FEATURES, model=MODEL)
    begun = loader.epoch()
    next(begun)
    next(begun)
    begun.close()
    rest = open_loader(path, config, features=FEATURES, model=MODEL).epoch(0, loader.position)
    assert values(rest) == values(batches())[2:]


def test_evaluation_may_draw_another_number(batches):
    (first, *_) = batches("layer_num_sample: [0, 1, 2, 3] num_eval_sample: 2", training=False)
    levels = torch.bincount(first.sparse["level"].values[30:])
    assert levels.tolist() == [0, 10, 20, 20]  # level 1 has one other node


def test_features_of_nodes_are_hidden_by_chance(batches):
    prices = torch.cat([batch.dense["price"] for batch in batches(data="negative_sample_mask_prob: 0.9")])
    assert (prices == 0).float().mean() > 0.7


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ("layer_num_sample: [1, 1]", r"layer_num_sample: must begin with 0, for the root.*got 1, 1"),
        ("layer_num_sample: [0, 1]", r"has 2 numbers, but the tree '.*nodes\.txt' has 4 levels; give one"),
        ("layer_num_sample: [0, 2, 1, 1]", r"\[1\]: asks for 2 other nodes of level 1, which has 2"),
        ("layer_num_sample: [0, 1, 1, 1] probability_type: 'X'", "must be UNIFORM, ARITHMETIC or RECIPROCAL"),
        ("layer_num_sample: [0, 1, 1, 1] remain_ratio: 0", r"remain_ratio: must be in \(0, 1\], got 0"),
    ],
)
def test_settings_that_do_not_fit_are_refused(extra, message, batches):
    with pytest.raises(ConfigError, match=message):
        batches(extra)


def test_items_outside_the_tree_are_named(tree, batches):
    table = pq.read_table(tree / "clicks.parquet")
    items = pa.array([9 + 3 if i == 4 else 1 for i in range(60)])
    pq.write_table(table.set_column(2, "item", items), tree / "clicks.parquet")
    with pytest.raises(DataError, match=r"item 12 of column 'item' is no leaf of the tree"):
        batches()


def test_a_leaf_without_an_ancestor_is_named(tree, batches):
    lines = (tree / "edges.txt").read_text().splitlines()
    (tree / "edges.txt").write_text("\n".join(lines[:-1]) + "\n")
    with pytest.raises(DataError, match=r"leaf 7 has no ancestor of level 2 in edge table"):
        batches()


# --- rows of batches ---


def jagged_batch(lengths, seed=0):
    """Rows with bags of any length, sequences, numbers and a label."""
    rng = np.random.default_rng(seed)
    rows = len(lengths)
    bags = torch.from_numpy(rng.integers(0, 3, 2 * rows).astype(np.int32))
    positions = int(sum(lengths))
    of_rows, of_bags = torch.tensor(lengths).int(), torch.full((positions,), 2).int()
    return Batch(
        rows,
        KeyedDense(("x",), (2,), torch.from_numpy(rng.normal(size=(rows, 2)))),
        KeyedJagged(("a", "b"), torch.arange(int(bags.sum())), bags, (rows, rows)),
        {"s": of_rows, "d": of_rows},
        KeyedJagged(("s",), torch.arange(2 * positions), of_bags, (positions,)),
        {"d": JaggedDense(torch.from_numpy(rng.normal(size=(positions, 1))), of_rows)},
        {"y": torch.arange(rows)},
    )


def parts(batch, row):
    """All that one row holds, as plain lists."""

    def bag(ids, at):
        start = int(ids.lengths[:at].sum())
        return ids.values[start : start + int(ids.lengths[at])].tolist()

    first = int(batch.sequence_lengths["s"][:row].sum())
    span = range(first, first + int(batch.sequence_lengths["s"][row]))
    return (
        batch.dense.values[row].tolist(),
        [bag(batch.sparse[key], row) for key in batch.sparse.keys],
        [bag(batch.sequence_sparse["s"], at) for at in span],
        [batch.sequence_dense["d"].values[at].tolist() for at in span],
        batch.labels["y"][row].item(),
    )


@settings(max_examples=40, deadline=None)
@given(lengths=st.lists(st.integers(0, 4), min_size=1, max_size=6), data=st.data())
def test_rows_are_taken_with_all_that_they_hold(lengths, data):
    batch = jagged_batch(lengths)
    rows = data.draw(st.lists(st.integers(0, len(lengths) - 1), max_size=8))
    taken = take_rows(batch, torch.tensor(rows, dtype=torch.int64))
    assert taken.size == len(rows)
    assert [parts(taken, i) for i in range(len(rows))] == [parts(batch, row) for row in rows]


def test_features_stand_beside_each_other_once():
    batch = jagged_batch([1, 2])
    more = Batch(2, KeyedDense(("z",), (1,), torch.ones(2, 1)), batch.sparse["a"])
    with pytest.raises(DataError, match="feature a: is there twice"):
        beside(batch, more)
