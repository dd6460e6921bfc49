"""Every model, feature kind, sampler and loss of the schema passes the check and trains 20 steps.

Names are read from the schema, so that none is forgotten: what has no case here fails the last test.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from google.protobuf import text_format

from recgrad.check import check_config
from recgrad.check.capabilities import available, schema_messages
from recgrad.config import PipelineConfig
from recgrad.config.proto.feature_pb2 import SeqFeatureConfig
from recgrad.data.batch import Comparison
from recgrad.data.features.base import Feature
from recgrad.data.features.columns import Bags
from recgrad.data.features.config import floats_output
from recgrad.data.features.frame import Input
from recgrad.data.features.outputs import numbers_of
from recgrad.data.samplers.own import OwnSampler
from recgrad.losses.base import Loss
from recgrad.models.base import Model
from recgrad.training.assembly import build_training

CONFIGS = Path(__file__).parent / "models" / "configs"
ROWS, BATCH, STEPS, ITEMS = 96, 16, 20, 40
OF_LISTS = {"dlrm_hstu", "ultra_hstu"}
"""Models over candidate lists, whose labels have a value for each candidate."""


def tree_codes(item):
    """The codes of a leaf's ancestors below the root, in a binary tree of 8 leaves."""
    code, found = 7 + item, []
    while code := (code - 1) // 2:
        found.append(code)
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Rows for all configs, and the tables of samplers."""
    path = tmp_path_factory.mktemp("schema")
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 5, ROWS)
    lists = lambda most: pa.array([rng.integers(0, most, n).tolist() for n in lengths])  # noqa: E731
    columns = {
        "click": rng.integers(0, 2, ROWS),
        "buy": rng.integers(0, 2, ROWS),
        "class": rng.integers(0, 3, ROWS),
        "group": rng.integers(0, 8, ROWS),
        "a": rng.integers(0, 20, ROWS),
        "b": lists(9),
        "c": rng.integers(0, 9, ROWS),
        "x": rng.normal(size=ROWS),
        "y": pa.array(rng.normal(size=(ROWS, 2)).tolist()),
        "h__item": lists(9),
        "h__price": pa.array([rng.normal(size=n).tolist() for n in lengths]),
        "user": np.arange(ROWS) % 30,
        "item": rng.integers(0, 8, ROWS),
        "price": rng.normal(size=ROWS),
        "text": [["red shoe", "blue", "red"][i % 3] for i in range(ROWS)],
        "other": [["red shoes", "blew"][i % 2] for i in range(ROWS)],
        "pairs": [f"k{i % 3}:0.5|k1:2" for i in range(ROWS)],
        "key": [f"k{i % 4}" for i in range(ROWS)],
        "nested": [f"k{i % 3}^s1:0.2,s2:3|k1^s1:1" for i in range(ROWS)],
        "skey": [f"s{1 + i % 2}" for i in range(ROWS)],
        "words": ["red|blue"] * ROWS,
        "valid": ["true|false"] * ROWS,
        "seq": ["1;2;3", "4"] * (ROWS // 2),
        "seq_text": ["red;blue;red", "shoe"] * (ROWS // 2),
        "seq_words": ["red|blue;red;red", "shoe"] * (ROWS // 2),
        "seq_valid": ["true|false;true;false", "true"] * (ROWS // 2),
    }
    columns |= {f"h__{name}": columns[name] for name in ("seq", "seq_text", "seq_words", "seq_valid")}
    pq.write_table(pa.table(columns), path / "rows.parquet")
    labels = {name: [rng.integers(0, 2, n).tolist() for n in lengths] for name in ("click", "buy")}
    pq.write_table(pa.table({**columns, **labels}), path / "lists.parquet")
    pq.write_table(
        pa.table({"id": np.arange(9), "weight": np.ones(9), "c": np.arange(9), "b": np.arange(9)}),
        path / "items.parquet",
    )

    def write(name, heading, lines):
        (path / name).write_text("\n".join([heading, *lines]) + "\n")

    node, edge = "id:int64\tweight:float\tfeature:string", "src:int64\tdst:int64\tweight:float"
    write("items.txt", node, [f"{i}\t1\t{i}:{i * 0.5}" for i in range(ITEMS)])
    write("edges.txt", edge, [f"{u}\t{i}\t1" for u in range(30) for i in (u % 8, 20 + u % 5)])
    inner = [f"{9 + c}\t1\t{int(np.log2(c + 1))}:{9 + c}:{c}" for c in range(7)]
    leaves = [f"{i}\t1\t3:{i}:{i * 0.5}" for i in range(8)]
    write("nodes.txt", node, ["-1\t1\t-1:9:0.5", *inner, *leaves])
    write("tree.txt", edge, [f"{i}\t{9 + c}\t1" for i in range(8) for c in tree_codes(i)])
    return path


TRAIN = """
train_input_path: "{folder}/rows.parquet" eval_input_path: "" model_dir: "{folder}/model"
train_config {{ num_steps: 20 dense_optimizer {{ adam_optimizer {{ lr: 0.001 }} }}
  sparse_optimizer {{ adagrad_optimizer {{ lr: 0.01 }} }} }}
data_config {{ dataset_type: ParquetDataset batch_size: 16 num_workers: 1 {data} }}
"""
FEATURES = """
feature_configs { id_feature { feature_name: "a" num_buckets: 20 embedding_dim: 4 embedding_name: "a" } }
feature_configs { raw_feature { feature_name: "x" } }
feature_configs { id_feature { feature_name: "b" num_buckets: 9 embedding_dim: 4 pooling: "mean" } }
feature_configs { raw_feature { feature_name: "y" value_dim: 2 } }
feature_configs { id_feature { feature_name: "c" num_buckets: 9 embedding_dim: 4 } }
feature_configs { sequence_feature { sequence_name: "h" sequence_length: 9 sequence_delim: ";"
  features { id_feature { feature_name: "item" num_buckets: 20 embedding_dim: 4 embedding_name: "a" } }
  features { raw_feature { feature_name: "price" } }
} }
"""
NEXT_ITEM = (
    'next_item_sampler {{ input_path: "{folder}/items.parquet" item_id_field: "c" history_field: "h__item" '
    'attr_fields: ["b", "c"] }}'
)
SAMPLED = (
    'negative_sampler {{ input_path: "{folder}/items.parquet" item_id_field: "c" num_sample: 3 '
    'attr_fields: ["b", "c"] exclude: OWN_ITEM }}'
)


def config_of(folder, text, data=""):
    whole = TRAIN.format(folder=folder, data=data.format(folder=folder))
    return text_format.Parse(whole + text, PipelineConfig())


def run(config):
    """Check the config, then train; the loss stays finite and weights move."""
    report = check_config(config)
    assert [str(problem) for problem in report.problems] == []
    training = build_training(config)
    task, updater = training.task.train(), training.updater
    before = [parameter.detach().clone() for _, parameter in task.model.dense_named_parameters()]
    done = 0
    while done < STEPS:
        updater.start_epoch(0)
        for batch in training.train_loader.epoch(0):
            losses = task.losses(task(batch), batch)
            assert torch.isfinite(losses["total"])
            updater.backward(losses["total"])
            updater.step()
            done += 1
            if done == STEPS:
                break
    task.model.settle()
    after = [parameter.detach() for _, parameter in task.model.dense_named_parameters()]
    still = getattr(task.model, "takes_losses", True) is False
    assert still or any(not torch.equal(a, b) for a, b in zip(before, after, strict=True))


class OneLayer(Model):
    """A linear map: a model of one's own."""

    def build(self, *, bias=True):
        self.output = torch.nn.Linear(self.groups.dim("all"), self.tasks[0].num_logits, bias=bias)

    def predict(self, inputs):
        return self.head(self.output(inputs["all"]))


class Squares(Loss):
    """(p − y)²: a loss of one's own."""

    def rows(self, logits, labels, session):
        return (torch.sigmoid(logits) - labels).square()

    def predict(self, logits):
        return torch.sigmoid(logits)


OWN_MODEL = f"""
feature_groups {{ group_name: "all" feature_names: ["a", "x"] group_type: DEEP }}
custom_model {{ class_path: "{__name__}.OneLayer"
  params {{ fields {{ key: "bias" value {{ bool_value: false }} }} }} }}
losses {{ custom_loss {{ class_path: "{__name__}.Squares" }} }}
"""
MODELS = sorted(set(schema_messages("model")) & set(available()["model"]))


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_models(name, folder):
    data = 'fg_mode: FG_NONE label_fields: ["click", "buy"] '
    sampler = {"sasrec": NEXT_ITEM, "hstu": NEXT_ITEM, "hstu_match": SAMPLED}.get(name, "")
    config = config_of(folder, FEATURES, data + sampler)
    own = name == "custom_model"
    text_format.Parse(OWN_MODEL if own else (CONFIGS / f"{name}.config").read_text(), config.model_config)
    if own:
        del config.data_config.label_fields[1:]
    if name in OF_LISTS:
        config.train_input_path = str(folder / "lists.parquet")
    if name == "dbmtl":  # a tower of this one builds on the one behind it
        config.model_config.dbmtl.task_towers.reverse()
    run(config)


class Doubled(Feature):
    """Twice its input: a kind of one's own."""

    def expressions(self):
        return [Input(text) for text in self.config.expression]

    def build_output(self):
        return floats_output(self.config, self.setting, value_dim=1)

    def transform(self, inputs, scope):
        bags = inputs[0]
        values = numbers_of(bags.values, scope.report(bags, self.inputs[0].name))
        return Bags(2 * values, bags.offsets)


class Everything(OwnSampler):
    """All other rows' items: a sampler of one's own."""

    draws = "rows"

    def sample(self, batch, columns, place):
        return replace(batch, comparison=Comparison(torch.zeros(0, 2, dtype=torch.int64)))


IDS = "embedding_dim: 4 hash_bucket_size: 20"
PARAMS = 'operator_params {{ fields {{ key: "{}" value {{ string_value: "{}" }} }} }}'
KINDS = {
    "id_feature": f'expression: "user:text" {IDS}',
    "raw_feature": 'expression: "user:x"',
    "combo_feature": f'expression: ["user:text", "item:c"] {IDS}',
    "lookup_feature": 'map: "user:pairs" key: "item:key" separator: "|"',
    "match_feature": 'nested_map: "user:nested" pkey: "item:key" skey: "item:skey"',
    "expr_feature": 'expression: "x * c" variables: ["user:x", "item:c"]',
    "overlap_feature": 'query: "user:text" title: "item:other" method: "query_common_ratio"',
    "tokenize_feature": 'expression: "user:text" embedding_dim: 4 vocab_file: "{folder}/tokenizer.json"',
    "custom_feature": 'expression: ["user:text", "item:other"] operator_name: "EditDistance" '
    'operator_lib_file: "recgrad"',
    "kv_dot_product": 'query: "user:pairs" document: "item:pairs" separator: "|"',
    "bool_mask_feature": f'expression: ["user:words", "user:valid"] separator: "|" {IDS}',
    "combine_feature": 'expression: "user:b" combiner: "mean"',
    "sequence_id_feature": f'expression: "user:seq_text" sequence_length: 5 {IDS}',
    "sequence_raw_feature": 'expression: "user:seq" sequence_length: 5',
    "sequence_combo_feature": f'expression: ["user:seq_text", "item:c"] sequence_fields: "seq_text" {IDS}',
    "sequence_lookup_feature": 'map: "user:pairs" key: "item:seq_text" sequence_fields: "seq_text" '
    'separator: "|"',
    "sequence_match_feature": 'nested_map: "user:nested" pkey: "item:seq_text" skey: "user:skey" '
    'sequence_fields: "seq_text"',
    "sequence_expr_feature": 'expression: "x * seq" variables: ["user:x", "user:seq"] sequence_fields: "seq"',
    "sequence_overlap_feature": 'query: "user:text" title: "item:seq_text" method: "query_common_ratio" '
    'sequence_fields: "seq_text"',
    "sequence_tokenize_feature": 'expression: "user:seq_text" embedding_dim: 4 '
    'vocab_file: "{folder}/tokenizer.json"',
    "sequence_custom_feature": 'expression: ["user:x", "user:seq"] sequence_fields: "seq" '
    'operator_name: "SeqExpr" operator_lib_file: "recgrad" ' + PARAMS.format("formula", "x - seq"),
    "sequence_kv_dot_product": 'query: "user:pairs" document: "item:seq_text" sequence_fields: "seq_text"',
    "sequence_bool_mask_feature": f'expression: ["user:seq_words", "user:seq_valid"] separator: "|" '
    f'sequence_fields: ["seq_words", "seq_valid"] {IDS}',
    "sequence_combine_feature": 'expression: "user:seq" combiner: "sum"',
    "sequence_feature": "",
    "custom_kind_feature": f'expression: "user:x" class_path: "{__name__}.Doubled"',
    "sequence_custom_kind_feature": f'expression: "user:seq" class_path: "{__name__}.Doubled"',
}


MEMBERS = {
    "id_feature": f'expression: "item:seq_text" {IDS}',
    "raw_feature": 'expression: "item:seq"',
    "combo_feature": f'expression: ["user:text", "item:seq_text"] {IDS}',
    "lookup_feature": 'map: "user:pairs" key: "item:seq_text" separator: "|"',
    "match_feature": 'nested_map: "user:nested" pkey: "item:seq_text" skey: "user:skey"',
    "expr_feature": 'expression: "x * seq" variables: ["user:x", "item:seq"]',
    "overlap_feature": 'query: "user:text" title: "item:seq_text" method: "query_common_ratio"',
    "tokenize_feature": 'expression: "item:seq_text" embedding_dim: 4 vocab_file: "{folder}/tokenizer.json"',
    "custom_feature": 'expression: ["user:x", "item:seq"] operator_name: "SeqExpr" '
    'operator_lib_file: "recgrad" ' + PARAMS.format("formula", "x - seq"),
    "kv_dot_product": 'query: "user:pairs" document: "item:seq_text"',
    "bool_mask_feature": f'expression: ["item:seq_words", "item:seq_valid"] separator: "|" {IDS}',
    "combine_feature": 'expression: "item:seq" combiner: "sum"',
    "custom_kind_feature": f'expression: "item:seq" class_path: "{__name__}.Doubled"',
}
"""Members of a `sequence_feature`."""


def run_feature(folder, feature, name):
    """Train a model over one feature and an id."""
    feature = feature.replace("{folder}", str(folder))
    if "tokenizer.json" in feature:
        library = pytest.importorskip("tokenizers")
        words = {word: i for i, word in enumerate(["?", "red", "blue", "shoe"])}
        made = library.Tokenizer(library.models.WordLevel(words, unk_token="?"))
        made.pre_tokenizer = library.pre_tokenizers.Whitespace()
        made.save(str(folder / "tokenizer.json"))
    model = f"""feature_configs {{ {feature} }}
    feature_configs {{
      id_feature {{ feature_name: "c2" expression: "item:c" num_buckets: 9 embedding_dim: 4 }}
    }}
    model_config {{
      feature_groups {{ group_name: "all" feature_names: ["c2", "{name}"] group_type: DEEP }}
      dcn_v1 {{ cross {{}} deep {{ hidden_units: 4 }} final {{ hidden_units: 4 }} }}
      losses {{ binary_cross_entropy {{}} }}
    }}"""
    run(config_of(folder, model, 'fg_mode: FG_DAG label_fields: "click"'))


def member(body):
    group = 'sequence_name: "h" sequence_length: 5 sequence_delim: ";"'
    return f"sequence_feature {{ {group} features {{ {body} }} }}"


@pytest.mark.parametrize("kind", sorted(schema_messages("feature")))
def test_feature_kinds(kind, folder):
    if kind == "sequence_feature":
        inner = f'id_feature {{ feature_name: "item" expression: "item:item" {IDS} }}'
        run_feature(folder, member(inner), "h__item")
        return
    run_feature(folder, f'{kind} {{ feature_name: "f" {KINDS[kind]} }}', "f")


@pytest.mark.parametrize("kind", sorted(MEMBERS))
def test_members_of_sequences(kind, folder):
    run_feature(folder, member(f'{kind} {{ feature_name: "f" {MEMBERS[kind]} }}'), "h__f")


TWO_TOWERS = """
feature_configs { id_feature { feature_name: "user" num_buckets: 50 embedding_dim: 4 } }
feature_configs { id_feature { feature_name: "item" num_buckets: 50 embedding_dim: 4 } }
feature_configs { raw_feature { feature_name: "price" } }
model_config {
  feature_groups { group_name: "user" feature_names: "user" group_type: DEEP }
  feature_groups { group_name: "item" feature_names: ["item", "price"] group_type: DEEP }
  dssm { user_tower { input: "user" mlp { hidden_units: 4 } }
    item_tower { input: "item" mlp { hidden_units: 4 } } output_dim: 4 IN_BATCH }
  losses { LOSS }
}
"""
ITEM = "attr_fields: ['item', 'price'] item_id_field: 'item'"
ITEM_TABLE = "item_input_path: '{folder}/items.txt'"
HARD = "num_hard_sample: 2 hard_neg_edge_input_path: '{folder}/edges.txt'"
TABLES = f"user_input_path: 'none' {ITEM_TABLE} user_id_field: 'user' num_sample: 8 {ITEM}"
SAMPLERS = {
    "negative_sampler": f"input_path: '{{folder}}/items.txt' num_sample: 8 {ITEM}",
    "negative_sampler_v2": f"{TABLES} pos_edge_input_path: '{{folder}}/edges.txt'",
    "hard_negative_sampler": f"{TABLES} {HARD}",
    "hard_negative_sampler_v2": f"{TABLES} {HARD} pos_edge_input_path: '{{folder}}/edges.txt'",
    "catalogue_sampler": f"input_path: '{{folder}}/items.txt' {ITEM}",
    "in_batch_sampler": "item_id_field: 'item'",
    "tdm_sampler": "item_input_path: '{folder}/nodes.txt' edge_input_path: '{folder}/tree.txt' "
    "predict_edge_input_path: 'none' attr_fields: 'price' item_id_field: 'item' "
    "layer_num_sample: [0, 1, 2, 3]",
    "custom_sampler": f"class_path: '{__name__}.Everything'",
    "next_item_sampler": "",  # with sasrec and hstu, above
}
TREE = """
feature_configs { id_feature { feature_name: "user" num_buckets: 50 embedding_dim: 4 } }
feature_configs { id_feature { feature_name: "item" num_buckets: 50 embedding_dim: 4 } }
feature_configs { raw_feature { feature_name: "price" } }
feature_configs { id_feature { feature_name: "tree_level" num_buckets: 9 embedding_dim: 4 } }
model_config {
  feature_groups { group_name: "all" feature_names: ["user", "item", "price", "tree_level"] group_type: DEEP }
  dcn_v1 { cross {} deep { hidden_units: 4 } final { hidden_units: 4 } }
  losses { binary_cross_entropy {} }
}
"""


@pytest.mark.parametrize("name", sorted(set(SAMPLERS) - {"next_item_sampler"}))
def test_samplers(name, folder):
    data = f"fg_mode: FG_NONE {name} {{{{ {SAMPLERS[name]} }}}}".replace("{folder}", "{{folder}}")
    data = data.replace("{{", "{").replace("}}", "}").replace("{folder}", str(folder))
    in_batch = "in_batch_negative: true" if name in ("in_batch_sampler", "custom_sampler") else ""
    text = TWO_TOWERS.replace("IN_BATCH", in_batch).replace("LOSS", "softmax_cross_entropy {}")
    if name == "tdm_sampler":
        text, data = TREE, data + " label_fields: 'click'"
    whole = TRAIN.format(folder=folder, data="DATA").replace("DATA", data)
    run(text_format.Parse(whole + text, PipelineConfig()))


LABELS = {
    "binary_cross_entropy": ("click", 1, ""),
    "softmax_cross_entropy": ("class", 3, ""),
    "l2_loss": ("x", 1, ""),
    "jrc_loss": ("click", 2, "session_name: 'group'"),
    "binary_focal_loss": ("click", 1, ""),
}
CANDIDATES = {
    "bpr_loss": "",
    "cosine_contrastive_loss": "",
    "gbce_loss": "num_items: 40",
    "full_softmax": "",
}
OF_CODES = ("recon_loss", "commitment_loss", "contrastive_loss")


@pytest.mark.parametrize("name", sorted(LABELS))
def test_losses_of_labels(name, folder):
    label, classes, body = LABELS[name]
    group = 'feature_groups { group_name: "all" feature_names: ["a", "b", "y"] group_type: DEEP }'
    model = "dcn_v1 { cross {} deep { hidden_units: 4 } final { hidden_units: 4 } }"
    text = (
        f"{FEATURES} model_config {{ {group} {model} num_class: {classes} losses {{ {name} {{ {body} }} }} }}"
    )
    run(config_of(folder, text, f"fg_mode: FG_NONE label_fields: '{label}'"))


@pytest.mark.parametrize("name", sorted(CANDIDATES))
def test_losses_of_candidates(name, folder):
    sampler = "catalogue_sampler" if name == "full_softmax" else "negative_sampler"
    data = f"fg_mode: FG_NONE {sampler} {{ {SAMPLERS[sampler]} }}".replace("{folder}", str(folder))
    text = TWO_TOWERS.replace("IN_BATCH", "").replace("LOSS", f"{name} {{ {CANDIDATES[name]} }}")
    whole = TRAIN.format(folder=folder, data="DATA").replace("DATA", data)
    run(text_format.Parse(whole + text, PipelineConfig()))


def test_losses_of_codes(folder):
    groups = " ".join(
        f'feature_groups {{ group_name: "{group}" feature_names: "{name}" group_type: DEEP }}'
        for group, name in (("vector", "y"), ("other", "y2"), ("flag", "x"))
    )
    model = (
        'sid_rqvae { codebook: [4, 4] embed_dim: 4 contrastive_config { pair_feature_group: "other" '
        'pair_flag_feature_group: "flag" } }'
    )
    losses = " ".join(f"losses {{ {name} {{}} }}" for name in OF_CODES)
    features = (
        'feature_configs { raw_feature { feature_name: "y" expression: "item:y" value_dim: 2 } }'
        'feature_configs { raw_feature { feature_name: "y2" expression: "item:y" value_dim: 2 } }'
        'feature_configs { raw_feature { feature_name: "x" expression: "item:x" } }'
    )
    text = f"{features} model_config {{ {groups} {model} {losses} }}"
    run(config_of(folder, text, "fg_mode: FG_DAG"))


def test_none_is_forgotten():
    """What the schema has is available, and has a case here; `custom_loss` is that of the custom model."""
    known = available()
    assert set(known["model"]) == set(schema_messages("model")) == set(MODELS)
    assert set(KINDS) == set(schema_messages("feature"))
    assert set(MEMBERS) == {
        field.name for field in SeqFeatureConfig.DESCRIPTOR.oneofs_by_name["feature"].fields
    }
    assert set(SAMPLERS) == set(schema_messages("sampler")) == set(known["sampler"])
    losses = {*LABELS, *CANDIDATES, *OF_CODES, "custom_loss"}
    assert losses == set(schema_messages("loss")) == set(known["loss"])
