"""The hook that writes deltas, from a config: what an export of a checkpoint of now would have."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from recgrad.config import PipelineConfig
from recgrad.training.assembly import Training, uses_ema
from recgrad.training.dense_state import dense_state
from recgrad.training.evaluator import evaluated_weights
from recgrad.training.hook import Hook
from recgrad.training.hooks.deltas import DumpDeltas

FOLDER = "delta_embedding_dump"
"""Of a model_dir, where deltas go unless output_dir is set."""


def build_delta_hooks(config: PipelineConfig, training: Training, model_dir: Path) -> list[Hook]:
    """The hook of train_config.delta_embedding_dump_config, if that is set."""
    if not config.train_config.HasField("delta_embedding_dump_config"):
        return []
    settings = config.train_config.delta_embedding_dump_config
    every_secs = 60.0 * settings.dump_interval_minutes + settings.dump_interval_secs  # one of them is 0
    averaged = uses_ema(config, exporting=True)
    return [
        DumpDeltas(
            training.task.model,
            lambda: exported_dense(training, averaged),
            Path(settings.output_dir) if settings.output_dir else model_dir / FOLDER,
            prefix=settings.file_prefix,
            every_steps=0 if every_secs else settings.dump_interval_steps,
            every_secs=every_secs,
            quant="INT8" if settings.quant_type else "NONE",
            own_folder=not settings.output_dir,
        )
    ]


def exported_dense(training: Training, use_ema: bool) -> Mapping[str, Any]:
    """The dense weights as an export of a checkpoint of now would have them."""
    with evaluated_weights(training):
        own = dense_state(training.task.model)
        state = {name: value.detach().cpu().numpy().copy() for name, value in own.items()}
    if training.updater.ema is not None:
        tree = training.updater.state_dict()
        chosen = tree["ema"]["averages"] if use_ema else tree["training_weights"]
        state.update({name: value.detach().cpu().numpy().copy() for name, value in chosen.items()})
    return state
