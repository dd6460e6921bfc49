"""Where a run starts: its model_dir, the checkpoint that it resumes or is tuned from, and the config kept."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable
from pathlib import Path

from recgrad.config import PipelineConfig, save_config
from recgrad.config.load import CONFIG_FILE
from recgrad.errors import RecgradError, system_reason, whole_path
from recgrad.training.assembly import Training
from recgrad.training.capture import resume, say_other_conditions
from recgrad.training.checkpoint import (
    CheckpointManager,
    read_checkpoint,
    resolve_checkpoint,
    restore,
    verify_checkpoint,
)
from recgrad.training.checkpoint.staging import remove_leftovers
from recgrad.training.failed_start import VERSION_FILE, remove_failed_start
from recgrad.training.init_tables import load_init_tables
from recgrad.training.model_lock import LOCK_NAME
from recgrad.training.own_tables import DATA_FOLDER
from recgrad.training.processes import Processes
from recgrad.training.state import TrainState
from recgrad.version import __version__

LINEAGE_FILE = "lineage.json"
"""The days that led to a model_dir, see `recgrad.training.increments`."""
_log = logging.getLogger("recgrad.training")


def open_checkpoints(config: PipelineConfig, processes: Processes) -> CheckpointManager:
    """What writes and finds the run's checkpoints, together with the other ranks."""
    settings = config.train_config
    return CheckpointManager(
        config.model_dir,
        keep_max=settings.keep_checkpoint_max,
        rank=processes.rank,
        world_size=processes.world_size,
        token=processes.broadcast(uuid.uuid4().hex),
        timeout_secs=settings.process_timeout_secs,
    )


def find_start(
    folder: Path, checkpoints: CheckpointManager, continue_train: bool, doing: Callable[[str], None]
) -> Path | None:
    """The checkpoint to resume from, or None for a fresh start."""
    if continue_train:
        return checkpoints.latest(doing)
    if not remove_failed_start(folder, keep={LOCK_NAME, DATA_FOLDER, LINEAGE_FILE}):
        raise RecgradError(
            f"model_dir {folder}{whole_path(folder)} is not empty; resume what is there "
            "(--continue_train), or choose another --model_dir"
        )
    return None


def starting_state(
    training: Training, config: PipelineConfig, start_from: Path | None, ignore_optimizer: bool
) -> TrainState:
    """The state to train from: of the checkpoint to resume, or fresh, with the weights to tune if any."""
    if start_from is not None:
        snapshot = read_checkpoint(start_from, verify=False)
        state = resume(snapshot, training, optimizers=not ignore_optimizer)
        say_other_conditions(snapshot, training.processes)
        return state
    source = config.train_config.fine_tune_checkpoint
    if source:
        processes = training.processes
        path = processes.on_main(lambda: _checked_checkpoint(source, processes.doing))
        param_map = config.train_config.fine_tune_ckpt_param_map
        report = restore(
            read_checkpoint(path, verify=False),
            model=training.task.model,
            engine=training.task.model.engine,
            sparse_optimizer=training.sparse_optimizer,
            updater=training.updater,
            param_map=Path(param_map) if param_map else None,
            ignore_optimizer=ignore_optimizer,
        )
        _log.info("%s", report)
    else:
        load_init_tables(training.task.model.engine, list(training.features))
    return TrainState()


def _checked_checkpoint(source: str, doing: Callable[[str], None]) -> Path:
    """The checkpoint that `source` means, every byte of it checked."""
    path = resolve_checkpoint(source, doing)
    if path == Path(source):  # the newest of a model_dir has been checked
        verify_checkpoint(path, doing=doing)
    return path


def write_effective_config(config: PipelineConfig, folder: Path) -> None:
    """Keep the config as it runs, and Recgrad's version, in the model_dir."""
    try:
        remove_leftovers(folder, "")  # of a run that was killed: nobody else writes here now
        for torn in folder.glob(f".{CONFIG_FILE}.*.tmp"):
            torn.unlink()
        save_config(config, folder / CONFIG_FILE)
        (folder / VERSION_FILE).write_text(f"{__version__}\n")
    except OSError as error:
        raise RecgradError(
            f"model_dir {folder}{whole_path(folder)}: cannot be written: {system_reason(error)}"
        ) from error
