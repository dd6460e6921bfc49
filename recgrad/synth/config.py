"""The config that `recgrad synth` writes beside its data: DeepFM on the click label."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

HEAD = """\
# DeepFM on the synthetic click data beside this file. Train it with:
#   recgrad train {folder}/deepfm.config
train_input_path: "{folder}/train.{suffix}"
eval_input_path: "{folder}/eval.{suffix}"
model_dir: "{folder}/model"
train_config {{
  sparse_optimizer {{
    adam_optimizer {{ lr: 0.02 }}
    linear_decay_learning_rate {{ decay_size: {steps} }}
  }}
  dense_optimizer {{
    adam_optimizer {{ lr: 0.003 }}
    linear_decay_learning_rate {{ decay_size: {decay} warmup_size: {warmup} }}
  }}
  num_epochs: 1
  save_checkpoints_epochs: 1
  log_step_count_steps: 50
}}
eval_config {{}}
data_config {{
  dataset_type: {dataset_type}
  fg_mode: FG_NONE
  batch_size: {batch_size}
  eval_batch_size: 8192
  num_workers: 2
  shuffle: true
  label_fields: "label"{csv}
}}
"""

TAIL = """\
  deepfm {
    deep { hidden_units: [128, 64] }
    final { hidden_units: [32] }
    wide_embedding_dim: 1
  }
  metrics { auc {} }
  metrics { grouped_auc { grouping_key: "user_id" } }
  metrics { log_loss {} }
  train_metrics { auc {} }
  losses { binary_cross_entropy {} }
}
"""

DATASET_TYPES = {"parquet": "ParquetDataset", "csv": "CsvDataset"}
EMBEDDING_DIM = 8
BATCH_SIZE = 1024


def deepfm_config(
    folder: Path, suffix: str, rows: int, num_numeric: int, category_sizes: Sequence[int]
) -> str:
    """The config as text, with every column of the data as a feature."""
    numerics = [f"int_{i}" for i in range(num_numeric)]
    categories = [f"cat_{i}" for i in range(len(category_sizes))]
    steps = -(-rows // BATCH_SIZE)
    warmup = steps // 20
    head = HEAD.format(
        folder=folder.as_posix(),
        suffix=suffix,
        dataset_type=DATASET_TYPES[suffix],
        batch_size=BATCH_SIZE,
        steps=steps,
        warmup=warmup,
        decay=steps - warmup,
        csv="\n  with_header: true" if suffix == "csv" else "",
    )
    features = [
        f'feature_configs {{ raw_feature {{ feature_name: "{name}" fg_encoded_default_value: "0" }} }}\n'
        for name in numerics
    ]
    features += [
        f'feature_configs {{ id_feature {{ feature_name: "{name}" num_buckets: {size} '
        f"embedding_dim: {EMBEDDING_DIM} }} }}\n"
        for name, size in zip(categories, category_sizes, strict=True)
    ]
    groups = [
        _group("wide", "WIDE", categories),
        _group("fm", "DEEP", categories),
        _group("deep", "DEEP", numerics + categories),
    ]
    return "".join([head, *features, "model_config {\n", *groups, TAIL])


def _group(name: str, kind: str, features: Iterable[str]) -> str:
    names = ", ".join(f'"{feature}"' for feature in features)
    return f'  feature_groups {{ group_name: "{name}" group_type: {kind} feature_names: [{names}] }}\n'
