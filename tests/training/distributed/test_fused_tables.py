"""Runs whose tables have FBGEMM's kernels: as one process with ours, and as if never stopped."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import recgrad
from recgrad.config import save_config

STEPS = 100


def fused(kind: str = "table_wise", more: str = "") -> str:
    constraints = f'sharding_types: "{kind}" compute_kernels: "fused"'
    return f"train_config {{ global_embedding_constraints {{ {constraints} }} {more} }}"


SCHEDULE = (
    "sparse_optimizer { adagrad_optimizer { lr: 0.05 initial_accumulator_value: 0.1 } "
    "exponential_decay_learning_rate { decay_size: 7 decay_factor: 0.8 warmup_size: 5 } }"
)
ROW_WISE = "sparse_optimizer { rowwise_adagrad_optimizer { lr: 0.05 } }"
NORM = 'grad_clipping { clipping_type: "norm" max_gradient: 0.02 enable_global_grad_clip: true }'
CLAMPED = (
    "sparse_optimizer { sgd_optimizer { lr: 0.3 gradient_clipping: true max_gradient: 0.0005 } "
    'part_optimizers { regex_pattern: "items.*" adagrad_optimizer { lr: 0.02 } } }'
)
EQUAL = {
    "schedule": fused("row_wise", SCHEDULE),
    "columns, accumulation": fused("column_wise", "gradient_accumulation_steps: 3"),
    "norm of all gradients": fused("row_wise", f"{ROW_WISE} {NORM}"),
    "clamped elements, two optimizers": fused("table_wise", CLAMPED),
    "copies of our own": fused("row_wise", NORM),
}


def config_of(runs: Any, name: str, ranks: int) -> Any:
    config = runs.config(EQUAL[name], ranks=ranks)
    if name == "copies of our own":
        own = config.feature_configs[0].id_feature.embedding_constraints
        own.sharding_types.append("data_parallel")
        own.compute_kernels.append("customized_kernel")
    return config


def test_two_ranks_mean_what_one_process_does(
    runs: Any, assert_agree: Callable[..., None], assert_same: Callable[..., None]
) -> None:
    jobs = [runs.job(config_of(runs, name, ranks=2)) for name in EQUAL]
    everything = runs.ranks(2, jobs)
    for name, job, left in zip(EQUAL, jobs, everything, strict=True):
        print(name)
        result, folder = runs.local(config_of(runs, name, ranks=1))
        assert_agree(left)
        assert left[0]["metrics"] == pytest.approx(result.metrics, abs=2e-5)
        assert_same(folder, job["model_dir"], result.step)
    # One process reads what FBGEMM's tables have learned.
    evaluated = recgrad.evaluate(Path(jobs[0]["model_dir"]) / "pipeline.config")
    assert evaluated == pytest.approx(everything[0][0]["metrics"], abs=1e-6)


def test_updates_that_overflow_are_skipped(runs: Any, assert_agree: Callable[..., None]) -> None:
    scaled = 'mixed_precision: "FP16" grad_scaler { init_scale: 1e9 growth_interval: 10 }'
    kernels = [fused("row_wise", scaled), fused("row_wise", scaled).replace('"fused"', '"customized_kernel"')]
    theirs, ours = runs.ranks(2, [runs.job(runs.config(text, ranks=2)) for text in kernels])
    assert_agree(theirs)
    # Halves lose what sums of another order round, so the two are near each other and no more.
    assert theirs[0]["metrics"]["auc"] == pytest.approx(ours[0]["metrics"]["auc"], abs=0.02)


REFUSED = {
    "sparse_optimizer { lion_optimizer { lr: 0.001 } }": (
        "cannot have fused (FBGEMM has no lion_optimizer); add customized_kernel, which has everything"
    ),
    "sparse_optimizer { lamb_optimizer { lr: 0.001 } }": "FBGEMM has another formula for lamb_optimizer",
    "sparse_optimizer { adagrad_optimizer { lr: 0.1 weight_decay: 0.1 } }": (
        "FBGEMM has no weight_decay of adagrad_optimizer with mode L2"
    ),
    "sparse_optimizer { adam_optimizer { lr: 0.1 weight_decay: 0.1 weight_decay_mode: L2 } }": (
        "FBGEMM has no weight_decay of adam_optimizer with mode L2"
    ),
}


@pytest.mark.parametrize("text", REFUSED)
def test_what_no_device_has_is_refused_by_the_check(runs: Any, text: str) -> None:
    first = runs.problems(runs.config(fused("row_wise", text), ranks=2))[0]
    assert first.startswith(
        "train_config.global_embedding_constraints.compute_kernels: tables 'user_emb_wide'"
    )
    assert REFUSED[text] in first


def test_a_feature_is_named_by_its_own_constraints(runs: Any) -> None:
    config = runs.config(
        'feature_configs { id_feature { feature_name: "shop" num_buckets: 9 embedding_dim: 6 } }'
    )
    config.model_config.feature_groups[2].feature_names.append("shop")
    config.feature_configs[-1].id_feature.embedding_constraints.compute_kernels.append("fused")
    assert runs.problems(config) == [
        "feature_configs[8].id_feature.embedding_constraints.compute_kernels: table 'shop_emb' cannot have "
        "fused (FBGEMM needs a dim that is a multiple of 4, this one is 6); "
        "add customized_kernel, which has everything"
    ]


def train(command: Callable[..., Any], path: Path, folder: Path, *more: str) -> Any:
    return command("train", str(path), "--model_dir", str(folder), "--nproc", "2", "--device", "cpu", *more)


def last_step(folder: Path) -> int:
    events = folder / "events.jsonl"
    lines = events.read_text().splitlines() if events.exists() else []
    return max((json.loads(line).get("step", 0) for line in lines if line.endswith("}")), default=0)


@pytest.mark.slow
def test_a_run_that_was_stopped_resumes_bit_for_bit(runs: Any, command: Callable[..., Any]) -> None:
    more = f"{SCHEDULE} num_epochs: 2 save_checkpoints_steps: 10 log_step_count_steps: 5"
    config = runs.config(fused("row_wise", more) + " data_config { shuffle: true }", ranks=2)
    config.train_config.ClearField("save_checkpoints_epochs")
    path = runs.folder / "fused.config"
    save_config(config, path)
    whole, stopped = runs.new_dir(), runs.new_dir()
    run = train(command, path, whole)
    assert run.wait() == 0, run.said
    assert any(line.split()[3:5] == ["row_wise", "fused"] for line in run.said.splitlines())
    run = train(command, path, stopped)
    deadline = time.monotonic() + 90
    while last_step(stopped) < 25:
        assert run.process.poll() is None, run.wait() or run.said
        assert time.monotonic() < deadline
        time.sleep(0.01)
    run.process.send_signal(signal.SIGTERM)
    assert run.wait(60) == 143, run.said
    assert last_step(stopped) < STEPS
    run = train(command, path, stopped, "--continue_train")
    assert run.wait() == 0, run.said
    ends = [(folder / f"model.ckpt-{STEPS}" / "manifest.json").read_text() for folder in (whole, stopped)]
    assert "crc32" in ends[0]
    assert ends[0] == ends[1]


@pytest.mark.slow
def test_what_a_cpu_has_not_is_refused_when_the_run_starts(runs: Any, command: Callable[..., Any]) -> None:
    rows = (
        "sparse_optimizer { rowwise_adagrad_optimizer { lr: 0.1 weight_decay: 0.1 weight_decay_mode: L2 } }"
    )
    path = runs.job(runs.config(fused("row_wise", rows), ranks=2))["config"]
    run = train(command, path, runs.new_dir())
    assert run.wait() == 2, run.said
    assert "Traceback" not in run.said
    assert "tables over" not in run.said
    assert "train_config.global_embedding_constraints.compute_kernels: tables" in run.said
    assert "FBGEMM gets weight_decay of rowwise_adagrad_optimizer with mode L2 wrong on CPUs" in run.said
