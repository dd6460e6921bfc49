"""The bars of a benchmark: a ratio to a peer, the goal it is held to, and whether it holds."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Bar:
    """A ratio that is to be at least, or at most, the goal; the note is for the table alone."""

    name: str
    ratio: float
    goal: float
    at_least: bool
    note: str = ""

    @property
    def holds(self) -> bool:
        return bool(self.ratio >= self.goal if self.at_least else self.ratio <= self.goal)

    @property
    def verdict(self) -> str:
        return "ok" if self.holds else "NO"

    @property
    def goal_text(self) -> str:
        return f"{'>=' if self.at_least else '<='} {self.goal:g}"


def describe_bar(one: Bar) -> str:
    """A line of the table."""
    line = f"{one.verdict:<3} {one.name:<68} {one.ratio:9.4g}   goal {one.goal_text:<8} {one.note}"
    return line.rstrip()


def write_bars(path: Path | None, bars: Sequence[Bar]) -> None:
    """Write them as a JSON list of {name, ratio, goal, holds}, where a file is asked for."""
    if path is not None:
        keys = ("name", "ratio", "goal", "holds")
        listed = [{key: getattr(one, key) for key in keys} for one in bars]
        path.write_text(json.dumps(listed, indent=2) + "\n")
