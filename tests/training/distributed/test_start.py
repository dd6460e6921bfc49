"""Where ranks begin from a checkpoint: they wait for the check of it, and each takes its own rows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from recgrad.training.checkpoint import read_checkpoint

TEXT = """train_config {
  num_steps: 6 save_checkpoints_steps: 100
  global_embedding_constraints { sharding_types: "row_wise" }
}"""


def test_a_long_check_of_the_checkpoint_is_waited_for(runs: Any) -> None:
    job = runs.job(runs.config(TEXT, ranks=2))
    longer = runs.config(f"{TEXT} train_config {{ num_steps: 8 process_timeout_secs: 5 }}", ranks=2)
    again = runs.job(longer, Path(job["model_dir"]), continue_train=True, slow_check_secs=0.5)
    first, second = runs.ranks(2, [job, again])
    for left in (*first, *second):
        assert "error" not in left, left["error"]
    assert [left["step"] for left in second] == [8, 8]
    assert second[0]["checked"] * 0.5 > 5  # longer than a rank is waited for that does not move


def test_fine_tuning_takes_what_one_process_does_and_reads_a_rank_s_own_rows(
    runs: Any, assert_same: Callable[..., None]
) -> None:
    _, local = runs.local(runs.config(TEXT))
    written = runs.job(runs.config(TEXT, ranks=2))
    tuning = f"{TEXT} train_config {{ num_steps: 4 }}"
    jobs = [
        runs.job(runs.config(tuning, ranks=2), fine_tune_checkpoint=source)
        for source in (str(local), written["model_dir"])
    ]
    _, *results = runs.ranks(2, [written, *jobs])
    _, expected = runs.local(runs.config(tuning), fine_tune_checkpoint=str(local))
    saved = {t.name: set(t.row_ids.tolist()) for t in read_checkpoint(local / "model.ckpt-6").tables}
    for job, left in zip(jobs, results, strict=True):
        for rank in left:
            assert "error" not in rank, rank["error"]
        assert_same(expected, job["model_dir"], 4)
        assert left[1]["checked"] == 0 < left[0]["checked"]
        first, second = (rank["read"] for rank in left)
        for name, rows in saved.items():
            assert first[name] | second[name] == rows, name
            if rows:  # a frozen table has none
                assert max(first[name]) < min(second[name]), name
