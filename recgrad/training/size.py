"""How large a run is: its data and its model, as the log and the report say it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from recgrad.models.base import Model
    from recgrad.training.trainer import Trainer


def describe_run(trainer: Trainer) -> Mapping[str, int]:
    """Counts by name: rows of an epoch, where one process reads them all, and the size of the model."""
    alone = trainer.processes.world_size == 1
    return {**({"train_rows": trainer.loader.num_rows} if alone else {}), **model_size(trainer.task.model)}


def model_size(model: Model) -> dict[str, int]:
    """Dense weights; tables, their rows and their values, whether rows were touched or not."""
    engine: Any = model.engine
    specs = [] if engine is None else [table.spec for table in engine.tables.values()]
    return {
        "dense_weights": sum(parameter.numel() for _, parameter in model.dense_named_parameters()),
        "tables": len(specs),
        "table_rows": sum(spec.num_rows for spec in specs),
        "table_values": sum(spec.num_rows * spec.dim for spec in specs),
    }
