"""Semantic ids on KuaiRand: vectors of videos, their codes, and a DeepFM that has codes among its features.

python examples/semantic_ids.py ../shared/data/kuairand work

Vectors are the singular vectors of who had watched what before the first training row, so that they know
nothing of labels; videos that nobody had watched have none, and no codes. Prints the metrics of the ranking
model with codes and without.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import recgrad
from recgrad.cli.main import main as command
from recgrad.config import load_config

WIDTH, SIZES = 32, (32, 32, 32)
CODES = """
train_input_path: "{work}/vectors.parquet" eval_input_path: "{work}/vectors.parquet" model_dir: "{work}/codes"
train_config {{ num_epochs: 1 dense_optimizer {{ adam_optimizer {{ lr: 0.001 }} constant_learning_rate {{}} }}
  sparse_optimizer {{ adagrad_optimizer {{ lr: 0.1 }} constant_learning_rate {{}} }} }}
data_config {{ batch_size: 1024 dataset_type: ParquetDataset }}
feature_configs {{ raw_feature {{ feature_name: "vector" value_dim: {width} }} }}
model_config {{
  feature_groups {{ group_name: "vector" feature_names: "vector" group_type: DEEP }}
  sid_rqkmeans {{ codebook: [{sizes}] }}
}}
"""


def vectors(train: pa.Table) -> pa.Table:
    """A vector of length 1 for each video in histories: right singular vectors of users × videos."""
    first = np.unique(train["user_id"].to_numpy(), return_index=True)[1]
    lists = train["watch_seq"].combine_chunks().take(pa.array(first)).to_pylist()
    lists = [sorted(set(videos)) for videos in lists if videos]
    user = np.repeat(np.arange(len(lists)), [len(videos) for videos in lists])
    items, item = np.unique(np.concatenate(lists), return_inverse=True)
    scale = 1 / np.sqrt(np.bincount(user)[user] * np.bincount(item)[item])
    rng = np.random.default_rng(0)
    found = np.linalg.qr(rng.normal(size=(len(items), WIDTH + 8)))[0]
    for _ in range(6):  # rounds of a block power iteration
        left = np.zeros((len(lists), found.shape[1]))
        np.add.at(left, user, scale[:, None] * found[item])
        right = np.zeros_like(found)
        np.add.at(right, item, scale[:, None] * left[user])
        found, sizes = np.linalg.qr(right)
    order = np.argsort(-np.abs(np.diag(sizes)))[:WIDTH]
    rows = (found[:, order] * np.sqrt(np.bincount(item))[:, None]).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True) + 1e-12
    column = pa.FixedSizeListArray.from_arrays(pa.array(rows.reshape(-1)), WIDTH)
    return pa.table({"video_id": items, "vector": column})


def main(source: str, target: str) -> None:
    """Vectors, codes, rows with codes, and two rankings."""
    data, work = Path(source), Path(target)
    work.mkdir(parents=True, exist_ok=True)
    pq.write_table(vectors(pq.read_table(data / "train.parquet")), work / "vectors.parquet")
    text = CODES.format(work=work, width=WIDTH, sizes=", ".join(map(str, SIZES)))
    (work / "codes.config").write_text(text)
    recgrad.train(work / "codes.config")
    recgrad.predict(
        work / "codes.config",
        input_path=str(work / "vectors.parquet"),
        output_path=work / "predicted.parquet",
        carry_columns=["video_id"],
    )
    books = ",".join(map(str, SIZES))
    for part in ("train", "test"):
        line = ["codes", str(work / "predicted.parquet"), "--item", "video_id", "--codebook", books]
        command([*line, "--rows", str(data / f"{part}.parquet"), "--rows-out", str(work / f"{part}.parquet")])
    config = load_config(Path(__file__).with_name("kuairand_deepfm.config"))
    config.train_input_path, config.eval_input_path = str(work / "train.parquet"), str(work / "test.parquet")
    config.model_dir = str(work / "without")
    results = {"without codes": recgrad.train(config).metrics}
    for number, size in enumerate(SIZES, 1):
        feature = config.feature_configs.add().id_feature
        feature.feature_name, feature.expression = f"code_{number}", f"item:code_{number}"
        # A row more than codes: videos without one share it.
        feature.num_buckets, feature.embedding_dim, feature.default_value = size + 1, 32, str(size)
        for group in config.model_config.feature_groups:
            group.feature_names.append(f"code_{number}")
    config.model_dir = str(work / "with")
    results["with codes"] = recgrad.train(config).metrics
    for name, metrics in results.items():
        print(f"{name:<14}", "  ".join(f"{key} {value:.4f}" for key, value in sorted(metrics.items())))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
