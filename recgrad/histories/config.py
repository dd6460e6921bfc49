"""The config that `recgrad sequences` writes beside its files: SASRec, with all items as candidates."""

from __future__ import annotations

from pathlib import Path

from recgrad.histories.settings import HistorySettings
from recgrad.histories.write import HistoryReport

_TEXT = """\
# SASRec on the histories beside this file. Train it, and measure it on what was held back for the test, with:
#   recgrad train {folder}/sasrec.config
#   recgrad eval {folder}/sasrec.config --eval_input_path {folder}/test.parquet
train_input_path: "{folder}/train.parquet"
eval_input_path: "{folder}/{evaluated}.parquet"
model_dir: "{folder}/sasrec"
train_config {{
  sparse_optimizer {{
    adam_optimizer {{ lr: 0.001 }}
    constant_learning_rate {{}}
  }}
  dense_optimizer {{
    adam_optimizer {{ lr: 0.001 }}
    constant_learning_rate {{}}
  }}
  num_epochs: 50
  save_checkpoints_epochs: 1
}}
eval_config {{
  # Each history's list of the best items of the whole catalogue, without what was seen.
  catalogue {{
    item_input_path: "{folder}/items.parquet"
    item_id_field: "{item}"{relevant}
    seen_field: "{name}__{item}"
    top_k: 10
  }}
}}
data_config {{
  dataset_type: ParquetDataset
  fg_mode: FG_NORMAL
  batch_size: 256
  shuffle: true
  next_item_sampler {{
    input_path: "{folder}/items.parquet"
    attr_fields: "{item}"
    item_id_field: "{item}"
    history_field: "{name}__{item}"
  }}
}}
feature_configs {{
  id_feature {{ feature_name: "{item}" expression: "item:{item}" {ids} }}
}}
feature_configs {{
  sequence_feature {{
    sequence_name: "{name}"
    sequence_length: {longest}
    features {{ id_feature {{ feature_name: "{item}" expression: "item:{item}" {ids} }} }}
  }}
}}
model_config {{
  feature_groups {{ group_name: "{name}" feature_names: "{name}__{item}" group_type: JAGGED_SEQUENCE }}
  feature_groups {{ group_name: "item" feature_names: "{item}" group_type: DEEP }}
  sasrec {{
    input: "{name}"
    item_tower {{ input: "item" }}
    max_seq_len: {length}
    dropout_ratio: 0.5
  }}
  losses {{ full_softmax {{}} }}
}}
"""
_EMBEDDING = 'embedding_dim: 64 embedding_name: "item" init_fn: "nn.init.normal_,std=0.02"'


def write_config(folder: str, settings: HistorySettings, report: HistoryReport) -> Path:
    """Write `sasrec.config`, unless there is one; returns its path."""
    path = Path(folder) / "sasrec.config"
    if report.largest is not None and report.largest < max(4 * report.items, 10_000):
        ids = f"num_buckets: {report.largest + 1}"
    else:  # texts, or numbers far apart: many more buckets than items, so that few share one
        ids = f"hash_bucket_size: {32 * report.items}"
    text = _TEXT.format(
        folder=folder.rstrip("/"),
        item=settings.item,
        name=settings.name,
        relevant='\n    relevant_field: "relevant"' if settings.split == "time" else "",
        evaluated="train" if settings.split == "none" else "valid",
        longest=report.longest,
        length=settings.max_length or 50,
        ids=f"{ids} {_EMBEDDING}",
    )
    if not path.exists():
        path.write_text(text)
    return path
