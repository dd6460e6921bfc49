"""Rows that have several items of their own: learned as if each were a row, and ranked together."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import recgrad
from recgrad.cli.main import main
from recgrad.errors import ConfigError, DataError

SAMPLER = {"attr_fields": ["item_id", "category", "price"], "item_id_field": "item_id"}


@pytest.fixture(scope="module")
def lists(shop, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A row a user with all that she bought, and the items as a sampler reads them."""
    folder = tmp_path_factory.mktemp("lists")
    for name, table in (("train", shop.train), ("test", shop.test)):
        bought = table.select(["user_id", "item_id"]).to_pandas().groupby("user_id")["item_id"].agg(list)
        users = shop.users.take(pa.array(bought.index.to_numpy()))
        many = {name: users[name] for name in users.column_names}
        many |= {"item_id": pa.array(bought.tolist()), "category": ["k0"] * len(users)}
        pq.write_table(
            pa.table(many | {"price": np.zeros(len(users), np.float32)}), folder / f"{name}.parquet"
        )
    header, rows = "id:string\tweight:float\tattrs:string", shop.items.to_pylist()
    lines = [f"{row['item_id']}\t1\t{row['item_id']}:{row['category']}:{row['price']!r}" for row in rows]
    (folder / "items.txt").write_text("\n".join([header, *lines, ""]))
    return folder


def config_of(shop, lists: Path, folder: Path, data: str, **edits: object):
    config = shop.config(
        **{
            "model_dir": str(folder),
            "train_input_path": f"{data}/train.parquet",
            "eval_input_path": f"{data}/test.parquet",
            "train_config.num_steps": 40,
            "model_config.dssm.in_batch_negative": False,
            **edits,
        }
    )
    del config.model_config.losses[:], config.model_config.metrics[:]
    config.model_config.losses.add().full_softmax.SetInParent()
    sampler = config.data_config.catalogue_sampler
    sampler.input_path, sampler.item_id_field = f"{lists}/items.txt", "item_id"
    sampler.attr_fields.extend(SAMPLER["attr_fields"])
    catalogue = config.eval_config.catalogue
    catalogue.item_input_path = str(shop.folder / "items.parquet")
    catalogue.item_id_field, catalogue.user_id_field, catalogue.mask_seen = "item_id", "user_id", False
    catalogue.top_k.append(10)
    return config


def metrics(config) -> dict[str, float]:
    return dict(recgrad.evaluate(recgrad.train(config).model_dir))


def test_a_row_a_user_learns_what_a_row_an_item_does(shop, lists: Path, tmp_path: Path) -> None:
    whole = {"data_config.batch_size": 5000, "train_config.num_steps": 30}
    found = [
        metrics(config_of(shop, lists, tmp_path / name, data, **whole))
        for name, data in (("many", lists), ("single", shop.folder))
    ]
    names = [name for name in found[0] if name.startswith("catalogue_")]
    assert "catalogue_recall@10" in names
    # One batch is all data, so both minimise the same sum, but for how it is scaled, which Adam and
    # Adagrad take away but for their epsilon and for rounding.
    for name in names:
        assert found[0][name] == pytest.approx(found[1][name], rel=0.02), name
    assert found[0]["catalogue_recall@10"] > 1.5 * found[0]["most_popular_recall@10"]


def test_drawn_items_learn_nearly_what_all_do(shop, lists: Path, tmp_path: Path) -> None:
    settings = {"train_config.num_steps": 60, "data_config.batch_size": 16}
    drawn = config_of(shop, lists, tmp_path / "drawn", str(lists), **settings)
    drawn.data_config.catalogue_sampler.num_sample = 30
    found = metrics(drawn)
    whole = metrics(config_of(shop, lists, tmp_path / "whole", str(lists), **settings))
    assert found["catalogue_recall@10"] > 0.85 * whole["catalogue_recall@10"]
    assert found["catalogue_recall@10"] > 1.5 * found["most_popular_recall@10"]


def test_drawn_items_are_for_a_loss_that_counts_them(shop, lists: Path, tmp_path: Path) -> None:
    config = config_of(shop, lists, tmp_path / "a", str(shop.folder))
    config.data_config.catalogue_sampler.num_sample = 30
    del config.model_config.losses[:]
    config.model_config.losses.add().bpr_loss.SetInParent()
    with pytest.raises(
        ConfigError, match=r"catalogue_sampler\.num_sample: is for full_softmax, and bpr_loss"
    ):
        recgrad.train(config)


def test_what_cannot_take_several_items_says_so(shop, lists: Path, tmp_path: Path) -> None:
    config = config_of(shop, lists, tmp_path / "a", str(lists), **{"train_config.num_steps": 2})
    config.model_config.metrics.add().recall_at_k.top_k = 5
    with pytest.raises(DataError, match=r"several items of their own, which model_config\.metrics"):
        recgrad.train(config)
    config = config_of(shop, lists, tmp_path / "b", str(lists), **{"train_config.num_steps": 2})
    del config.model_config.losses[:]
    config.model_config.losses.add().softmax_cross_entropy.SetInParent()
    with pytest.raises(DataError, match="which only full_softmax learns; choose it"):
        recgrad.train(config)


def test_a_row_a_user_is_embedded_and_searched(shop, lists: Path, tmp_path: Path) -> None:
    model = recgrad.train(config_of(shop, lists, tmp_path / "m", str(lists))).model_dir
    index, out = tmp_path / "index", tmp_path / "lists.parquet"
    assert main(["index", str(model), "--items", f"{shop.folder}/items.parquet", "--out", str(index)]) == 0
    flags = ["--users", f"{shop.folder}/users.parquet", "--output", str(out), "--k", "5"]
    flags += ["--exclude", f"{lists}/train.parquet"]
    assert main(["recommend", str(model), "--index", str(index), *flags]) == 0
    seen = dict(
        zip(*pq.read_table(lists / "train.parquet").select(["user_id", "item_id"]).to_pydict().values())
    )
    for user, items in zip(*pq.read_table(out).select(["user_id", "items"]).to_pydict().values()):
        assert len(items) == 5
        assert not set(items) & set(seen.get(user, []))
