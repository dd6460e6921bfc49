"""The picture of a calibration: observed over predicted rates, before and after."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib as mpl

from recgrad.metrics.pairs import Floats
from recgrad.report.diagnostics import calibration_curve
from recgrad.report.plots import STYLE

COLORS = {"raw": "#9aa3ad", "calibrated": "#3b6fb6"}
WIDTH, HEIGHT = 4.2, 4.0


def write_reliability(path: str | Path, tasks: Mapping[str, tuple[Mapping[str, Floats], Floats]]) -> None:
    """Draw a panel for each task.

    Args:
        path: of the picture; its ending says of which kind.
        tasks: scores by name ("raw", "calibrated") and labels, by the title of the panel.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH * len(tasks), HEIGHT), dpi=150)
        FigureCanvasAgg(figure)
        for axes, (title, (scores, labels)) in zip(
            figure.subplots(1, len(tasks), squeeze=False)[0], tasks.items(), strict=True
        ):
            _panel(axes, title, scores, labels)
        figure.savefig(path)


def _panel(axes: Any, title: str, scores: Mapping[str, Floats], labels: Floats) -> None:
    curves = {name: calibration_curve(values, labels) for name, values in scores.items()}
    top = 1.05 * max(float(max(curve.predicted.max(), curve.observed.max())) for curve in curves.values())
    axes.plot([0, top], [0, top], color="gray", linestyle="--", linewidth=1, label="perfect")
    for name, curve in curves.items():
        axes.plot(curve.predicted, curve.observed, marker="o", markersize=4, color=COLORS[name], label=name)
    axes.set_title(title, loc="left", fontsize=10)
    axes.set_xlabel("predicted rate, of equally many rows each")
    axes.set_ylabel("observed rate")
    axes.legend(fontsize=8, frameon=False)
