"""Cutting tables into the shards that ranks hold."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from recgrad.training.checkpoint import CheckpointManager, Snapshot, TableRows


def rows_of(table: TableRows, chosen: np.ndarray) -> TableRows:
    """The chosen rows, a mask, with copies of all arrays."""
    states = {name: state[chosen] if state.ndim else state for name, state in table.states.items()}
    return TableRows(
        table.name,
        table.num_rows,
        table.dim,
        table.row_ids[chosen],
        table.weights[chosen],
        states,
        table.first_column,
        table.columns,
    )


def row_wise(table: TableRows, parts: int) -> list[TableRows]:
    """Ranges of rows of about the same height."""
    bounds = np.linspace(0, table.num_rows, parts + 1).astype(np.int64)
    ids = table.row_ids
    return [rows_of(table, (ids >= low) & (ids < high)) for low, high in zip(bounds, bounds[1:])]


def column_wise(table: TableRows, bounds: Sequence[int]) -> list[TableRows]:
    """Slices of columns between the bounds, written out without the code under test."""
    slices = []
    for low, high in zip(bounds, bounds[1:]):
        states = {
            name: state[:, low:high].copy() if state.ndim and state.shape[1] == table.dim else state
            for name, state in table.states.items()
        }
        weights = table.weights[:, low:high].copy()
        slices.append(
            TableRows(table.name, table.num_rows, table.dim, table.row_ids, weights, states, low, high - low)
        )
    return slices


def managers(folder, world_size, *, token="run-1", timeout_secs=30.0, keep_max=0) -> list[CheckpointManager]:
    return [
        CheckpointManager(
            folder,
            rank=rank,
            world_size=world_size,
            token=token,
            timeout_secs=timeout_secs,
            keep_max=keep_max if rank == 0 else 0,
        )
        for rank in range(world_size)
    ]


def save_together(group: Sequence[CheckpointManager], step, tree, tables) -> None:
    """Save `tables[rank]` on each rank and wait for all."""
    for rank, manager in enumerate(group):
        manager.save(Snapshot(step, tree if rank == 0 else {}, tables[rank]))
    for manager in group:
        manager.wait()
