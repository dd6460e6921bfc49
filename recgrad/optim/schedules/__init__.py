"""Learning-rate schedules: one file a schedule, each a pure function of the number of finished updates."""

from recgrad.optim.schedules.schedule import SCHEDULES, Schedule, build_schedule, build_schedules

__all__ = ["SCHEDULES", "Schedule", "build_schedule", "build_schedules"]
