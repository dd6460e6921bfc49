"""TDM from items to recommendations: tree, training, a beam down the tree, by checkpoint and by bundle."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from google.protobuf import text_format

import recgrad
from recgrad.cli.main import main
from recgrad.config import PipelineConfig
from recgrad.errors import RecgradError
from recgrad.export.tree_search import open_nodes
from recgrad.retrieval.lists import ItemSets
from recgrad.serving.answers import RequestError
from recgrad.serving.recommending import IndexHolder, recommend_rows
from recgrad.serving.scorer import Scorer
from recgrad.serving.served import Served
from recgrad.serving.tree import load_tree
from recgrad.serving.tree_search import search_tree
from recgrad.training.checkpoint import read_checkpoint

ITEMS, KINDS, USERS = 60, 6, 50
CONFIG = """
train_input_path: "{folder}/train.parquet" eval_input_path: "{folder}/test.parquet"
model_dir: "{folder}/model"
train_config {{
  sparse_optimizer {{ adagrad_optimizer {{ lr: 0.1 }} constant_learning_rate {{}} }}
  dense_optimizer {{ adam_optimizer {{ lr: 0.01 }} constant_learning_rate {{}} }}
  num_steps: 120 use_tensorboard: false
}}
eval_config {{}}
data_config {{
  batch_size: 64 dataset_type: ParquetDataset fg_mode: FG_NORMAL num_workers: 0 label_fields: "label"
  tdm_sampler {{
    item_input_path: "{folder}/tree/node_table.txt" edge_input_path: "{folder}/tree/edge_table.txt"
    predict_edge_input_path: "{folder}/tree/predict_edge_table.txt"
    item_id_field: "item_id" attr_fields: "kind" attr_fields: "price" attr_delimiter: ","
    layer_num_sample: [0, 1, 2, 4, 6, 8, 8]
  }}
}}
feature_configs {{ id_feature {{ feature_name: "item_id" expression: "item:item_id"
  num_buckets: 200 embedding_dim: 8 embedding_name: "items" }} }}
feature_configs {{ id_feature {{ feature_name: "kind" expression: "item:kind"
  hash_bucket_size: 20 embedding_dim: 4 }} }}
feature_configs {{ raw_feature {{ feature_name: "price" expression: "item:price" }} }}
feature_configs {{ id_feature {{ feature_name: "user_id" expression: "user:user_id"
  num_buckets: 100 embedding_dim: 4 }} }}
feature_configs {{ sequence_id_feature {{ feature_name: "bought" expression: "user:bought" sequence_length: 6
  num_buckets: 200 embedding_dim: 8 embedding_name: "items" }} }}
model_config {{
  feature_groups {{ group_name: "node" group_type: SEQUENCE feature_names: ["item_id", "bought"] }}
  feature_groups {{ group_name: "rest" group_type: DEEP feature_names: ["user_id", "kind", "price"] }}
  tdm {{
    multiwindow_din {{ windows_len: [2, 4] attn_mlp {{ hidden_units: 8 }} }}
    final {{ hidden_units: [16] }}
  }}
  num_class: 2 losses {{ softmax_cross_entropy {{}} }} metrics {{ auc {{}} }}
}}
"""


def run(*arguments: object) -> int:
    return main([str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Users buy items of one kind; the tree by kind, and the model."""
    folder = tmp_path_factory.mktemp("tdm")
    rng = np.random.default_rng(0)
    items = {
        "item_id": rng.permutation(ITEMS) + 5,
        "kind": [f"k{i % KINDS}" for i in range(ITEMS)],
        "price": rng.random(ITEMS).astype(np.float32),
        "vector": rng.standard_normal((ITEMS, 3)).astype(np.float32).tolist(),
    }
    pq.write_table(pa.table(items), folder / "items.parquet")
    for name, rows in (("train", 1200), ("test", 100)):
        user = rng.integers(0, USERS, rows)
        place = rng.integers(0, ITEMS // KINDS, (rows, 7)) * KINDS + user[:, None] % KINDS
        chosen = items["item_id"][place]
        columns = {"user_id": user, "item_id": chosen[:, 0], "bought": chosen[:, 1:].tolist()}
        pq.write_table(pa.table(columns | {"label": np.ones(rows, np.int64)}), folder / f"{name}.parquet")
    flags = [
        "--item-input-path",
        folder / "items.parquet",
        "--attr-fields",
        "kind",
        "--raw-attr-fields",
        "price",
    ]
    assert run("tdm-tree", *flags, "--cate-id-field", "kind", "--tree-output-dir", folder / "tree") == 0
    recgrad.train(text_format.Parse(CONFIG.format(folder=folder), PipelineConfig()))
    return folder


def recommended(folder: Path, out: Path, *flags: object, model: object = None) -> dict[str, list]:
    flags = (
        "--kind",
        "tdm",
        "--index",
        folder / "tree",
        "--output",
        out,
        "--users",
        folder / "test.parquet",
        *flags,
    )
    assert run("recommend", model or folder / "model", *flags) == 0
    return pq.read_table(out).to_pydict()


def test_a_beam_finds_items_of_the_users_kind(folder: Path, tmp_path: Path) -> None:
    found = recommended(folder, tmp_path / "lists.parquet", "--k", 5)
    items = pq.read_table(folder / "items.parquet")
    kinds = dict(zip(items["item_id"].to_pylist(), items["kind"].to_pylist()))
    right = [
        kinds[item] == f"k{user % KINDS}"
        for user, own in zip(found["user_id"], found["items"])
        for item in own
    ]
    assert len(right) == 500
    assert np.mean(right) > 0.8  # 1 / 6 by chance
    for scores in found["scores"]:
        assert scores == sorted(scores, reverse=True)


def test_a_beam_of_all_leaves_is_exact(folder: Path) -> None:
    tree = load_tree(folder / "tree")
    model = open_nodes(folder / "model", tree)
    users = pq.read_table(folder / "test.parquet").slice(0, 7)
    leaves = np.arange(tree.firsts[-2], tree.firsts[-1])
    every = model.score(model.encode(users), np.repeat(np.arange(7), ITEMS), np.tile(leaves, 7)).reshape(
        7, ITEMS
    )
    found = search_tree(model, tree, users, 10, 10**6)
    order = np.argsort(-every, axis=1, kind="stable")[:, :10]
    assert np.array_equal(found.items, order)
    np.testing.assert_allclose(found.scores, np.take_along_axis(every, order, 1), rtol=1e-5)
    banned = ItemSets.of(np.repeat(np.arange(7), 9), order[:, :9].reshape(-1), 7)
    again = search_tree(model, tree, users, 10, 10**6, banned)
    assert np.array_equal(again.items[:, 0], order[:, 9])
    # A narrow beam reaches fewer nodes, never what is banned, and still k items.
    narrow = search_tree(model, tree, users, 10, 10, banned)
    assert (narrow.items >= 0).all()
    assert not any(set(own) & set(left) for own, left in zip(narrow.items.tolist(), order[:, :9].tolist()))


def test_seen_items_are_left_out_and_k_may_be_above_the_catalogue(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = recommended(folder, tmp_path / "a.parquet", "--k", 500, "--exclude", folder / "train.parquet")
    assert "k is 500, the tree has 60 items" in capsys.readouterr().err
    train = pq.read_table(folder / "train.parquet")
    for user, own in zip(found["user_id"], found["items"]):
        seen = {i for u, i in zip(train["user_id"].to_pylist(), train["item_id"].to_pylist()) if u == user}
        assert len(own) == ITEMS - len(seen)
        assert not seen & set(own)


@pytest.fixture(scope="module")
def bundle(folder: Path) -> Path:
    """The model as a bundle."""
    pytest.importorskip("onnxruntime")
    assert run("export", folder / "model", "--export-dir", folder / "bundle") == 0
    return folder / "bundle"


def test_a_bundle_searches_as_its_checkpoint_does(folder: Path, bundle: Path, tmp_path: Path) -> None:
    ours = recommended(folder, tmp_path / "a.parquet", "--k", 8, model=bundle)
    theirs = recommended(folder, tmp_path / "b.parquet", "--k", 8)
    assert ours["items"] == theirs["items"]
    np.testing.assert_allclose(ours["scores"], theirs["scores"], rtol=1e-4)


def test_items_have_the_vectors_that_the_next_tree_is_built_from(
    folder: Path, bundle: Path, tmp_path: Path
) -> None:
    items, out = folder / "items.parquet", tmp_path / "vectors.parquet"
    vectors = []
    for model in (folder / "model", bundle):
        assert run("embed", model, "--tower", "item", "--input", items, "--output", out) == 0
        vectors.append(np.stack(pq.read_table(out)["item_tower_emb"].to_numpy()))
    ids = pq.read_table(items)["item_id"].to_numpy()
    checkpoint = read_checkpoint(sorted((folder / "model").glob("model.ckpt-*"))[-1])
    (table,) = [table for table in checkpoint.tables if table.name == "items"]
    by_id = dict(zip(table.row_ids.tolist(), table.weights))
    expected = np.stack([by_id[item] for item in ids.tolist()])
    for found in vectors:
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)
    flags = ["--item-input-path", out, "--embedding-field", "item_tower_emb", "--raw-attr-fields", "price"]
    assert run("tdm-tree", *flags, "--attr-fields", "kind", "--tree-output-dir", tmp_path / "tree") == 0
    found = recommended(folder, tmp_path / "lists.parquet", "--k", 5, "--index", tmp_path / "tree")
    assert {len(own) for own in found["items"]} == {5}


def test_users_have_no_vectors(
    folder: Path, bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = ["--input", folder / "test.parquet", "--output", tmp_path / "x.parquet"]
    hint = "its users have no vectors: `recgrad recommend --kind tdm --index TREE`"
    for model in (folder / "model", bundle):
        assert run("embed", model, "--tower", "user", *files) == 2
        assert f"no tower 'user' (has: item); {hint}" in capsys.readouterr().err
        assert run("index", model, "--items", folder / "items.parquet", "--out", tmp_path / "index") == 2
        assert f"gives vectors of items alone; {hint}" in capsys.readouterr().err
        assert not (tmp_path / "index").exists()


def test_a_tree_is_served_and_followed(folder: Path, bundle: Path, tmp_path: Path) -> None:
    tree = shutil.copytree(folder / "tree", tmp_path / "tree")
    served = Served(Scorer.load(bundle), "1")
    holder = IndexHolder(tree, every_s=0)

    def lists(rows: list[dict], k: int, *exclude: int) -> list[dict]:
        return recommend_rows(served, holder.current(served), rows, k=k, condition=None, exclude=exclude)

    users = pq.read_table(folder / "test.parquet").slice(0, 5)
    rows = users.select(["user_id", "bought"]).to_pylist()
    expected = recommended(folder, tmp_path / "a.parquet", "--k", 8, model=bundle)
    found = lists(rows, 8)
    assert [own["items"] for own in found] == expected["items"][:5]
    np.testing.assert_allclose([own["scores"] for own in found], expected["scores"][:5], rtol=1e-6)
    first = found[0]["items"][0]
    assert first not in lists(rows[:1], 8, first)[0]["items"]
    assert len(lists(rows[:1], 500)[0]["items"]) == ITEMS
    with pytest.raises(RequestError, match="bought"):
        lists([{"user_id": 1}], 8)
    with pytest.raises(RecgradError, match="filter: a beam down a tree"):
        recommend_rows(served, holder.current(served), rows, k=8, condition="price < 1", exclude=[])
    # A tree that cannot be read is refused, and one that takes its place is taken up.
    before = (tree / "serving_tree").read_text()
    (tree / "serving_tree").write_text("5 3\n1 2\n")
    assert [own["items"] for own in lists(rows, 8)] == expected["items"][:5]
    flags = ["--item-input-path", folder / "items.parquet", "--attr-fields", "kind"]
    flags += ["--raw-attr-fields", "price", "--embedding-field", "vector", "--tree-output-dir"]
    assert run("tdm-tree", *flags, tree) == 0
    assert (tree / "serving_tree").read_text() != before
    other = recommended(folder, tmp_path / "b.parquet", "--k", 8, "--index", tree, model=bundle)
    assert [own["items"] for own in lists(rows, 8)] == other["items"][:5]
    # A tree of other attributes than the model's.
    plain = ["--cate-id-field", "kind", "--tree-output-dir", tmp_path / "plain"]
    assert run("tdm-tree", *flags[:2], *plain) == 0
    with pytest.raises(RecgradError, match="its nodes have no attribute 'kind'"):
        IndexHolder(tmp_path / "plain").current(served)


def test_the_files_are_those_of_the_sampler(folder: Path, tmp_path: Path) -> None:
    target = tmp_path / "tree"
    flags = ["--item-input-path", folder / "items.parquet", "--raw-attr-fields", "price"]
    assert (
        run("tdm-tree", *flags, "--embedding-field", "vector", "--n-cluster", 3, "--tree-output-dir", target)
        == 0
    )
    lines = [line.split("\t") for line in (target / "node_table.txt").read_text().splitlines()]
    assert lines[0] == ["id:int64", "weight:float", "feature:string"]
    assert lines[1][0] == "-1"
    assert lines[1][2].split(",")[0] == "-1"
    nodes = {int(node): text.split(",") for node, _, text in lines[2:]}
    assert all(int(text[1]) == node for node, text in nodes.items())
    items = pq.read_table(folder / "items.parquet")
    leaves = {node for node, text in nodes.items() if text[0] == "4"}
    assert leaves == set(items["item_id"].to_pylist())
    edges = [
        tuple(map(int, line.split("\t")[:2]))
        for line in (target / "edge_table.txt").read_text().splitlines()[1:]
    ]
    assert len(edges) == 3 * ITEMS
    children = [
        line.split("\t")[:2] for line in (target / "predict_edge_table.txt").read_text().splitlines()[1:]
    ]
    parent = {int(b): int(a) for a, b in children}
    assert len(parent) == len(nodes)
    prices = dict(zip(items["item_id"].to_pylist(), items["price"].to_pylist()))
    for node, text in nodes.items():
        below = {leaf for leaf, above in edges if above == node} if node not in leaves else {node}
        if text[0] == "0":
            below = leaves
        assert float(text[2]) == pytest.approx(np.mean([prices[leaf] for leaf in below]), rel=1e-5)
        for leaf in below:
            up = leaf
            while up not in (node, -1):
                up = parent[up]
            assert up == node
    first, *rest = (target / "serving_tree").read_text().splitlines()
    assert first == "5 3"
    assert [int(line.split()[1]) for line in rest] == list(nodes)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--cate-id-field", "kind", "--embedding-field", "vector"], "one of the two"),
        ([], "one of the two"),
        (["--cate-id-field", "kind", "--n-cluster", "1"], "--n-cluster must be at least 2, got 1"),
        (["--cate-id-field", "knd"], "column 'knd' is not in"),
        (
            ["--cate-id-field", "kind", "--item-id-field", "kind"],
            "6 ids occur more than once, the first is 'k0'",
        ),
        (["--cate-id-field", "kind", "--raw-attr-fields", "kind"], "raw_attr_fields are numbers, got string"),
        (
            ["--cate-id-field", "kind", "--attr-fields", "kind", "--attr-delimiter", "k"],
            "contain the delimiter 'k'",
        ),
        (["--cate-id-field", "kind", "--attr-fields", "item_id"], "is an attribute already"),
    ],
)
def test_bad_trees(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str], message: str
) -> None:
    paths = ["--item-input-path", folder / "items.parquet", "--tree-output-dir", tmp_path / "tree"]
    assert run("tdm-tree", *paths, *flags) == 2
    assert message in capsys.readouterr().err


def test_bad_searches(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def refused(*flags: object, index: object = folder / "tree", kind: str = "tdm") -> str:
        paths = ["--index", index, "--users", folder / "test.parquet", "--output", tmp_path / "x.parquet"]
        assert run("recommend", folder / "model", "--kind", kind, *paths, *flags) == 2
        return capsys.readouterr().err

    assert "--filter does not go with --kind tdm" in refused("--filter", "price < 1")
    assert "--beam must be at least k, 9, got 3" in refused("--beam", 3, "--k", 9)
    assert "--beam goes with --kind tdm" in refused("--beam", 3, kind="vectors", index=tmp_path)
    assert "make it with `recgrad tdm-tree`" in refused(index=tmp_path)
    plain = tmp_path / "plain"
    flags = ["--item-input-path", folder / "items.parquet", "--cate-id-field", "kind"]
    assert run("tdm-tree", *flags, "--tree-output-dir", plain) == 0
    assert "its nodes have no attribute 'kind'" in refused(index=plain)
    (plain / "serving_tree").write_text("5 3\n1 2\n")
    assert "cannot be read" in refused(index=plain)
