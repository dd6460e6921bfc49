"""embed, index, recommend and hitrate as users run them, against the model's own vectors."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

import recgrad
from recgrad.cli.main import main

Vectors = Callable[[str, pa.Table], np.ndarray]


def run(*arguments: object) -> int:
    return main([str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def index(shop, model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("index") / "items"
    assert run("index", model_dir, "--items", shop.folder / "items.parquet", "--out", path) == 0
    return path


@pytest.fixture(scope="module")
def scores(shop, vectors: Vectors) -> np.ndarray:
    return vectors("user", shop.users) @ vectors("item", shop.items).T


def test_embed_needs_the_columns_of_one_tower_alone(
    shop, model_dir: Path, vectors: Vectors, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for tower, table in (("user", shop.users), ("item", shop.items)):
        source, out = shop.folder / f"{tower}s.parquet", tmp_path / f"{tower}.parquet"
        assert run("embed", model_dir, "--tower", tower, "--input", source, "--output", out) == 0
        found = pq.read_table(out)
        assert found.column_names == [*table.column_names, f"{tower}_tower_emb"]
        np.testing.assert_allclose(
            np.stack(found[f"{tower}_tower_emb"].to_numpy()), vectors(tower, table), rtol=1e-5
        )
    text = tmp_path / "user.csv"
    arguments = ["--input", shop.folder / "users.parquet", "--output", text, "--columns", "user_id"]
    assert run("embed", model_dir, "--tower", "user", *arguments) == 0
    table = pa.csv.read_csv(text)
    assert table.column_names == ["user_id", "user_tower_emb"]
    shown = [[float(x) for x in row.split(",")] for row in table["user_tower_emb"].to_pylist()]
    np.testing.assert_allclose(shown, vectors("user", shop.users), rtol=1e-5)
    capsys.readouterr()
    assert run("embed", model_dir, "--tower", "itm", *arguments) == 2
    assert "no tower 'itm' (has: user, item); did you mean 'item'?" in capsys.readouterr().err
    assert run("embed", model_dir, "--tower", "item", *arguments) == 2
    assert "column 'item_id' is not in users.parquet" in capsys.readouterr().err


def test_recommend_leaves_out_what_was_seen_and_what_a_filter_forbids(
    shop, model_dir: Path, index: Path, scores: np.ndarray, tmp_path: Path
) -> None:
    out = tmp_path / "lists.parquet"
    where = "category in ('k1', 'k4', 'k5') and price > 0.2"
    flags = ["--exclude", shop.folder / "train.parquet", "--filter", where, "--k", 12]
    users = ["--users", shop.folder / "users.parquet", "--output", out]
    assert run("recommend", model_dir, "--index", index, *users, *flags) == 0
    table = pq.read_table(out)
    assert table["user_id"].to_pylist() == list(range(40))
    prices, kinds = shop.items["price"].to_numpy(), shop.items["category"].to_pylist()
    allowed = np.array([kind in ("k1", "k4", "k5") for kind in kinds]) & (prices > 0.2)
    for user, (found, values) in enumerate(zip(table["items"].to_pylist(), table["scores"].to_pylist())):
        rows = shop.train.filter(pc.equal(shop.train["user_id"], user))
        seen = set(rows["item_id"].to_pylist())
        order = [i for i in np.argsort(-scores[user]) if allowed[i] and f"i{i}" not in seen][:12]
        assert found == [f"i{i}" for i in order]
        np.testing.assert_allclose(values, scores[user][order], rtol=1e-5)


def test_text_files_have_a_row_for_each_item(
    shop, model_dir: Path, index: Path, scores: np.ndarray, tmp_path: Path
) -> None:
    pa.csv.write_csv(shop.users.slice(0, 5), tmp_path / "users.csv")
    out = tmp_path / "lists.csv"
    flags = ["--users", tmp_path / "users.csv", "--output", out, "--k", 3]
    assert run("recommend", model_dir, "--index", index, *flags) == 0
    table = pa.csv.read_csv(out)
    assert table.column_names == ["user_id", "rank", "item_id", "score"]
    assert table["rank"].to_pylist() == [1, 2, 3] * 5
    best = np.argsort(-scores[:5], axis=1)[:, :3].reshape(-1)
    assert table["item_id"].to_pylist() == [f"i{i}" for i in best]


def test_k_above_the_catalogue_and_empty_histories(
    shop, model_dir: Path, index: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    history = pa.table({"user_id": [1, 2], "item_id": pa.array([[], None], pa.list_(pa.string()))})
    pq.write_table(history, tmp_path / "history.parquet")
    out = tmp_path / "lists.parquet"
    flags = ["--users", shop.folder / "users.parquet", "--output", out, "--k", 500]
    assert (
        run("recommend", model_dir, "--index", index, *flags, "--exclude", tmp_path / "history.parquet") == 0
    )
    assert "k is 500, the index has 90 items" in capsys.readouterr().err
    assert {len(row) for row in pq.read_table(out)["items"].to_pylist()} == {90}


def test_an_index_of_another_model_is_refused(
    shop, index: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    edits = {"train_config.num_steps": 2, "train_config.seed": 9, "model_dir": str(tmp_path / "other")}
    other = recgrad.train(shop.config(**edits)).model_dir
    flags = ["--users", shop.folder / "users.parquet", "--output", tmp_path / "x.parquet"]
    assert run("recommend", other, "--index", index, *flags) == 2
    assert "was made by another model" in capsys.readouterr().err
    assert run("index", other, "--items", shop.folder / "items.parquet", "--out", index, "--update") == 2
    assert "was made by another model" in capsys.readouterr().err
    known = pq.read_table(index / "golden.parquet")["item_id"].to_pylist()
    assert len(known) == 16
    assert (known[0], known[-1]) == ("i0", "i89")  # from everywhere, not the first ones
    assert not (tmp_path / "x.parquet").exists()


def test_vectors_of_a_file_become_an_index_that_knows_its_model(
    shop, model_dir: Path, index: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    vectors, out = tmp_path / "items.parquet", tmp_path / "index"
    assert (
        run(
            "embed",
            model_dir,
            "--tower",
            "item",
            "--input",
            shop.folder / "items.parquet",
            "--output",
            vectors,
        )
        == 0
    )
    assert run("index", "--embedding_input_path", vectors, "--index_output_dir", out) == 0
    lists = []
    for path in (index, out):
        target = tmp_path / "lists.parquet"
        flags = ["--users", shop.folder / "users.parquet", "--output", target, "--k", 5]
        assert run("recommend", model_dir, "--index", path, *flags) == 0
        lists.append(pq.read_table(target))
    assert lists[0].equals(lists[1])
    capsys.readouterr()
    few = tmp_path / "few.parquet"
    pq.write_table(shop.items.slice(3, 4), few)
    assert run("index", "--out", out, "--remove", few) == 0
    assert "4 items removed: 86 items" in capsys.readouterr().out
    assert run("index", model_dir, "--items", few, "--out", out, "--update") == 0
    assert "4 items added and 0 changed: 90 items" in capsys.readouterr().out


def test_torcheasyrec_files_and_kinds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("faiss")
    rng = np.random.default_rng(0)
    texts = [",".join(f"{x:.6f}" for x in row) for row in rng.standard_normal((300, 8))]
    pa.csv.write_csv(pa.table({"nid": np.arange(300), "emb": texts}), tmp_path / "emb.csv")
    flags = ["--embedding_input_path", tmp_path / "emb.csv", "--id_field", "nid", "--embedding_field", "emb"]
    kind = ["--index_type", "HNSWFlatIP", "--hnsw_M", 16, "--hnsw_efConstruction", 50]
    assert run("index", *flags, "--index_output_dir", tmp_path / "index", *kind) == 0
    out = capsys.readouterr().out
    assert "300 items of 8 dims, hnsw, built in" in out
    assert float(out.split("against exact search: ")[1].split()[0]) > 0.9
    assert run("index", *flags, "--out", tmp_path / "index", "--kind", "ivf", "--hnsw_M", 3) == 2
    assert "--hnsw-M has no effect with kind ivf" in capsys.readouterr().err
    assert run("index", *flags, "--out", tmp_path / "index", "--items", "x") == 2
    assert "one of the two" in capsys.readouterr().err
    pq.write_table(
        pa.table({"item_id": [1, 2], "item_tower_emb": [[1.0, 2.0], None]}), tmp_path / "holes.parquet"
    )
    assert run("index", "--embedding_input_path", tmp_path / "holes.parquet", "--out", tmp_path / "i") == 2
    assert "row 1 has no vector" in capsys.readouterr().err


@pytest.mark.parametrize("across", [False, True])
def test_hitrate_is_that_of_a_loop(tmp_path: Path, across: bool, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(1)
    items, users = rng.standard_normal((80, 6)), rng.standard_normal((20, 2, 6))
    users[4, 1] = 0  # a user of one interest
    wanted = [rng.integers(0, 85, rng.integers(0, 5)).tolist() for _ in range(20)]
    wanted[0] = []
    pq.write_table(
        pa.table({"item_id": np.arange(80), "item_tower_emb": items.astype(np.float32).tolist()}),
        tmp_path / "items.parquet",
    )
    gt = pa.table(
        {
            "request_id": np.arange(20),
            "gt_items": [",".join(map(str, row)) for row in wanted],
            "user_tower_emb": users.astype(np.float32).tolist(),
        }
    )
    pq.write_table(gt, tmp_path / "gt.parquet")
    flags = ["--user_gt_input", tmp_path / "gt.parquet", "--item_embedding_input", tmp_path / "items.parquet"]
    flags += [
        "--top_k",
        10,
        "--total_hitrate_output",
        tmp_path / "total",
        "--hitrate_details_output",
        tmp_path / "d.parquet",
    ]
    assert run("hitrate", *flags, *(["--topk_across_interests"] if across else [])) == 0
    hits = total = 0
    for row, own in enumerate(wanted):
        scores = users[row] @ items.T
        if row == 4:
            scores = scores[:1]
        if across:
            found = set(np.argsort(-scores.max(axis=0))[:10].tolist())
        else:
            found = {int(i) for interest in scores for i in np.argsort(-interest)[:10]}
        hits, total = hits + len(found & set(own)), total + len(set(own))
    assert float((tmp_path / "total").read_text()) == pytest.approx(hits / total)
    details = pq.read_table(tmp_path / "d.parquet")
    assert details.column_names == ["request_id", "topk_ids", "topk_dists", "hitrate", "hit_ids"]
    assert details["hitrate"][0].as_py() is None
    assert sum(len(row) for row in details["hit_ids"].to_pylist()) == hits
    assert json.dumps(len(details["topk_ids"][4].as_py())) == "10"
    assert "not in the catalogue and count as misses" in capsys.readouterr().out


@pytest.mark.parametrize("metric", ["IP", "L2"])
def test_hitrate_of_lists_and_of_a_number_of_interests(
    metric: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("faiss")
    rng = np.random.default_rng(2)
    items, users = rng.standard_normal((300, 4)), rng.standard_normal((30, 3, 4))
    counts = rng.integers(1, 4, 30)
    gt = {"request_id": np.arange(30), "gt_items": rng.integers(0, 300, (30, 5)).tolist()}
    gt |= {"user_tower_emb": users.astype(np.float32).tolist(), "n": counts}
    pq.write_table(pa.table(gt), tmp_path / "gt.parquet")
    catalogue = {"item_id": np.arange(300), "item_tower_emb": items.astype(np.float32).tolist()}
    pq.write_table(pa.table(catalogue), tmp_path / "items.parquet")
    flags = ["--user_gt_input", tmp_path / "gt.parquet", "--item_embedding_input", tmp_path / "items.parquet"]
    flags += ["--top_k", 15, "--num_interests", 3, "--num_interests_field", "n", "--batch_size", 7]
    hits = 0
    for own, wanted, count in zip(users, gt["gt_items"], counts):
        gaps = ((own[:, None] - items[None]) ** 2).sum(2)
        nearest = np.argsort(gaps if metric == "L2" else -own @ items.T, axis=1)[:count, :15]
        hits += len(set(wanted) & set(nearest.reshape(-1).tolist()))
    wanted_items = sum(len(set(row)) for row in gt["gt_items"])
    shown = f"hitrate@15: {hits / wanted_items:.6f} ({hits} of {wanted_items} items, 30 rows)"
    # All lists are looked into, so that search is exact; 1000 lists would be more than there are items.
    assert run("hitrate", *flags, "--index_type", f"IVFFlat{metric}", "--ivf_nprobe", 1000) == 0
    assert shown in capsys.readouterr().out
    assert run("hitrate", *flags, "--metric", metric.lower()) == 0
    assert shown in capsys.readouterr().out
    assert run("hitrate", *flags, "--ivf_nlist", 10) == 2
    assert "--ivf-nlist goes with --index-type" in capsys.readouterr().err
    assert run("hitrate", *flags, "--index_type", "IVFFlatIP", "--metric", "ip") == 2
    assert "keep one" in capsys.readouterr().err
    assert run("hitrate", *flags[:-6], "--num_interests", 2) == 2
    assert "rows have 3 interests, --num-interests says 2" in capsys.readouterr().err
