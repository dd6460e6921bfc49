"""The configs under examples/ read the real sets, and what they read is what is there."""

from __future__ import annotations

import gzip
from itertools import chain
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from google.protobuf import text_format

from recgrad.config.proto.data_pb2 import FgMode
from recgrad.config.proto.pipeline_pb2 import PipelineConfig
from recgrad.data import Loader, build_features, build_loader
from recgrad.models.targets import find_targets

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def open_example(name: str, path: Path, *, training: bool = False, **kwargs: object) -> Loader:
    config = text_format.Parse((EXAMPLES / name).read_text(), PipelineConfig())
    data = config.data_config
    features = build_features(
        config.feature_configs, fg_mode=FgMode.Name(data.fg_mode), multival_sep=data.fg_encoded_multival_sep
    )
    return build_loader(
        config, str(path), features=features, targets=find_targets(config), training=training, **kwargs
    )


@pytest.mark.parametrize("name", ["kuairand_deepfm.config", "kuairand_mmoe.config"])
def test_kuairand(shared_data: Path, name: str):
    path = shared_data / "kuairand" / "test.parquet"
    table = pq.read_table(path)
    loader = open_example(name, path)
    batches = list(loader.epoch())
    assert sum(batch.size for batch in batches) == 42_422 == loader.num_rows
    assert len(batches) == loader.num_batches == 6
    click = torch.cat([batch.labels["is_click"] for batch in batches])
    assert click.tolist() == table["is_click"].to_pylist()
    users = torch.cat([batch.keys["user_id"] for batch in batches])
    assert users.tolist() == table["user_id"].to_pylist()
    # Nulls are missing ids, not id 0.
    music = torch.cat([batch.sparse["music_type"].lengths for batch in batches])
    assert (music == 0).sum() == table["music_type"].null_count > 0
    assert torch.cat([batch.sparse["music_type"].values for batch in batches]).tolist() == (
        table["music_type"].drop_null().to_pylist()
    )
    tags = torch.cat([batch.sparse["tag"].lengths for batch in batches])
    assert tags.tolist() == [len(text.split(",")) for text in table["tag"].to_pylist()]
    assert tags.max() > 1
    watched = torch.cat([batch.sequence_sparse["watch_seq"].values for batch in batches])
    # A row without a sequence has one position with the default.
    sequences = [items or [0] for items in table["watch_seq"].to_pylist()]
    assert watched.tolist() == [item for items in sequences for item in items]
    lengths = torch.cat([batch.sequence_lengths["watch_seq"] for batch in batches])
    assert lengths.tolist() == [len(items) for items in sequences]
    price = torch.cat([batch.dense["duration_ms"][:, 0] for batch in batches])
    np.testing.assert_allclose(price, np.log1p(table["duration_ms"].to_numpy()), rtol=1e-6)


@pytest.mark.parametrize(
    ("name", "labels"),
    [("census_mmoe.config", ("income_50k", "marital_stat")), ("census_deepfm.config", ("income_50k",))],
)
def test_census_without_a_header(shared_data: Path, name: str, labels: tuple[str, ...]):
    path = shared_data / "census_income" / "census-income.test.gz"
    loader = open_example(name, path)
    batches = list(loader.epoch())
    columns = (shared_data / "census_income" / "columns.txt").read_text().strip().split(",")
    with gzip.open(path, "rt") as lines:
        rows = [
            dict(zip(columns, (value.strip() for value in line.split(",")), strict=True)) for line in lines
        ]
    assert sum(batch.size for batch in batches) == 99_762 == len(rows)
    positive = {"income_50k": "50000+.", "marital_stat": "Never married"}
    for label in labels:
        got = torch.cat([batch.labels[label] for batch in batches]).tolist()
        assert got == [int(row[label] == positive[label]) for row in rows]
    age = torch.cat([batch.dense["age"][:, 0] for batch in batches])
    np.testing.assert_allclose(age, np.log1p([int(row["age"]) for row in rows]), rtol=1e-6)
    codes = torch.cat([batch.sparse["education"].values for batch in batches]).tolist()
    texts = [row["education"] for row in rows]
    assert len(set(zip(codes, texts, strict=True))) == len(set(texts)) == len(set(codes))


def test_census_resumes_in_the_middle_of_a_gzip_file(shared_data: Path):
    path = shared_data / "census_income" / "census-income.test.gz"

    def ids(loader: Loader, position: object = None) -> list[list[int]]:
        return [batch.origin.row.tolist() for batch in loader.epoch(0, position)]

    whole = ids(open_example("census_mmoe.config", path, training=True))
    assert sorted(chain.from_iterable(whole)) == list(range(99_762))
    loader = open_example("census_mmoe.config", path, training=True)
    batches = loader.epoch(0)
    for _ in range(60):
        next(batches)
    batches.close()
    rest = ids(open_example("census_mmoe.config", path, training=True), loader.position)
    assert rest == whole[60:]
