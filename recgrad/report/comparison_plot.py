"""The picture of a comparison."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from recgrad.metrics.pairs import Floats
from recgrad.report.differences import HIGHER_IS_BETTER, Difference

COLORS = {"A": "#3b6fb6", "B": "#d1682a", None: "#6b7280"}
INK = "#1f2937"
MOST_TICKS = 6


def write_plot(
    path: str | Path,
    differences: Sequence[Difference],
    reliability: Mapping[str, Floats],
    *,
    verdict: str,
    confidence: float,
) -> None:
    """Intervals of B − A on the left, one scale a metric; calibration of both on the right."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    count = len(differences)
    layout = ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.08)
    figure = Figure(figsize=(11, 1.4 + 1.25 * count), dpi=150, layout=layout)
    FigureCanvasAgg(figure)
    figure.suptitle(f"B against A: {verdict}", x=0.01, ha="left", color=INK, fontsize=12, weight="bold")
    parts: Any = figure.subfigures(1, 2, width_ratios=(1.75, 1))
    left, right = parts
    for axes, difference in zip(left.subplots(count, 1, squeeze=False)[:, 0], differences):
        _interval(axes, difference, confidence)
    _calibration(right.subplots(), reliability)
    figure.savefig(path)


def _interval(axes: Any, difference: Difference, confidence: float) -> None:
    color = COLORS[difference.winner]
    reach = 1.15 * max(abs(difference.low), abs(difference.high), 1e-9)
    axes.set_xlim(-reach, reach)
    axes.set_ylim(-1, 1)
    axes.axvline(0, color=INK, linewidth=0.8, linestyle=(0, (4, 3)))
    axes.plot([difference.low, difference.high], [0, 0], color=color, linewidth=3, solid_capstyle="butt")
    axes.plot([difference.difference], [0], "o", color=color, markersize=8)
    higher = HIGHER_IS_BETTER[difference.metric]
    lower = "" if higher else " (lower is better)"
    axes.set_title(
        f"{difference.metric}{lower}: {difference.a:.5f} → {difference.b:.5f}, {difference.difference:+.5f}",
        loc="left",
        fontsize=10,
        color=INK,
    )
    axes.set_title(
        f"{confidence:.0%} interval, {difference.method}", loc="right", fontsize=8, color=COLORS[None]
    )
    sides = ("A better", "B better") if higher else ("B better", "A better")
    for place, side in zip((0.01, 0.99), sides):
        axes.text(
            place,
            0.06,
            side,
            transform=axes.transAxes,
            ha="left" if place < 0.5 else "right",
            fontsize=8,
            color=COLORS[side[0]],
        )
    axes.set_yticks([])
    axes.tick_params(axis="x", labelsize=8, colors=INK)
    for side in ("left", "right", "top"):
        axes.spines[side].set_visible(False)


def ticks(low: float, high: float) -> list[float]:
    """Round numbers in low … high for a logarithmic axis, as many as have room: at most MOST_TICKS."""
    for digits in ((1, 1.5, 2, 3, 4, 5, 6, 7, 8, 9), (1, 2, 3, 5, 7), (1, 2, 5), (1, 3), (1,)):
        decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        found = [float(f"{digit}e{decade}") for decade in decades for digit in digits]
        inside = [value for value in found if low <= value <= high]
        if len(inside) <= MOST_TICKS:
            break
    if len(inside) > MOST_TICKS:  # many decades: every second, third …
        inside = inside[:: -(-len(inside) // MOST_TICKS)]
    digits_needed = 2
    while len(inside) < 2 and digits_needed < 9:  # a narrow range: its ends
        inside = sorted({float(f"{end:.{digits_needed}g}") for end in (low, high)})
        digits_needed += 1
    return inside


def _calibration(axes: Any, reliability: Mapping[str, Floats]) -> None:
    from matplotlib.ticker import NullLocator

    values = [value for points in reliability.values() for value in points.ravel() if value > 0]
    low, high = (min(values) / 1.3, min(1.0, max(values) * 1.3)) if values else (1e-3, 1.0)
    axes.plot([low, high], [low, high], color=INK, linewidth=0.8, linestyle=(0, (4, 3)))
    for name, points in reliability.items():
        shown = points[points[:, 1] > 0]
        axes.plot(shown[:, 0], shown[:, 1], "o-", color=COLORS[name], markersize=4, linewidth=1.5, label=name)
    axes.set(xscale="log", yscale="log", xlim=(low, high), ylim=(low, high))
    marks = ticks(low, high)
    for axis in (axes.xaxis, axes.yaxis):
        # By itself a logarithmic axis of less than a decade labels every digit, one over the other.
        axis.set_ticks(marks, labels=[f"{mark:.8g}" for mark in marks])
        axis.set_minor_locator(NullLocator())
    axes.set_xlabel("mean prediction of a tenth of the rows", fontsize=8, color=INK)
    axes.set_ylabel("share of positives", fontsize=8, color=INK)
    axes.set_title("calibration", loc="left", fontsize=10, color=INK)
    axes.tick_params(labelsize=8, colors=INK)
    axes.legend(frameon=False, fontsize=9)
    for side in ("right", "top"):
        axes.spines[side].set_visible(False)
