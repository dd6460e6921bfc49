"""Checks of optimizers and schedules: each mistake is named in these words."""

# One line a case: the expected messages are kept whole.
# ruff: noqa: E501

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from recgrad.config.proto import optimizer_pb2

Problems = Callable[..., list[str]]
DENSE = "train_config.dense_optimizer"
SPARSE = "train_config.sparse_optimizer"
NONE_EFFECT = "has no effect with weight_decay_mode NONE; set the mode to L2 or DECOUPLE, got 0.1"


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        ("lr", -1, "must be at least 0, got -1"),
        ("lr", "nan", "must be a finite number, got nan"),
        ("lr", "inf", "must be a finite number, got inf"),
        ("beta1", 1, "must be in [0, 1), got 1"),
        ("beta2", -0.5, "must be in [0, 1), got -0.5"),
        ("eps", 0, "must be greater than 0, got 0"),
        ("weight_decay", -1, "must be at least 0, got -1"),
    ],
)
def test_adam_ranges(problems: Problems, path: str, value: Any, expected: str) -> None:
    assert problems({f"{DENSE}.adam_optimizer.{path}": value}) == [
        f"{DENSE}.adam_optimizer.{path}: {expected}"
    ]


@pytest.mark.parametrize(
    ("optimizer", "expected"),
    [
        (f"{DENSE}.sgd_optimizer {{ momentum: 1 }}", [".momentum: must be in [0, 1), got 1"]),
        (
            f"{DENSE}.sgd_optimizer {{ nesterov: true momentum: 0 }}",
            [".nesterov: needs a momentum above 0 and no dampening"],
        ),
        (f"{DENSE}.adadelta_optimizer {{ rho: 2 }}", [".rho: must be in [0, 1], got 2"]),
        (f"{DENSE}.muon_optimizer {{ ns_steps: 0 fallback_lr: -1 }}", [
            ".ns_steps: must be in [1, 100], got 0", ".fallback_lr: must be at least 0, got -1"]),
        (f"{DENSE}.schedule_free_sgd_optimizer {{ momentum: 0 }}", [".momentum: must be in (0, 1), got 0"]),
        (f"{DENSE}.adafactor_optimizer {{ beta2_decay: 0.5 }}", [".beta2_decay: must be less than 0, got 0.5"]),
        (f"{SPARSE}.ftrl_optimizer {{ lr_power: 1 }}", [".lr_power: must be at most 0, got 1"]),
        (f"{SPARSE}.rowwise_adagrad_optimizer {{ weight_decay: 0.1 }}", [f".weight_decay: {NONE_EFFECT}"]),
        (
            f"{SPARSE}.adam_optimizer {{ weight_decay: 0.1 weight_decay_mode: NONE }}",
            [f".weight_decay: {NONE_EFFECT}"],
        ),
        (f"{SPARSE}.adam_optimizer {{ weight_decay: 0.1 }}", []),
        (
            f"{SPARSE}.sgd_optimizer {{ max_gradient: 2 }}",
            [".max_gradient: has no effect without gradient_clipping: true; set that, or remove it"],
        ),
        (f"{SPARSE}.sgd_optimizer {{ gradient_clipping: true max_gradient: 2 }}", []),
    ],
    ids=str,
)  # fmt: skip
def test_optimizers(problems: Problems, optimizer: str, expected: list[str]) -> None:
    path, _, body = optimizer.partition(" ")
    assert problems({path: body}) == [path + line for line in expected]


def test_every_optimizer_is_sound_with_its_defaults(problems: Problems) -> None:
    for holder, message in ((DENSE, optimizer_pb2.DenseOptimizer), (SPARSE, optimizer_pb2.SparseOptimizer)):
        for field in message.DESCRIPTOR.oneofs_by_name["optimizer"].fields:
            value = {"class_path": "a.B"} if field.name.startswith("custom") else {}
            assert problems({f"{holder}.{field.name}": value}) == [], field.name


def test_part_optimizers(problems: Problems) -> None:
    parts = [
        {"regex_pattern": "a(", "sgd_optimizer": {}},
        {"regex_pattern": "b"},
        {"regex_pattern": "c", "sgd_optimizer": {}},
        {"regex_pattern": "c", "sgd_optimizer": {"lr": "nan"}},
        {"regex_pattern": "(" * 1001, "sgd_optimizer": {}},
    ]
    long = f"'{'(' * 60}'… (1001 characters)"
    assert sorted(problems({f"{DENSE}.part_optimizers": parts})) == [
        f"{DENSE}.part_optimizers[0].regex_pattern: 'a(' is not a pattern: "
        "missing ), unterminated subpattern at position 1",
        f"{DENSE}.part_optimizers[1]: names no optimizer",
        f"{DENSE}.part_optimizers[3].regex_pattern: 'c' is given twice; the first would take all that it matches",
        f"{DENSE}.part_optimizers[3].sgd_optimizer.lr: must be a finite number, got nan",
        f"{DENSE}.part_optimizers[4].regex_pattern: {long} is not a pattern: longer than 1000 characters",
    ]


def test_ema(problems: Problems) -> None:
    assert problems({f"{DENSE}.ema.decay": 1}) == [f"{DENSE}.ema.decay: must be in [0, 1), got 1"]
    needs = "eval_config.use_dense_ema: needs an ema in train_config.dense_optimizer"
    assert problems({"eval_config.use_dense_ema": True}) == [needs]


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        (
            "manual_step_learning_rate { schedule_sizes: [1, 2] learning_rates: 0.1 }",
            [".schedule_sizes: schedule_sizes and learning_rates must be as many, got 2 and 1"],
        ),
        (
            "manual_step_learning_rate { schedule_sizes: [5, 5] learning_rates: [0.1, 1] }",
            [".schedule_sizes[1]: must rise, got 5 after 5"],
        ),
        (
            "manual_step_learning_rate { schedule_sizes: [5, 5] learning_rates: [0.1, -1] }",
            [".learning_rates[1]: must be at least 0, got -1"],
        ),
        (
            "manual_step_learning_rate {}",
            [": schedule_sizes and learning_rates are empty; give at least one of each"],
        ),
        (
            "manual_step_learning_rate { schedule_sizes: 5 learning_rates: 1 warmup: true warmup_size: 3 }",
            [".warmup: warmup and warmup_size are both set; keep one"],
        ),
        (
            "manual_step_learning_rate { schedule_sizes: 0 learning_rates: 1 warmup: true }",
            [".schedule_sizes[0]: must be at least 1 with warmup, got 0"],
        ),
        ("manual_step_learning_rate { schedule_sizes: [5, 6] learning_rates: [0.1, 0.2] }", []),
        ("exponential_decay_learning_rate {}", [".decay_size: is required"]),
        (
            "exponential_decay_learning_rate { decay_size: 0 decay_factor: 0 min_learning_rate: -1 }",
            [
                ".decay_size: must be at least 1, got 0",
                ".decay_factor: must be greater than 0, got 0",
                ".min_learning_rate: must be at least 0, got -1",
            ],
        ),
        ("cosine_annealing_learning_rate {}", [".T_max: is required"]),
        (
            "cosine_annealing_warm_restarts_learning_rate { T_0: 5 T_mult: 0 }",
            [".T_mult: must be at least 1, got 0"],
        ),
        (
            "one_cycle_learning_rate { total_size: 5 pct_start: 2 anneal: 'cosine' base_momentum: 0.97 }",
            [
                ".pct_start: must be in [0, 1], got 2",
                ".anneal: must be one of 'cos', 'linear', got 'cosine'; did you mean 'cos'?",
            ],
        ),
        (
            "one_cycle_learning_rate { total_size: 5 base_momentum: 0.97 }",
            [".base_momentum: must be at most max_momentum 0.95, got 0.97"],
        ),
        ("step_decay_learning_rate { step_size: 5 gamma: 0 }", [".gamma: must be in (0, 1], got 0"]),
        (
            "polynomial_decay_learning_rate { decay_size: 5 power: 0 }",
            [".power: must be greater than 0, got 0"],
        ),
        ("inverse_sqrt_learning_rate { warmup_size: 0 }", [".warmup_size: must be at least 1, got 0"]),
        (
            "warmup_stable_decay_learning_rate { decay_size: 5 }",
            [".stable_size: is required"],
        ),
        (
            "warmup_stable_decay_learning_rate { stable_size: 1 decay_size: 5 decay_shape: 'exponential' }",
            [".decay_shape: decay_shape 'exponential' needs a min_learning_rate above 0, got 0"],
        ),
        (
            "reduce_on_plateau_learning_rate { mode: 'up' factor: 1 threshold_mode: 'x' metric: '' }",
            [
                ".mode: must be one of 'max', 'min', got 'up'",
                ".factor: must be in (0, 1), got 1",
                ".threshold_mode: must be one of 'rel', 'abs', got 'x'",
            ],
        ),
        (
            "reduce_on_plateau_learning_rate { metric: '' }",
            [".metric: is empty; name the metric to watch"],
        ),
        (
            "sequence_learning_rate { stages { constant_learning_rate {} } stages {} }",
            [
                ".stages[0]: must have a size: only the last stage may go without",
                ".stages[1]: names no schedule",
            ],
        ),
        (
            "sequence_learning_rate { stages { linear_decay_learning_rate { decay_size: 2 by_epoch: true } } }",
            [
                ".stages[0].linear_decay_learning_rate.by_epoch: belongs on the sequence; all stages count the same"
            ],
        ),
        (
            "sequence_learning_rate { stages { size: 2 linear_decay_learning_rate {} } stages "
            "{ constant_learning_rate {} } }",
            [".stages[0].linear_decay_learning_rate.decay_size: is required"],
        ),
        ("linear_decay_learning_rate { decay_size: 10 warmup_size: 3 }", []),
    ],
)
def test_schedules(problems: Problems, schedule: str, expected: list[str]) -> None:
    name, _, body = schedule.partition(" ")
    got = problems({f"{DENSE}.{name}": body})
    assert got == [f"{DENSE}.{name}{line}" for line in expected]
