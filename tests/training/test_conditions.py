"""A run that resumes under other conditions says so; under the same ones it is the same bit for bit."""

from __future__ import annotations

import json
import random
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import recgrad
from recgrad.config import PipelineConfig
from recgrad.errors import CheckpointError
from recgrad.training import conditions, run
from recgrad.training.checkpoint import load_manifest, read_checkpoint
from recgrad.training.conditions import conditions_here, describe_changes, package_versions
from recgrad.training.runtime import rng_state, seed_everything, untouched_generators


def train(config: PipelineConfig, steps: int, **arguments: Any) -> None:
    settings = config.train_config
    settings.ClearField("num_epochs")
    settings.ClearField("save_checkpoints_epochs")
    settings.num_steps, settings.save_checkpoints_steps = steps, 100
    recgrad.train(config, **arguments)


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if "bit for bit" in record.message]


def test_a_checkpoint_says_under_which_conditions_it_was_computed(config: PipelineConfig) -> None:
    train(config, 2)
    manifest = load_manifest(Path(config.model_dir) / "model.ckpt-2")
    (here,) = manifest.computed_on
    assert here == conditions_here(sharded=False)
    assert here["threads"] == str(torch.get_num_threads())
    assert here["instructions of torch"] == torch.backends.cpu.get_cpu_capability()
    assert manifest.versions["torch"] == torch.__version__
    assert {"recgrad", "python", "numpy", "numba", "llvmlite"} < manifest.versions.keys()


def test_the_same_conditions_are_not_worth_a_word(
    config: PipelineConfig, caplog: pytest.LogCaptureFixture
) -> None:
    train(config, 2)
    train(config, 4, continue_train=True)
    assert not said(caplog)


def test_another_number_of_threads_is_named_and_trained_with(
    config: PipelineConfig, caplog: pytest.LogCaptureFixture
) -> None:
    before = torch.get_num_threads()
    train(config, 2)
    torch.set_num_threads(before + 1)
    try:
        train(config, 4, continue_train=True)
    finally:
        torch.set_num_threads(before)
    (line,) = said(caplog)
    assert line == (
        "resuming step 2 under other conditions, so the run is no longer bit for bit the same: "
        f"threads {before} → {before + 1}"
    )
    assert load_manifest(Path(config.model_dir) / "model.ckpt-4").computed_on[0]["threads"] == f"{before + 1}"


def test_other_versions_and_instructions_are_named(
    config: PipelineConfig, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(config, 2)
    monkeypatch.setattr(conditions, "__version__", "99.0")
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "ABACUS")
    monkeypatch.setenv("MKL_CBWR", "COMPATIBLE")
    train(config, 4, continue_train=True)
    (line,) = said(caplog)
    assert "instructions of torch " in line
    assert " → ABACUS, MKL_CBWR unset → COMPATIBLE, recgrad " in line
    assert line.endswith(" → 99.0")


def test_a_checkpoint_that_says_nothing_of_conditions_is_resumed(
    config: PipelineConfig, caplog: pytest.LogCaptureFixture
) -> None:
    """As those of earlier versions."""
    train(config, 2)
    rewrite(Path(config.model_dir) / "model.ckpt-2/manifest.json", lambda body: body.pop("computed_on"))
    train(config, 4, continue_train=True)
    assert not said(caplog)


@pytest.mark.parametrize("wrong", [{}, ["threads"], [{"threads": 2}], "2"])
def test_malformed_conditions_are_refused(config: PipelineConfig, wrong: Any) -> None:
    train(config, 2)
    folder = Path(config.model_dir) / "model.ckpt-2"
    rewrite(folder / "manifest.json", lambda body: body.update(computed_on=wrong))
    with pytest.raises(CheckpointError, match=r"manifest\.json: .*'computed_on' is not a"):
        read_checkpoint(folder)


def rewrite(path: Path, change: Any) -> None:
    """Change a manifest and its checksum."""
    body = json.loads(path.read_text())
    del body["crc32"]
    change(body)
    rest = (json.dumps(body, indent=2).removeprefix("{\n") + "\n").encode()
    path.write_bytes(b'{\n  "crc32": "%08x",\n' % zlib.crc32(rest) + rest)


def test_what_changed_on_some_ranks_names_them() -> None:
    two, one = {"threads": "2"}, {"threads": "1"}
    assert describe_changes([two, two], [one, one], {}, {}) == "threads 2 → 1"
    assert describe_changes([two, two], [two, one], {}, {}) == "threads of rank 1 2 → 1"
    assert describe_changes([two, one], [two, one], {}, {}) == ""
    assert describe_changes([two, two], [two], {}, {}) == "processes 2 → 1"
    assert describe_changes([two, one], [one], {}, {}) == "processes 2 → 1, threads 1, 2 → 1"
    assert describe_changes([{"torchrec": "1"}], [{"torchrec": "2"}], {}, {}) == "torchrec 1 → 2"
    assert describe_changes([{"torchrec": "1"}] * 2, [{}], {}, {}) == "processes 2 → 1"
    assert describe_changes([], [one], {"torch": "1", "gone": "2"}, {"torch": "2"}) == "torch 1 → 2"


def test_the_version_of_torch_says_which_build_it_is() -> None:
    """The metadata of CUDA builds say 2.13.0, torch itself 2.13.0+cu130."""
    assert package_versions()["torch"] == torch.__version__


def test_drawing_inside_leaves_the_generators_alone() -> None:
    seed_everything(3)
    before = repr(rng_state())
    with untouched_generators():
        random.random()
        np.random.rand()  # noqa: NPY002
        torch.rand(())
    assert repr(rng_state()) == before


def test_what_is_imported_for_the_terminal_does_not_change_the_generators_of_a_run(
    config: PipelineConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bar needs rich, which draws from Python's generator when it is first imported."""
    train(config, 2, model_dir=tmp_path / "lines")
    monkeypatch.setattr(run, "build_hooks", drawing(run.build_hooks))
    train(config, 2, model_dir=tmp_path / "bar")
    ends = [read_checkpoint(tmp_path / name / "model.ckpt-2").tree["rng"] for name in ("lines", "bar")]
    assert ends[0]["python"] == ends[1]["python"]


def drawing(build_hooks: Any) -> Any:
    def build(*args: Any, **kwargs: Any) -> Any:
        random.random()
        return build_hooks(*args, **kwargs)

    return build
