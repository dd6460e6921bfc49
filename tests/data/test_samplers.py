from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from recgrad.data.samplers.alias import build_alias, draw
from recgrad.data.samplers.draws import draw_others
from recgrad.data.samplers.items import ItemTable
from recgrad.errors import ConfigError, DataError

FEATURES = """
feature_configs { id_feature { feature_name: "user" expression: "user:user"
  embedding_dim: 4 hash_bucket_size: 50 } }
feature_configs { id_feature { feature_name: "item" expression: "item:item"
  embedding_dim: 4 num_buckets: 100 } }
feature_configs { id_feature { feature_name: "kind" expression: "item:kind"
  embedding_dim: 4 hash_bucket_size: 50 } }
feature_configs { raw_feature { feature_name: "price" expression: "item:price" } }
"""
MODEL = "losses { softmax_cross_entropy {} }"


def chances(keep: np.ndarray, alias: np.ndarray) -> np.ndarray:
    """The exact probability of each item under an alias table."""
    count = len(keep)
    result = np.zeros(count)
    np.add.at(result, np.arange(count), keep / count)
    np.add.at(result, alias, (1 - keep) / count)
    return result


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=200).filter(lambda w: sum(w) > 1e-3))
@settings(max_examples=100, deadline=None)
def test_alias_table_has_exactly_the_wanted_probabilities(weights):
    weights = np.array(weights)
    np.testing.assert_allclose(chances(*build_alias(weights)), weights / weights.sum(), atol=1e-12)


def test_draws_follow_the_weights():
    weights = np.array([1.0, 0.0, 5.0, 2.0, 2.0])
    keep, alias = build_alias(weights)
    bits = np.random.PCG64(1).random_raw(400_000).reshape(-1, 2)
    counts = np.bincount(draw(keep, alias, bits), minlength=5)
    p = weights / weights.sum()
    assert counts[1] == 0
    assert (np.abs(counts - 200_000 * p) <= 5 * np.sqrt(200_000 * p * (1 - p))).all()


@pytest.mark.parametrize("own", [[], [3], [0, 1, 2, 3, 4, 5, 6, 7], list(range(9))])
def test_others_are_drawn_by_weight_without_the_own_items(own):
    """Also when the own items hold nearly all the weight."""
    weights = np.arange(1, 11) ** 4.0
    items = ItemTable.of("items", np.arange(10) * 7, weights, {})
    rows = draw_others(items, np.array(own, np.int64) * 7, 50_000, (0, 0, 0, 0))
    assert len(rows) == 50_000
    p = np.where(np.isin(np.arange(10), own), 0, weights)
    p = p / p.sum()
    counts = np.bincount(rows, minlength=10)
    assert (np.abs(counts - 50_000 * p) <= 5 * np.sqrt(50_000 * p * (1 - p)) + 1e-9).all()


def test_nothing_left_to_draw():
    items = ItemTable.of("items.txt", np.arange(3), np.array([1.0, 1.0, 0.0]), {})
    with pytest.raises(
        DataError, match=r"every item of item table 'items\.txt' that has weight is in the batch"
    ):
        draw_others(items, np.array([0, 1]), 5, (0, 0, 0, 0))


@pytest.fixture
def two_towers(tmp_path: Path) -> tuple[str, str]:
    """Clicks and an item table of 40 items in the text form."""
    rng = np.random.default_rng(0)
    items = rng.integers(0, 20, 200)
    table = pa.table(
        {
            "id": np.arange(200),
            "user": [f"u{i}" for i in rng.integers(0, 30, 200)],
            "item": items,
            "kind": [f"k{i % 7}" for i in items],
            "price": (items * 0.5).astype(np.float32),
        }
    )
    pq.write_table(table, tmp_path / "clicks.parquet")
    lines = ["id:int64\tweight:float\tattrs:string"]
    lines += [f"{i}\t{1 + i % 3}\t{i}:k{i % 7}:{i * 0.5}" for i in range(40)]
    (tmp_path / "items.txt").write_text("\n".join(lines) + "\n")
    return str(tmp_path / "clicks.parquet"), str(tmp_path / "items.txt")


def sampler_text(path: str, extra: str = "num_sample: 64", fields: str = "item kind price") -> str:
    attrs = " ".join(f"attr_fields: '{name}'" for name in fields.split())
    sampler = f"input_path: '{path}' {attrs} item_id_field: 'item' {extra}"
    return f"batch_size: 16 num_workers: 2 negative_sampler {{ {sampler} }}"


def test_negatives_are_encoded_items_outside_the_batch(two_towers, open_loader):
    clicks, items = two_towers
    loader = open_loader(clicks, sampler_text(items), features=FEATURES, model=MODEL)
    batches = list(loader.epoch())
    for batch in batches:
        negatives = batch.negatives
        assert negatives.size == 64
        drawn = negatives.sparse["item"].values
        assert not set(drawn.tolist()) & set(batch.sparse["item"].values.tolist())
        assert torch.equal(negatives.dense["price"][:, 0], drawn * 0.5)
        assert negatives.sparse.keys == ("item", "kind")
        # The same item has the same encoded attributes on both sides.
        known = dict(
            zip(batch.sparse["item"].values.tolist(), batch.sparse["kind"].values.tolist(), strict=True)
        )
        for other in batches:
            pairs = zip(
                other.negatives.sparse["item"].values.tolist(),
                other.negatives.sparse["kind"].values.tolist(),
                strict=True,
            )
            assert all(known.get(item, kind) == kind for item, kind in pairs)
    seen = torch.cat([batch.negatives.sparse["item"].values for batch in batches])
    assert len(set(seen.tolist())) == 40


def test_negatives_depend_on_seed_epoch_and_place_alone(two_towers, open_loader):
    clicks, items = two_towers

    def drawn(seed: int = 0, epoch: int = 0, workers: int = 2) -> list[list[int]]:
        text = sampler_text(items).replace("num_workers: 2", f"num_workers: {workers}")
        loader = open_loader(clicks, text, features=FEATURES, model=MODEL, seed=seed)
        return [batch.negatives.sparse["item"].values.tolist() for batch in loader.epoch(epoch)]

    assert drawn() == drawn(workers=0)
    assert drawn() != drawn(seed=1)
    assert drawn() != drawn(epoch=1)
    assert len({tuple(items) for items in drawn()}) == 13
    text = sampler_text(items)
    loader = open_loader(clicks, text, features=FEATURES, model=MODEL)
    batches = loader.epoch()
    for _ in range(5):
        next(batches)
    batches.close()
    rest = open_loader(clicks, text, features=FEATURES, model=MODEL).epoch(0, loader.position)
    assert [batch.negatives.sparse["item"].values.tolist() for batch in rest] == drawn()[5:]


def test_evaluation_draws_its_own_number(two_towers, open_loader):
    clicks, items = two_towers
    for extra, expected in (("num_sample: 8", 8), ("num_sample: 8 num_eval_sample: 5", 5)):
        loader = open_loader(
            clicks, sampler_text(items, extra), features=FEATURES, model=MODEL, training=False
        )
        assert {batch.negatives.size for batch in loader.epoch()} == {expected}


def test_the_table_is_loaded_once(two_towers, open_loader):
    clicks, items = two_towers
    train = open_loader(clicks, sampler_text(items), features=FEATURES, model=MODEL)
    evaluation = open_loader(clicks, sampler_text(items), features=FEATURES, model=MODEL, training=False)
    assert train._encoder.sampler.items.table is evaluation._encoder.sampler.items.table


def test_prediction_samples_nothing(two_towers, open_loader):
    clicks, items = two_towers
    loader = open_loader(
        clicks, sampler_text(items), features=FEATURES, model=MODEL, training=False, targets=None
    )
    assert next(iter(loader.epoch())).negatives is None


def test_parquet_tables_and_string_ids(two_towers, open_loader, tmp_path: Path):
    clicks, items = two_towers
    own = pa.table(
        {
            "id": pa.array(np.arange(40)),
            "weight": pa.array(1.0 + np.arange(40) % 3),
            "item": pa.array(np.arange(40)),
            "kind": pa.array([f"k{i % 7}" for i in range(40)]),
            "price": pa.array(np.arange(40) * 0.5, pa.float32()),
        }
    )
    joined = own.select(["id", "weight"]).append_column(
        "attrs", pa.array([f"{i}:k{i % 7}:{i * 0.5}" for i in range(40)])
    )
    pq.write_table(own, tmp_path / "own.parquet")
    pq.write_table(joined, tmp_path / "joined.parquet")

    def drawn(path: str) -> list[list[int]]:
        loader = open_loader(clicks, sampler_text(path), features=FEATURES, model=MODEL)
        return [batch.negatives.sparse.values.tolist() for batch in loader.epoch()]

    assert drawn(items) == drawn(str(tmp_path / "own.parquet")) == drawn(str(tmp_path / "joined.parquet"))
    # Ids as text in the item table and in the clicks: compared by hash.
    lines = Path(items).read_text().replace("id:int64", "id:string").splitlines()
    (tmp_path / "text.txt").write_text("\n".join(lines))
    table = pq.read_table(clicks)
    text = table.set_column(2, "item", table["item"].cast(pa.string()))
    pq.write_table(text, tmp_path / "clicks_text.parquet")
    loader = open_loader(
        str(tmp_path / "clicks_text.parquet"),
        sampler_text(str(tmp_path / "text.txt")),
        features=FEATURES,
        model=MODEL,
    )
    assert [batch.negatives.sparse.values.tolist() for batch in loader.epoch()] == drawn(items)


def test_several_own_items_in_a_row(two_towers, open_loader, tmp_path: Path):
    clicks, items = two_towers
    table = pq.read_table(clicks)
    many = pa.array([f"{i % 40};{(i + 1) % 40}" for i in range(200)])
    table = table.append_column("bought", many).replace_schema_metadata(None)
    pq.write_table(table, tmp_path / "many.parquet")
    text = sampler_text(items).replace("item_id_field: 'item'", "item_id_field: 'bought'")
    for batch in open_loader(str(tmp_path / "many.parquet"), text, features=FEATURES, model=MODEL).epoch():
        rows = batch.origin.row.tolist()
        own = {i % 40 for i in rows} | {(i + 1) % 40 for i in rows}
        assert not own & set(batch.negatives.sparse["item"].values.tolist())


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["0\t1\t0:k:1"], "must begin with a line such as 'id:int64⇥weight:float⇥attrs:string'"),
        (["id:int64\tweight:float\tattrs:string"], "has no items"),
        (
            ["id:int64\tweight:float\tattrs:string", "0\t1\t0:k:1", "1\t-2\t0:k:1"],
            "has weight -2.0 in row 1; weights are 0 or more",
        ),
        (["id:int64\tweight:float\tattrs:string", "0\t0\t0:k:1"], "has no item with a weight above 0"),
        (
            ["id:int64\tweight:float\tattrs:string", "0\t1\t0:k"],
            "has 2 attributes in row 0 where attr_fields names 3; check attr_fields and attr_delimiter",
        ),
        (["id:int64\tweight:float\tattrs:string", "0\t1\tx:k:1"], "attribute 'item' of item table"),
        (["id:int64\tweight:float\tattrs:string", "x\t1\t0:k:1"], "cannot read item table"),
    ],
)
def test_bad_item_tables(two_towers, open_loader, tmp_path: Path, lines, message):
    (tmp_path / "bad.txt").write_text("\n".join(lines))
    with pytest.raises(DataError) as error:
        open_loader(two_towers[0], sampler_text(str(tmp_path / "bad.txt")), features=FEATURES, model=MODEL)
    assert message in str(error.value)


def write_items(path: Path, **columns: pa.Array) -> str:
    """A parquet item table of 40 items with attributes in columns of their own."""
    table = {
        "id": pa.array(np.arange(40)),
        "item": pa.array(np.arange(40)),
        "kind": pa.array([f"k{i % 7}" for i in range(40)]),
        "price": pa.array(np.arange(40) * 0.5, pa.float32()),
    }
    pq.write_table(pa.table({**table, **columns}), path)
    return str(path)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"id": pa.array([f"i{i}" for i in range(40)])}, "ids of item table '.*' must be 64-bit integers"),
        ({"id": pa.array(np.arange(40) + 0.5)}, "ids of item table '.*' must be 64-bit integers"),
        ({"id": pa.array([2**63 + i for i in range(40)], pa.uint64())}, "must be 64-bit integers"),
        ({"weight": pa.array(["1"] * 39 + ["x"])}, "weights of item table '.*' must be numbers"),
        ({"weight": pa.array([[1.0]] * 40)}, "weights of item table '.*' must be numbers"),
    ],
    ids=["text", "fractions", "unsigned", "text weights", "lists of weights"],
)
def test_columns_of_item_tables_that_do_not_fit(two_towers, open_loader, tmp_path: Path, columns, message):
    items = write_items(tmp_path / "items.parquet", **columns)
    with pytest.raises(DataError, match=message):
        open_loader(two_towers[0], sampler_text(items), features=FEATURES, model=MODEL)


@pytest.mark.parametrize("own", [pa.float64(), pa.uint64(), pa.int32()])
def test_own_items_of_any_number_type_are_left_out(two_towers, open_loader, tmp_path: Path, own):
    """Also beyond 2⁵³, where a float's text is no longer that of the integer, and beyond 2⁶³."""
    first = 2**63 if own == pa.uint64() else 2**60 if own == pa.float64() else 2**20
    step = 2**10 if own == pa.float64() else 1
    table = pq.read_table(two_towers[0])
    numbers = [first + step * item for item in table["item"].to_pylist()]
    ids = pa.array([float(n) for n in numbers] if own == pa.float64() else numbers, own)
    pq.write_table(table.append_column("own", ids), tmp_path / "clicks.parquet")
    kind = pa.int64() if own == pa.float64() else own
    items = write_items(
        tmp_path / "items.parquet", id=pa.array([first + step * item for item in range(40)], kind)
    )
    text = sampler_text(items).replace("item_id_field: 'item'", "item_id_field: 'own'")
    for batch in open_loader(str(tmp_path / "clicks.parquet"), text, features=FEATURES, model=MODEL).epoch():
        drawn = batch.negatives.sparse["item"].values.tolist()
        assert not set(drawn) & set(batch.sparse["item"].values.tolist())


def test_own_items_that_are_no_items_are_refused(two_towers, open_loader, tmp_path: Path):
    table = pq.read_table(two_towers[0])
    own = pa.array(np.asarray(table["item"]) + 0.5)
    pq.write_table(table.append_column("own", own), tmp_path / "clicks.parquet")
    text = sampler_text(two_towers[1]).replace("item_id_field: 'item'", "item_id_field: 'own'")
    loader = open_loader(str(tmp_path / "clicks.parquet"), text, features=FEATURES, model=MODEL)
    with pytest.raises(DataError, match=r"ids of column 'own' must be 64-bit integers"):
        list(loader.epoch())


def test_a_bad_attribute_is_named_with_its_row(two_towers, open_loader, tmp_path: Path):
    lines = ["id:int64\tweight:float\tattrs:string", "500\t1\t500:k1:1"]
    (tmp_path / "bad.txt").write_text("\n".join(lines))
    loader = open_loader(
        two_towers[0], sampler_text(str(tmp_path / "bad.txt")), features=FEATURES, model=MODEL
    )
    with pytest.raises(
        DataError, match=r"^feature item: .*500.*\(attribute 'item', row 0 of item table '.*bad\.txt'\)"
    ):
        list(loader.epoch())


def test_attributes_that_no_feature_reads(two_towers, open_loader):
    text = sampler_text(two_towers[1], fields="other")
    with pytest.raises(
        ConfigError, match=r"negative_sampler\.attr_fields: no feature reads these attributes alone"
    ):
        open_loader(two_towers[0], text, features=FEATURES, model=MODEL)
