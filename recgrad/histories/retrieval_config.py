"""The config of two towers over histories: a user and what she did, beside every item."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from recgrad.histories.settings import HistorySettings
from recgrad.histories.write import HistoryReport

MOST_RANKED = 100_000
"""Items up to which every row is learned against all of them; of more, a sample."""
MOST_KNOWN = 0.1
"""The share of events of known items from which on these are not left out of lists."""
WIDTH = 64
_TEXT = """\
# Two towers on the files beside this one: users, by their id and what they did, and items. Train, and measure
# on what was held back for the test, with:
#   recgrad train {folder}/pipeline.config
#   recgrad eval {folder}/pipeline.config --eval_input_path {folder}/test.parquet
# of each user the last event tests, the one before it evaluates, the others train
train_input_path: "{folder}/train.parquet"
eval_input_path: "{folder}/valid.parquet"
model_dir: "{folder}/model"
train_config {{
  sparse_optimizer {{ adam_optimizer {{ lr: 0.005 }} constant_learning_rate {{}} }}
  dense_optimizer {{ adam_optimizer {{ lr: 0.001 }} constant_learning_rate {{}} }}
  num_epochs: {epochs}
  save_checkpoints_epochs: 1
}}
eval_config {{
  # Each user's list of the best items of the whole catalogue.
  catalogue {{
    item_input_path: "{folder}/items.parquet"
    item_id_field: "{item}"
    {seen}
    top_k: 20
  }}
}}
data_config {{
  dataset_type: ParquetDataset
  fg_mode: FG_NORMAL
  batch_size: {batch}
  shuffle: true
{sampler}}}
feature_configs {{
  id_feature {{
    feature_name: "{user}" expression: "user:{user}" hash_bucket_size: {user_rows} embedding_dim: {width}
  }}
}}
feature_configs {{  # the mean of what she did before
  id_feature {{
    feature_name: "{name}__{item}" expression: "user:{name}__{item}" {ids} pooling: "mean"
  }}
}}
feature_configs {{
  id_feature {{ feature_name: "{item}" expression: "item:{item}" {ids} }}
}}
{attributes}model_config {{
  feature_groups {{ group_name: "user" feature_names: ["{user}", "{name}__{item}"] group_type: DEEP }}
  feature_groups {{ group_name: "item" feature_names: [{item_features}] group_type: DEEP }}
  dssm_v2 {{
    user_tower {{ input: "user" mlp {{ hidden_units: {width} activation: "" }} }}
    item_tower {{ input: "item"{item_mlp} }}
    output_dim: 0
    similarity: COSINE
    temperature: 0.1
  }}
  losses {{ {loss} {{}} }}
}}
"""
_ALL = """\
  # {items:,} items: every row is learned against all of them.
  catalogue_sampler {{
    input_path: "{folder}/items.parquet" attr_fields: [{item_columns}] item_id_field: "{item}"
  }}
"""
_SOME = """\
  # {items:,} items: every batch is learned against some of them, drawn by how often they train.
  negative_sampler {{
    input_path: "{folder}/items.parquet" num_sample: 4096
    attr_fields: [{item_columns}] item_id_field: "{item}"
  }}
"""


@dataclass(frozen=True)
class ItemFeatures:
    """Features of attributes of items, beside the id.

    Attributes:
        columns: that they read.
        names: of the features.
        lines: of the config that make them.
    """

    columns: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    lines: str = ""


def write_retrieval_config(
    folder: str, settings: HistorySettings, report: HistoryReport, attributes: ItemFeatures
) -> Path:
    """Write `pipeline.config`; returns its path."""
    path = Path(folder) / "pipeline.config"
    if report.largest is not None and report.largest < max(4 * report.items, 10_000):
        ids = f"num_buckets: {report.largest + 1}"
    else:  # texts, or numbers far apart: many more buckets than items, so that few share one
        ids = f"hash_bucket_size: {32 * report.items}"
    whole = report.items <= MOST_RANKED
    names = {
        "folder": folder.rstrip("/"),
        "item": settings.item,
        "name": settings.name,
        "item_columns": _listed(settings.item, attributes.columns),
        "item_features": _listed(settings.item, attributes.names),
    }
    text = _TEXT.format(
        **names,
        user=settings.user,
        user_rows=max(1000, 8 * report.users),
        width=WIDTH,
        attributes=attributes.lines,
        item_mlp=f' mlp {{ hidden_units: {WIDTH} activation: "" }}' if attributes.names else "",
        ids=f'{ids} embedding_dim: {WIDTH} embedding_name: "item"',
        sampler=(_ALL if whole else _SOME).format(**names, items=report.items),
        seen=_seen(Path(folder) / "valid.parquet", settings),
        loss="full_softmax" if whole else "softmax_cross_entropy",
        batch=256 if whole else 1024,
        epochs=3 if report.rows.get("train", 0) > 1_000_000 else 10,
    )
    path.write_text(text, encoding="utf-8")
    return path


def _listed(item: str, others: tuple[str, ...]) -> str:
    return ", ".join(json.dumps(name, ensure_ascii=False) for name in (item, *others))


def _seen(held_back: Path, settings: HistorySettings) -> str:
    """Whether items of the history may be in the list: where users come back to them, they must."""
    history = f"{settings.name}__{settings.item}"
    table = pq.read_table(held_back, columns=[settings.item, history])
    share = known_share(table.column(settings.item), table.column(history))
    if share > MOST_KNOWN:
        return (
            f"mask_seen: false  # users come back: {share:.0%} of the events held back are of items they knew"
        )
    return f'seen_field: "{history}"  # without those of her history'


def known_share(items: pa.ChunkedArray, histories: pa.ChunkedArray) -> float:
    """The share of rows whose item is in their history."""
    lists = histories.combine_chunks()
    owners = pc.list_parent_indices(lists)
    same = pc.equal(lists.flatten(), items.combine_chunks().take(owners))
    return len(owners.filter(same).unique()) / max(len(items), 1)
