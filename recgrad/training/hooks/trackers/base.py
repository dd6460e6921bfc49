"""What a tracker is: it opens a run, or one of before again, and is told numbers and files."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar


class Tracker(ABC):
    """A run in a tracker's database. Errors of any kind may come out of it: who calls it bears them.

    Args:
        where: what the config says behind the tracker's name, such as an address; "" for the usual place.
        model_dir: of the run.

    Attributes:
        extra: of Recgrad, that installs what it needs.
    """

    extra: ClassVar[str]

    def __init__(self, where: str, model_dir: Path) -> None:
        self.where = where
        self.model_dir = model_dir

    @classmethod
    @abstractmethod
    def check_installed(cls) -> None:
        """Raise ImportError where its package is missing, without importing it."""

    @abstractmethod
    def open(self, run_id: str, params: Mapping[str, str]) -> str:
        """Begin a run, or resume the one of `run_id` where that is not ""; returns its id."""

    @abstractmethod
    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Numbers of a step."""

    @abstractmethod
    def attach(self, path: Path) -> None:
        """A file of the model_dir."""

    @abstractmethod
    def close(self, *, finished: bool) -> None:
        """End the run; not `finished` where it will be resumed, or has failed."""
