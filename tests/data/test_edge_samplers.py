"""Samplers with edges from users to items, whole catalogues, and the items of other rows."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from recgrad.data.samplers.edges import group_edges
from recgrad.data.samplers.exclusion import excluded_pairs
from recgrad.data.samplers.item_side import Own
from recgrad.data.samplers.sampler import SAMPLERS
from recgrad.data.samplers.user_edges import UserEdges
from recgrad.errors import ConfigError, DataError

FEATURES = """
feature_configs { id_feature { feature_name: "user" expression: "user:user"
  embedding_dim: 4 num_buckets: 50 } }
feature_configs { id_feature { feature_name: "item" expression: "item:item"
  embedding_dim: 4 num_buckets: 100 } }
feature_configs { raw_feature { feature_name: "price" expression: "item:price" use_mask: true } }
"""
MODEL = "losses { softmax_cross_entropy {} }"
USERS, ITEMS = 30, 40
NAMES = ("negative_sampler", "negative_sampler_v2", "hard_negative_sampler", "hard_negative_sampler_v2")


class Data:
    """Clicks, an item table whose weights are 1, 2 and 3 in turn, and edges of both kinds."""

    def __init__(self, folder: Path) -> None:
        rng = np.random.default_rng(0)
        self.folder = folder
        self.users, self.items = rng.integers(0, USERS, 200), rng.integers(0, 20, 200)
        table = pa.table(
            {
                "id": np.arange(200),
                "user": self.users,
                "item": self.items,
                "price": (self.items * 0.5).astype(np.float32),
            }
        )
        pq.write_table(table, folder / "clicks.parquet")
        self.clicks = str(folder / "clicks.parquet")
        lines = ["id:int64\tweight:float\tattrs:string"]
        lines += [f"{i}\t{1 + i % 3}\t{i}:{i * 0.5}" for i in range(ITEMS)]
        (folder / "items.txt").write_text("\n".join(lines) + "\n")
        self.weights = 1.0 + np.arange(ITEMS) % 3
        # Users 0 to 9 have positives and hard negatives, others have none.
        self.positives = {u: sorted({*rng.integers(0, ITEMS, 12).tolist()}) for u in range(10)}
        self.write("positives.txt", [(u, i, 1.0) for u, items in self.positives.items() for i in items])
        edges = [
            (int(rng.integers(0, 10)), int(rng.integers(0, ITEMS + 5)), float(rng.integers(0, 3)))
            for _ in range(60)
        ]
        self.write("hard.txt", edges)
        self.hard = {
            u: [i for _, i, _ in sorted((e for e in edges if e[0] == u), key=lambda e: -e[2]) if i < ITEMS]
            for u in range(USERS)
        }

    def write(self, name: str, edges: list[tuple[int, int, float]]) -> None:
        lines = ["userid:int64\titemid:int64\tweight:float"]
        lines += ["\t".join(map(str, edge)) for edge in edges]
        (self.folder / name).write_text("\n".join(lines) + "\n")

    def left_out(self, name: str):
        """What a row of a user and an item is not compared with."""
        positives = self.positives if "v2" in name else {}
        return lambda user, item: {item, *positives.get(user, [])}

    def text(self, name: str, extra: str = "", batch_size: int = 16, data: str = "") -> str:
        attrs = "attr_fields: 'item' attr_fields: 'price' item_id_field: 'item'"
        plain = name in ("negative_sampler", "catalogue_sampler")
        path = f"{'input_path' if plain else 'item_input_path'}: '{self.folder}/items.txt'"
        if "v2" in name or "hard" in name:
            path += " user_input_path: 'none' user_id_field: 'user'"
        if "v2" in name:
            path += f" pos_edge_input_path: '{self.folder}/positives.txt'"
        if "hard" in name:
            path += f" hard_neg_edge_input_path: '{self.folder}/hard.txt'"
        if "num_sample" not in extra and name != "catalogue_sampler":
            extra += " num_sample: 64"
        if "hard" in name and "num_hard_sample" not in extra:
            extra += " num_hard_sample: 3"
        return f"batch_size: {batch_size} num_workers: 2 {data} {name} {{ {path} {attrs} {extra} }}"


@pytest.fixture
def data(tmp_path: Path) -> Data:
    return Data(tmp_path)


@pytest.fixture
def batches(data, open_loader):
    def read(name, extra="", *, epoch=0, position=None, config="", **options):
        text = data.text(name, extra, data=config)
        loader = open_loader(data.clicks, text, features=FEATURES, model=MODEL, **options)
        return list(loader.epoch(epoch, position))

    return read


def shared(batch):
    hard = batch.comparison.hard_rows
    count = batch.negatives.size - (0 if hard is None else len(hard))
    return batch.negatives.sparse["item"].values[:count].numpy()


def ids(batch, name):
    return batch.sparse[name].values.tolist()


def expected_pairs(batch, left_out):
    """(row, draw) pairs by brute force; `left_out(user, item)` gives the items of a row."""
    drawn = shared(batch).tolist()
    return {
        (row, place)
        for row, (user, item) in enumerate(zip(ids(batch, "user"), ids(batch, "item")))
        for place, other in enumerate(drawn)
        if other in left_out(user, item)
    }


def found_pairs(batch):
    return {tuple(pair) for pair in batch.comparison.excluded.tolist()}


@settings(max_examples=60, deadline=None)
@given(
    drawn=st.lists(st.integers(-(2**62), 2**62) | st.integers(0, 6), max_size=12),
    rows=st.lists(st.lists(st.integers(0, 6) | st.integers(-(2**62), 2**62), max_size=5), max_size=6),
    diagonal=st.booleans(),
)
def test_excluded_pairs_are_those_of_a_plain_search(drawn, rows, diagonal):
    flat = np.array([item for row in rows for item in row], np.int64)
    stops = np.cumsum([len(row) for row in rows], dtype=np.int64).reshape(-1)
    starts = stops - np.array([len(row) for row in rows], np.int64)
    found = excluded_pairs(np.array(drawn, np.int64), Own(flat, starts, stops), diagonal=diagonal)
    expected = [
        (i, k)
        for i, row in enumerate(rows)
        for item in row
        for k, other in enumerate(drawn)
        if other == item and (diagonal or i != k)
    ]
    assert sorted(map(tuple, found.tolist())) == sorted(expected)
    assert found[:, 0].tolist() == sorted(found[:, 0].tolist())


@pytest.mark.parametrize("apart", [1, 10**12], ids=["near", "far"])
def test_excluded_pairs_of_many_draws(apart):
    rng = np.random.default_rng(0)
    drawn = apart * rng.integers(0, 3000, 2000)
    one, other = apart * rng.integers(0, 3000, 50), apart * rng.integers(-100, 3100, 400)
    every = np.arange(50)
    sets = Own(one, every, every + 1), Own(other, 8 * every, 8 * every + 8)
    found = excluded_pairs(drawn, *sets)
    halves = [
        np.argwhere(drawn == one[:, None]),
        np.argwhere((drawn[:, None] == other.reshape(50, 1, 8)).any(2)),
    ]
    assert set(map(tuple, found[: len(halves[0])].tolist())) == set(map(tuple, halves[0].tolist()))
    assert set(map(tuple, found[len(halves[0]) :].tolist())) == set(map(tuple, halves[1].tolist()))


def test_edges_are_grouped_by_user():
    users, items = np.array([7, 3, 7, 3, 7, 3]), np.array([5, 9, 4, 9, 5, 1])
    by_item = group_edges("edges", users, items)
    assert by_item.users.tolist() == [3, 7]
    assert by_item.starts.tolist() == [0, 2, 4]
    assert by_item.items.tolist() == [1, 9, 4, 5]
    by_weight = group_edges("edges", users, items, np.array([1.0, 2.0, 5.0, 2.0, 1.0, 7.0]))
    assert by_weight.items.tolist() == [1, 9, 9, 4, 5, 5]
    starts, stops = by_item.ranges(np.array([7, 4, 3, 99]))
    assert [(a, b) for a, b in zip(starts, stops)] == [(2, 4), (0, 0), (0, 2), (0, 0)]
    without_gaps = group_edges("edges", np.array([4, 3, 5]), np.array([1, 2, 3]))
    starts, stops = without_gaps.ranges(np.array([5, 2, 4, 6, -(2**63), 2**63 - 1]))
    assert [(a, b) for a, b in zip(starts, stops)] == [(2, 3), (0, 0), (1, 2), *[(0, 0)] * 3]
    empty = group_edges("none", users[:0], items[:0])
    assert empty.ranges(np.array([1]))[1].tolist() == [0]


def test_rows_of_several_users_and_of_none_keep_their_own_edges():
    edges = UserEdges(group_edges("edges", np.array([1, 2, 3]), np.array([10, 20, 30])), "user")
    for column, wanted in (
        (pa.array([3, 1]), [[30], [10]]),
        (pa.array([3, None]), [[30], []]),
        (pa.array([[2, 3], []]), [[20], []]),  # as many ids as rows, yet not one each: the first counts
    ):
        found = edges.of(column)
        assert [found.keys[a:b].tolist() for a, b in zip(found.starts, found.stops)] == wanted


@pytest.mark.parametrize("name", NAMES)
def test_evaluation_draws_every_item_and_leaves_out_pairs(name, data, batches):
    """A batch's items are drawn as often as others: no row meets its own, and the others meet it."""
    left_out = data.left_out(name)
    everything = batches(name, training=False)
    for batch in everything:
        assert found_pairs(batch) == expected_pairs(batch, left_out)
    assert any(set(shared(batch)) & set(ids(batch, "item")) for batch in everything)


@pytest.mark.parametrize(
    ("name", "extra"),
    [
        ("negative_sampler_v2", ""),
        ("hard_negative_sampler_v2", ""),
        ("negative_sampler", "exclude: OWN_ITEM"),
    ],
)
def test_training_leaves_out_pairs_too(name, extra, data, batches):
    left_out = data.left_out(name)
    for batch in batches(name, extra):
        assert found_pairs(batch) == expected_pairs(batch, left_out)
        assert any(item in ids(batch, "item") for item in shared(batch))


@pytest.mark.parametrize("name", NAMES[::2])
def test_by_default_no_item_of_the_batch_is_drawn_in_training(name, batches):
    for batch in batches(name):
        assert not set(shared(batch)) & set(ids(batch, "item"))
        assert not len(batch.comparison.excluded)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("training", [True, False])
def test_draws_follow_the_weights(name, training, data, batches):
    """Chi-square over all draws of an epoch, of those items that no batch bans."""
    draws = [
        shared(batch)
        for epoch in range(4)
        for batch in batches(name, "num_sample: 500", epoch=epoch, training=training)
    ]
    free = np.arange(20, ITEMS)  # no click is on these
    counts = np.bincount(np.concatenate(draws), minlength=ITEMS)
    expected = data.weights[free] / data.weights[free].sum() * counts[free].sum()
    statistic = ((counts[free] - expected) ** 2 / expected).sum()
    assert statistic < 43.8  # 99.9 % of 19 degrees of freedom
    if not training or "v2" in name:
        expected = data.weights / data.weights.sum() * counts.sum()
        assert ((counts - expected) ** 2 / expected).sum() < 73  # 99.9 % of 39
    uneven = np.repeat(counts[free].sum() / len(free), len(free))
    assert ((counts[free] - uneven) ** 2 / uneven).sum() > 1000  # weights do matter


@pytest.mark.parametrize("name", NAMES)
def test_expected_counts_are_those_of_the_draws(name, data, batches):
    for batch in batches(name):
        weights = data.weights.copy()
        if name in NAMES[::2]:
            weights[ids(batch, "item")] = 0
        expected = np.log((64 * weights / weights.sum())[shared(batch)])
        np.testing.assert_allclose(batch.comparison.log_counts.numpy(), expected, rtol=1e-5)


@pytest.mark.parametrize("name", NAMES[2:])
@pytest.mark.parametrize("training", [True, False])
def test_hard_negatives_are_the_heaviest_edges_of_the_rows_user(name, training, data, batches):
    seen = 0
    for batch in batches(name, training=training):
        rows = batch.comparison.hard_rows.tolist()
        taken = batch.negatives.sparse["item"].values[batch.negatives.size - len(rows) :].tolist()
        expected = [
            (row, hard)
            for row, (user, item) in enumerate(zip(ids(batch, "user"), ids(batch, "item")))
            for hard in data.hard[user][:3]
            if hard != item
        ]
        assert list(zip(rows, taken)) == expected
        prices = batch.negatives.dense["price"][:, 0].tolist()[-len(taken) :] if taken else []
        assert prices == [item * 0.5 for item in taken]
        seen += len(rows)
    assert seen > 20


def test_hard_negatives_that_are_no_items_are_said_to_be_left_out(batches, caplog):
    batches("hard_negative_sampler")
    assert "hard negatives are not in item table" in caplog.text


@pytest.mark.parametrize("name", [*NAMES, "catalogue_sampler"])
def test_draws_depend_on_seed_epoch_and_place_alone(name, data, open_loader):
    def drawn(seed=0, epoch=0, workers=2):
        text = data.text(name, "num_eval_sample: 9").replace("num_workers: 2", f"num_workers: {workers}")
        loader = open_loader(data.clicks, text, features=FEATURES, model=MODEL, seed=seed, training=False)
        return [batch.negatives.sparse["item"].values.tolist() for batch in loader.epoch(epoch)]

    assert drawn() == drawn(workers=0)
    assert drawn() != drawn(seed=1)
    assert drawn() != drawn(epoch=1)
    loader = open_loader(data.clicks, data.text(name), features=FEATURES, model=MODEL)
    first = loader.epoch()
    whole = [batch.negatives.sparse["item"].values.tolist() for batch in itertools.islice(first, 5)]
    first.close()
    rest = open_loader(data.clicks, data.text(name), features=FEATURES, model=MODEL).epoch(0, loader.position)
    every = open_loader(data.clicks, data.text(name), features=FEATURES, model=MODEL).epoch(0)
    whole += [batch.negatives.sparse["item"].values.tolist() for batch in rest]
    assert whole == [batch.negatives.sparse["item"].values.tolist() for batch in every]


def test_ranks_draw_their_own(data, open_loader):
    text = data.text("negative_sampler_v2")
    draws = [
        [
            batch.negatives.sparse["item"].values.tolist()
            for batch in open_loader(
                data.clicks, text, features=FEATURES, model=MODEL, rank=rank, world_size=2
            ).epoch()
        ]
        for rank in (0, 1)
    ]
    assert draws[0] != draws[1]


def test_features_of_sampled_items_are_hidden_by_chance(batches):
    mask = "negative_sample_mask_prob: 0.5"
    hidden = [batch.negatives.dense["price"] for batch in batches("hard_negative_sampler_v2", config=mask)]
    prices = torch.cat(hidden)
    assert 0.3 < (prices == 0).float().mean() < 0.7


def test_the_catalogue_is_every_item_and_knows_the_own_one(data, batches):
    everything = batches("catalogue_sampler")
    for batch in everything:
        assert batch.negatives is everything[0].negatives
        assert batch.negatives.sparse["item"].values.tolist() == list(range(ITEMS))
        assert batch.comparison.own.tolist() == ids(batch, "item")
        assert batch.comparison.excluded.tolist() == [
            [row, item] for row, item in enumerate(ids(batch, "item"))
        ]
    drawn = batches("catalogue_sampler", "num_eval_sample: 30", training=False)
    counts = np.bincount(np.concatenate([shared(batch) for batch in drawn]), minlength=ITEMS)
    expected = counts.sum() / ITEMS
    assert ((counts - expected) ** 2 / expected).sum() < 73
    for batch in drawn:
        assert found_pairs(batch) == expected_pairs(batch, lambda u, i: {i})


def test_rows_of_a_catalogue_may_have_several_items_or_none(data, open_loader):
    rng = np.random.default_rng(3)
    lists = [rng.integers(0, ITEMS, size).tolist() for size in rng.integers(0, 4, 40)]
    table = pa.table(
        {
            "id": np.arange(40),
            "user": rng.integers(0, USERS, 40),
            "item": pa.array(lists, pa.list_(pa.int64())),
            "price": np.ones(40, np.float32),
        }
    )
    path = str(data.folder / "lists.parquet")
    pq.write_table(table, path)
    loader = open_loader(path, data.text("catalogue_sampler"), features=FEATURES, model=MODEL)
    for batch in loader.epoch():
        rows = [lists[i] for i in batch.origin.row.tolist()]
        expected = [(row, item) for row, own in enumerate(rows) for item in own]
        found = zip(batch.comparison.own_rows.tolist(), batch.comparison.own.tolist())
        assert list(found) == expected
        assert found_pairs(batch) == set(expected)
    text = data.text("catalogue_sampler", "num_eval_sample: 5")
    with pytest.raises(DataError, match="with num_eval_sample catalogue_sampler takes one item a row"):
        list(open_loader(path, text, features=FEATURES, model=MODEL, training=False).epoch())


def test_items_drawn_from_a_catalogue_stand_for_all_others(data, batches):
    extra, draws = "num_sample: 12", 12
    weights = np.zeros(ITEMS)
    found = [batch for epoch in range(60) for batch in batches("catalogue_sampler", extra, epoch=epoch)]
    outside = np.zeros(ITEMS)
    for batch in found:
        items, own = shared(batch), np.unique(ids(batch, "item"))
        log_counts = batch.comparison.log_counts.numpy()
        assert items[batch.comparison.own.numpy()].tolist() == ids(batch, "item")
        # The own items of all rows once, then draws of others.
        assert items[: len(own)].tolist() == own.tolist()
        assert not set(items[len(own) :]) & set(own)
        assert (log_counts[: len(own)] == 0).all()
        np.testing.assert_allclose(log_counts[len(own) :], np.log(draws / ITEMS), rtol=1e-6)
        np.add.at(weights, items[len(own) :], np.exp(-log_counts[len(own) :]))
        outside += ~np.isin(np.arange(ITEMS), own)
    # Each counts as often as it is no own item: a draw has the weight items / draws.
    sums = (weights - outside) * draws / ITEMS
    expected = outside * draws / ITEMS
    assert (sums[expected > 0] ** 2 / expected[expected > 0]).sum() < 85  # 40 degrees, one in 20,000
    again = batches("catalogue_sampler", extra)
    assert [shared(batch).tolist() for batch in again] == [shared(b).tolist() for b in found[: len(again)]]
    evaluated = batches("catalogue_sampler", extra, training=False)
    assert shared(evaluated[0]).tolist() == list(range(ITEMS))


def test_an_item_outside_the_catalogue_is_named(data, batches):
    (data.folder / "items.txt").write_text("id:int64\tweight:float\tattrs:string\n1\t1\t1:2\n")
    with pytest.raises(
        DataError, match=r"item \d+ of column 'item' is not in item table '.*items\.txt'; add it"
    ):
        batches("catalogue_sampler")


@pytest.mark.parametrize("table", [False, True], ids=["counted", "table"])
def test_items_of_other_rows_have_their_probability(table, data, open_loader):
    path = f"input_path: '{data.folder}/items.txt'" if table else ""
    edges = f"pos_edge_input_path: '{data.folder}/positives.txt' user_id_field: 'user'"
    text = f"batch_size: 16 in_batch_sampler {{ item_id_field: 'item' {path} {edges} }}"
    weights = data.weights if table else np.bincount(data.items, minlength=ITEMS)
    for training in (True, False):
        for batch in open_loader(
            data.clicks, text, features=FEATURES, model=MODEL, training=training
        ).epoch():
            own, users = ids(batch, "item"), ids(batch, "user")
            assert batch.negatives is None
            expected = {
                (row, place)
                for row, place in itertools.permutations(range(len(own)), 2)
                if own[place] == own[row] or own[place] in data.positives.get(users[row], [])
            }
            assert found_pairs(batch) == expected
            if training:
                chance = np.log(((len(own) - 1) * weights / weights.sum())[own])
                np.testing.assert_allclose(batch.comparison.log_counts.numpy(), chance, rtol=1e-5)
            else:
                assert batch.comparison.log_counts is None


def test_text_ids_are_compared_by_hash(data, open_loader, tmp_path: Path):
    def drawn():
        loader = open_loader(
            data.clicks, data.text("hard_negative_sampler_v2"), features=FEATURES, model=MODEL
        )
        return [
            (batch.negatives.sparse.values.tolist(), sorted(batch.comparison.excluded.tolist()))
            for batch in loader.epoch()
        ]

    numbers = drawn()
    table = pq.read_table(data.clicks)
    pq.write_table(
        pa.table(
            {
                "id": table["id"],
                "user": table["user"].cast(pa.string()),
                "item": table["item"].cast(pa.string()),
                "price": table["price"],
            }
        ),
        data.clicks,
    )
    for name in ("items.txt", "positives.txt", "hard.txt"):
        text = (tmp_path / name).read_text()
        (tmp_path / name).write_text(text.replace("id:int64", "id:string"))
    assert drawn() == numbers


def test_parquet_edges_without_weights(data, open_loader, tmp_path: Path):
    pairs = [(u, i) for u, items in data.positives.items() for i in items]
    users, items = map(pa.array, zip(*pairs))
    pq.write_table(pa.table({"who": users, "what": items}), tmp_path / "edges.parquet")
    text = data.text("negative_sampler_v2")
    other = text.replace("positives.txt", "edges.parquet")
    found = [
        [
            batch.comparison.excluded.tolist()
            for batch in open_loader(data.clicks, t, features=FEATURES, model=MODEL).epoch()
        ]
        for t in (text, other)
    ]
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (
            "1\t2\t1.0",
            "edge table .* must begin with a line such as 'userid:int64⇥itemid:int64⇥weight:float'",
        ),
        ("userid:int64\n1", "must have the columns user, item and weight"),
        ("userid:int64\titemid:int64\tweight:float\nx\t2\t1.0", "cannot read edge table"),
        (
            "userid:int64\titemid:int64\tweight:float\n1\t2\t-1.0",
            "has weight -1.0 in row 0; weights are 0 or more",
        ),
        (
            "userid:string\titemid:int64\tweight:float\nx\t2\t1.0",
            "ids of users of edge table .* must be 64-bit integers",
        ),
    ],
)
def test_bad_edges(data, batches, lines, message):
    (data.folder / "hard.txt").write_text(lines + "\n")
    with pytest.raises(DataError, match=message):
        batches("hard_negative_sampler")


def test_users_without_an_id_have_no_edges(data, batches):
    table = pq.read_table(data.clicks)
    users = pa.array([None if i % 2 else int(u) for i, u in enumerate(data.users)], pa.int64())
    pq.write_table(table.set_column(1, "user", users), data.clicks)
    for batch in batches("hard_negative_sampler_v2"):
        owners = set(batch.comparison.hard_rows.tolist())
        known = batch.sparse["user"].lengths.tolist()
        assert all(known[row] for row in owners)


def test_settings_without_meaning_are_refused(data, batches, open_loader):
    with pytest.raises(
        ConfigError, match=r"hard_negative_sampler\.num_hard_sample: must be at least 1, got 0"
    ):
        batches("hard_negative_sampler", "num_hard_sample: 0")
    text = "batch_size: 4 in_batch_sampler { item_id_field: 'item' user_id_field: 'user' }"
    with pytest.raises(ConfigError, match="pos_edge_input_path and user_id_field go together"):
        open_loader(data.clicks, text, features=FEATURES, model=MODEL)


def test_every_sampler_is_tested():
    assert set(SAMPLERS) == {
        *NAMES,
        "catalogue_sampler",
        "in_batch_sampler",
        "next_item_sampler",
        "tdm_sampler",
    }
