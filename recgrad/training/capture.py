"""From live objects to a snapshot and back: all that an exact resume needs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from recgrad.embedding.local.engine import LocalEngine
from recgrad.errors import CheckpointError
from recgrad.models.base import Model
from recgrad.optim.sparse import SparseOptimizer
from recgrad.training.assembly import Training, local_engine
from recgrad.training.averaged import evaluated_weights
from recgrad.training.checkpoint import Snapshot, TableRows
from recgrad.training.runtime import rng_state, set_rng_state
from recgrad.training.state import TrainState
from recgrad.training.task import Task


def capture(training: Training, state: TrainState) -> Snapshot:
    """A copy of everything that the next steps depend on."""
    model = training.task.model
    tree: dict[str, Any] = {
        "updater": training.updater.state_dict(),
        "buffers": dense_buffers(model),
        "state": state.to_tree(),
        "train_metrics": training.task.train_metrics_state(),
        "rng": rng_state(),
    }
    tree = _owned(tree)
    with evaluated_weights(training):
        tree["model"] = _owned(dense_state(model))
    return Snapshot(state.step, tree, capture_tables(local_engine(training.task), training.sparse_optimizer))


def dense_state(model: Model) -> dict[str, torch.Tensor]:
    """Weights and buffers of the dense half, by name."""
    return {name: value for name, value in model.state_dict().items() if not name.startswith("engine.")}


def dense_buffers(model: Model) -> dict[str, torch.Tensor]:
    """Buffers of the dense half in training: BatchNorm's statistics may be others in evaluation."""
    return {name: value for name, value in model.named_buffers() if not name.startswith("engine.")}


def load_dense_state(model: Model, state: Mapping[str, torch.Tensor]) -> None:
    """Put the dense half back; raises a ValueError that names what does not fit."""
    own = dense_state(model)
    if odd := sorted(set(own) ^ set(state)):
        raise ValueError(f"other weights than the model's (differ: {', '.join(odd)})")
    with torch.no_grad():
        for name, value in own.items():
            if value.shape != state[name].shape:
                raise ValueError(f"'{name}' is {list(state[name].shape)}, the model's is {list(value.shape)}")
            value.copy_(state[name])


def capture_tables(engine: LocalEngine | None, optimizer: SparseOptimizer | None) -> list[TableRows]:
    """The touched rows of every table with their optimizer state."""
    if engine is None:
        return []
    tables = []
    for table in engine.tables.values():
        spec = table.spec
        row_ids, weights = engine.export_table(spec.name)
        states = {}
        if optimizer is not None and spec.name in optimizer.tables:  # frozen tables are not
            states = optimizer.export_state(spec.name)
        tables.append(TableRows(spec.name, spec.num_rows, spec.dim, row_ids, weights, states))
    return tables


def resume(snapshot: Snapshot, training: Training, *, optimizers: bool = True) -> TrainState:
    """Put everything back as it was; the run goes on as if it had not stopped.

    Without `optimizers` their moments and accumulators begin anew; counts and schedules go on.
    """
    tree: Any = snapshot.tree
    model = training.task.model
    _check_tables(snapshot, local_engine(training.task))
    try:
        load_dense_state(model, {**tree["model"], **tree["buffers"], **tree["updater"]["training_weights"]})
        if optimizers:
            training.updater.load_state_dict(tree["updater"])
        else:
            training.updater.num_updates = tree["updater"]["num_updates"]
            training.updater.start_epoch(tree["updater"]["epoch"])
        training.task.load_train_metrics_state(tree["train_metrics"])
    except (KeyError, ValueError, RuntimeError) as error:
        raise _misfit(snapshot, error) from error
    if not optimizers:
        restore_tables(snapshot, local_engine(training.task), None)
        set_rng_state(tree["rng"])
        return TrainState.from_tree(tree["state"])
    restore_tables(snapshot, local_engine(training.task), training.sparse_optimizer)
    set_rng_state(tree["rng"])
    return TrainState.from_tree(tree["state"])


def load_weights(snapshot: Snapshot, task: Task, *, use_ema: bool) -> None:
    """The weights that evaluation sees; with a moving average, that or the weights in training."""
    tree: Any = snapshot.tree
    state = dict(tree["model"])
    if tree["updater"]["ema"] is not None:
        state.update(tree["updater"]["ema"]["averages"] if use_ema else tree["updater"]["training_weights"])
    try:
        load_dense_state(task.model, state)
    except (KeyError, ValueError) as error:
        raise _misfit(snapshot, error) from error
    restore_tables(snapshot, local_engine(task), None)


def _misfit(snapshot: Snapshot, error: Exception) -> CheckpointError:
    return CheckpointError(
        f"the checkpoint of step {snapshot.step} does not fit this config: {error}; "
        "train from its weights alone with --fine_tune_checkpoint in a new model_dir"
    )


def _check_tables(snapshot: Snapshot, engine: LocalEngine | None) -> None:
    """Refuse tables of another size: their ids may mean something else now."""
    tables = {} if engine is None else engine.tables
    for saved in snapshot.tables:
        spec = tables[saved.name].spec if saved.name in tables else None
        if spec is not None and (spec.num_rows, spec.dim) != (saved.num_rows, saved.dim):
            sizes = f"table '{saved.name}' has {spec.num_rows} rows of {spec.dim}"
            raise _misfit(snapshot, ValueError(f"{sizes}, the checkpoint's {saved.num_rows} of {saved.dim}"))


def restore_tables(snapshot: Snapshot, engine: LocalEngine | None, optimizer: SparseOptimizer | None) -> None:
    """The rows of every table, and their optimizer state when there is an optimizer."""
    if engine is None:
        return
    known = engine.tables
    for table in snapshot.tables:
        if table.name not in known:
            raise CheckpointError(
                f"table '{table.name}' of the checkpoint is not in this model "
                f"(has: {', '.join(sorted(known))})"
            )
        engine.import_table(table.name, table.row_ids, table.weights)
        if optimizer is not None and table.name in optimizer.tables:
            optimizer.import_state(table.name, table.row_ids, dict(table.states))


def _owned(value: Any) -> Any:
    """The tree with every tensor copied, so that training may go on while it is written."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        return {key: _owned(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_owned(item) for item in value)
    return value
