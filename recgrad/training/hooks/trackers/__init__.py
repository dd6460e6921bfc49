"""Trackers of experiments that others make: a run's settings, metrics and files in their databases."""

from recgrad.registry import Registry
from recgrad.training.hooks.trackers.base import Tracker

TRACKERS: Registry[type[Tracker]] = Registry("tracker", "recgrad.training.hooks.trackers")
