"""From live objects to a snapshot and back: all that an exact resume needs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from recgrad.embedding.engine import EmbeddingEngine, EmbeddingTable
from recgrad.embedding.living import NUM_ROWS
from recgrad.errors import CheckpointError
from recgrad.optim.sparse import SparseOptimizer
from recgrad.training.assembly import Training
from recgrad.training.checkpoint import Snapshot, TableRows, content_of, own_pieces
from recgrad.training.checkpoint.fit import hash_misfit, hashes_of
from recgrad.training.checkpoint.living import living_state, load_living_state
from recgrad.training.checkpoint.snapshot import DeferredTables
from recgrad.training.conditions import conditions_here, describe_changes, package_versions
from recgrad.training.dense_state import dense_buffers, dense_state, load_dense_state
from recgrad.training.evaluator import evaluated_weights
from recgrad.training.processes import Processes
from recgrad.training.runtime import rng_state, set_rng_state
from recgrad.training.state import TrainState
from recgrad.training.task import Task

_log = logging.getLogger("recgrad.training")


def capture(training: Training, state: TrainState) -> Snapshot:
    """A copy of everything that the next steps depend on; of several ranks, this one's share.

    The tree is whole on the first rank, which writes it, and empty on the others.
    """
    processes = training.processes
    everyone = processes.collect(
        (
            state.position,
            rng_state(processes.device),
            training.task.train_metrics_state(),
            conditions_here(sharded=processes.distributed),
        )
    )
    with evaluated_weights(training):
        evaluated = _owned(dense_state(training.task.model)) if processes.is_main else {}
    tables = capture_tables(training.task.model.engine, training.sparse_optimizer)
    several = processes.world_size > 1
    living = living_state(training.task.model.engine, processes.collect if several else None)
    if not processes.is_main:
        return Snapshot(state.step, {}, tables)
    positions, generators, metrics, conditions = zip(*everyone, strict=True)
    tree: dict[str, Any] = {
        "updater": training.updater.state_dict(),
        "hashes": hashes_of(training.task.model.engine),
        "buffers": dense_buffers(training.task.model),
        **living,
        "state": {
            **state.to_tree(),
            "position": None if positions[0] is None else training.train_loader.join_positions(positions),
        },
    }
    ranks = [{"train_metrics": own, "rng": rng} for own, rng in zip(metrics, generators, strict=True)]
    tree.update(ranks[0] if len(ranks) == 1 else {"ranks": ranks})
    return Snapshot(state.step, {**_owned(tree), "model": evaluated}, tables, conditions)


def capture_tables(engine: EmbeddingEngine | None, optimizer: SparseOptimizer | None) -> Sequence[TableRows]:
    """The touched rows of every table that this rank has to save, with their optimizer state.

    They are those of this moment; where a table can, they are copied when they are first looked at.
    """
    tables = {} if engine is None else engine.tables
    return DeferredTables([_captured(table, optimizer) for table in tables.values()])


def _captured(table: EmbeddingTable, optimizer: SparseOptimizer | None) -> Callable[[], list[TableRows]]:
    spec, parts = table.spec, table.begin_copy()
    learns = optimizer is not None and spec.name in optimizer.tables  # frozen tables do not
    whole = optimizer.table_state(spec.name) if learns and optimizer else {}

    def rows() -> list[TableRows]:
        return [
            TableRows(
                spec.name,
                spec.num_rows,
                spec.dim,
                part.row_ids,
                part.weights,
                {**part.states, **whole} if learns else {},
                first_column=part.first_column,
                columns=None if part.weights.shape[1] == spec.dim else part.weights.shape[1],
            )
            for part in parts()
        ]

    return rows


def resume(snapshot: Snapshot, training: Training, *, optimizers: bool = True) -> TrainState:
    """Put everything back as it was; the run resumes as if it had not stopped.

    With another number of ranks it resumes with the rows that are left of the epoch; generators
    and training metrics, which each rank has its own of, begin afresh.

    Without `optimizers` their moments and accumulators begin afresh; counts and schedules go on.
    """
    tree: Any = snapshot.tree
    model = training.task.model
    _check_tables(snapshot, model.engine)
    with content_of(snapshot.step, _TRAIN):
        own = _of_this_rank(tree, training.processes)
        state = TrainState.from_tree(tree["state"], step=snapshot.step)
        _check_counts(tree["updater"])
        load_dense_state(model, {**tree["model"], **tree["buffers"], **tree["updater"]["training_weights"]})
        if optimizers:
            training.updater.load_state_dict(tree["updater"])
        else:
            training.updater.num_updates = tree["updater"]["num_updates"]
            training.updater.start_epoch(tree["updater"]["epoch"])
        if own is not None:
            training.task.load_train_metrics_state(own["train_metrics"])
        load_living_state(tree, model.engine)
        restore_tables(snapshot, model.engine, training.sparse_optimizer if optimizers else None)
        if own is not None:
            set_rng_state(own["rng"], training.processes.device)
        if state.position is not None:
            state.position = training.train_loader.position_from(state.position).to_json()
    return state


def say_other_conditions(snapshot: Snapshot, processes: Processes) -> None:
    """One line where the run resumes under other conditions than its checkpoint was computed under."""
    now = processes.collect(conditions_here(sharded=processes.distributed))
    if not processes.is_main:
        return
    changes = describe_changes(snapshot.computed_on, now, snapshot.versions, package_versions())
    if changes:
        _log.warning(
            "resuming step %d under other conditions, so the run is no longer bit for bit the same: %s",
            snapshot.step,
            changes,
        )


def _check_counts(updater: Any) -> None:
    for name in ("num_updates", "epoch"):
        if type(updater[name]) is not int or updater[name] < 0:
            raise ValueError(f"updater.{name} is not a whole number from 0")


def _of_this_rank(tree: Mapping[str, Any], processes: Processes) -> Any:
    """Generators and training metrics of the same rank among as many; None if there were more or fewer."""
    ranks = tree.get("ranks", [tree])
    return ranks[processes.rank] if len(ranks) == processes.world_size else None


def load_weights(snapshot: Snapshot, task: Task, *, use_ema: bool) -> None:
    """The weights that evaluation sees; with a moving average, that or the weights in training."""
    tree: Any = snapshot.tree
    with content_of(snapshot.step, _EVALUATE):
        state = dict(tree["model"])
        if tree["updater"]["ema"] is not None:
            averages, training = tree["updater"]["ema"]["averages"], tree["updater"]["training_weights"]
            state.update(averages if use_ema else training)
        load_dense_state(task.model, state)
        _check_tables(snapshot, task.model.engine, _EVALUATE)
        load_living_state(tree, task.model.engine)
        restore_tables(snapshot, task.model.engine, None)


_TRAIN = "train from its weights alone with --fine_tune_checkpoint in a new model_dir"
_SAME_HASH = "set data_config.hash, or hash of the features, to that of the checkpoint"
_EVALUATE = "give the config that it was trained with (pipeline.config of its model_dir)"


def _misfit(snapshot: Snapshot, error: str, remedy: str = _TRAIN) -> CheckpointError:
    return CheckpointError(
        f"the checkpoint of step {snapshot.step} does not fit this config: {error}; {remedy}"
    )


def _check_tables(snapshot: Snapshot, engine: EmbeddingEngine | None, remedy: str = _TRAIN) -> None:
    """Refuse other tables, and tables of another size: their ids may mean something else now."""
    tables = {} if engine is None else engine.tables
    there = {saved.name for saved in snapshot.tables}
    for name in sorted(there.symmetric_difference(tables)):
        where = "is not in this model" if name in there else "is not in the checkpoint"
        raise _misfit(snapshot, f"table '{name}' {where}", remedy)
    for saved in snapshot.tables:
        spec = tables[saved.name].spec
        if (spec.num_rows, spec.dim) != (saved.num_rows, saved.dim):
            sizes = f"table '{saved.name}' has {_height(spec.num_rows)} of {spec.dim}"
            text = f"{sizes}, the checkpoint's {_height(saved.num_rows)} of {saved.dim}"
            raise _misfit(snapshot, text, remedy)
        problem = hash_misfit(snapshot, saved.name, spec.hash)
        if problem is not None:
            raise _misfit(snapshot, f"table '{saved.name}': {problem}", _SAME_HASH)


def _height(num_rows: int) -> str:
    return "rows by id (zch or dynamicemb)" if num_rows == NUM_ROWS else f"{num_rows} rows"


def restore_tables(
    snapshot: Snapshot, engine: EmbeddingEngine | None, optimizer: SparseOptimizer | None
) -> None:
    """The rows of every table, and their optimizer state when there is an optimizer."""
    if engine is None:
        return
    known = engine.tables
    for table in snapshot.tables:
        learns = optimizer is not None and table.name in optimizer.tables
        for piece in own_pieces(table, known[table.name]):
            engine.import_table(piece.name, piece.row_ids, piece.weights)
            if learns and optimizer is not None:
                optimizer.import_state(piece.name, piece.row_ids, dict(piece.states))


def _owned(value: Any) -> Any:
    """The tree with every tensor copied to the host, so that training may go on while it is written."""
    if isinstance(value, torch.Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, dict):
        return {key: _owned(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_owned(item) for item in value)
    return value
