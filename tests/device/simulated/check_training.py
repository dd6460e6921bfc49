"""Whole runs on a device: training, evaluation, checkpoints, prediction."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from google.protobuf import text_format

import recgrad
from recgrad.cli.lr_find import find_rate
from recgrad.config import PipelineConfig, load_config
from recgrad.nn import fm, mixing, relu_layers
from recgrad.report.page import write_report
from recgrad.synth import write_synth
from recgrad.training.assembly import build_training
from recgrad.training.checkpoint import Snapshot, read_checkpoint
from recgrad.training.processes import Processes
from recgrad.training.trainer import NumericalError, Trainer

STEPS = 8


class CrashError(Exception):
    """Stands for the process that is gone."""


@pytest.fixture(autouse=True)
def _the_operations_of_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the CPU compute by torch's operations, as devices do; kernels of ours sum in another order."""
    for module in (relu_layers, fm, mixing):
        monkeypatch.setattr(module, "runs_kernels", lambda *_: False)


@pytest.fixture(scope="session")
def clicks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("clicks")
    write_synth(folder, 2_000, eval_rows=500, seed=5)
    return folder


@pytest.fixture
def config(clicks: Path, tmp_path: Path) -> PipelineConfig:
    config = load_config(clicks / "deepfm.config")
    config.model_dir = str(tmp_path / "model")
    config.data_config.batch_size = 128
    config.data_config.num_workers = 1
    deep = config.model_config.deepfm.deep
    deep.hidden_units[:] = [16, 8]
    deep.use_bn = True
    settings = config.train_config
    settings.log_step_count_steps = 2
    settings.ClearField("num_epochs")
    settings.ClearField("save_checkpoints_epochs")
    settings.num_steps, settings.save_checkpoints_steps = STEPS, 4
    settings.use_tensorboard = False
    for half in (settings.sparse_optimizer, settings.dense_optimizer):
        half.constant_learning_rate.SetInParent()
    return config


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from leaves(item, f"{path}.{key}")
    elif isinstance(value, (list, tuple)):
        for i, item in enumerate(value):
            yield from leaves(item, f"{path}[{i}]")
    else:
        yield path, value


def all_of(snapshot: Snapshot) -> dict[str, Any]:
    found = dict(leaves(dict(snapshot.tree)))
    for table in snapshot.tables:
        found.update({f"{table.name} rows": table.row_ids, f"{table.name} weights": table.weights})
        found.update({f"{table.name} {name}": state for name, state in table.states.items()})
    return found


def end_of(folder: Path, step: int = STEPS) -> dict[str, Any]:
    return all_of(read_checkpoint(folder / f"model.ckpt-{step}"))


def assert_same(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert one.keys() == other.keys()
    for name, value in one.items():
        if isinstance(value, (torch.Tensor, np.ndarray)):
            assert np.asarray(value).tobytes() == np.asarray(other[name]).tobytes(), name
        else:
            assert value == other[name] or value != value, name


def crash_at(monkeypatch: pytest.MonkeyPatch, step: int, saved: Path) -> None:
    """Let the next run crash in a step, after the checkpoint `saved` has been written."""
    original = Trainer._report

    def report(self: Trainer) -> Any:
        if self.state.step == step:
            deadline = time.monotonic() + 30
            while not saved.exists():
                assert time.monotonic() < deadline
                time.sleep(0.01)
            raise CrashError
        return original(self)

    monkeypatch.setattr(Trainer, "_report", report)


def test_a_run_equals_that_on_the_cpu(
    config: PipelineConfig, tmp_path: Path, accelerator: torch.device
) -> None:
    """Bit for bit: nothing is random here but what the CPU's generator draws before the model is moved."""
    config.train_config.dense_optimizer.ema.decay = 0.9
    on_host = recgrad.train(config, model_dir=tmp_path / "host", device="cpu")
    module: Any = torch.get_device_module(accelerator)
    before = module.operations()
    on_device = recgrad.train(config, model_dir=tmp_path / "device", device=accelerator)
    assert module.operations() - before > 100 * STEPS
    assert on_device.metrics == on_host.metrics
    own = end_of(tmp_path / "device")
    assert len(own.pop(".rng.simulated"))
    assert_same(end_of(tmp_path / "host"), own)


VARIANTS = {
    "dropout": "",
    "schedule-free, statistics taken again": "dense_optimizer { schedule_free_adamw_optimizer { lr: 0.01 } }",
    "accumulation, clipping, an average": (
        "gradient_accumulation_steps: 2 dense_optimizer { adamw_optimizer { lr: 0.01 } ema { decay: 0.9 } } "
        'grad_clipping { clipping_type: "norm" max_gradient: 0.1 enable_global_grad_clip: true }'
    ),
    "bfloat16, a loss scale": 'mixed_precision: "BF16" grad_scaler { init_scale: 256 growth_interval: 2 }',
}


@pytest.mark.parametrize("name", VARIANTS)
def test_resumes_bit_for_bit(
    name: str,
    config: PipelineConfig,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    accelerator: torch.device,
) -> None:
    change = text_format.Parse(VARIANTS[name], type(config.train_config)())
    if change.HasField("dense_optimizer"):
        config.train_config.ClearField("dense_optimizer")
        change.dense_optimizer.constant_learning_rate.SetInParent()
    config.train_config.MergeFrom(change)
    config.model_config.deepfm.deep.dropout_ratio[:] = [0.3, 0.3]
    whole = recgrad.train(config, model_dir=tmp_path / "whole", device=accelerator)
    with monkeypatch.context() as patch:
        crash_at(patch, 6, tmp_path / "crashed" / "model.ckpt-4")
        with pytest.raises(CrashError):
            recgrad.train(config, model_dir=tmp_path / "crashed", device=accelerator)
    continued = recgrad.train(config, model_dir=tmp_path / "crashed", device=accelerator, continue_train=True)
    assert continued.metrics == whole.metrics
    assert_same(end_of(tmp_path / "whole"), end_of(tmp_path / "crashed"))


@pytest.mark.parametrize("devices", [("host", "device"), ("device", "host")], ids="-".join)
def test_begun_on_one_and_continued_on_the_other(
    devices: tuple[str, str], config: PipelineConfig, tmp_path: Path, accelerator: torch.device
) -> None:
    config.train_config.dense_optimizer.ema.decay = 0.9
    of = {"host": torch.device("cpu"), "device": accelerator}
    recgrad.train(config, model_dir=tmp_path / "whole", device="cpu")
    config.train_config.num_steps = 4
    recgrad.train(config, model_dir=tmp_path / "moved", device=of[devices[0]])
    config.train_config.num_steps = STEPS
    recgrad.train(config, model_dir=tmp_path / "moved", device=of[devices[1]], continue_train=True)
    own = end_of(tmp_path / "moved")
    own.pop(".rng.simulated", None)
    assert_same(end_of(tmp_path / "whole"), own)


def test_mixed_precision_is_that_of_the_device(config: PipelineConfig, accelerator: torch.device) -> None:
    config.train_config.mixed_precision = "BF16"
    training = build_training(config, Processes(device=accelerator))
    batch = next(iter(training.train_loader.epoch(0)))
    with training.updater.autocast():
        assert training.task(batch)["logits"].dtype is torch.bfloat16


def test_fine_tunes_evaluates_predicts_and_reports(
    config: PipelineConfig, clicks: Path, tmp_path: Path, accelerator: torch.device
) -> None:
    base = recgrad.train(config, device="cpu")
    for device in ("cpu", accelerator):
        metrics = recgrad.evaluate(config, device=device)
        assert metrics == pytest.approx(base.metrics, rel=1e-12)
    rows = {}
    for name, device in (("host", torch.device("cpu")), ("device", accelerator)):
        out = tmp_path / f"{name}.parquet"
        recgrad.predict(config, input_path=config.eval_input_path, output_path=out, device=device)
        rows[name] = pq.read_table(out)
        tuned = recgrad.train(
            config, model_dir=tmp_path / name, fine_tune_checkpoint=config.model_dir, device=device
        )
        assert tuned.step == STEPS
    assert rows["device"].equals(rows["host"])
    own = end_of(tmp_path / "device")
    own.pop(".rng.simulated")
    assert_same(end_of(tmp_path / "host"), own)
    page = write_report(config.model_dir, tmp_path / "report.html", device=accelerator).read_text()
    assert "cannot be read now" not in page


def test_finds_rates(config: PipelineConfig, accelerator: torch.device) -> None:
    for half in ("dense", "sparse"):
        found = [
            find_rate(config, half, Processes(device=device), start=1e-4, end=0.1, steps=10)
            for device in (torch.device("cpu"), accelerator)
        ]
        assert found[1].losses == found[0].losses


def test_histograms_and_traces(config: PipelineConfig, tmp_path: Path, accelerator: torch.device) -> None:
    settings = config.train_config
    settings.use_tensorboard = True
    settings.tensorboard_summaries[:] = ["loss", "parameter", "gradient", "gradient_norm"]
    settings.is_profiling = True
    settings.num_steps = 16
    recgrad.train(config, device=accelerator)
    assert list((Path(config.model_dir) / "train").iterdir())
    assert list((Path(config.model_dir) / "profile").iterdir())


def test_a_loss_that_is_not_finite_names_its_rows(config: PipelineConfig, accelerator: torch.device) -> None:
    config.train_config.dense_optimizer.Clear()
    text_format.Parse(
        "sgd_optimizer { lr: 1e30 } constant_learning_rate {}", config.train_config.dense_optimizer
    )
    with pytest.raises(NumericalError, match=r"rows .* of .*parquet"):
        recgrad.train(config, device=accelerator)
