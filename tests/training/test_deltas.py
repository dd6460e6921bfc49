"""Deltas in whole runs: a bundle that follows them is an export of the newest checkpoint, bit for bit."""

from __future__ import annotations

import os
import shutil
import threading
import time
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import recgrad
from recgrad.config import PipelineConfig
from recgrad.embedding.deltas.record import DeltaError, published, read_record
from recgrad.errors import BundleError
from recgrad.serving.following import FollowingScorer
from recgrad.serving.manifest import read_manifest
from recgrad.serving.scorer import Scorer

DELTAS = "delta_embedding_dump"
pytestmark = pytest.mark.slow


def with_deltas(config: PipelineConfig, every: int = 2) -> None:
    """Tables of all kinds, ids that come and go, a delta every so many steps."""
    ids = [f.id_feature for f in config.feature_configs if f.HasField("id_feature")]
    for i, feature in enumerate(ids):
        if i % 4 == 1:
            feature.ClearField("num_buckets")
            feature.zch.zch_size, feature.zch.eviction_interval = 50, 3
            feature.zch.distance_lfu.SetInParent()
        elif i % 4 == 2:
            feature.ClearField("num_buckets")
            feature.dynamicemb.max_capacity = 650
            feature.dynamicemb.ttl_steps = 4
        elif i % 4 == 3:
            feature.storage = 2  # COMPACT
            feature.num_buckets = 1 << 24
    settings = config.train_config
    settings.ClearField("num_epochs")
    settings.ClearField("save_checkpoints_epochs")
    settings.num_steps, settings.save_checkpoints_steps = 12, 5
    settings.delta_embedding_dump_config.dump_interval_steps = every


@pytest.fixture(scope="module")
def trained(
    clicks: Path, tmp_path_factory: pytest.TempPathFactory, make_config: object
) -> tuple[Path, Path, Path]:
    """A model_dir with deltas, and bundles of its checkpoints of steps 5 and 12."""
    folder = tmp_path_factory.mktemp("deltas")
    config = make_config(clicks, folder)  # type: ignore[operator]
    with_deltas(config)
    recgrad.train(config, model_dir=folder / "model")
    for step in (5, 12):
        recgrad.export_model(
            folder / "model",
            export_dir=folder / f"bundle{step}",
            checkpoint_path=folder / "model" / f"model.ckpt-{step}",
        )
    return folder / "model", folder / "bundle5", folder / "bundle12"


def same_scores(one: Scorer, other: Scorer, clicks: Path) -> bool:
    rows = pq.read_table(clicks / "eval.parquet")
    first, second = one.score(rows), other.score(rows)
    return all(first[name].tobytes() == second[name].tobytes() for name in second)


def test_a_bundle_that_follows_is_an_export_of_the_newest_checkpoint(
    trained: tuple[Path, Path, Path], clicks: Path
) -> None:
    model, first, last = trained
    scorer, expected = FollowingScorer(first, model / DELTAS), Scorer.load(last)
    assert not same_scores(scorer, expected, clicks)
    assert scorer.follow() == 4
    assert not scorer.refused
    assert (scorer.applied.number, scorer.applied.step) == (read_manifest(last).delta, 12)
    assert scorer._files["score.onnx"] == (last / "score.onnx").read_bytes()
    assert same_scores(scorer, expected, clicks)
    assert scorer.follow() == 0


def test_a_gap_waits_damage_and_strangers_are_refused(
    trained: tuple[Path, Path, Path], clicks: Path, tmp_path: Path
) -> None:
    model, first, last = trained
    folder, start = tmp_path / "copy", read_manifest(first).delta
    shutil.copytree(model / DELTAS, folder)
    files = {number: sorted(folder.glob(f"*_{number:08d}_*")) for number in published(folder)}
    missing = files[start + 2]
    hidden = [path.rename(tmp_path / path.name) for path in missing]
    scorer = FollowingScorer(first, folder)
    assert scorer.follow() == 1
    assert f"delta {start + 2} is missing" in scorer.refused
    for path in hidden:
        path.rename(folder / path.name)
    rows = next(path for path in files[start + 3] if path.suffix == ".arrow")
    content = bytearray(rows.read_bytes())
    content[len(content) // 2] ^= 1
    rows.write_bytes(content)
    assert scorer.follow() == 1
    assert "is damaged (its checksum is wrong)" in scorer.refused
    content[len(content) // 2] ^= 1
    rows.write_bytes(content)
    assert scorer.follow() == 2
    assert not scorer.refused
    assert same_scores(scorer, Scorer.load(last), clicks)


def test_deltas_of_another_run_are_refused(trained: tuple[Path, Path, Path], tmp_path: Path) -> None:
    model, first, _ = trained
    folder = tmp_path / "copy"
    shutil.copytree(model / DELTAS, folder)
    for path in published(folder).values():
        record = read_record(path)
        path.write_bytes(replace(record, stream="another").to_bytes())
    scorer = FollowingScorer(first, folder)
    assert scorer.follow() == 0
    assert "is of another run than the bundle" in scorer.refused
    for path in published(folder).values():
        record = read_record(path)
        path.write_bytes(replace(record, stream=read_manifest(first).stream, parent="another").to_bytes())
    assert scorer.follow() == 0
    assert "does not continue delta" in scorer.refused


def test_numbers_go_on_after_a_kill_and_followers_end_at_the_resumed_run(
    trained: tuple[Path, Path, Path], clicks: Path, tmp_path: Path
) -> None:
    model, first, _ = trained
    shutil.copytree(model, tmp_path / "model")
    for step in (10, 12):  # killed before they were saved, after their deltas were written
        shutil.rmtree(tmp_path / "model" / f"model.ckpt-{step}")
    dead = max(published(model / DELTAS))
    changed = '{"train_config.dense_optimizer.adam_optimizer.lr": 0.05}'  # so that it goes elsewhere
    recgrad.train(
        tmp_path / "model" / "pipeline.config",
        model_dir=tmp_path / "model",
        edit_config_json=changed,
        continue_train=True,
    )
    numbers = sorted(published(tmp_path / "model" / DELTAS))
    assert numbers == list(range(1, numbers[-1] + 1))
    assert numbers[-1] > dead
    recgrad.export_model(tmp_path / "model", export_dir=tmp_path / "bundle")
    scorer, expected = FollowingScorer(first, tmp_path / "model" / DELTAS), Scorer.load(tmp_path / "bundle")
    scorer.follow()
    assert scorer.applied.number == numbers[-1] == read_manifest(tmp_path / "bundle").delta
    assert same_scores(scorer, expected, clicks)
    with pytest.raises(DeltaError, match="has deltas of another run"):
        recgrad.train(
            tmp_path / "model" / "pipeline.config",
            model_dir=tmp_path / "new",
            edit_config_json=f'{{"train_config.delta_embedding_dump_config.output_dir": "{model / DELTAS}"}}',
        )


def test_a_bundle_of_a_run_without_deltas_cannot_follow(config: PipelineConfig, tmp_path: Path) -> None:
    config.train_config.ClearField("num_epochs")
    config.train_config.num_steps = 1
    recgrad.train(config, model_dir=tmp_path / "model")
    recgrad.export_model(tmp_path / "model", export_dir=tmp_path / "bundle")
    with pytest.raises(BundleError, match="its checkpoint is of a run without"):
        FollowingScorer(tmp_path / "bundle", tmp_path)


def test_what_was_learned_is_dumped_while_a_stream_stands_still(
    config: PipelineConfig, clicks: Path, tmp_path: Path
) -> None:
    with_deltas(config)
    settings = config.train_config
    settings.num_steps, settings.save_checkpoints_steps = 4, 100
    settings.delta_embedding_dump_config.ClearField("dump_interval_steps")
    settings.delta_embedding_dump_config.dump_interval_secs = 0.3
    config.data_config.follow, config.data_config.shuffle = True, False
    config.train_input_path, config.eval_input_path = str(tmp_path / "log"), ""
    (tmp_path / "log").mkdir()
    deltas, served = tmp_path / "model" / DELTAS, []

    def put(name: str, first: int) -> None:
        rows = pq.read_table(clicks / "train.parquet").slice(first, 512)
        pq.write_table(rows, tmp_path / name)
        os.rename(tmp_path / name, tmp_path / "log" / name)

    def when_dumped() -> None:
        """The next rows come once those before are in a delta, or after a long wait."""
        until = time.monotonic() + 120
        while not served and time.monotonic() < until:
            served.extend(n for n, path in published(deltas).items() if read_record(path).step == 2)
            time.sleep(0.05)
        put("2.parquet", 512)

    put("1.parquet", 0)
    waits = threading.Thread(target=when_dumped)
    waits.start()
    recgrad.train(config, model_dir=tmp_path / "model")
    waits.join()
    assert served
