"""A checkpoint is not read with ids that another hash made."""

from __future__ import annotations

from pathlib import Path

import pytest

import recgrad
from recgrad.config import PipelineConfig
from recgrad.config.proto.data_pb2 import FG_BUCKETIZE
from recgrad.config.proto.feature_pb2 import MURMUR64, XXH64
from recgrad.errors import CheckpointError
from recgrad.training.checkpoint import Snapshot, read_checkpoint
from recgrad.training.checkpoint.fit import hash_misfit


@pytest.fixture
def hashed(config: PipelineConfig) -> PipelineConfig:
    """Two steps; texts of cat_0 are hashed, the other features have ids of their own."""
    config.data_config.fg_mode = FG_BUCKETIZE
    (feature,) = [f.id_feature for f in config.feature_configs if f.id_feature.feature_name == "cat_0"]
    size = feature.num_buckets
    feature.ClearField("num_buckets")
    feature.hash_bucket_size = size
    config.train_config.num_steps = 2
    config.train_config.ClearField("num_epochs")
    return config


def test_another_hash_is_refused_and_named(
    hashed: PipelineConfig, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "recgrad")
    recgrad.train(hashed)
    tree = read_checkpoint(Path(hashed.model_dir) / "model.ckpt-2").tree
    assert tree["hashes"] == {"cat_0_emb": "XXH64", "cat_0_emb_wide": "XXH64"}
    hashed.data_config.hash = MURMUR64
    wrong = (
        "table 'cat_0_emb.*': texts were hashed with XXH64 in the checkpoint, with MURMUR64 here; "
        "set data_config.hash"
    )
    with pytest.raises(CheckpointError, match=wrong):
        recgrad.evaluate(hashed)
    hashed.train_config.num_steps = 4
    with pytest.raises(CheckpointError, match=wrong):
        recgrad.train(hashed, continue_train=True)
    recgrad.train(hashed, model_dir=tmp_path / "tuned", fine_tune_checkpoint=hashed.model_dir)
    (line,) = [line for line in caplog.text.splitlines() if "texts were hashed with XXH64" in line]
    head, names = line.partition(": texts")[0].split(maxsplit=1)
    assert (head, set(names.split(", "))) == ("reinitialised", {"cat_0_emb", "cat_0_emb_wide"})


def test_the_same_hash_said_in_another_place_is_the_same(hashed: PipelineConfig) -> None:
    recgrad.train(hashed)
    hashed.data_config.hash = MURMUR64
    (feature,) = [f.id_feature for f in hashed.feature_configs if f.id_feature.feature_name == "cat_0"]
    feature.hash = XXH64
    recgrad.evaluate(hashed)


@pytest.mark.parametrize(
    ("tree", "own", "fits"),
    [
        ({"updater": {}}, "XXH64", True),
        ({"updater": {}}, "MURMUR64", False),  # of a version that knew no other hash
        ({"model": {}}, "MURMUR64", True),  # made elsewhere
        ({"updater": {}, "hashes": {}}, "MURMUR64", True),  # trained on ids that were hashed elsewhere
        ({"updater": {}, "hashes": {"t": "MURMUR64"}}, "", True),
        ({"updater": {}, "hashes": {"t": "MURMUR64"}}, "XXH64", False),
    ],
)
def test_what_is_known_of_older_and_other_checkpoints(tree: dict, own: str, fits: bool) -> None:
    assert (hash_misfit(Snapshot(0, tree), "t", own) is None) == fits
