"""Fine-tuning: what fits of a checkpoint goes into a model, and a report says what did not.

A fine-tuning run counts its own steps and follows its own schedule. What it takes over of optimizers is
the state that belongs to parameters, such as Adam's moments and their count.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import nn

from recgrad.embedding.engine import EmbeddingEngine, EmbeddingTable
from recgrad.errors import CheckpointError
from recgrad.optim.optimizer_state import describe_part, load_optimizer
from recgrad.optim.part import OptimizerPart, averages_weights
from recgrad.optim.sparse import SparseOptimizer
from recgrad.optim.updater import Updater
from recgrad.training.checkpoint.fit import content_of, hash_misfit, load_param_map
from recgrad.training.checkpoint.living import load_living_state
from recgrad.training.checkpoint.report import Afresh, RestoredTable, RestoreReport
from recgrad.training.checkpoint.snapshot import Snapshot, TableRows
from recgrad.training.dense_state import dense_state

_REMEDY = "take its weights alone with --ignore_restore_optimizer, or another checkpoint"
StateShapes: TypeAlias = Mapping[str, Mapping[str, tuple[int, ...]]]
# Counters that some optimizers keep for a whole parameter group.
_SHARED_COUNTERS = frozenset({"step", "k"})


def restore(
    snapshot: Snapshot,
    *,
    model: nn.Module,
    engine: EmbeddingEngine | None = None,
    sparse_optimizer: SparseOptimizer | None = None,
    updater: Updater | None = None,
    param_map: Path | str | None = None,
    ignore_optimizer: bool = False,
) -> RestoreReport:
    """Put into a model what fits of a snapshot; the rest keeps its initial values.

    A weight fits when its shape is the same. A table fits when its width is the same: rows
    beyond the end of a smaller one are dropped and counted, rows that a larger one has more
    initialise themselves when they are first touched. Counts of steps and schedules are not
    taken: a fine-tuning run begins at step 0.

    Args:
        snapshot: what `read_checkpoint` gave.
        model: its dense weights and buffers are set.
        engine: its tables' rows are set.
        sparse_optimizer: gets the rows' optimizer state.
        updater: its dense optimizers get the state of the restored weights.
        param_map: file of lines `name_in_this_model name_in_checkpoint`.
        ignore_optimizer: take weights only.

    Raises:
        CheckpointError: the map names what does not exist, or nothing at all fits.
    """
    state_shapes = {} if sparse_optimizer is None else _state_shapes(sparse_optimizer)
    with content_of(snapshot.step, _REMEDY):
        return _Restore(snapshot, model, engine, param_map).run(
            sparse_optimizer, updater, state_shapes, ignore_optimizer=ignore_optimizer
        )


@dataclass(frozen=True)
class _Taken:
    """What goes from a table of the checkpoint into one of the model."""

    table: TableRows
    rows: int
    dropped: int


class _Restore:
    """The names on both sides, and what has become of them."""

    def __init__(
        self,
        snapshot: Snapshot,
        model: nn.Module,
        engine: EmbeddingEngine | None,
        param_map: Path | str | None,
    ) -> None:
        self.snapshot = snapshot
        self.engine = engine
        self.there = _dense_weights(snapshot)
        self.tables_there = {table.name: table for table in snapshot.tables}
        self.here = dense_state(model)
        self.tables_here = {} if engine is None else {n: table.spec for n, table in engine.tables.items()}
        self.moved: dict[str, str] = {}
        if param_map is not None:
            self.moved = load_param_map(
                param_map,
                here=self.here.keys() | self.tables_here.keys(),
                there=self.there.keys() | self.tables_there.keys(),
            )
        self.used: set[str] = set()
        self.afresh: list[Afresh] = []

    def run(
        self,
        sparse_optimizer: SparseOptimizer | None,
        updater: Updater | None,
        shapes: StateShapes,
        *,
        ignore_optimizer: bool,
    ) -> RestoreReport:
        sources = self._restore_weights()
        rows = self._restore_tables()
        if not sources and not rows:
            raise CheckpointError(
                f"nothing in the checkpoint of step {self.snapshot.step} fits this model "
                f"(it has {', '.join([*self.there, *self.tables_there][:8]) or 'nothing'} …); "
                "map names with fine_tune_ckpt_param_map, or leave fine_tune_checkpoint out"
            )
        optimizer_restored: list[str] = []
        optimizer_afresh: list[Afresh] = []
        if updater is not None:
            saved = self.snapshot.tree.get("updater")  # weights from elsewhere come without
            if saved is not None and not ignore_optimizer:
                optimizer_restored, optimizer_afresh = _restore_dense_optimizers(updater, saved, sources)
            _restart_average(updater)
        if sparse_optimizer is not None and not ignore_optimizer:
            self._restore_row_states(sparse_optimizer, shapes, rows, optimizer_restored, optimizer_afresh)
        names = {**sources, **{name: taken.table.name for name, taken in rows.items()}}
        return RestoreReport(
            step=self.snapshot.step,
            restored=tuple(sources),
            renamed=tuple((own, theirs) for own, theirs in names.items() if own != theirs),
            tables=tuple(self._describe(name, taken) for name, taken in rows.items()),
            reinitialised=tuple(self.afresh),
            unused=tuple(sorted((self.there.keys() | self.tables_there.keys()) - self.used)),
            optimizer_restored=tuple(optimizer_restored),
            optimizer_afresh=tuple(optimizer_afresh),
        )

    def _restore_weights(self) -> dict[str, str]:
        """Copy what fits; the source of each restored weight."""
        sources: dict[str, str] = {}
        for name, value in self.here.items():
            source = self.moved.get(name, name)
            found = self.there.get(source)
            problem = _misfit(value, found)
            if problem is not None:
                self.afresh.append(Afresh(name, problem))
                continue
            assert found is not None
            with torch.no_grad():
                value.copy_(found)
            sources[name] = source
            self.used.add(source)
        return sources

    def _restore_tables(self) -> dict[str, _Taken]:
        """Import the rows that fit, some at a time; what was taken, by table here."""
        found: dict[str, _Taken] = {}
        load_living_state(self.snapshot.tree, self.engine, self.moved)
        for name, spec in self.tables_here.items():
            assert self.engine is not None
            source = self.moved.get(name, name)
            table = self.tables_there.get(source) or self._weight_as_table(source)
            if table is None:
                self.afresh.append(Afresh(name, "not in the checkpoint"))
                continue
            problem = hash_misfit(self.snapshot, source, spec.hash)
            if problem is not None:
                self.afresh.append(Afresh(name, problem))
                continue
            if table.dim != spec.dim:
                self.afresh.append(
                    Afresh(name, f"rows of width {table.dim} in the checkpoint, {spec.dim} here")
                )
                continue
            for piece in own_pieces(table, self.engine.tables[name]):
                self.engine.import_table(name, piece.row_ids, piece.weights)
            rows = table.count((0, spec.num_rows))
            found[name] = _Taken(table, rows, table.touched_rows - rows)
            self.used.add(source)
        return found

    def _weight_as_table(self, source: str) -> TableRows | None:
        """A dense matrix of the checkpoint as a table: pre-trained embeddings come so."""
        weight = self.there.get(source)
        if weight is None or weight.dim() != 2:
            return None
        num_rows, dim = weight.shape
        return TableRows(source, num_rows, dim, np.arange(num_rows), weight.to(torch.float32).numpy())

    def _restore_row_states(
        self,
        optimizer: SparseOptimizer,
        shapes: StateShapes,
        rows: Mapping[str, _Taken],
        restored: list[str],
        afresh: list[Afresh],
    ) -> None:
        for name, taken in rows.items():
            if name not in shapes:
                continue
            there = taken.table.state_shapes
            if there == shapes[name]:
                assert self.engine is not None
                for piece in own_pieces(taken.table, self.engine.tables[name]):
                    optimizer.import_state(name, piece.row_ids, piece.states)
                restored.append(name)
            else:
                reason = f"states {_spell(there)} in the checkpoint, {_spell(shapes[name])} here"
                afresh.append(Afresh(name, reason))

    def _describe(self, name: str, taken: _Taken) -> RestoredTable:
        spec, table = self.tables_here[name], taken.table
        return RestoredTable(name, table.name, taken.rows, taken.dropped, table.num_rows, spec.num_rows)


def _dense_weights(snapshot: Snapshot) -> dict[str, torch.Tensor]:
    weights = snapshot.tree.get("model")
    if not isinstance(weights, Mapping) or not all(isinstance(w, torch.Tensor) for w in weights.values()):
        raise CheckpointError(f"the checkpoint of step {snapshot.step} has no weights under 'model'")
    return dict(weights)


def _misfit(own: torch.Tensor, found: torch.Tensor | None) -> str | None:
    """Why a weight of the checkpoint cannot be taken, or None."""
    if found is None:
        return "not in the checkpoint"
    if own.shape != found.shape:
        return f"shape {list(found.shape)} in the checkpoint, {list(own.shape)} here"
    if own.is_floating_point() != found.is_floating_point():
        return f"{found.dtype} in the checkpoint, {own.dtype} here"
    return None


def own_pieces(saved: TableRows, table: EmbeddingTable) -> Iterator[TableRows]:
    """What this process holds of a saved table, some rows at a time; one, maybe empty, at least."""
    height = table.spec.num_rows  # a shard may be made of nothing, beyond the end
    for first, stop in table.row_ranges() or [(0, 0)]:  # the state of the table as a whole is everyone's
        yield from saved.pieces((min(first, height), min(stop, height)))


def _state_shapes(optimizer: SparseOptimizer) -> dict[str, dict[str, tuple[int, ...]]]:
    """By table and name of a state, (width,) or () of a scalar."""
    return {table: dict(sorted(optimizer.state_shapes(table).items())) for table in optimizer.tables}


def _spell(shapes: Mapping[str, tuple[int, ...]]) -> str:
    return ", ".join(f"{name} {list(shape)}" if shape else name for name, shape in shapes.items()) or "none"


@dataclass(frozen=True)
class _Saved:
    """The state of one parameter in the checkpoint."""

    optimizer: str
    state: Mapping[str, Any]
    shares_counter: bool


def _restore_dense_optimizers(
    updater: Updater, state: Mapping[str, Any], sources: Mapping[str, str]
) -> tuple[list[str], list[Afresh]]:
    """Give restored parameters their optimizer state back.

    Args:
        updater: whose optimizers get the state.
        state: what another updater's `state_dict` gave.
        sources: name in the checkpoint by name here, of the parameters that were restored.

    Returns:
        the names whose state was taken, and those that begin afresh.
    """
    restored: list[str] = []
    afresh: list[Afresh] = []
    saved = dict(_saved_states(state))
    for part in updater.dense:
        if averages_weights(part.optimizer):
            reason = f"{type(part.optimizer).__name__} starts its average at the restored weights"
            afresh += [Afresh(name, reason) for names in part.names for name in names]
        elif _fits_whole(part, state, sources):
            load_optimizer(part.optimizer, state["dense"][part.name])
            restored += [name for names in part.names for name in names]
        else:
            _restore_part(part, saved, sources, restored, afresh)
    return restored, afresh


def _restart_average(updater: Updater) -> None:
    """Let a moving average of the weights begin at the weights that are in the model now."""
    if updater.ema is None:
        return
    with torch.no_grad():
        for name, parameter in updater.ema.parameters.items():
            updater.ema.averages[name].copy_(parameter)


def _fits_whole(part: OptimizerPart, state: Mapping[str, Any], sources: Mapping[str, str]) -> bool:
    names = [name for group in part.names for name in group]
    same = state["parts"].get(part.name) == describe_part(part)
    return same and all(sources.get(name) == name for name in names)


def _restore_part(
    part: OptimizerPart,
    saved: Mapping[str, _Saved],
    sources: Mapping[str, str],
    restored: list[str],
    afresh: list[Afresh],
) -> None:
    kind = type(part.optimizer).__name__
    taken: dict[int, Mapping[str, Any]] = {}
    for position, name in enumerate(name for names in part.names for name in names):
        own = saved.get(sources.get(name, ""))
        if name not in sources:
            afresh.append(Afresh(name, "its weight was not restored"))
        elif own is None:
            afresh.append(Afresh(name, "the checkpoint has no state for it"))
        elif own.optimizer != kind:
            afresh.append(Afresh(name, f"trained by {own.optimizer} in the checkpoint, by {kind} here"))
        elif own.shares_counter:
            afresh.append(Afresh(name, f"{kind} counts steps for all its parameters, not all were restored"))
        else:
            taken[position] = own.state
            restored.append(name)
    groups = part.optimizer.state_dict()["param_groups"]
    load_optimizer(part.optimizer, {"state": taken, "param_groups": groups})


def _saved_states(state: Mapping[str, Any]) -> Iterator[tuple[str, _Saved]]:
    for part, description in state["parts"].items():
        optimizer = state["dense"][part]
        for names, group in zip(description["names"], optimizer["param_groups"]):
            shares = not _SHARED_COUNTERS.isdisjoint(group)
            for name, index in zip(names, group["params"]):
                if index in optimizer["state"]:
                    yield name, _Saved(description["optimizer"], optimizer["state"][index], shares)
