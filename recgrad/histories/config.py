"""The configs that `recgrad sequences` writes beside its files, of SASRec and HSTU."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from recgrad.histories.retrieval_config import MOST_KNOWN, MOST_RANKED, known_share
from recgrad.histories.settings import HistorySettings
from recgrad.histories.write import HistoryReport

MODELS = ("sasrec", "hstu")
LENGTHS = (50, 100, 200)
"""Newest events that a model looks at: the least of these that holds the whole of most histories."""
MOST = 0.9
DENSE = 100
"""Events an item from which on .2 are dropped, else .5: Kang & McAuley 2018 on MovieLens and sparse logs."""
WATCHED = "catalogue_ndcg@10"
BATCH = 128
PATIENT_STEPS = 300
"""Steps without improvement that end training; epochs of few rows are no measure."""
_TEXT = """\
# {title} on the histories beside this file. Train it, and measure it on what was held back, with:
#   recgrad train {folder}/{model}.config
#   recgrad eval {folder}/{model}.config --eval_input_path {folder}/test.parquet
train_input_path: "{folder}/train.parquet"
eval_input_path: "{folder}/{evaluated}.parquet"
model_dir: "{folder}/{model}"
train_config {{
  sparse_optimizer {{
    adam_optimizer {{ lr: 0.001 }}
    constant_learning_rate {{}}
  }}
  dense_optimizer {{
    adam_optimizer {{ lr: 0.001 }}
    constant_learning_rate {{}}
  }}
  num_epochs: {epochs}
  save_checkpoints_epochs: 1
  keep_checkpoint_max: 2{stopping}
}}{best}
eval_config {{
  # Each history's list of the best items of the whole catalogue.
  catalogue {{
    item_input_path: "{folder}/items.parquet"
    item_id_field: "{item}"{relevant}
    {seen}
    top_k: 10
  }}
}}
data_config {{
  dataset_type: ParquetDataset
  fg_mode: FG_NORMAL
  batch_size: {batch}
  shuffle: true
  next_item_sampler {{
    input_path: "{folder}/items.parquet"
    attr_fields: "{item}"
    item_id_field: "{item}"
    history_field: "{name}__{item}"{sampled}
  }}
}}
feature_configs {{
  id_feature {{ feature_name: "{item}" expression: "item:{item}" {ids} }}
}}
feature_configs {{
  sequence_feature {{
    sequence_name: "{name}"
    sequence_length: {longest}
    features {{ id_feature {{ feature_name: "{item}" expression: "item:{item}" {ids} }} }}{event_time}
  }}
}}{request_time}
model_config {{
  feature_groups {{ group_name: "{name}" feature_names: "{name}__{item}" group_type: JAGGED_SEQUENCE }}
  feature_groups {{ group_name: "item" feature_names: "{item}" group_type: DEEP }}{time_groups}
  {model} {{
    input: "{name}"
    item_tower {{ input: "item" }}
    max_seq_len: {length}
    dropout_ratio: {dropout}{time_inputs}
  }}
  losses {{ {loss} }}
}}
"""
_EMBEDDING = 'embedding_dim: 64 embedding_name: "item" init_fn: "nn.init.normal_,std=0.02"'
_TIMES = {
    "event_time": '\n    features {{ raw_feature {{ feature_name: "{time}" expression: "item:{time}" }} }}',
    "request_time": "\nfeature_configs {{\n"
    '  raw_feature {{ feature_name: "{time}" expression: "user:{time}" data_type: "FP64" }}\n}}',
    "time_groups": "\n"
    '  feature_groups {{ group_name: "times" feature_names: "{name}__{time}" group_type: JAGGED_SEQUENCE }}\n'
    '  feature_groups {{ group_name: "now" feature_names: "{time}" group_type: DEEP }}',
    "time_inputs": '\n    time_input: "times"\n    request_time_input: "now"',
}
"""What a model that looks at times has besides."""


def write_configs(folder: str, settings: HistorySettings, report: HistoryReport) -> list[Path]:
    """Write `sasrec.config` and `hstu.config`, unless there are such; returns their paths."""
    names = {"folder": folder.rstrip("/"), "item": settings.item, "name": settings.name}
    held_back = bool(report.rows.get("valid"))
    whole = report.items <= MOST_RANKED
    patience = min(max(5, -(-PATIENT_STEPS * BATCH // max(report.rows["train"], 1))), 20)
    common: dict[str, object] = {
        **names,
        "evaluated": "valid" if held_back else "train",
        "stopping": f'\n  early_stopping {{ metric: "{WATCHED}" patience: {patience} }}' if held_back else "",
        "epochs": 10 * patience,
        "batch": BATCH,
        "best": f'\nexport_config {{ exporter_type: "best" best_exporter_metric: "{WATCHED}" }}'
        if held_back
        else "",
        "relevant": '\n    relevant_field: "relevant"' if settings.split == "time" else "",
        "seen": _seen(Path(folder) / "valid.parquet" if held_back else None, settings),
        "sampled": "" if whole else "\n    num_sample: 4096",
        "loss": "full_softmax {}" if whole else "softmax_cross_entropy { log_q_correction: true }",
        "longest": report.longest,
        "length": settings.max_length or usual_length(report),
        "dropout": 0.2 if report.events >= DENSE * report.items else 0.5,
        "ids": f"{_ids(report)} {_EMBEDDING}",
    }
    paths = []
    for model in MODELS:
        timed = model == "hstu" and settings.time
        times = {
            key: text.format(**names, time=settings.time) if timed else "" for key, text in _TIMES.items()
        }
        title = {"sasrec": "SASRec", "hstu": "HSTU"}[model]
        path = Path(folder) / f"{model}.config"
        if not path.exists():
            path.write_text(_TEXT.format(model=model, title=title, **common, **times), encoding="utf-8")
        paths.append(path)
    return paths


def usual_length(report: HistoryReport) -> int:
    """The newest events that a model should look at, so that most training rows are seen whole."""
    below = np.cumsum(report.lengths)
    for length in LENGTHS[:-1]:
        if below[min(length, len(below) - 1)] >= MOST * below[-1]:
            return length
    return LENGTHS[-1]


def share_beyond(report: HistoryReport, length: int) -> float:
    """The share of events of training rows that are further back than their newest `length`."""
    sizes = np.arange(len(report.lengths))
    events = float((report.lengths * sizes).sum())
    return float((report.lengths * np.maximum(sizes - length, 0)).sum()) / max(events, 1.0)


def _ids(report: HistoryReport) -> str:
    if report.largest is not None and report.largest < max(4 * report.items, 10_000):
        return f"num_buckets: {report.largest + 1}"
    # Texts, or numbers far apart: many more buckets than items, so that few share one.
    return f"hash_bucket_size: {32 * report.items}"


def _seen(held_back: Path | None, settings: HistorySettings) -> str:
    """Items of the history are left out of lists, unless users come back to them."""
    history = f"{settings.name}__{settings.item}"
    if held_back is not None:
        table = pq.read_table(held_back, columns=[settings.item, history])
        share = known_share(table.column(settings.item), table.column(history))
        if share > MOST_KNOWN:
            return f"mask_seen: false  # {share:.0%} of what is held back is of items that its user knew"
    return f'seen_field: "{history}"'
