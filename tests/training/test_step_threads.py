"""How many threads a step is worth, and that a user's word counts more."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from recgrad.config import load_config
from recgrad.models.base import Model
from recgrad.synth import write_synth
from recgrad.training import runtime, step_threads
from recgrad.training.assembly import build_training


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    """The DeepFM of the quickstart: about 50,000 dense weights over 26 embeddings."""
    folder = tmp_path_factory.mktemp("synth")
    write_synth(folder, 1000)
    return build_training(load_config(folder / "deepfm.config")).task.model


def test_small_steps_take_one_thread_and_large_ones_all(model: Model) -> None:
    assert step_threads.threads_for(model, 500, most=8) == 1
    assert step_threads.threads_for(model, 8192, most=8) == 8
    assert step_threads.threads_for(model, 1, most=1) == 1
    found = [step_threads.threads_for(model, rows, most=64) for rows in (1, 512, 1024, 2048, 8192, 10**6)]
    assert found == sorted(found)
    assert found[-1] == 64


def test_histories_take_all_threads(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = model.groups.plan
    lookups = [replace(plan.lookups[0], sequence=True), *plan.lookups[1:]]
    monkeypatch.setattr(model.groups, "plan", replace(plan, lookups=lookups))
    assert step_threads.threads_for(model, 1, most=8) == 8


@pytest.mark.parametrize(("asked", "variable", "expected"), [(None, None, 1), (2, None, 2), (None, "2", 2)])
def test_only_a_number_that_nobody_asked_for_is_changed(
    model: Model, monkeypatch: pytest.MonkeyPatch, asked: int | None, variable: str | None, expected: int
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr("recgrad.openmp.usable_cores", lambda: 2)
    monkeypatch.setattr(runtime, "_threads_are_free", False)
    if variable is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", variable)
    before = torch.get_num_threads()
    try:
        runtime.set_up_process(asked)
        step_threads.fit_threads(model, 500)
        assert torch.get_num_threads() == expected
    finally:
        runtime.set_threads(before)


def test_a_library_user_keeps_the_threads_of_torch(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "_threads_are_free", False)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        step_threads.fit_threads(model, 1)
        assert torch.get_num_threads() == 2
    finally:
        runtime.set_threads(before)
