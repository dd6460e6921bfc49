"""Every ranking model and sequence encoder on two ranks: the weights and metrics of one process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import recgrad
from recgrad.config.proto.model_pb2 import ModelConfig
from recgrad.models.sketches import Fields, sketch, sketched
from recgrad.nn.encoders.base import ENCODERS

STEPS = 3
SHORT = f"""
train_config {{
  sparse_optimizer {{ sgd_optimizer {{ lr: 0.1 }} }} dense_optimizer {{ sgd_optimizer {{ lr: 0.1 }} }}
  num_steps: {STEPS} save_checkpoints_steps: {STEPS - 1}
}}
data_config {{ label_fields: "buy" }}
"""
FIELDS = Fields(["user", "item", "last"], ["price"], 8, ["label", "buy"], ("item", "seen"))
HASHED = 'multihead_attn_dim: 4 num_heads: 2 top_k: 2 input: "history"'
SETTINGS = {
    "din_encoder": 'input: "history" attn_mlp { hidden_units: 4 }',
    "eta_encoder": f"{HASHED} num_hashes: 8",
    "multi_window_din_encoder": 'input: "history" attn_mlp { hidden_units: 4 } windows_len: [2, 4]',
    "pooling_encoder": 'input: "history"',
    "sdim_encoder": 'input: "history" num_hashes: 8 hash_width: 2',
    "self_attention_encoder": 'input: "history" multihead_attn_dim: 8 num_heads: 2',
    "sim_encoder": f'{HASHED} query_feature: "item" sequence_feature: "seen"',
    "simple_attention": 'input: "history"',
}


def encoders() -> str:
    """A model over the outputs of all encoders."""
    made = " ".join(f"sequence_encoders {{ {name} {{ {SETTINGS[name]} }} }}" for name in ENCODERS)
    return f"""
    feature_groups {{
      group_name: "all" group_type: DEEP feature_names: ["user", "item"] {made}
      sequence_groups {{ group_name: "history" feature_names: ["item", "seen"] }}
    }}
    multi_tower {{ towers {{ input: "all" mlp {{ hidden_units: 8 }} }} final {{ hidden_units: 4 }} }}
    losses {{ binary_cross_entropy {{}} }} metrics {{ auc {{}} }}
    """


def model_of(name: str) -> ModelConfig:
    config = sketch(name, FIELDS)
    if name == "dc2vr":  # what is dropped is drawn by each rank
        config.dc2vr.task_towers[1].dropout_ratio = 0
    return config


@pytest.fixture(scope="module")
def models() -> dict[str, str]:
    """Model configs by name: of every sketch, and one with all encoders."""
    return {name: str(model_of(name)) for name in sketched()} | {"encoders": encoders()}


@pytest.fixture(scope="module")
def config(runs: Any, models: dict[str, str]) -> Callable[..., Any]:
    def make(name: str, ranks: int = 1, steps: int = STEPS) -> Any:
        made = runs.config(SHORT, models[name], ranks=ranks)
        made.train_config.num_steps = steps
        if len(made.model_config.losses):  # of one task
            del made.data_config.label_fields[1:]
        return made

    return make


@pytest.fixture(scope="module")
def alone(runs: Any, models: dict[str, str], config: Callable[..., Any]) -> dict[str, Any]:
    """What each run in one process gives, and its folder."""
    return {name: runs.local(config(name)) for name in models}


@pytest.mark.slow
def test_two_ranks_end_where_one_process_does(
    runs: Any,
    models: dict[str, str],
    config: Callable[..., Any],
    alone: dict[str, Any],
    assert_agree: Callable[..., None],
    assert_same: Callable[..., None],
) -> None:
    jobs = [runs.job(config(name, 2)) for name in models]
    for name, job, left in zip(models, jobs, runs.ranks(2, jobs), strict=True):
        result, folder = alone[name]
        assert_agree(left)
        assert left[0]["step"] == result.step == STEPS
        # Two rows that change places change an AUC of 333 rows by 4e-5.
        assert left[0]["metrics"] == pytest.approx(result.metrics, abs=1e-4), name
        assert_same(folder, job["model_dir"], STEPS)


@pytest.mark.slow
def test_a_run_of_two_parts_has_the_bytes_of_a_whole_one(
    runs: Any, models: dict[str, str], config: Callable[..., Any], alone: dict[str, Any]
) -> None:
    for name in models:
        _, folder = runs.local(config(name, steps=STEPS - 1))
        recgrad.train(config(name), model_dir=folder, continue_train=True)
        whole, parts = (contents(made / f"model.ckpt-{STEPS}") for made in (alone[name][1], folder))
        assert whole == parts, name


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
