"""Several ranks against one process with the local engine: the same weights, rows and metrics."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from recgrad.training.checkpoint import Snapshot, read_checkpoint

STEPS = 50
TOWER = """task_towers {{ tower_name: "{name}" label_name: "{label}" mlp {{ hidden_units: [4] }} {more}
  losses {{ binary_cross_entropy {{}} }} metrics {{ auc {{}} }} metrics {{ log_loss {{}} }} }}"""
DIN = """
feature_groups { group_name: "all" group_type: DEEP feature_names: ["user", "city", "words", "price"] }
feature_groups { group_name: "seq" group_type: SEQUENCE feature_names: ["item", "seen"] }
multi_tower_din {
  towers { input: "all" mlp { hidden_units: [8] } }
  din_towers { input: "seq" attn_mlp { hidden_units: [8] } }
  final { hidden_units: [4] }
}
losses { binary_cross_entropy {} } metrics { auc {} } metrics { grouped_auc { grouping_key: "user" } }
"""
MMOE = f"""
feature_groups {{ group_name: "all" group_type: DEEP feature_names: ["user", "item", "tags", "price"] }}
mmoe {{
  num_expert: 2 expert_mlp {{ hidden_units: [8] }}
  {TOWER.format(name="click", label="label", more="")}
  {TOWER.format(name="buy", label="buy", more='task_space_indicator_label: "label" out_task_space_weight: 0.2')}
}}
"""


def optimizers(sparse: str, dense: str, more: str = "") -> str:
    return (
        f"train_config {{ sparse_optimizer {{ {sparse} }} dense_optimizer {{ {dense} }} "
        f"num_epochs: 1 {more} }}"
    )


SGD, ADAM = "sgd_optimizer { lr: 0.1 }", "adam_optimizer { lr: 0.01 }"
CASES = {
    "sgd, sgd": (optimizers(SGD, SGD), None),
    "adagrad, adam": (optimizers("adagrad_optimizer { lr: 0.05 }", ADAM), None),
    "adam, adam": (optimizers("adam_optimizer { lr: 0.01 }", ADAM), None),
    "din": (optimizers(SGD, SGD), DIN),
    "mmoe": (optimizers("adagrad_optimizer { lr: 0.05 }", SGD) + 'data_config { label_fields: "buy" }', MMOE),
}


def tables(snapshot: Snapshot) -> dict[str, dict[int, np.ndarray[Any, Any]]]:
    """Rows by table and number, put together from the pieces of all ranks."""
    found: dict[str, dict[int, Any]] = {}
    for table in snapshot.tables:
        rows = found.setdefault(table.name, {})
        for piece in table.pieces():
            rows.update(zip(piece.row_ids.tolist(), piece.weights, strict=True))
    return found


def assert_same(one: Path, several: Path, step: int = STEPS, tolerance: float = 2e-5) -> None:
    a, b = (read_checkpoint(folder / f"model.ckpt-{step}") for folder in (one, several))
    assert list(a.tree["model"]) == list(b.tree["model"])
    for name, value in a.tree["model"].items():
        np.testing.assert_allclose(b.tree["model"][name], value, rtol=0, atol=tolerance, err_msg=name)
    left, right = tables(a), tables(b)
    assert left.keys() == right.keys()
    for name, rows in left.items():
        assert rows.keys() == right[name].keys(), name
        for number, row in rows.items():
            np.testing.assert_allclose(right[name][number], row, rtol=0, atol=tolerance, err_msg=name)


def assert_agree(left: Sequence[dict[str, Any]]) -> None:
    """All ranks ended alike, with the same bits in every dense weight."""
    for rank in left:
        assert "error" not in rank, rank["error"]
        assert rank["dense"]
        assert (rank["step"], rank["metrics"]) == (left[0]["step"], left[0]["metrics"])
        for name, value in rank["dense"].items():
            assert value.tobytes() == left[0]["dense"][name].tobytes(), name


@pytest.fixture(scope="module")
def alone(runs: Any) -> dict[str, Any]:
    return {name: runs.local(_config(runs, name, 1)) for name in CASES}


def _config(runs: Any, name: str, ranks: int) -> Any:
    text, model = CASES[name]
    return runs.config(text, *([] if model is None else [model]), ranks=ranks)


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_ranks_end_where_one_process_does(runs: Any, alone: dict[str, Any], ranks: int) -> None:
    jobs = [runs.job(_config(runs, name, ranks)) for name in CASES]
    for name, job, left in zip(CASES, jobs, runs.ranks(ranks, jobs), strict=True):
        assert_agree(left)
        result, folder = alone[name]
        assert left[0]["step"] == result.step == STEPS
        assert left[0]["metrics"].keys() == result.metrics.keys()
        for metric, value in result.metrics.items():
            assert left[0]["metrics"][metric] == pytest.approx(value, abs=2e-5), (name, metric)
        assert_same(folder, Path(job["model_dir"]))
