"""Ranks with unlike data: fewer rows, other batches, numbers that are not finite. None waits for ever."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from recgrad.training.checkpoint import read_checkpoint

QUICK = "train_config { process_timeout_secs: 120 }"  # ranks that compile kernels on a busy machine are slow
BATCH_NORM = """
feature_groups { group_name: "all" group_type: DEEP feature_names: ["user", "item", "words", "price"] }
feature_groups { group_name: "seq" group_type: SEQUENCE feature_names: ["item", "seen"] }
multi_tower_din {
  towers { input: "all" mlp { hidden_units: [8] use_bn: true dropout_ratio: 0.2 } }
  din_towers { input: "seq" attn_mlp { hidden_units: [8] } }
  final { hidden_units: [4] }
}
losses { binary_cross_entropy {} } metrics { auc {} } metrics { log_loss {} }
"""


def samples(job: dict[str, Any], step: int) -> int:
    tree: Any = read_checkpoint(Path(job["model_dir"]) / f"model.ckpt-{step}").tree
    return int(tree["state"]["samples"])


@pytest.fixture(scope="module")
def unlike(runs: Any) -> dict[str, Path]:
    """Files in the order of two ranks: the second rank's costs are higher."""
    table = pq.read_table(runs.folder / "train_2.parquet")
    half = table.num_rows // 2
    costs = np.concatenate([np.full(half, 1), np.full(table.num_rows - half, 3)])
    files = {
        "costs": table.set_column(table.schema.get_field_index("cost"), "cost", pa.array(costs)),
        "three": table.slice(0, 3),
        "one": table.slice(0, 1),
        "odd": table.slice(0, 333),
    }
    for name, rows in files.items():
        pq.write_table(rows, runs.folder / f"{name}.parquet")
    return {name: runs.folder / f"{name}.parquet" for name in files}


def test_no_rank_waits_for_data_that_another_has_not(
    runs: Any, unlike: dict[str, Path], assert_agree: Callable[..., None]
) -> None:
    by_cost = 'data_config { sample_cost_field: "cost" batch_cost_size: 48 sample_weight_fields: "weight" }'
    asking = "train_config { check_all_workers_data_status: true }"
    weighted = 'data_config { sample_weight_fields: "weight" }'
    cases = [
        ("costs", by_cost, []),
        ("costs", by_cost, [BATCH_NORM]),
        ("odd", asking, []),
        ("three", weighted, []),
        ("one", weighted, [BATCH_NORM]),
        ("one", asking + weighted, []),
    ]
    jobs = []
    for name, text, model in cases:
        config = runs.config(QUICK + text, *model, ranks=2)
        config.train_input_path = str(unlike[name])
        config.eval_input_path = str(unlike["three" if name == "costs" else name])
        jobs.append(runs.job(config))
    for (name, *_), job, left in zip(cases, jobs, runs.ranks(2, jobs), strict=True):
        assert_agree(left)
        rows = pq.read_metadata(unlike[name]).num_rows
        assert samples(job, left[0]["step"]) == sum(left[0]["rows"]) == rows, name
        assert left[0]["step"] == {"costs": 50, "odd": 11, "three": 1, "one": 1}[name]


def test_a_loss_that_is_not_finite_on_one_rank_concerns_all(
    runs: Any, assert_agree: Callable[..., None]
) -> None:
    broken = [1, 29]  # the second rank's 29th batch of 16
    skip, end = (
        runs.job(runs.config(f"{QUICK} train_config {{ on_nan: {choice} }}", ranks=2), broken=broken)
        for choice in ("SKIP", "STOP")
    )
    skipped, stopped = runs.ranks(2, [skip, end])
    assert_agree(skipped)
    assert skipped[0]["step"] == 49
    tree: Any = read_checkpoint(Path(skip["model_dir"]) / "model.ckpt-49").tree
    assert (tree["state"]["skipped"], tree["state"]["samples"]) == (1, 1_600 - 32)
    assert [rank["kind"] for rank in stopped] == ["ProcessError", "NumericalError"]
    own = stopped[1]["error"].splitlines()[0]
    assert own.startswith("step 29: the loss is not finite (binary_cross_entropy nan, total nan); rows ")
    assert "; rows 1248–1263 of train_2.parquet;" in own
    assert stopped[0]["error"].startswith("rank 1 failed: step 29: the loss is not finite")


@pytest.mark.slow
def test_four_ranks_with_three_rows(
    runs: Any, unlike: dict[str, Path], assert_agree: Callable[..., None]
) -> None:
    config = runs.config(QUICK + 'data_config { sample_weight_fields: "weight" }', BATCH_NORM, ranks=4)
    config.train_input_path = config.eval_input_path = str(unlike["three"])
    config.train_config.num_epochs = 3
    (left,) = runs.ranks(4, [runs.job(config)])
    assert_agree(left)
    assert (left[0]["step"], left[0]["rows"]) == (3, [3, 3, 3])
