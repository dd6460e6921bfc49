"""Learning-rate schedules: one file a schedule, each a pure function of the number of finished updates."""

from __future__ import annotations

from typing import TYPE_CHECKING

from recgrad.lazy import lazy_names
from recgrad.optim.schedules._public import HOMES
from recgrad.optim.schedules.schedule import SCHEDULES, Schedule, build_schedule, build_schedules

__all__ = [*HOMES, "SCHEDULES", "Schedule", "build_schedule", "build_schedules"]

if TYPE_CHECKING:
    from recgrad.optim.schedules._public import *  # noqa: F403
else:
    __getattr__, __dir__ = lazy_names(__name__, __all__, HOMES)
