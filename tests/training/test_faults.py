"""What goes wrong around a run: a clear error, no torn checkpoint, and it goes on once mended."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pyarrow.parquet as pq
import pytest

import recgrad
from recgrad.config import PipelineConfig, save_config
from recgrad.errors import RecgradError
from recgrad.synth import write_synth
from recgrad.training.checkpoint import CheckpointManager, read_checkpoint

STEPS = 32
PART_ROWS = 9_000


@pytest.fixture(scope="module")
def many_clicks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Enough rows that the last file is not read before the first steps are made."""
    folder = tmp_path_factory.mktemp("many_clicks")
    write_synth(folder, 4 * PART_ROWS, eval_rows=500)
    return folder


@pytest.fixture
def stepwise(config: PipelineConfig, tmp_path: Path, many_clicks: Path) -> PipelineConfig:
    """A run over a copy of the data in four files, saving every fourth step."""
    source = pq.read_table(many_clicks / "train.parquet")
    (tmp_path / "data").mkdir()
    for part in range(4):
        table = source.slice(part * PART_ROWS, PART_ROWS)
        pq.write_table(table, tmp_path / f"data/part-{part}.parquet")
    config.train_input_path = str(tmp_path / "data/*.parquet")
    config.data_config.shuffle = False
    config.data_config.num_workers = 1
    config.data_config.batch_size = 1024
    config.train_config.ClearField("num_epochs")
    config.train_config.ClearField("save_checkpoints_epochs")
    config.train_config.num_steps = STEPS
    config.train_config.save_checkpoints_steps = 4
    return config


def test_a_corrupt_file_mid_epoch_names_it_and_the_run_resumes_once_it_is_mended(
    stepwise: PipelineConfig, tmp_path: Path
) -> None:
    whole = recgrad.train(stepwise, model_dir=tmp_path / "whole")
    part = tmp_path / "data/part-3.parquet"
    good = part.read_bytes()
    # The footer stays readable, so the trouble is met when the rows are reached.
    part.write_bytes(b"PAR1" + b"\xff" * (len(good) // 2) + good[4 + len(good) // 2 :])
    with pytest.raises(RecgradError, match=r"part-3\.parquet"):
        recgrad.train(stepwise)
    assert CheckpointManager(stepwise.model_dir).latest() is not None
    part.write_bytes(good)
    continued = recgrad.train(stepwise, continue_train=True)
    assert continued.metrics == whole.metrics


def test_a_removed_file_is_named_and_no_other_data_is_taken(stepwise: PipelineConfig, tmp_path: Path) -> None:
    stepwise.train_config.num_steps = 8
    recgrad.train(stepwise)
    (tmp_path / "data/part-2.parquet").rename(tmp_path / "part-2.parquet")
    stepwise.train_config.num_steps = STEPS
    with pytest.raises(RecgradError, match=r"part-2\.parquet"):
        recgrad.train(stepwise, continue_train=True)
    (tmp_path / "part-2.parquet").rename(tmp_path / "data/part-2.parquet")
    assert recgrad.train(stepwise, continue_train=True).step == STEPS


def test_a_damaged_newest_checkpoint_is_left_out(
    stepwise: PipelineConfig, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    whole = recgrad.train(stepwise, model_dir=tmp_path / "whole")
    stepwise.train_config.num_steps = 8
    recgrad.train(stepwise)
    newest = Path(stepwise.model_dir) / "model.ckpt-8"
    victim = max((p for p in newest.rglob("*") if p.is_file()), key=lambda p: p.stat().st_size)
    data = bytearray(victim.read_bytes())
    data[len(data) // 2] ^= 1
    victim.write_bytes(data)
    stepwise.train_config.num_steps = STEPS
    continued = recgrad.train(stepwise, continue_train=True)
    assert "model.ckpt-8" in caplog.text
    assert continued.metrics == whole.metrics


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_model_dir_is_refused(stepwise: PipelineConfig, tmp_path: Path) -> None:
    locked = tmp_path / "locked"
    locked.mkdir(mode=0o500)
    with pytest.raises(RecgradError, match="cannot write"):
        recgrad.train(stepwise, model_dir=locked / "model")


def test_a_model_dir_below_a_file_is_refused(stepwise: PipelineConfig, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RecgradError, match="model_dir"):
        recgrad.train(stepwise, model_dir=tmp_path / "file/model")


@pytest.mark.slow
def test_a_full_disk_ends_with_2_and_keeps_the_last_checkpoint(
    stepwise: PipelineConfig, tmp_path: Path
) -> None:
    """A limit on file sizes stands for a full disk: writes fail half-way."""
    stepwise.train_config.num_steps = 8
    recgrad.train(stepwise)
    before = read_checkpoint(Path(stepwise.model_dir) / "model.ckpt-8").step
    stepwise.train_config.num_steps = STEPS
    save_config(stepwise, tmp_path / "run.config")
    largest = max(p.stat().st_size for p in Path(stepwise.model_dir).rglob("*") if p.is_file())
    program = (
        "import resource, signal, sys\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "import recgrad.training.run\n"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({largest // 2}, {largest // 2}))\n"
        "from recgrad.cli.main import main\n"
        f"sys.exit(main(['train', {str(tmp_path / 'run.config')!r}, '--continue_train']))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert "model.ckpt-12" in done.stderr
    newest = CheckpointManager(stepwise.model_dir).latest()
    assert newest is not None
    assert read_checkpoint(newest).step == before
    assert recgrad.train(stepwise, continue_train=True).step == STEPS


def test_an_empty_model_dir_continues_from_the_start(stepwise: PipelineConfig) -> None:
    shutil.rmtree(stepwise.model_dir, ignore_errors=True)
    assert recgrad.train(stepwise, continue_train=True).step == STEPS


@pytest.mark.parametrize("tensorboard", [False, True])
def test_a_log_that_cannot_be_written_is_named(
    stepwise: PipelineConfig, monkeypatch: pytest.MonkeyPatch, tensorboard: bool
) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("needs a device that is always full")
    stepwise.train_config.use_tensorboard = tensorboard
    if tensorboard:
        full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        monkeypatch.setattr("torch.utils.tensorboard.SummaryWriter", Mock(side_effect=full))
        place = "model/train"
    else:
        full_file = Path("/dev/full").open("a")  # noqa: SIM115 - the run closes it
        monkeypatch.setattr("recgrad.training.hooks.events._open_after", lambda *_: full_file)
        place = "/dev/full"
    with pytest.raises(RecgradError, match=f"{place}: cannot write .No space left on device.; mend that"):
        recgrad.train(stepwise)


def test_batch_norm_on_one_row_says_so(config: PipelineConfig, tmp_path: Path) -> None:
    config.model_config.deepfm.deep.use_bn = True
    one = pq.read_table(config.train_input_path).slice(0, 1)
    pq.write_table(one, tmp_path / "one.parquet")
    config.train_input_path = str(tmp_path / "one.parquet")
    config.eval_input_path = ""
    with pytest.raises(RecgradError, match="a training batch has one row, and BatchNorm"):
        recgrad.train(config)
