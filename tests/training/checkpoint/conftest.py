"""Snapshots that the checkpoint tests write, and a comparison that sees every bit."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from recgrad.training.checkpoint import CheckpointManager, Snapshot, TableRows, read_checkpoint


def bits(tensor: torch.Tensor) -> bytes:
    flat = tensor.detach().reshape(-1)
    return flat.clone().view(torch.uint8).numpy().tobytes() if tensor.numel() else b""


def same(a: Any, b: Any) -> bool:
    """Equal types, values and bits, NaN payloads and negative zeros included."""
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and (a.dtype, a.shape) == (b.dtype, b.shape) and bits(a) == bits(b)
    if isinstance(a, (np.ndarray, np.generic)):
        return (
            isinstance(b, np.generic) == isinstance(a, np.generic)
            and isinstance(b, (np.ndarray, np.generic))
            and (a.dtype, a.shape) == (b.dtype, b.shape)
            and a.tobytes() == b.tobytes()
        )
    if isinstance(a, Mapping):
        return isinstance(b, dict) and list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, float):
        return type(b) is float and struct.pack("d", a) == struct.pack("d", b)
    return type(a) is type(b) and a == b


def table(name: str = "user", rows: int = 50, dim: int = 4, seed: int = 0) -> TableRows:
    rng = np.random.default_rng(seed)
    ids = np.sort(rng.choice(10 * rows, rows, replace=False)).astype(np.int64)
    return TableRows(
        name,
        10 * rows,
        dim,
        ids,
        rng.standard_normal((rows, dim), dtype=np.float32),
        {
            "m": rng.standard_normal((rows, dim), dtype=np.float32),
            "t": np.array(17),
            "v": rng.random((rows, 1), dtype=np.float32),
        },
    )


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
    return [rows_of(table, (ids >= low) & (ids < high)) for low, high in pairwise(bounds)]


def column_wise(table: TableRows, bounds: Sequence[int]) -> list[TableRows]:
    """Slices of columns between the bounds, written out without the code under test."""
    slices = []
    for low, high in pairwise(bounds):
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


def filled(step: int, rank: int, world_size: int, rows: int = 40) -> list[TableRows]:
    """A rank's rows and its slice of columns, all values the step."""
    ids = np.arange(rank * rows, (rank + 1) * rows)
    values = np.full((rows, 4), step, np.float32)
    by_row = TableRows("rows", rows * world_size, 4, ids, values, {"m": values})
    dim = 2 * world_size
    values = np.full((rows, 2), step, np.float32)
    by_column = TableRows("columns", rows, dim, np.arange(rows), values, {}, 2 * rank, 2)
    return [by_row, by_column]


def check_whole(path: Path, world_size: int, rows: int = 40) -> int:
    snapshot = read_checkpoint(path)
    assert snapshot.tree == {"n": snapshot.step}
    columns, by_row = snapshot.tables
    assert columns.weights.shape == (rows, 2 * world_size)
    assert by_row.touched_rows == rows * world_size
    for table in snapshot.tables:
        assert np.all(table.weights == snapshot.step)
    return snapshot.step


@pytest.fixture
def cut() -> SimpleNamespace:
    """Tables in shards, and ranks that save them."""
    return SimpleNamespace(
        row_wise=row_wise,
        column_wise=column_wise,
        rows_of=rows_of,
        filled=filled,
        check_whole=check_whole,
        managers=managers,
        save_together=save_together,
    )


@pytest.fixture(name="same")
def same_fixture() -> Callable[[Any, Any], bool]:
    return same


@pytest.fixture
def make_table() -> Callable[..., TableRows]:
    return table


@pytest.fixture
def make_snapshot() -> Callable[..., Snapshot]:
    def make(step: int = 7, seed: int = 0, rows: int = 50) -> Snapshot:
        generator = torch.Generator().manual_seed(seed)
        tree = {
            "model": {
                "dense.weight": torch.randn(5, 3, generator=generator),
                "norm.count": torch.tensor(3),
                "half": torch.randn(7, generator=generator).to(torch.bfloat16),
            },
            "updater": {
                "state": {0: {"exp_avg": torch.randn(5, 3, generator=generator)}},
                "betas": (0.9, 0.999),
            },
            "state": {"best": -math.inf, "position": None, "epoch": step},
            "rng": {"torch": generator.get_state()},
        }
        return Snapshot(step, tree, [table("user", rows, seed=seed), table("item", rows // 2, 8, seed + 1)])

    return make
