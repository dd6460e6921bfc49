"""The pictures of a report, as SVG text that needs nothing from outside."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import matplotlib as mpl

from recgrad.report.diagnostics import Calibration, GroupSizes

Series = Mapping[str, tuple[Sequence[float], Sequence[float]]]

STYLE: dict[Any, Any] = {
    "font.family": "sans-serif",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "lines.linewidth": 1.6,
    "svg.fonttype": "none",
    "svg.hashsalt": "recgrad",
    "figure.constrained_layout.use": True,
}


MARKED = 20
"""Up to so many points of a line each has a marker: a line alone hides how few they are."""


def draw(paint: Callable[[Any], None], *, height: float = 2.2) -> str:
    """An SVG element with one set of axes that `paint` fills."""
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(5.0, height))  # as wide as a phone, so that text keeps its size there
        FigureCanvasSVG(figure)
        paint(figure.add_subplot())
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    text = buffer.getvalue()
    return text[text.index("<svg") :]


def curves(series: Series, *, y_label: str, log: bool = False) -> str:
    """Lines over the step, one for each name; with markers where there are few points."""

    def paint(axes: Any) -> None:
        for name, (steps, values) in series.items():
            axes.plot(steps, values, label=name, marker="o" if len(steps) <= MARKED else None, markersize=3.5)
        axes.set_xlabel("step")
        axes.xaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)
        axes.set_ylabel(y_label)
        if log and all(value > 0 for _, values in series.values() for value in values):
            axes.set_yscale("log")
        if len(series) > 1:
            axes.legend(fontsize=8, frameon=False, ncols=2)

    return draw(paint)


def calibration(curve: Calibration) -> str:
    """Observed over predicted rate, with the line of perfect calibration."""

    def paint(axes: Any) -> None:
        top = float(max(curve.predicted.max(), curve.observed.max())) * 1.05
        axes.plot([0, top], [0, top], color="gray", linestyle="--", linewidth=1, label="perfect")
        axes.plot(curve.predicted, curve.observed, marker="o", markersize=4, label="this model")
        axes.set_xlabel("predicted rate")
        axes.set_ylabel("observed rate")
        axes.legend(fontsize=8, frameon=False)

    return draw(paint, height=2.8)


def group_sizes(sizes: GroupSizes) -> str:
    """A bar for each range of group sizes, with the number of groups above it."""

    def paint(axes: Any) -> None:
        bars = axes.bar(sizes.labels, sizes.auc, width=0.6)
        axes.bar_label(bars, [f"{count:,}" for count in sizes.groups], fontsize=8)
        axes.axhline(0.5, color="gray", linestyle="--", linewidth=1)
        axes.set_ylim(min(0.45, float(sizes.auc.min()) - 0.02), min(1.0, float(sizes.auc.max()) + 0.05))
        axes.set_xlabel("rows of a group (number of groups above the bars)")
        axes.set_ylabel("mean AUC inside groups")

    return draw(paint, height=2.8)
