"""Line plots as data, and as picture files; terminal_plot.py shows them in the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from recgrad.errors import RecgradError

#: Colours that stay apart for colour-blind eyes and in grey (Okabe and Ito 2008).
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")


@dataclass(frozen=True)
class Line:
    """One line of a plot.

    Attributes:
        label: its name in the legend.
        x: its points.
        y: their values.
        faint: draw it thin and pale, as the ground of another.
    """

    label: str
    x: Sequence[float]
    y: Sequence[float]
    faint: bool = False


@dataclass(frozen=True)
class Panel:
    """Lines over one axis.

    Attributes:
        title: above the panel.
        x_label, y_label: what the axes show.
        log_x, log_y: logarithmic axes.
        marks: (x, label) of upright lines.
        from_zero: let a straight y axis begin at 0.
    """

    title: str
    lines: Sequence[Line]
    x_label: str
    y_label: str
    log_x: bool = False
    log_y: bool = False
    marks: Sequence[tuple[float, str]] = ()
    from_zero: bool = False


def save_picture(panels: Sequence[Panel], path: str | Path) -> None:
    """Writes the panels, one under the other, into a picture file; the suffix says the format."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 1.2 + 3.6 * len(panels)), layout="constrained")
    FigureCanvasAgg(figure)
    for axes, panel in zip(figure.subplots(len(panels), squeeze=False)[:, 0], panels):
        _draw(axes, panel)
    try:
        figure.savefig(path, dpi=150)
    except ValueError as error:
        raise RecgradError(f"--out {path}: {error}") from error


def _draw(axes: object, panel: Panel) -> None:
    from matplotlib.axes import Axes

    assert isinstance(axes, Axes)
    for i, line in enumerate(panel.lines):
        style = {"color": "0.75", "linewidth": 1.0} if line.faint else {"color": COLOURS[i % len(COLOURS)]}
        axes.plot(line.x, line.y, label=line.label, **({"linewidth": 1.8} | style))
    for x, label in panel.marks:
        axes.axvline(x, color="0.4", linewidth=1.0, linestyle="--")
        axes.annotate(
            label,
            (x, 1),
            xycoords=("data", "axes fraction"),
            xytext=(-3, -4),
            textcoords="offset points",
            rotation=90,
            ha="right",
            va="top",
            fontsize=9,
        )
    axes.set_xscale("log" if panel.log_x else "linear")
    axes.set_yscale("log" if panel.log_y else "linear")
    axes.set_title(panel.title, loc="left", fontsize=11)
    axes.set_xlabel(panel.x_label)
    axes.set_ylabel(panel.y_label)
    axes.grid(visible=True, color="0.9", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.margins(x=0.01)
    if panel.from_zero and not panel.log_y:
        axes.set_ylim(bottom=0)
    if len(panel.lines) > 1:
        axes.legend(frameon=False, loc="best", fontsize=9)
