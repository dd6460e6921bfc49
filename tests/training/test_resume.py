"""A run that was interrupted and continued ends with the same bytes as one that was not."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from google.protobuf import text_format

import recgrad
from recgrad.config import PipelineConfig, save_config
from recgrad.data.position import FROM_WEIGHTS
from recgrad.errors import CheckpointError, DataError, RecgradError
from recgrad.limits import required_of
from recgrad.optim.dense import DENSE_OPTIMIZERS
from recgrad.optim.schedules import SCHEDULES
from recgrad.optim.sparse import SPARSE_OPTIMIZERS
from recgrad.training.checkpoint import Snapshot, read_checkpoint
from recgrad.training.trainer import Trainer

STEPS = 20


class CrashError(Exception):
    """Stands for the process that is gone."""


def assert_same_value(a: Any, b: Any, path: str) -> None:
    assert type(a) is type(b), path
    if isinstance(a, torch.Tensor):
        assert a.dtype == b.dtype, path
        assert a.numpy().tobytes() == b.numpy().tobytes(), path
    elif isinstance(a, np.ndarray):
        assert a.tobytes() == b.tobytes(), path
    elif isinstance(a, dict):
        assert list(a) == list(b), path
        for key in a:
            assert_same_value(a[key], b[key], f"{path}.{key}")
    elif isinstance(a, (list, tuple)):
        assert len(a) == len(b), path
        for i, (x, y) in enumerate(zip(a, b, strict=True)):
            assert_same_value(x, y, f"{path}[{i}]")
    else:
        assert a == b or (a != a and b != b), f"{path}: {a} != {b}"


def assert_same_bytes(a: Snapshot, b: Snapshot) -> None:
    assert a.step == b.step
    assert_same_value(dict(a.tree), dict(b.tree), "tree")
    assert [table.name for table in a.tables] == [table.name for table in b.tables]
    for one, other in zip(a.tables, b.tables, strict=True):
        assert one.row_ids.tobytes() == other.row_ids.tobytes(), one.name
        assert one.weights.tobytes() == other.weights.tobytes(), one.name
        assert_same_value(dict(one.states), dict(other.states), one.name)


def by_steps(config: PipelineConfig, steps: int = STEPS, every: int = 4) -> None:
    config.train_config.ClearField("num_epochs")
    config.train_config.ClearField("save_checkpoints_epochs")
    config.train_config.num_steps = steps
    config.train_config.save_checkpoints_steps = every


def crash_at(monkeypatch: pytest.MonkeyPatch, step: int, saved: Path | None = None) -> Callable[[], None]:
    """Let the next run crash in a step, after the checkpoint `saved` has been written."""
    original = Trainer._report

    def report(self: Trainer) -> Any:
        if self.state.step == step:
            deadline = time.monotonic() + 60
            while saved is not None and not saved.exists():
                assert time.monotonic() < deadline, f"{saved} is not written"
                time.sleep(0.01)
            raise CrashError
        return original(self)

    monkeypatch.setattr(Trainer, "_report", report)
    return lambda: monkeypatch.setattr(Trainer, "_report", original)


def saved_steps(folder: Path) -> list[int]:
    return [int(path.name.removeprefix("model.ckpt-")) for path in folder.glob("model.ckpt-*")]


def end_of(folder: Path, step: int = STEPS) -> Snapshot:
    return read_checkpoint(folder / f"model.ckpt-{step}")


def compare_crashed_with_whole(
    config: PipelineConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    """Compare a run that crashes in `step`, after the last checkpoint before it, with one that does not."""
    whole = recgrad.train(config, model_dir=tmp_path / "whole")
    last = max((s for s in saved_steps(tmp_path / "whole") if s < step), default=0)
    undo = crash_at(monkeypatch, step, tmp_path / "crashed" / f"model.ckpt-{last}" if last else None)
    with pytest.raises(CrashError):
        recgrad.train(config, model_dir=tmp_path / "crashed")
    undo()
    continued = recgrad.train(config, model_dir=tmp_path / "crashed", continue_train=True)
    events = map(json.loads, (tmp_path / "crashed" / "events.jsonl").read_text().splitlines())
    assert [event["step"] for event in events if event["kind"] == "start"] == [0, last]
    assert continued.metrics == whole.metrics
    assert_same_bytes(end_of(tmp_path / "whole", whole.step), end_of(tmp_path / "crashed", whole.step))
    name = "train_eval_result.txt"
    assert (tmp_path / "whole" / name).read_text() == (tmp_path / "crashed" / name).read_text()


def test_a_crash_before_the_first_checkpoint_starts_over(
    config: PipelineConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_steps(config)
    compare_crashed_with_whole(config, tmp_path, monkeypatch, step=2)


@pytest.mark.parametrize("step", [5, 17])
@pytest.mark.parametrize("shuffle", [False, True])
def test_a_crash_mid_epoch_leaves_no_trace(
    config: PipelineConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int, shuffle: bool
) -> None:
    by_steps(config)
    config.data_config.shuffle = shuffle
    compare_crashed_with_whole(config, tmp_path, monkeypatch, step)


def test_by_epochs_too(config: PipelineConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config.train_config.num_epochs = 2
    compare_crashed_with_whole(config, tmp_path, monkeypatch, step=20)


SPARSE = sorted(set(SPARSE_OPTIMIZERS) - {"custom_optimizer"})
DENSE = sorted(set(DENSE_OPTIMIZERS) - {"custom_optimizer"})
# By name, settings with which the rate changes in the steps of these runs; others get 5 for what they need.
SCHEDULE_SETTINGS = {
    name: " ".join(f"{setting}: 5" for setting in required_of(cls)) for name, cls in SCHEDULES.items()
} | {
    "constant_learning_rate": "warmup_size: 12",
    "cosine_annealing_learning_rate": "T_max: 15",
    "cosine_annealing_warm_restarts_learning_rate": "T_0: 3 T_mult: 2 warmup_size: 2",
    "exponential_decay_learning_rate": "decay_size: 3",
    "inverse_sqrt_learning_rate": "warmup_size: 4",
    "linear_decay_learning_rate": "decay_size: 18",
    "manual_step_learning_rate": "schedule_sizes: [4, 9] learning_rates: [0.02, 0.001]",
    "one_cycle_learning_rate": "total_size: 20",
    "polynomial_decay_learning_rate": "decay_size: 18 power: 2",
    "reduce_on_plateau_learning_rate": "metric: 'auc' patience: 0 factor: 0.5 threshold: 1.0",
    "sequence_learning_rate": "stages { size: 6 constant_learning_rate {} } "
    "stages { linear_decay_learning_rate { decay_size: 10 } }",
    "step_decay_learning_rate": "step_size: 3 gamma: 0.5",
    "warmup_stable_decay_learning_rate": "warmup_size: 3 stable_size: 5 decay_size: 10",
}


def sampled_grid() -> list[tuple[int, str, str, str]]:
    """Every optimizer and every schedule once at least, in pairs that chance makes."""
    rng = random.Random(20)
    sparse, dense, schedules = (
        rng.sample(names, len(names)) for names in (SPARSE, DENSE, list(SCHEDULE_SETTINGS))
    )
    return [
        (
            rng.randrange(5, STEPS),
            sparse[i % len(sparse)],
            dense[i % len(dense)],
            schedules[i % len(schedules)],
        )
        for i in range(max(len(sparse), len(dense), len(schedules)))
    ]


@pytest.mark.slow
@pytest.mark.parametrize(("step", "sparse", "dense", "schedule"), sampled_grid())
def test_every_optimizer_and_schedule_resumes_exactly(
    config: PipelineConfig,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    step: int,
    sparse: str,
    dense: str,
    schedule: str,
) -> None:
    by_steps(config)
    settings = config.train_config
    settings.ClearField("sparse_optimizer")
    settings.ClearField("dense_optimizer")
    rates = f"{schedule} {{ {SCHEDULE_SETTINGS[schedule]} }}"
    text_format.Parse(f"{sparse} {{ lr: 0.01 }} {rates}", settings.sparse_optimizer)
    text_format.Parse(f"{dense} {{ lr: 0.01 }} {rates}", settings.dense_optimizer)
    rng = random.Random(step)
    config.data_config.shuffle = rng.random() < 0.5
    config.data_config.num_workers = rng.choice([1, 3])
    settings.gradient_accumulation_steps = rng.choice([1, 2])
    config.model_config.deepfm.deep.dropout_ratio[:] = [0.3, 0.3]
    config.model_config.deepfm.deep.use_bn = True
    if "schedule_free" not in dense:
        settings.dense_optimizer.ema.decay = 0.9
    if rng.random() < 0.3:
        settings.mixed_precision = "BF16"
    compare_crashed_with_whole(config, tmp_path, monkeypatch, step)


def run_command(config_file: Path, *flags: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "recgrad.train_eval", "--pipeline_config_path", str(config_file), *flags]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.slow
def test_sigkill_at_random_moments(config: PipelineConfig, tmp_path: Path, fixed_threads: int) -> None:
    by_steps(config, steps=60, every=3)
    save_config(config, tmp_path / "run.config")
    whole = recgrad.train(config, model_dir=tmp_path / "whole")
    rng = random.Random(3)
    killed = 0
    for attempt in range(30):
        flags = ["--model_dir", str(tmp_path / "killed"), "--num_threads", str(fixed_threads)]
        flags += ["--continue_train"] if attempt else []
        process = run_command(tmp_path / "run.config", *flags)
        try:
            # Let it get into training, then kill it, if it does not finish first.
            wait_for_steps(tmp_path / "killed" / "events.jsonl", process)
            process.wait(timeout=rng.uniform(0.0, 0.4) if killed < 4 else 60)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            killed += 1
        said = process.communicate()[1]
        if process.returncode == 0:
            break
    assert process.returncode == 0
    assert killed >= 2
    assert "bit for bit" not in said
    assert_same_bytes(end_of(tmp_path / "whole", whole.step), end_of(tmp_path / "killed", whole.step))


# Copies rows of checkpoints while two more steps are done, and is killed while it copies those of step 8.
_KILLED_WHILE_COPYING = """
import os, sys, time
import torch
import recgrad
from recgrad.embedding.local import row_copy
from recgrad.training.checkpoint.manager import CheckpointManager
from recgrad.training.trainer import Trainer

row_copy.PIECE_BYTES = 500
report, write, copy = Trainer._report, CheckpointManager._write, row_copy.RowCopy._copy
reached, saved, waited = [0], [0], set()

def count(self):
    reached[0] = self.state.step
    return report(self)

def note(self, snapshot):
    saved[0] = snapshot.step
    write(self, snapshot)

def slowly(self, *args):
    copy(self, *args)
    if saved[0] not in waited:
        waited.add(saved[0])
        self._lock.release()
        while reached[0] < saved[0] + 2:
            time.sleep(0.001)
        if saved[0] == 8:
            os.kill(os.getpid(), 9)
        self._lock.acquire()

Trainer._report, CheckpointManager._write, row_copy.RowCopy._copy = count, note, slowly
torch.set_num_threads(int(sys.argv[3]))
recgrad.train(sys.argv[1], model_dir=sys.argv[2])
"""


def test_a_kill_while_rows_are_copied_and_updated(
    config: PipelineConfig, tmp_path: Path, fixed_threads: int
) -> None:
    by_steps(config)
    save_config(config, tmp_path / "run.config")
    recgrad.train(config, model_dir=tmp_path / "whole")
    arguments = [tmp_path / "run.config", tmp_path / "killed", fixed_threads]
    command = [sys.executable, "-c", _KILLED_WHILE_COPYING, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert saved_steps(tmp_path / "killed") == [4]
    assert_same_bytes(end_of(tmp_path / "whole", 4), end_of(tmp_path / "killed", 4))
    recgrad.train(config, model_dir=tmp_path / "killed", continue_train=True)
    assert_same_bytes(end_of(tmp_path / "whole"), end_of(tmp_path / "killed"))


def wait_for_steps(events: Path, process: subprocess.Popen[str]) -> None:
    """Until this process has logged a step, or has ended."""
    before = events.read_text().count('"kind": "train"') if events.exists() else 0
    while process.poll() is None:
        if events.exists() and events.read_text().count('"kind": "train"') > before:
            return
        time.sleep(0.02)


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_saves_and_says_how_to_resume(
    config: PipelineConfig, tmp_path: Path, number: int, code: int
) -> None:
    by_steps(config, steps=4_000, every=1_000_000)
    save_config(config, tmp_path / "run.config")
    process = run_command(tmp_path / "run.config")
    events = Path(config.model_dir) / "events.jsonl"
    wait_for_steps(events, process)
    os.kill(process.pid, number)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == code
    step = json.loads(events.read_text().splitlines()[-1])["step"]
    assert f"stopped after step {step}; resume with: recgrad train" in output
    assert end_of(Path(config.model_dir), step).step == step


@pytest.mark.parametrize("step", [3, 7])
def test_an_accumulation_cut_short_by_the_end_of_an_epoch(
    config: PipelineConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    """16 batches in updates of 5: the fourth update of an epoch has one, and is saved as it ends."""
    config.train_config.num_epochs = 2
    config.train_config.ClearField("save_checkpoints_epochs")
    config.train_config.save_checkpoints_steps = 2
    config.train_config.gradient_accumulation_steps = 5
    compare_crashed_with_whole(config, tmp_path, monkeypatch, step)
    assert end_of(tmp_path / "whole", 8).tree["state"]["samples"] == 2 * 4_000


def test_schedule_free_with_batch_norm_keeps_its_place_in_the_data(
    config: PipelineConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its evaluations read training batches of their own, in the middle of an epoch."""
    by_steps(config, every=5)
    config.train_config.dense_optimizer.schedule_free_adamw_optimizer.lr = 0.01
    config.model_config.deepfm.deep.use_bn = True
    compare_crashed_with_whole(config, tmp_path, monkeypatch, step=12)


def test_a_signal_inside_an_accumulation_waits_for_the_update(
    config: PipelineConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_steps(config, steps=8, every=100)
    config.train_config.gradient_accumulation_steps = 3
    whole = recgrad.train(config, model_dir=tmp_path / "whole")
    original, calls = Trainer._train_batch, 0

    def signal_in_the_middle(self: Trainer, *args: Any) -> bool:
        nonlocal calls
        calls += 1
        if calls == 7:  # the first micro-batch of the third update
            signal.raise_signal(signal.SIGTERM)
        return original(self, *args)

    monkeypatch.setattr(Trainer, "_train_batch", signal_in_the_middle)
    stopped = recgrad.train(config, model_dir=tmp_path / "stopped")
    assert (stopped.step, stopped.exit_code) == (3, 143)
    monkeypatch.setattr(Trainer, "_train_batch", original)
    recgrad.train(config, model_dir=tmp_path / "stopped", continue_train=True)
    assert_same_bytes(end_of(tmp_path / "whole", whole.step), end_of(tmp_path / "stopped", whole.step))


def test_continuing_without_the_optimizers_state_resumes_counting(
    config: PipelineConfig, tmp_path: Path
) -> None:
    by_steps(config, steps=6, every=3)
    recgrad.train(config, model_dir=tmp_path / "m")
    config.train_config.num_steps = 9
    result = recgrad.train(
        config, model_dir=tmp_path / "m", continue_train=True, ignore_restore_optimizer=True
    )
    assert result.step == 9
    lines = (tmp_path / "m/train_eval_result.txt").read_text().splitlines()
    assert [json.loads(line)["global_step"] for line in lines] == [3, 6, 9]


@pytest.mark.parametrize("field", ["batch_size", "seed", "shuffle"])
def test_data_in_another_order_are_refused_before_anything_is_changed(
    config: PipelineConfig, tmp_path: Path, field: str
) -> None:
    by_steps(config, steps=3)
    recgrad.train(config, model_dir=tmp_path / "m")
    before = {name: (tmp_path / "m" / name).read_bytes() for name in ("pipeline.config", "events.jsonl")}
    config.train_config.num_steps = 6
    if field == "seed":
        config.train_config.seed += 1
    elif field == "shuffle":
        config.data_config.shuffle = not config.data_config.shuffle
    else:
        config.data_config.batch_size //= 2
    with pytest.raises(DataError, match=rf"data: {field} was .* resume with the same setting"):
        recgrad.train(config, model_dir=tmp_path / "m", continue_train=True)
    assert {name: (tmp_path / "m" / name).read_bytes() for name in before} == before


def test_a_complete_run_says_what_would_lengthen_it(config: PipelineConfig, tmp_path: Path) -> None:
    by_steps(config, steps=3)
    assert recgrad.train(config, model_dir=tmp_path / "m").hint == ""
    result = recgrad.train(config, model_dir=tmp_path / "m", continue_train=True)
    assert result.step == 3
    left = "nothing was left to train after step 3; raise train_config.num_steps to train more, or, to train"
    assert left in result.describe()
    assert result.describe().endswith(FROM_WEIGHTS)


def test_another_sparse_optimizer_is_refused_with_the_way_out(config: PipelineConfig, tmp_path: Path) -> None:
    by_steps(config, steps=3)
    recgrad.train(config, model_dir=tmp_path / "m")
    config.train_config.num_steps = 6
    config.train_config.sparse_optimizer.sgd_optimizer.lr = 0.1
    with pytest.raises(CheckpointError, match="--ignore_restore_optimizer"):
        recgrad.train(config, model_dir=tmp_path / "m", continue_train=True)
    result = recgrad.train(
        config, model_dir=tmp_path / "m", continue_train=True, ignore_restore_optimizer=True
    )
    assert result.step == 6


def test_leaving_optimizers_out_of_nothing_is_refused(config: PipelineConfig, tmp_path: Path) -> None:
    with pytest.raises(RecgradError, match="--ignore_restore_optimizer: nothing is restored"):
        recgrad.train(config, model_dir=tmp_path / "m", ignore_restore_optimizer=True)


@pytest.mark.parametrize("change", ["a table more", "a table less", "another size"])
def test_a_checkpoint_with_other_tables_is_refused(
    config: PipelineConfig, tmp_path: Path, change: str
) -> None:
    """The dense half of these models is the same: nothing else would tell."""
    by_steps(config, steps=3)
    config.model_dir = str(tmp_path / "m")
    wide = config.model_config.feature_groups[0]
    assert wide.group_name == "wide"
    name = wide.feature_names[-1]
    if change == "a table more":
        del wide.feature_names[-1]
    recgrad.train(config)
    if change == "a table more":
        wide.feature_names.append(name)
    elif change == "a table less":
        del wide.feature_names[-1]
    else:
        config.feature_configs[13].id_feature.num_buckets += 1
    misfit = f"table '{name}.*' is not in "
    if change == "another size":
        misfit = "has 100001 rows of .*, the checkpoint's 100000"
    with pytest.raises(CheckpointError, match=f"{misfit}.*the config that it was trained with"):
        recgrad.evaluate(config)
    config.train_config.num_steps = 6
    with pytest.raises(CheckpointError, match=f"{misfit}.*--fine_tune_checkpoint"):
        recgrad.train(config, continue_train=True)
