"""Retrieval configs in the shape of TorchEasyRec's documentation train, evaluate and give vectors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from google.protobuf import text_format

import recgrad
from recgrad.cli.main import main
from recgrad.config import PipelineConfig

ROWS, USERS, ITEMS, KINDS, BRANDS = 256, 40, 64, 5, 9
HEAD = """
train_input_path: "{folder}/train.parquet"
eval_input_path: "{folder}/train.parquet"
model_dir: "{folder}/{name}"
train_config {{
    sparse_optimizer {{ adagrad_optimizer {{ lr: 0.001 }} constant_learning_rate {{ }} }}
    dense_optimizer {{ adam_optimizer {{ lr: 0.001 }} constant_learning_rate {{ }} }}
    num_epochs: 1
}}
eval_config {{ }}
data_config {{
    batch_size: 64
    dataset_type: ParquetDataset
    fg_mode: FG_DAG
    label_fields: "clk"
    num_workers: 1
    {data}
}}
feature_configs {{ id_feature {{ feature_name: "user_id" expression: "user:user_id" num_buckets: 41 embedding_dim: 16 {own_user} }} }}
feature_configs {{ id_feature {{ feature_name: "cms_segid" expression: "user:cms_segid" num_buckets: 13 embedding_dim: 16 }} }}
feature_configs {{ id_feature {{ feature_name: "adgroup_id" expression: "item:adgroup_id" num_buckets: 400 embedding_dim: 16 {own_item} }} }}
feature_configs {{ id_feature {{ feature_name: "cate_id" expression: "item:cate_id" num_buckets: 10 embedding_dim: 16 }} }}
feature_configs {{ id_feature {{ feature_name: "brand" expression: "item:brand" num_buckets: 10 embedding_dim: 16 }} }}
feature_configs {{ raw_feature {{ feature_name: "price" expression: "item:price" }} }}
{features}
model_config {{
    {groups}
    {model}
    losses {{ softmax_cross_entropy {{}} }}
    {metrics}
}}
"""  # noqa: E501
GROUPS = """
    feature_groups { group_name: "user" feature_names: "user_id" feature_names: "cms_segid" group_type: DEEP }
    feature_groups { group_name: "item" feature_names: "adgroup_id" feature_names: "cate_id"
        feature_names: "brand" feature_names: "price" group_type: DEEP }
"""
RECALL = "metrics { recall_at_k { top_k: 1 } } metrics { recall_at_k { top_k: 5 } }"
ATTRIBUTES = """
        attr_fields: "adgroup_id" attr_fields: "cate_id" attr_fields: "brand" attr_fields: "price"
        item_id_field: "adgroup_id"
"""
NEGATIVE = f"""negative_sampler {{
        input_path: "{{folder}}/items.txt" num_sample: 16 {ATTRIBUTES} attr_delimiter: ":"
    }}"""
HARD = f"""force_base_data_group: true
    hard_negative_sampler_v2 {{
        user_input_path: "{{folder}}/users.txt" item_input_path: "{{folder}}/items.txt"
        pos_edge_input_path: "{{folder}}/edges.txt" hard_neg_edge_input_path: "{{folder}}/hard.txt"
        num_sample: 16 num_hard_sample: 4 {ATTRIBUTES} user_id_field: "user_id"
    }}"""
TREE = f"""tdm_sampler {{
        item_input_path: "{{folder}}/tree/node_table.txt"
        edge_input_path: "{{folder}}/tree/edge_table.txt"
        predict_edge_input_path: "{{folder}}/tree/predict_edge_table.txt"
        {ATTRIBUTES} attr_delimiter: ","
        layer_num_sample: [0, 1, 2, 4, 6, 8, 8] remain_ratio: 0.8 probability_type: "ARITHMETIC"
    }}"""
HISTORY = """
feature_configs {
    sequence_feature {
        sequence_name: "click_50_seq" sequence_length: 50 sequence_delim: "|"
        features { id_feature { feature_name: "adgroup_id" expression: "item:adgroup_id"
            num_buckets: 400 embedding_dim: 16 embedding_name: "adgroup_id" } }
        features { id_feature { feature_name: "cate_id" expression: "item:cate_id"
            num_buckets: 10 embedding_dim: 16 } }
    }
}
"""
DSSM = """{name} {{
        user_tower {{ input: "user" mlp {{ hidden_units: [32, 16] }} }}
        item_tower {{ input: "item" mlp {{ hidden_units: [32, 16] }} }}
        output_dim: 8 {more}
    }}"""
CONFIGS: dict[str, dict[str, str]] = {
    "dssm": {"data": NEGATIVE, "model": DSSM.format(name="dssm", more=""), "metrics": RECALL},
    "dssm_in_batch": {
        "data": "",
        "model": DSSM.format(
            name="dssm", more="in_batch_negative: true similarity: COSINE temperature: 0.05"
        ),
        "metrics": RECALL,
    },
    "dssm_v2": {"data": HARD, "model": DSSM.format(name="dssm_v2", more=""), "metrics": RECALL},
    "dat": {
        "data": NEGATIVE,
        "groups": GROUPS
        + """
    feature_groups { group_name: "user_augment" feature_names: "user_id_augment" group_type: DEEP }
    feature_groups { group_name: "item_augment" feature_names: "item_id_augment" group_type: DEEP }
""",
        "features": """
feature_configs { id_feature { feature_name: "user_id_augment" expression: "user:user_id"
    num_buckets: 41 embedding_dim: 8 } }
feature_configs { id_feature { feature_name: "item_id_augment" expression: "item:adgroup_id"
    num_buckets: 400 embedding_dim: 8 } }
""",
        "model": """dat {
        user_tower { input: "user" augment_input: "user_augment" mlp { hidden_units: [32, 16] } }
        item_tower { input: "item" augment_input: "item_augment" mlp { hidden_units: [32, 16] } }
        output_dim: 8 amm_u_weight: 0.1 amm_i_weight: 0.1
    }""",
        "metrics": RECALL,
    },
    "mind": {
        "data": NEGATIVE,
        "own_item": 'embedding_name: "adgroup_id"',
        "groups": GROUPS
        + """
    feature_groups { group_name: "hist" feature_names: "click_50_seq__adgroup_id"
        feature_names: "click_50_seq__cate_id" group_type: SEQUENCE }
""",
        "features": HISTORY,
        "model": """mind {
        user_tower {
            input: "user" history_input: "hist"
            user_mlp { hidden_units: [32, 16] use_bn: true }
            hist_seq_mlp { hidden_units: [32, 16] use_bn: true }
            user_seq_combine: SUM
            capsule_config { max_k: 3 max_seq_len: 50 high_dim: 16 num_iters: 3
                routing_logits_scale: 20 routing_logits_stddev: 1.0 squash_pow: 0.5 }
            concat_mlp { hidden_units: [32, 16] }
        }
        item_tower { input: "item" mlp { hidden_units: [32, 16] } }
        simi_pow: 20 in_batch_negative: false temperature: 0.01 output_dim: 8
    }""",
        "metrics": RECALL,
    },
    "tdm": {
        "data": TREE,
        "own_item": 'embedding_name: "adgroup_id"',
        "groups": """
    feature_groups { group_name: "deep" feature_names: ["user_id", "cms_segid", "brand", "price"]
        group_type: DEEP }
    feature_groups { group_name: "seq" feature_names: ["adgroup_id", "cate_id",
        "click_50_seq__adgroup_id", "click_50_seq__cate_id"] group_type: SEQUENCE }
""",
        "features": HISTORY,
        "model": """tdm {
        multiwindow_din {
          windows_len: [1, 1, 1, 2, 2, 5] attn_mlp { hidden_units: [8] activation: "nn.PReLU" } }
        final { hidden_units: [16, 8] use_bn: true activation: "nn.PReLU" }
    } num_class: 2""",
        "metrics": "metrics { auc {} }",
    },
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Clicks, and the tables of samplers."""
    folder = tmp_path_factory.mktemp("torcheasyrec")
    rng = np.random.default_rng(0)
    cates, brands = rng.integers(0, KINDS, ITEMS), rng.integers(0, BRANDS, ITEMS)
    prices = rng.integers(1, 50, ITEMS).astype(np.float32)
    users, items = rng.integers(0, USERS, ROWS), rng.integers(0, ITEMS, ROWS)
    seen = [rng.integers(0, ITEMS, length) for length in rng.integers(1, 8, ROWS)]
    table = {
        "user_id": users,
        "cms_segid": users % 13,
        "adgroup_id": items,
        "cate_id": cates[items],
        "brand": brands[items],
        "price": prices[items],
        "click_50_seq__adgroup_id": ["|".join(map(str, own)) for own in seen],
        "click_50_seq__cate_id": ["|".join(map(str, cates[own])) for own in seen],
        "clk": np.ones(ROWS, np.int64),
    }
    pq.write_table(pa.table(table), folder / "train.parquet")
    catalogue = {"adgroup_id": np.arange(ITEMS), "cate_id": cates, "brand": brands, "price": prices}
    pq.write_table(pa.table(catalogue), folder / "items.parquet")
    rows = [f"{i}\t1\t{i}:{cates[i]}:{brands[i]}:{prices[i]}" for i in range(ITEMS)]
    write(folder / "items.txt", "id:int64\tweight:float\tattrs:string", rows)
    write(folder / "users.txt", "id:int64\tweight:float", [f"{user}\t1" for user in range(USERS)])
    edges = [f"{user}\t{item}\t1" for user, item in zip(users, items)]
    write(folder / "edges.txt", "userid:int64\titemid:int64\tweight:float", edges)
    hard = [f"{user}\t{rng.integers(0, ITEMS)}\t1" for user in rng.permutation(USERS)[:20]]
    write(folder / "hard.txt", "userid:int64\titemid:int64\tweight:float", hard)
    flags = ["--item-input-path", folder / "items.parquet", "--item-id-field", "adgroup_id"]
    flags += ["--cate-id-field", "cate_id", "--attr-fields", "cate_id,brand", "--raw-attr-fields", "price"]
    assert main([str(flag) for flag in ["tdm-tree", *flags, "--tree-output-dir", folder / "tree"]]) == 0
    return folder


def write(path: Path, header: str, rows: list[str]) -> None:
    path.write_text("\n".join([header, *rows, ""]))


def config_of(folder: Path, name: str) -> PipelineConfig:
    parts = {"groups": GROUPS, "features": "", "own_user": "", "own_item": "", **CONFIGS[name]}
    parts["data"] = parts["data"].replace("{folder}", str(folder))
    return text_format.Parse(HEAD.format(folder=folder, name=name, **parts), PipelineConfig())


@pytest.mark.parametrize("name", CONFIGS)
def test_it_trains_and_evaluates(folder: Path, name: str, tmp_path: Path) -> None:
    metrics = recgrad.train(config_of(folder, name)).metrics
    assert metrics
    assert all(np.isfinite(value) for value in metrics.values())
    if name == "tdm":
        return
    for tower, rows in (("item", ITEMS), ("user", ROWS)):
        source = folder / ("items.parquet" if tower == "item" else "train.parquet")
        flags = ["--tower", tower, "--input", source, "--output", tmp_path / "v.parquet"]
        assert main([str(flag) for flag in ["embed", folder / name, *flags]]) == 0
        assert len(pq.read_table(tmp_path / "v.parquet")[f"{tower}_tower_emb"]) == rows
