"""What a run may be asked for means the same on two ranks as in one process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from recgrad.errors import ConfigError

BATCH_NORM = """
feature_groups { group_name: "all" group_type: DEEP feature_names: ["user", "item", "words", "price"] }
dcn_v2 {
  cross { cross_num: 1 low_rank: 4 } deep { hidden_units: [8] use_bn: true } final { hidden_units: [4] }
}
losses { binary_cross_entropy {} } metrics { auc {} } metrics { log_loss {} }
"""
ADAM = "adam_optimizer { lr: 0.01 }"
SGD = "sgd_optimizer { lr: 0.1 }"


def dense(text: str) -> str:
    return f"train_config {{ dense_optimizer {{ {text} }} }}"


def spread(kind: str) -> str:
    return f'global_embedding_constraints {{ sharding_types: "{kind}" }}'


def training(text: str) -> str:
    return f"train_config {{ {text} }}"


# By name: what is merged into the config; equal to one process up to the rounding of sums.
EQUAL = {
    "accumulation": training("gradient_accumulation_steps: 3"),
    "norm of all gradients": training(
        f'grad_clipping {{ clipping_type: "norm" max_gradient: 0.02 enable_global_grad_clip: true }} '
        f"{spread('row_wise')}"
    ),
    "norm of all gradients with copies": training(
        f'grad_clipping {{ clipping_type: "norm" max_gradient: 0.02 enable_global_grad_clip: true }} '
        f"{spread('data_parallel')}"
    ),
    "norm of dense gradients": training(
        f'grad_clipping {{ clipping_type: "norm" max_gradient: 0.02 }} {spread("column_wise")}'
    ),
    "clamped dense gradients": training('grad_clipping { clipping_type: "value" max_gradient: 0.001 }'),
    "clamped elements, of features in several groups": (
        "train_config { sparse_optimizer { sgd_optimizer { "
        "lr: 0.3 gradient_clipping: true max_gradient: 0.0005 } } }"
    ),
    "moving average": dense(f"{ADAM} ema {{ decay: 0.9 }}"),
    "plateau": training("num_steps: 50 save_checkpoints_steps: 10")
    + dense(
        f'{SGD} reduce_on_plateau_learning_rate {{ metric: "log_loss" mode: "max" patience: 1 factor: 0.1 }}'
    ),
    "early stopping": training(
        "num_steps: 50 save_checkpoints_steps: 5 "
        'early_stopping { metric: "log_loss" mode: "max" patience: 2 }'
    ),
    "sample weights": 'data_config { dataset_type: ParquetDataset sample_weight_fields: "weight" }',
    "best": training("num_steps: 50 save_checkpoints_steps: 10")
    + 'export_config { exporter_type: "best" best_exporter_metric: "auc" }',
}
# Sums of halves depend on their order, and BatchNorm on the rank's own rows: here ranks must agree.
AGREE = {
    "BF16": (training('mixed_precision: "BF16"'), None),
    "FP16": (training('mixed_precision: "FP16" grad_scaler { init_scale: 1e9 growth_interval: 10 }'), None),
    "schedule-free": (dense("schedule_free_adamw_optimizer { lr: 0.01 }"), BATCH_NORM),
    "BatchNorm with moving average": (dense(f"{ADAM} ema {{ decay: 0.9 }}"), BATCH_NORM),
}


def test_two_ranks_mean_what_one_process_does(
    runs: Any, assert_agree: Callable[..., None], assert_same: Callable[..., None]
) -> None:
    jobs = [runs.job(runs.config(text, ranks=2)) for text in EQUAL.values()]
    for (name, text), job, left in zip(EQUAL.items(), jobs, runs.ranks(2, jobs), strict=True):
        print(name)
        result, folder = runs.local(runs.config(text))
        assert_agree(left)
        assert (left[0]["step"], left[0]["stopped"]) == (result.step, result.stopped)
        assert left[0]["metrics"] == pytest.approx(result.metrics, abs=2e-5)
        assert_same(folder, job["model_dir"], result.step)
        if name == "early stopping":
            assert result.step == 15


def test_all_ranks_end_with_the_same_bits(runs: Any, assert_agree: Callable[..., None]) -> None:
    configs = {name: (text, *([model] if model else [])) for name, (text, model) in AGREE.items()}
    jobs = [runs.job(runs.config(*parts, ranks=2)) for parts in configs.values()]
    for (name, parts), left in zip(configs.items(), runs.ranks(2, jobs), strict=True):
        print(name)
        assert_agree(left)
        result, _ = runs.local(runs.config(*parts))
        assert left[0]["step"] == result.step
        assert left[0]["metrics"]["auc"] == pytest.approx(result.metrics["auc"], abs=0.05)


def test_a_way_to_spread_tables_that_there_is_not_is_refused(runs: Any) -> None:
    with pytest.raises(ConfigError, match="sharding_types") as caught:
        runs.local(runs.config(training(spread("diagonal_wise"))))
    assert "diagonal_wise" in str(caught.value)


def test_columns_apart_with_an_optimizer_of_whole_rows_are_refused(runs: Any) -> None:
    rows = "sparse_optimizer { rowwise_adagrad_optimizer { lr: 0.1 } }"
    assert runs.problems(runs.config(training(f"{rows} {spread('column_wise')}"), ranks=2)) == [
        "train_config.global_embedding_constraints.sharding_types: tables 'user_emb_wide', 'items_wide', "
        "'words_emb_wide' and 4 more may be spread by columns alone, but "
        "rowwise_adagrad_optimizer needs whole rows; allow one of table_wise, row_wise, data_parallel"
    ]
