"""Deltas and SIGKILL: while they are written, and while they are followed."""

from __future__ import annotations

import hashlib
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import recgrad
from recgrad.config import PipelineConfig, save_config
from recgrad.embedding.deltas.record import published
from recgrad.serving.following import FollowingScorer
from recgrad.serving.scorer import Scorer

pytestmark = pytest.mark.slow
DELTAS = "delta_embedding_dump"
TRAIN = """
import os, signal, time
import recgrad
from recgrad.embedding.deltas import writing
whole, files = writing._write, [0]
def write(path, fill):
    def torn(file):
        fill(file)
        files[0] += 1
        if files[0] == {kill_in}:
            while not os.path.exists({model!r} + "/model.ckpt-5/manifest.json"):  # written on a thread
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGKILL)
    return whole(path, torn)
writing._write = write
recgrad.train({config!r}, model_dir={model!r}, continue_train={resumes})
"""
FOLLOW = """
import os, signal
from recgrad.embedding.mapped.moving import MovingTables
from recgrad.serving.following import FollowingScorer
whole, parts = MovingTables.apply, [0]
def apply(self, part):
    parts[0] += 1
    whole(self, part)
    if parts[0] == {kill_in}:
        os.kill(os.getpid(), signal.SIGKILL)
MovingTables.apply = apply
FollowingScorer({bundle!r}, {deltas!r}).follow()
"""


@pytest.fixture
def living(config: PipelineConfig, tmp_path: Path) -> Path:
    """A config with tables of all kinds and a delta every second step, 12 steps, a checkpoint every 5."""
    ids = [f.id_feature for f in config.feature_configs if f.HasField("id_feature")]
    for i, feature in enumerate(ids):
        if i % 3:
            feature.ClearField("num_buckets")
        if i % 3 == 1:
            feature.zch.zch_size, feature.zch.eviction_interval = 50, 3
            feature.zch.distance_lfu.SetInParent()
        elif i % 3 == 2:
            feature.dynamicemb.max_capacity = 650
            feature.dynamicemb.ttl_steps = 4
    settings = config.train_config
    settings.ClearField("num_epochs")
    settings.ClearField("save_checkpoints_epochs")
    settings.num_steps, settings.save_checkpoints_steps = 12, 5
    settings.delta_embedding_dump_config.dump_interval_steps = 2
    save_config(config, tmp_path / "living.config")
    return tmp_path / "living.config"


def scores(scorer: Scorer, clicks: Path) -> dict[str, bytes]:
    return {name: own.tobytes() for name, own in scorer.score(pq.read_table(clicks / "eval.parquet")).items()}


def digests(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_a_kill_leaves_whole_deltas_and_followers_end_at_the_export(
    living: Path, clicks: Path, tmp_path: Path, start_rank: Callable[..., Any]
) -> None:
    model, bundle = tmp_path / "model", tmp_path / "bundle"

    def run(text: str, expected: int, **values: Any) -> None:
        process = start_rank(text.format(**values), {"OMP_NUM_THREADS": "1"}, tmp_path / "log")
        process.join(300)
        assert process.exitcode == expected, (tmp_path / "log").read_text()

    train = {"config": str(living), "model": str(model)}
    # Deltas of steps 2, 4, 5, 6, 8, 10, 12, of three files each: killed in the manifest of step 6.
    run(TRAIN, -signal.SIGKILL, kill_in=12, resumes=False, **train)
    assert sorted(published(model / DELTAS)) == [1, 2, 3]
    assert [path for path in (model / DELTAS).iterdir() if path.name.startswith(".")]
    recgrad.export_model(model, export_dir=bundle, checkpoint_path=model / "model.ckpt-5")
    follower = FollowingScorer(bundle, model / DELTAS)
    assert follower.follow() == 0
    assert not follower.refused
    # Resumed at step 5; killed in the rows of step 8, after the delta of step 6.
    run(TRAIN, -signal.SIGKILL, kill_in=4, resumes=True, **train)
    assert follower.follow() == 1
    run(TRAIN, 0, kill_in=0, resumes=True, **train)
    numbers = sorted(published(model / DELTAS))
    assert numbers == list(range(1, numbers[-1] + 1))
    left = {path.name.partition(".")[0] for path in (model / DELTAS).iterdir()}
    assert left == {path.stem for path in published(model / DELTAS).values()}  # nothing torn is left
    recgrad.export_model(model, export_dir=tmp_path / "last")
    expected = scores(Scorer.load(tmp_path / "last"), clicks)
    follower.follow()
    assert follower.applied.step == 12
    assert scores(follower, clicks) == expected
    # Killed while it applies rows: the bundle is as it was, and whoever starts again ends there, too.
    before = digests(bundle)
    run(FOLLOW, -signal.SIGKILL, kill_in=5, bundle=str(bundle), deltas=str(model / DELTAS))
    assert digests(bundle) == before
    again = FollowingScorer(bundle, model / DELTAS)
    again.follow()
    assert scores(again, clicks) == expected
