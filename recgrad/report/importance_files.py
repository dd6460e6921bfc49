"""What features are worth, as files: CSV, JSON and a picture."""

from __future__ import annotations

import csv
import io
import json
import math
from pathlib import Path
from typing import Any

import matplotlib as mpl

from recgrad.report.importance import Importance
from recgrad.report.plots import STYLE
from recgrad.training.checkpoint.staging import write_file_atomically

MOST_BARS = 40
COLOR, NOTHING = "#3b6fb6", "#b8bfc7"


def write_tables(folder: Path, found: Importance) -> list[Path]:
    """importance.csv, a line for each unit, and importance.json."""
    names = list(found.metrics)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    heads = [head for name in names for head in (name, f"{name}_deviation")]
    writer.writerow(["unit", "features", *heads, "dropout"])
    for worth in found.worths:
        pairs = [value for name in names for value in (worth.means[name], worth.deviations[name])]
        cells = [
            "" if value is None or math.isnan(value) else repr(value) for value in (*pairs, worth.dropout)
        ]
        writer.writerow([worth.unit.name, " ".join(worth.unit.features), *cells])
    content = {
        "rows": found.rows,
        "repeats": found.repeats,
        "metrics": dict(found.metrics),
        "units": [
            {
                "name": worth.unit.name,
                "features": list(worth.unit.features),
                "means": dict(worth.means),
                "deviations": {k: None if math.isnan(v) else v for k, v in worth.deviations.items()},
                "dropout": worth.dropout,
            }
            for worth in found.worths
        ],
    }
    paths = [folder / "importance.csv", folder / "importance.json"]
    write_file_atomically(paths[0], text.getvalue().encode())
    write_file_atomically(paths[1], json.dumps(content, indent=1).encode() + b"\n")
    return paths


def write_picture(path: Path, found: Importance) -> None:
    """Bars of the first metric, with the deviation over the deals; the first units where there are many."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    shown = found.worths[:MOST_BARS]
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(8, 1.1 + 0.26 * len(shown)), dpi=150)
        FigureCanvasAgg(figure)
        _bars(figure.add_subplot(), found, shown)
        figure.savefig(path)


def _bars(axes: Any, found: Importance, shown: Any) -> None:
    metric = found.metric
    means = [worth.means[metric] for worth in shown]
    spreads = [worth.deviations[metric] for worth in shown]
    places = range(len(shown))
    colors = [COLOR if mean > 0 else NOTHING for mean in means]
    spread = None if any(math.isnan(value) for value in spreads) else spreads
    axes.barh(places, means, xerr=spread, color=colors, ecolor="#1f2937", error_kw={"linewidth": 0.8})
    axes.set_yticks(places, [_short(worth.unit.name) for worth in shown], fontsize=8)
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    axes.set_axisbelow(True)
    axes.margins(y=0.01)
    axes.set_xlabel(f"what {metric} loses when the values are shuffled ({found.repeats} times)")
    more = f", the first {len(shown)} of {len(found.worths)}" if len(shown) < len(found.worths) else ""
    title = f"{metric} {found.metrics[metric]:.4f} on {found.rows:,} rows{more}"
    axes.set_title(title, loc="left", fontsize=10)


def _short(name: str, most: int = 40) -> str:
    return name if len(name) <= most else f"{name[: most - 1]}…"
