"""Line plots of commands, in the terminal and as pictures."""

from __future__ import annotations

import pytest

from recgrad.cli.plots import Line, Panel, save_picture
from recgrad.cli.terminal_plot import Axis, render


def test_a_rising_line_rises_from_corner_to_corner():
    panel = Panel("title", [Line("up", list(range(50)), list(range(50)))], "x", "y")
    rows = render(panel, 60, 10).plain.splitlines()[1:11]
    first = [row.rstrip() for row in rows]
    lengths = [len(row) for row in first]
    assert lengths == sorted(lengths, reverse=True)
    assert first[0].lstrip().startswith("49 ┤")
    assert first[-1].lstrip().startswith("0 ┤")


def test_values_without_a_place_are_left_out():
    axis = Axis.over([0.0, 1.0, 100.0, float("nan")], log=True)
    assert (axis.low, axis.high) == (1.0, 100.0)
    assert axis.place(0.0) is None
    assert axis.place(10.0) == pytest.approx(0.5)
    assert axis.value(0.5) == pytest.approx(10.0)
    assert Axis.over([3.0, 3.0], log=False).place(3.0) == pytest.approx(0.5)
    panel = Panel("t", [Line("a", [1, 2, 3], [1.0, float("nan"), 2.0]), Line("b", [], [])], "x", "y")
    assert "t" in render(panel, 40).plain


def test_marks_are_named_in_both_plots(tmp_path):
    panel = Panel(
        "t", [Line("a", [1e-3, 1.0], [1.0, 2.0])], "rate", "loss", log_x=True, marks=[(0.1, "best")]
    )
    assert "best (0.1)" in render(panel, 60).plain
    save_picture([panel, panel], tmp_path / "p.png")
    assert (tmp_path / "p.png").stat().st_size > 1000
