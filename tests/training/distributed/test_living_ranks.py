"""Tables whose rows belong to ids as they come, of several ranks: who comes and goes is as in one process."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

import recgrad
from recgrad.config import PipelineConfig
from recgrad.embedding.deltas.record import published, read_record
from recgrad.serving.following import FollowingScorer
from recgrad.serving.scorer import Scorer
from recgrad.training.checkpoint import read_checkpoint

LOCAL = 0
STEPS = 20  # of an epoch
_ABOVE_1 = "threshold_filtering_func: 'lambda x: (x > 1, 1)'"
LIVING = {
    "user": "dynamicemb { max_capacity: 45 score_strategy: 'LFU' }",
    "item": f"zch {{ zch_size: 16 eviction_interval: 2 lru {{}} {_ABOVE_1} }}",
    "city": "dynamicemb { max_capacity: 500 eval_initializer_args { mode: 'NORMAL' } }",
    "words": "zch { zch_size: 12 eviction_interval: 3 distance_lfu {} ttl_steps: 2 }",
    "tags": "dynamicemb { max_capacity: 25 ttl_steps: 2 frequency_admission_strategy { threshold: 3 } }",
}
LIVING |= {"last": LIVING["item"], "seen": LIVING["item"]}


def living(runs: Any, ranks: int, text: str = "") -> PipelineConfig:
    """The config of all kinds of features, whose tables all live; ids are many more than rows."""
    from google.protobuf import text_format

    config: PipelineConfig = runs.config(text, ranks=max(ranks, 1), data="short")
    for feature in config.feature_configs:
        own: Any = getattr(feature, feature.WhichOneof("feature") or "")
        if own.feature_name in LIVING:
            own.ClearField("num_buckets")
            text_format.Merge(LIVING[own.feature_name], own)
    return config


def left_of(folder: Path | str, step: int) -> dict[str, Any]:
    """All that decides who stays, by table."""
    tree: Any = read_checkpoint(Path(folder) / f"model.ckpt-{step}").tree
    found = {
        f"{name}.{key}": np.asarray(value).tolist()
        for name, own in tree["living"].items()
        for key, value in own.items()
    }
    return {key: sorted(value) if key.endswith(".window") else value for key, value in found.items()}


def train(runs: Any, ranks: int, jobs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What the first rank has left of each job."""
    if ranks == LOCAL:
        return [{"step": recgrad.train(**job).step} for job in jobs]
    left = runs.ranks(ranks, jobs)
    for rank in (rank for job in left for rank in job):
        assert "error" not in rank, rank["error"]
    return [job[0] for job in left]


@pytest.fixture(scope="module")
def begun(runs: Any) -> dict[int, Path]:
    """By number of ranks, the model_dir of a run of one epoch with deltas."""
    text = (
        "train_config { save_checkpoints_steps: 15 delta_embedding_dump_config { dump_interval_steps: 4 } }"
    )
    found = {}
    for ranks in (LOCAL, 2):
        config = living(runs, ranks, text)
        config.train_config.ClearField("save_checkpoints_epochs")
        job = runs.job(config)
        train(runs, ranks, [job])
        found[ranks] = Path(job["model_dir"])
    return found


def test_who_has_a_row_does_not_depend_on_the_number_of_ranks(
    begun: dict[int, Path], assert_same: Callable[..., None]
) -> None:
    one, two = (left_of(begun[ranks], STEPS) for ranks in (LOCAL, 2))
    assert one == two
    turnover = np.array([value for key, value in one.items() if key.endswith(".turnover")])
    assert (turnover.sum(axis=0) > 0).all()  # admitted, evicted, expired and turned away
    assert_same(begun[LOCAL], begun[2], STEPS)


@pytest.fixture(scope="module")
def whole(runs: Any) -> Path:
    """The model_dir of a run of two epochs in one process."""
    folder: Path = runs.local(living(runs, LOCAL, "train_config { num_epochs: 2 }"))[1]
    return folder


@pytest.mark.parametrize("reader", [LOCAL, 2, pytest.param(4, marks=pytest.mark.slow)])
def test_a_run_resumes_with_another_number_of_ranks(
    runs: Any, begun: dict[int, Path], whole: Path, assert_same: Callable[..., None], reader: int
) -> None:
    folders = []
    for writer in begun.values():
        shutil.copytree(writer, folder := runs.new_dir())
        folders.append(folder)
    config = living(runs, reader, "train_config { num_epochs: 2 }")
    train(runs, reader, [runs.job(config, folder, continue_train=True) for folder in folders])
    for folder in folders:
        assert left_of(folder, 2 * STEPS) == left_of(whole, 2 * STEPS)
        assert_same(whole, folder, 2 * STEPS)


def test_what_came_and_went_is_logged_for_all_ranks(begun: dict[int, Path]) -> None:
    import json

    found = []
    for folder in begun.values():
        events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
        found.append([event["turnover"] for event in events if event["kind"] == "train"])
    assert found[0] == found[1]
    assert all(own["capacity"] for own in found[0][-1].values())


def test_a_table_that_lives_is_not_spread(runs: Any) -> None:
    config = living(runs, 2, 'train_config { global_embedding_constraints { sharding_types: "row_wise" } }')
    assert any("as zch and dynamicemb need; allow table_wise" in problem for problem in runs.problems(config))


@pytest.mark.slow
def test_deltas_of_two_ranks_lead_to_an_export_of_their_checkpoint(
    begun: dict[int, Path], tmp_path: Path, runs: Any
) -> None:
    pytest.importorskip("onnxruntime")
    model = begun[2]
    deltas = model / "delta_embedding_dump"
    for step in (15, 20):
        recgrad.export_model(
            model, export_dir=tmp_path / f"bundle{step}", checkpoint_path=model / f"model.ckpt-{step}"
        )
    records = {number: read_record(path) for number, path in published(deltas).items()}
    assert [records[number].step for number in sorted(records)] == [4, 8, 12, 15, 16, 20]
    assert all(sum(name.endswith(".arrow") for name in r.files) == 2 for r in records.values())
    assert not [path for path in deltas.iterdir() if path.name.startswith(".")]
    scorer, expected = FollowingScorer(tmp_path / "bundle15", deltas), Scorer.load(tmp_path / "bundle20")
    assert scorer.follow() == 2
    rows = pq.read_table(runs.folder / "eval.parquet")
    first, second = scorer.score(rows), expected.score(rows)
    for name in second:
        assert first[name].tobytes() == second[name].tobytes()
