"""The bars of a benchmark: a ratio to a peer, the goal it is held to, and whether it holds."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

Bar = dict[str, Any]


def bar(name: str, ratio: float, goal: float, *, at_least: bool, note: str = "") -> Bar:
    """A ratio that is to be at least, or at most, the goal."""
    holds = ratio >= goal if at_least else ratio <= goal
    sign = ">=" if at_least else "<="
    return {"name": name, "ratio": ratio, "goal": f"{sign} {goal:g}", "holds": holds, "note": note}


def describe_bar(one: Bar) -> str:
    """A line of the table."""
    verdict = "ok" if one["holds"] else "NO"
    line = f"{verdict:<3} {one['name']:<68} {one['ratio']:9.4g}   goal {one['goal']:<8} {one['note']}"
    return line.rstrip()


def write_bars(path: Path | None, bars: Sequence[Bar]) -> None:
    """Write them as JSON, where a file is asked for."""
    if path is not None:
        path.write_text(json.dumps(list(bars), indent=2) + "\n")
