"""Where ranks begin from a checkpoint: they wait for the check of it, and each takes its own rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

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
