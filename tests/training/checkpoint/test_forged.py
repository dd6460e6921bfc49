"""Checkpoints that are signed but say nonsense: a CheckpointError where they are used, and nothing else."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import recgrad
from recgrad.cli.main import main
from recgrad.config import PipelineConfig, load_config
from recgrad.errors import CheckpointError, RecgradError
from recgrad.synth import write_synth
from recgrad.training.assembly import Training, build_training
from recgrad.training.capture import load_weights, resume
from recgrad.training.checkpoint import Snapshot, TableRows, read_checkpoint, restore, write_checkpoint
from recgrad.training.processes import Processes

LEFT_OUT = object()
ODD: list[Any] = [
    *(LEFT_OUT, None, True, -1, 2**70, float("nan"), float("inf"), "x", '{"a": 1}', b"abc"),
    *([], [[]], (1,), {}, {1: 2}),
    *(torch.zeros(3, 5), torch.zeros(0, dtype=torch.int64), torch.zeros((), dtype=torch.complex64)),
    np.zeros(2, np.int8),
]
STEPS = 2


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> PipelineConfig:
    folder = tmp_path_factory.mktemp("forged")
    write_synth(folder, 300, eval_rows=100, seed=5)
    config = load_config(folder / "deepfm.config")
    config.model_dir = str(folder / "model")
    config.data_config.batch_size = 100
    config.model_config.deepfm.deep.hidden_units[:] = [4]
    config.model_config.deepfm.final.hidden_units[:] = [4]
    config.train_config.use_tensorboard = False
    config.train_config.ClearField("num_epochs")
    config.train_config.num_steps = STEPS
    recgrad.train(config)
    return config


@pytest.fixture(scope="module")
def sound(config: PipelineConfig) -> Snapshot:
    return read_checkpoint(Path(config.model_dir) / f"model.ckpt-{STEPS}")


@pytest.fixture(scope="module")
def training(config: PipelineConfig) -> Training:
    return build_training(config, Processes())


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if path:
        yield path
    keys = (
        list(value)
        if isinstance(value, dict)
        else range(min(len(value), 4))
        if isinstance(value, (list, tuple))
        else ()
    )
    for key in keys:
        yield from places(value[key], (*path, key))


def changed(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    """A copy of a tree with another value at one place."""
    copy = dict(value) if isinstance(value, dict) else list(value)
    first, *rest = path
    if rest:
        copy[first] = changed(copy[first], tuple(rest), new)
    elif new is LEFT_OUT:
        del copy[first]
    else:
        copy[first] = new
    return tuple(copy) if isinstance(value, tuple) else copy


def use(snapshot: Snapshot, training: Training, batch: Any) -> None:
    """Resume, update once, evaluate and fine-tune; each may refuse the snapshot, in its own words."""
    model = training.task.model

    def resumed() -> None:
        resume(snapshot, training)
        training.task.train()
        training.updater.backward(training.task.losses(training.task(batch), batch)["total"])
        training.updater.step()

    for way in (
        resumed,
        lambda: load_weights(snapshot, training.task, use_ema=True),
        lambda: restore(
            snapshot,
            model=model,
            engine=model.engine,  # type: ignore[arg-type]
            sparse_optimizer=training.sparse_optimizer,
            updater=training.updater,
        ),
    ):
        try:
            way()
        except CheckpointError:
            continue
        except RecgradError:
            assert way is resumed  # a position in the data that is not one


@pytest.mark.parametrize("seed", range(4))
def test_any_value_anywhere_in_the_tree_is_taken_or_refused(
    sound: Snapshot, training: Training, seed: int
) -> None:
    draw = random.Random(seed)
    everywhere = list(places(dict(sound.tree)))
    batch = next(iter(training.train_loader.epoch(0)))
    for place in draw.sample(everywhere, 40):
        tree = changed(dict(sound.tree), place, draw.choice(ODD))
        use(Snapshot(sound.step, tree, sound.tables), training, batch)
    resume(sound, training)  # what was refused has left nothing that stays


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("state", "step"), 99, "state.step is 99"),
        (("state", "samples"), -1, "state.samples is malformed"),
        (("state", "watched"), {"auc": [("x", 1.0)]}, "state.watched is malformed"),
        (("state", "best"), {"step": 1}, "state.best is malformed"),
        (("state", "more"), 1, "unexpected keyword argument 'more'"),
        (("updater", "num_updates"), "x", "updater.num_updates is not a whole number from 0"),
        (("updater", "dense", "dense", "state", 0, "exp_avg"), torch.zeros(0), r"'exp_avg' is \[0\] for a"),
        (("updater", "dense", "dense", "state", 0, "step"), torch.zeros(0), r"'step' is \[0\] for a"),
        (("rng", "torch"), torch.zeros(3), "RNG state"),
        (("ranks",), 3, "TypeError: object of type 'int'"),
    ],
)
def test_what_is_wrong_is_said(
    sound: Snapshot, training: Training, path: tuple[Any, ...], value: Any, message: str
) -> None:
    forged = Snapshot(sound.step, changed(dict(sound.tree), path, value), sound.tables)
    with pytest.raises(CheckpointError, match=f"checkpoint of step {STEPS} does not fit .*{message}"):
        resume(forged, training)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("t", np.array(-1)),
        ("t", np.array(float("nan"))),
        ("t", None),
        ("more", np.zeros((0, 1), np.float32)),
        ("weights", "int8"),
        ("weights", "nan"),
    ],
)
def test_forged_rows_are_taken_or_refused(sound: Snapshot, training: Training, name: str, value: Any) -> None:
    tables = [_forged(table, name, value) for table in sound.tables]
    batch = next(iter(training.train_loader.epoch(0)))
    use(Snapshot(sound.step, sound.tree, tables), training, batch)
    resume(sound, training)


def _forged(table: TableRows, name: str, value: Any) -> TableRows:
    states, weights = dict(table.states), table.weights
    if name == "weights":
        weights = weights.astype(np.int8) if value == "int8" else np.full_like(weights, np.nan)
    elif value is None:
        states.pop(name, None)
    else:
        states[name] = value if value.ndim == 0 else np.zeros((len(table.row_ids), 1), np.float32)
    return TableRows(table.name, table.num_rows, table.dim, table.row_ids, weights, states)


def test_the_commands_say_it_without_a_traceback(
    config: PipelineConfig, sound: Snapshot, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """From the disk, through the commands."""
    forged = changed(dict(sound.tree), ("updater", "dense"), {"dense": 3})
    folder = write_checkpoint(tmp_path / f"model.ckpt-{STEPS}", Snapshot(STEPS, forged, sound.tables))
    source = str(Path(config.model_dir) / "pipeline.config")
    for line, code in (
        (["ckpt", "verify", str(folder)], 0),
        (["ckpt", "show", str(folder)], 0),
        (["ckpt", "diff", str(folder), config.model_dir], 1),
        (["train", source, f"--model_dir={tmp_path}", "--continue_train"], 2),
        (["train", source, f"--model_dir={tmp_path / 'b'}", f"--fine_tune_checkpoint={folder}"], 2),
    ):
        assert main(line) == code, capsys.readouterr().err
    assert "does not fit this config" in capsys.readouterr().err


def test_a_step_that_the_name_belies_is_refused(sound: Snapshot, tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "model.ckpt-99", sound)
    assert main(["ckpt", "verify", str(folder)]) == 2
    with pytest.raises(CheckpointError, match=f"model.ckpt-99: holds step {STEPS}, not 99; rename it"):
        read_checkpoint(folder)
    assert read_checkpoint(folder.rename(tmp_path / "the_best")).step == STEPS


@pytest.mark.parametrize("linked", ["tables", "one table"])
def test_a_linked_folder_of_a_checkpoint_is_refused(
    sound: Snapshot, tmp_path: Path, linked: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_checkpoint(tmp_path / f"model.ckpt-{STEPS}", sound)
    inner = folder / "tables" if linked == "tables" else next((folder / "tables").iterdir())
    inner.rename(tmp_path / "elsewhere")
    inner.symlink_to(tmp_path / "elsewhere")
    assert main(["ckpt", "verify", str(folder)]) == 2
    assert f"{inner}: is not a folder (links are not followed)" in capsys.readouterr().out.replace("\n", "")
    with pytest.raises(CheckpointError, match="links are not followed"):
        read_checkpoint(folder)


def test_a_parameter_map_that_never_ends_is_refused(sound: Snapshot, training: Training) -> None:
    with pytest.raises(
        CheckpointError, match="param_map /dev/zero: is no regular file; a map is a text file"
    ):
        restore(sound, model=training.task.model, param_map="/dev/zero")


def test_the_tree_of_a_real_run_has_what_is_checked(sound: Snapshot) -> None:
    """The places above exist: a change of the tree changes this test."""
    assert {"model", "updater", "state", "rng"} <= sound.tree.keys()
    assert json.loads(json.dumps(sound.tree["state"]["watched"])) == {}
