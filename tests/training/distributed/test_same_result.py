"""Several ranks against one process with the local engine: the same weights, rows and metrics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

STEPS = 50
SLOW = pytest.mark.slow
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
CLICKED = 'task_space_indicator_label: "label" out_task_space_weight: 0.2'
MMOE = f"""
feature_groups {{ group_name: "all" group_type: DEEP feature_names: ["user", "item", "tags", "price"] }}
mmoe {{
  num_expert: 2 expert_mlp {{ hidden_units: [8] }}
  {TOWER.format(name="click", label="label", more="")}
  {TOWER.format(name="buy", label="buy", more=CLICKED)}
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


@pytest.fixture(scope="module")
def alone(runs: Any) -> dict[str, Any]:
    return {name: runs.local(_config(runs, name, 1)) for name in CASES}


def _config(runs: Any, name: str, ranks: int) -> Any:
    text, model = CASES[name]
    return runs.config(text, *([] if model is None else [model]), ranks=ranks)


@pytest.mark.parametrize("ranks", [pytest.param(1, marks=SLOW), 2, pytest.param(4, marks=SLOW)])
def test_ranks_end_where_one_process_does(
    runs: Any,
    alone: dict[str, Any],
    ranks: int,
    assert_agree: Callable[..., None],
    assert_same: Callable[..., None],
) -> None:
    jobs = [runs.job(_config(runs, name, ranks)) for name in CASES]
    for name, job, left in zip(CASES, jobs, runs.ranks(ranks, jobs), strict=True):
        assert_agree(left)
        result, folder = alone[name]
        assert left[0]["step"] == result.step == STEPS
        assert left[0]["metrics"] == pytest.approx(result.metrics, abs=2e-5), name
        assert_same(folder, job["model_dir"], STEPS)
