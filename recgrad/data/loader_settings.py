"""How a loader orders, cuts and delivers rows, as DataConfig says."""

from __future__ import annotations

from dataclasses import dataclass

from recgrad.config.messages import shortest_float
from recgrad.config.proto.data_pb2 import DataConfig
from recgrad.data.position import RANKS
from recgrad.errors import ConfigError, Problem
from recgrad.openmp import usable_cores

UNIT_ROWS = 8192
"""Rows that are encoded at once: enough that the effort for each column does not count."""
COST_WINDOW_BATCHES = 16


@dataclass(frozen=True)
class LoaderSettings:
    """How a loader orders, cuts and delivers rows; the fields of DataConfig with defaults resolved."""

    batch_size: int
    training: bool
    shuffle: bool
    shuffle_buffer_size: int
    drop_remainder: bool
    threads: int
    in_order: bool
    skip_bad: bool
    max_bad_row_ratio: float
    mask_probability: float
    cost: tuple[str, int] | None
    pin: bool
    seed: int
    rank: int
    world_size: int

    @property
    def unit_batches(self) -> int:
        """Batches that are encoded at once."""
        return 1 if self.cost else max(1, UNIT_ROWS // self.batch_size)

    @property
    def window_batches(self) -> int:
        """Batches whose rows are shuffled together; without shuffling, what is convenient."""
        if self.shuffle:
            return self.shuffle_buffer_size
        return COST_WINDOW_BATCHES if self.cost else self.unit_batches

    def order_settings(self) -> tuple[tuple[str, str], ...]:
        """What the order of rows depends on, by the names users know."""
        values: dict[str, object] = {
            "batch_size": self.batch_size,
            "batch_cost_size": self.cost[1] if self.cost else 0,
            "sample_cost_field": self.cost[0] if self.cost else "",
            "drop_remainder": self.drop_remainder,
            "seed": self.seed,
            "shuffle": self.shuffle,
            "shuffle_buffer_size": self.shuffle_buffer_size if self.shuffle else 0,
            RANKS: self.world_size,
        }
        return tuple(sorted((name, str(value)) for name, value in values.items()))


def resolve_settings(
    data: DataConfig, *, training: bool, seed: int, rank: int, world_size: int, pin: bool = False
) -> LoaderSettings:
    """The settings of a loader; what is written in the config must make sense together.

    `pin` says that batches go to a GPU, so that data_config.pin_memory has a meaning.
    """
    batch_size = data.batch_size
    if not training and data.HasField("eval_batch_size"):
        batch_size = data.eval_batch_size
    problems = []
    if batch_size < 1:
        problems.append(Problem("data_config.batch_size", f"must be at least 1, got {batch_size}"))
    if data.shuffle and data.shuffle_buffer_size < 1:
        problems.append(Problem("data_config.shuffle_buffer_size", "must be at least 1, got 0"))
    for name in ("sample_mask_prob", "negative_sample_mask_prob", "max_bad_row_ratio"):
        if not 0.0 <= getattr(data, name) <= 1.0:
            problems.append(
                Problem(f"data_config.{name}", f"must be from 0 to 1, got {getattr(data, name):g}")
            )
    cost = (data.sample_cost_field, data.batch_cost_size) if data.batch_cost_size else None
    if bool(data.sample_cost_field) != bool(data.batch_cost_size):
        problems.append(
            Problem("data_config", "batch_cost_size and sample_cost_field go together; set both or none")
        )
    if problems:
        raise ConfigError(problems)
    workers = data.num_workers
    if not data.HasField("num_workers"):
        workers = min(workers, usable_cores())
    return LoaderSettings(
        batch_size=batch_size,
        training=training,
        shuffle=training and data.shuffle,
        shuffle_buffer_size=data.shuffle_buffer_size,
        drop_remainder=training and data.drop_remainder,
        threads=workers * max(1, data.fg_threads),
        in_order=data.in_order,
        skip_bad=data.on_bad_row == DataConfig.SKIP,
        max_bad_row_ratio=shortest_float(data.max_bad_row_ratio),
        mask_probability=data.sample_mask_prob if training else 0.0,
        cost=cost,
        pin=data.pin_memory and pin,
        seed=seed,
        rank=rank,
        world_size=world_size,
    )
