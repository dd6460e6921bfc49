"""One schedule after another."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field
from typing import Any

from google.protobuf.message import Message

from recgrad.optim.schedules.schedule import SCHEDULES, Schedule, build_schedule


@SCHEDULES.register("sequence_learning_rate")
@dataclass(kw_only=True, eq=False)
class Sequence(Schedule):
    """Runs schedules one after the other, each for its size and counting from zero.

    Every stage is given the same base rate and may have a warm-up of its own. The last stage
    has no end; when it has a size, the rate stays where it is after that many.

    Args:
        stages: (size, schedule) pairs; the last size may be None.
        by_epoch: count epochs; it holds for the stages too, which leave theirs unset.
    """

    stages: SequenceOf[tuple[int | None, Schedule]]
    warmup_size: int = field(default=0, init=False)  # a stage has its own
    warmup_learning_rate: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        """Refuse stages without an end, or that count otherwise than the sequence."""
        self.stages = tuple(self.stages)
        if not self.stages:
            raise ValueError("stages is empty")
        for i, (size, schedule) in enumerate(self.stages):
            if size is None and i < len(self.stages) - 1:
                raise ValueError(f"stages[{i}] must have a size: only the last stage may go without")
            if size is not None and size < 1:
                raise ValueError(f"stages[{i}].size must be at least 1, got {size}")
            if schedule.by_epoch and not self.by_epoch:
                raise ValueError("by_epoch belongs on the sequence; all stages count the same")
            if schedule.state_dict() or schedule.metric is not None:
                raise ValueError(f"stages[{i}] must be a function of the step, got {type(schedule).__name__}")

    @property
    def warms_up(self) -> bool:
        """Whether the first stage does."""
        return self.stages[0][1].warms_up

    def rate(self, base: float, n: int) -> float:
        """The rate of the stage that n falls in."""
        schedule, place = self._stage(n)
        return schedule.rate(base, place)

    def after_warmup(self, base: float, n: int) -> float:
        """The rate of the stage that n falls in."""
        return self.rate(base, n)

    def momentum(self, n: int) -> float | None:
        """The momentum of the stage that n falls in."""
        schedule, place = self._stage(n)
        return schedule.momentum(place)

    @property
    def cycles_momentum(self) -> bool:
        """Whether any stage cycles the momentum."""
        return any(schedule.cycles_momentum for _, schedule in self.stages)

    def _stage(self, n: int) -> tuple[Schedule, int]:
        for size, schedule in self.stages[:-1]:
            assert size is not None
            if n < size:
                return schedule, n
            n -= size
        size, schedule = self.stages[-1]
        return schedule, n if size is None else min(n, size)

    @classmethod
    def from_config(cls, message: Message) -> Schedule:
        """The sequence that a SequenceLR message describes."""
        config: Any = message
        stages = [
            (
                stage.size if stage.HasField("size") else None,
                build_schedule(stage, where=f"stages[{i}]"),
            )
            for i, stage in enumerate(config.stages)
        ]
        return cls(stages=stages, by_epoch=config.by_epoch)
