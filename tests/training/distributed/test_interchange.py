"""Checkpoints of any number of ranks are read by any other: same metrics, same state, every row once."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import recgrad
from recgrad.training.checkpoint import read_checkpoint

LOCAL = 0  # the number of ranks of a process without a launcher
ADAM = """train_config {
  sparse_optimizer { adam_optimizer { lr: 0.01 } } dense_optimizer { ema { decay: 0.9 } }
}"""
SPREAD = {LOCAL: "", 1: "", 2: "column_wise", 4: "row_wise"}
ROWS = 1_600
BATCH = 16  # on each rank, where a run goes on within an epoch
BEGUN = 20


def spread(ranks: int) -> str:
    if not SPREAD[ranks]:
        return ""
    return f'train_config {{ global_embedding_constraints {{ sharding_types: "{SPREAD[ranks]}" }} }}'


def train_all(runs: Any, ranks: int, jobs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The jobs by this number of ranks, or one process; what the first rank has left."""
    if ranks == LOCAL:
        found = [recgrad.train(**job) for job in jobs]
        return [{"step": one.step, "metrics": dict(one.metrics)} for one in found]
    left = runs.ranks(ranks, jobs)
    for job in left:
        for rank in job:
            assert "error" not in rank, rank["error"]
    return [job[0] for job in left]


def copied(runs: Any, folder: Path) -> Path:
    copy: Path = runs.new_dir()
    shutil.copytree(folder, copy)
    return copy


QUICK, ALL = (LOCAL, 2), (LOCAL, 1, 2, 4)
WORLDS = [QUICK, pytest.param(ALL, marks=pytest.mark.slow)]


def writers_for(reader: int, worlds: Sequence[int]) -> list[int]:
    """Whose checkpoints a number of ranks is to read; what is quick is not done again with the rest."""
    quick = reader in QUICK and worlds != QUICK
    return [writer for writer in worlds if not (quick and writer in QUICK)]


@pytest.mark.parametrize("worlds", WORLDS, ids=lambda worlds: "-".join(map(str, worlds)))
def test_all_that_an_optimizer_has_learned_is_handed_over(
    runs: Any, assert_same: Callable[..., None], worlds: Sequence[int]
) -> None:
    def config(ranks: int, epochs: int) -> Any:
        text = f"{ADAM} {spread(ranks)} train_config {{ num_epochs: {epochs} }}"
        return runs.config(text, ranks=max(ranks, 1), data="short")

    whole, reference = runs.local(config(LOCAL, 2))
    written: dict[int, Path] = {}
    for ranks in worlds:
        job = runs.job(config(ranks, 1))
        (left,) = train_all(runs, ranks, [job])
        written[ranks] = Path(job["model_dir"])
        # The weights that were saved are those that were evaluated.
        evaluated = recgrad.evaluate(written[ranks] / "pipeline.config")
        assert evaluated == pytest.approx(left["metrics"], abs=1e-6)
    for ranks in worlds:
        jobs = [
            runs.job(config(ranks, 2), copied(runs, written[writer]), continue_train=True)
            for writer in writers_for(ranks, worlds)
        ]
        for job, left in zip(jobs, train_all(runs, ranks, jobs), strict=True):
            assert left["step"] == whole.step == 40
            assert left["metrics"] == pytest.approx(whole.metrics, abs=5e-5)
            assert_same(reference, job["model_dir"], 40)


@pytest.mark.parametrize("worlds", WORLDS, ids=lambda worlds: "-".join(map(str, worlds)))
def test_another_number_of_ranks_finishes_the_epoch(runs: Any, worlds: Sequence[int]) -> None:
    marker = 'feature_configs { id_feature { feature_name: "row" num_buckets: 1600 embedding_dim: 4 } }'
    model = """
    feature_groups { group_name: "all" group_type: DEEP feature_names: ["user", "item", "words", "row"] }
    dcn_v2 { cross { cross_num: 1 low_rank: 4 } final { hidden_units: [4] } }
    losses { binary_cross_entropy {} } metrics { auc {} }
    """

    def config(ranks: int, length: str) -> Any:
        text = f"{marker} {spread(ranks)} train_config {{ {length} }}"
        text += f"data_config {{ shuffle: true shuffle_buffer_size: 8 batch_size: {BATCH} }}"
        made = runs.config(text, model)
        made.data_config.batch_size = BATCH
        return made

    begun: dict[int, Path] = {}
    for ranks in worlds:
        job = runs.job(config(ranks, f"num_steps: {BEGUN} save_checkpoints_steps: 50"))
        train_all(runs, ranks, [job])
        begun[ranks] = Path(job["model_dir"])
    for ranks in worlds:
        jobs = [
            runs.job(config(ranks, "num_epochs: 1"), copied(runs, begun[writer]), continue_train=True)
            for writer in writers_for(ranks, worlds)
        ]
        writers = writers_for(ranks, worlds)
        for writer, job, left in zip(writers, jobs, train_all(runs, ranks, jobs), strict=True):
            left_batches = ROWS // BATCH - BEGUN * max(writer, 1)
            assert left["step"] == BEGUN + -(-left_batches // max(ranks, 1)), (writer, ranks)
            snapshot = read_checkpoint(Path(job["model_dir"]) / f"model.ckpt-{left['step']}")
            tree: Any = snapshot.tree
            assert tree["state"]["samples"] == ROWS, (writer, ranks)
            # As many rows as there are, and each of them: none was there twice.
            seen = {row for t in snapshot.tables if t.name == "row_emb" for row in t.row_ids.tolist()}
            assert seen == set(range(ROWS)), (writer, ranks)
            assert tree["state"]["epoch"] == 1
            assert pq.read_metadata(runs.folder / "train_1.parquet").num_rows == ROWS
