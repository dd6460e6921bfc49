"""Line plots of dots in the terminal: eight dots to a character."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from recgrad.terminal import printable

if TYPE_CHECKING:
    from rich.text import Text

    from recgrad.cli.plots import Panel

STYLES = ("blue", "red", "green", "magenta", "yellow", "cyan", "bright_black")
MARK_STYLE = "bright_black"
# The bits of a braille character, by column and row of its dots.
_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))


@dataclass(frozen=True)
class Axis:
    """Maps values to 0 … 1, on a straight or a logarithmic axis."""

    low: float
    high: float
    log: bool = False

    @staticmethod
    def over(values: Sequence[float], *, log: bool, from_zero: bool = False) -> Axis:
        """The axis that holds all values; a single one stands in the middle."""
        usable = [v for v in values if math.isfinite(v) and (v > 0 or not log)]
        low, high = (min(usable), max(usable)) if usable else (0.0, 1.0)
        if from_zero and not log:
            low = min(low, 0.0)
        if low == high:
            low, high = (low / 2, high * 2) if log else (low - 0.5, high + 0.5)
        return Axis(low, high, log)

    def place(self, value: float) -> float | None:
        """Where a value lies, or None when it has no place."""
        if not math.isfinite(value) or (self.log and value <= 0):
            return None
        if self.log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    def value(self, place: float) -> float:
        """The value at a place."""
        if self.log:
            return self.low * math.pow(self.high / self.low, place)
        return self.low + place * (self.high - self.low)


class Canvas:
    """Characters of dots; each has the style of what was drawn on it last."""

    def __init__(self, width: int, height: int) -> None:
        self.width, self.height = width, height
        self.bits = [[0] * width for _ in range(height)]
        self.styles = [[""] * width for _ in range(height)]

    def dot(self, x: float, y: float, style: str) -> None:
        """Sets the dot at a place, (0, 0) lower left and (1, 1) upper right."""
        column = min(int(x * self.width * 2), self.width * 2 - 1)
        row = min(int((1 - y) * self.height * 4), self.height * 4 - 1)
        if column >= 0 and row >= 0:
            self.bits[row // 4][column // 2] |= _DOTS[column % 2][row % 4]
            self.styles[row // 4][column // 2] = style

    def line(self, a: tuple[float, float], b: tuple[float, float], style: str) -> None:
        """Sets the dots between two places."""
        across = abs(b[0] - a[0]) * self.width * 2
        up = abs(b[1] - a[1]) * self.height * 4
        count = max(int(max(across, up)) + 1, 1)
        for i in range(count + 1):
            t = i / count
            self.dot(a[0] + t * (b[0] - a[0]), a[1] + t * (b[1] - a[1]), style)


def show_panel(panel: Panel, *, width: int | None = None) -> None:
    """Prints the panel to the terminal, in colour where there is some."""
    from rich.console import Console

    console = Console(highlight=False)
    console.print(render(panel, width or min(console.width, 110)))


def render(panel: Panel, width: int, height: int = 16) -> Text:
    """The panel as text of the given width, with axes and a legend."""
    from rich.text import Text

    x_axis = Axis.over([x for line in panel.lines for x in line.x], log=panel.log_x)
    y_axis = Axis.over(
        [y for line in panel.lines for y in line.y], log=panel.log_y, from_zero=panel.from_zero
    )
    labels = {round((height - 1) * (1 - t / 4)): f"{y_axis.value(t / 4):.3g}" for t in range(5)}
    margin = max(map(len, labels.values())) + 1
    canvas = Canvas(max(width - margin - 2, 10), height)
    for x, _ in panel.marks:
        place = x_axis.place(x)
        if place is not None:
            canvas.line((place, 0), (place, 1), MARK_STYLE)
    for i, line in enumerate(panel.lines):
        _trace(
            canvas, line.x, line.y, x_axis, y_axis, "bright_black" if line.faint else STYLES[i % len(STYLES)]
        )

    text = Text(f"{' ' * (margin + 1)}{panel.title}\n", style="")
    for row in range(height):
        text.append(labels.get(row, "").rjust(margin) + (" ┤" if row in labels else " │"))
        for bits, style in zip(canvas.bits[row], canvas.styles[row]):
            text.append(chr(0x2800 + bits) if bits else " ", style)
        text.append("\n")
    text.append(" " * (margin + 1) + "└" + "─" * canvas.width + "\n")
    text.append(" " * (margin + 2) + _x_labels(x_axis, canvas.width) + "\n")
    text.append(" " * (margin + 2) + panel.x_label.center(canvas.width).rstrip() + "\n")
    for i, line in enumerate(panel.lines):
        text.append(" " * (margin + 2))
        text.append("━━ ", "bright_black" if line.faint else STYLES[i % len(STYLES)])
        text.append(printable(line.label) + "\n")
    for x, label in panel.marks:
        text.append(" " * (margin + 2))
        text.append("┆  ", MARK_STYLE)
        text.append(f"{printable(label)} ({x:.3g})\n")
    return text


def _trace(
    canvas: Canvas, xs: Sequence[float], ys: Sequence[float], x_axis: Axis, y_axis: Axis, style: str
) -> None:
    before: tuple[float, float] | None = None
    for x, y in zip(xs, ys):
        places = x_axis.place(x), y_axis.place(y)
        if places[0] is None or places[1] is None:
            before = None
            continue
        here = (places[0], places[1])
        canvas.line(before or here, here, style)
        before = here


def _x_labels(axis: Axis, width: int) -> str:
    """Five values along the axis, the first and last at its ends."""
    line = [" "] * width
    for t in range(5):
        value = axis.value(t / 4)
        label = f"{value:,.0f}" if not axis.log and axis.high >= 100 else f"{value:.3g}"
        start = min(max(round(t / 4 * (width - 1)) - len(label) // 2, 0), max(width - len(label), 0))
        line[start : start + len(label)] = label
    return "".join(line).rstrip()
