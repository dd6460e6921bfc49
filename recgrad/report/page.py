"""`recgrad report`: one HTML file about a run, with everything inside it."""

from __future__ import annotations

import html
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from recgrad.config import load_config, load_with_locations
from recgrad.config.class_paths import refuse_custom_code
from recgrad.config.load import CONFIG_FILE
from recgrad.errors import RecgradError, whole_path
from recgrad.report import plots, summary
from recgrad.report.diagnostics import auc_by_group_size, calibration_curve
from recgrad.training.checkpoint.staging import write_file_atomically
from recgrad.training.hooks.events import EVENTS_FILE
from recgrad.training.increments import read_lineage
from recgrad.training.processes import choose_device
from recgrad.training.run import load_trained
from recgrad.training.runtime import computing
from recgrad.training.scored import score_rows
from recgrad.version import __version__

MAX_DIAGNOSED_ROWS = 2_000_000
REMEDY = """<p>The weights of the best step are better than the last. Keep them with
export_config { exporter_type: "best" }, end earlier with train_config.early_stopping, or hold the model back
with weight decay, dropout or a smaller rate.</p>"""

CSS = """
:root { color-scheme: light dark; --ink: #1c2733; --paper: #fff; --line: #dfe4ea; --soft: #66737f;
        --warn: #9a5b00; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #dbe2ea; --paper: #15191e; --line: #303841; --soft: #94a1ad; --warn: #e0a64a; }
  svg { filter: invert(0.88) hue-rotate(180deg); }
}
* { box-sizing: border-box; }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
       max-width: 84rem; margin: 2rem auto; padding: 0 clamp(.75rem, 3vw, 1.5rem); }
h1 { font-size: 1.5rem; margin-bottom: 0; overflow-wrap: anywhere; }
h2 { font-size: 1.1rem; margin: 0 0 .5rem; overflow-wrap: anywhere; }
.soft { color: var(--soft); } .grid section { margin: 0; }
.warn { border-left: 4px solid var(--warn); }
.grid { display: grid; gap: 1.5rem; margin: 1.5rem 0;
       grid-template-columns: repeat(auto-fit, minmax(min(26rem, 100%), 1fr)); }
section { margin-top: 1.5rem; border: 1px solid var(--line); border-radius: 8px;
          padding: 1rem clamp(.7rem, 3vw, 1.2rem); min-width: 0; overflow-x: auto; }
svg { width: 100%; height: auto; display: block; } table { border-collapse: collapse; width: 100%; }
td, th { text-align: left; vertical-align: top; padding: .2rem .8rem .2rem 0;
         border-bottom: 1px solid var(--line); }
td { overflow-wrap: anywhere; } td:last-child, th:last-child { padding-right: 0; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; }
pre { overflow: auto; font-size: 13px; max-height: 40rem; } summary { cursor: pointer; }
"""


@computing()
def write_report(
    model_dir: str | Path,
    out: str | Path | None = None,
    *,
    device: str | torch.device = "auto",
    custom_code: bool = True,
) -> Path:
    """Write the report of a run; returns the file. `device` and `custom_code` are as for `predict`."""
    folder, chosen = Path(model_dir), choose_device(device)
    if not (folder / CONFIG_FILE).exists():
        raise RecgradError(
            f"report: {folder}{whole_path(folder)} has no {CONFIG_FILE}; name the model_dir of a run"
        )
    if not custom_code:
        loaded = load_with_locations(folder / CONFIG_FILE)
        refuse_custom_code(loaded.message, loaded.locations)
    events = load_events(folder / EVENTS_FILE)
    target = Path(out) if out is not None else folder / "report.html"
    target.parent.mkdir(parents=True, exist_ok=True)
    write_file_atomically(target, render(folder, events, chosen).encode())
    return target


def load_events(path: Path) -> list[dict[str, Any]]:
    """The events of a run in order; a torn last line of a killed run is left out."""
    events = []
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            events.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return events


def render(folder: Path, events: Sequence[Mapping[str, Any]], device: torch.device) -> str:
    """The page."""
    steps = [event for event in events if event["kind"] == "train"]
    evaluations = [event for event in events if event["kind"] == "eval"]
    sections = [
        *_day_sections(folder),
        *_curve_sections(steps, evaluations),
        *_turnover_sections(steps),
        *_diagnostic_sections(folder, device),
    ]
    grid = "\n".join(f"<section><h2>{html.escape(t)}</h2>{body}</section>" for t, body in sections)
    extent = f"{steps[-1]['step']:,} steps, {steps[-1]['samples']:,} rows" if steps else "no steps logged"
    config_text = html.escape((folder / CONFIG_FILE).read_text())
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Recgrad: {html.escape(folder.name)}</title>
<meta name="viewport" content="width=device-width, initial-scale=1"><style>{CSS}</style></head><body>
<h1>{html.escape(str(folder))}</h1>
<p class="soft">{extent}, Recgrad {__version__}</p>
<div class="grid"><section><h2>Run</h2>{_facts(folder, events)}</section>
<section><h2>{_evaluation_title(evaluations)}</h2>{_metrics_table(evaluations)}</section></div>
{_overfitting(steps, evaluations)}
<div class="grid">{grid}</div>
<section><h2>Environment</h2>{_environment(events)}</section>
<section><details><summary>Config</summary><pre>{config_text}</pre></details></section>
</body></html>
"""


def _facts(folder: Path, events: Sequence[Mapping[str, Any]]) -> str:
    try:
        config = load_config(folder / CONFIG_FILE)
    except RecgradError as error:
        return f"<p>{html.escape(str(error))}</p>"
    return _table(summary.facts(config, events), numbers=False)


def _evaluation_title(evaluations: Sequence[Mapping[str, Any]]) -> str:
    found = summary.told(evaluations)
    return "Last evaluation" if found is None or found.best is None else "Last and best evaluation"


def _overfitting(steps: Sequence[Mapping[str, Any]], evaluations: Sequence[Mapping[str, Any]]) -> str:
    """A word where the evaluation gets worse while the training loss falls."""
    said = "".join(f"<li>{html.escape(x)}</li>" for x in summary.overfitting(steps, evaluations))
    if not said:
        return ""
    return f'<section class="warn"><h2>The model has begun to overfit</h2><ul>{said}</ul>{REMEDY}</section>'


def _curve_sections(
    steps: Sequence[Mapping[str, Any]], evaluations: Sequence[Mapping[str, Any]]
) -> Iterable[tuple[str, str]]:
    if not steps:
        yield (
            "Training",
            f"<p>Nothing was logged: the run ended before its first log line, or {EVENTS_FILE} is gone.</p>",
        )
        return
    yield "Training loss", plots.curves(_series(steps, "losses"), y_label="loss")
    if any(step["metrics"] for step in steps):
        yield "Training metrics", plots.curves(_series(steps, "metrics"), y_label="decayed value")
    # A single evaluation is in the table above; a curve needs two.
    for name, series in _series(evaluations[1:] and evaluations, "metrics").items():
        yield f"Evaluation: {name}", plots.curves({name: series}, y_label=name)
    yield "Learning rates", plots.curves(_series(steps, "rates"), y_label="rate", log=True)
    speed = {"samples/s": _column(steps, "samples_per_sec")}
    yield "Throughput", plots.curves(speed, y_label="samples per second")
    wait = {"data wait": _column(steps, "data_wait_share")}
    yield "Share of time waiting for data", plots.curves(wait, y_label="share")
    yield from _usage_sections(steps)
    if any(step.get("grad_norm") is not None for step in steps):
        norms = {"gradient norm": _column(steps, "grad_norm")}
        yield "Gradient norm (dense)", plots.curves(norms, y_label="norm", log=True)


def _day_sections(folder: Path) -> Iterable[tuple[str, str]]:
    """Of a model that is trained day by day: what it was worth on each day before training on it."""
    try:
        days = [day for day in read_lineage(folder) if day.before]
    except RecgradError as error:
        yield "Days", f"<p>{html.escape(str(error))}</p>"
        return
    for name in dict.fromkeys(name for day in days for name in day.before):
        own = [(i, day.before[name]) for i, day in enumerate(days) if day.before.get(name) is not None]
        rows = [(days[i].day, f"{value:.6f}") for i, value in own]
        series = [float(i) for i, _ in own], [value for _, value in own]
        curve = plots.curves({name: series}, y_label=name) if own[1:] else ""
        yield f"{name} before training on the day", curve + _table(rows)


def _turnover_sections(steps: Sequence[Mapping[str, Any]]) -> Iterable[tuple[str, str]]:
    """Of tables whose rows belong to ids: how many have one, and how many came and went."""
    logged = [step for step in steps if step.get("turnover")]
    if not logged:
        return
    at = [step["step"] for step in logged]
    tables = {
        name: (at, [step["turnover"].get(name, {}).get("live", 0) for step in logged])
        for name in logged[-1]["turnover"]
    }
    rows = [
        (name, ", ".join(f"{word.replace('_', ' ')} {count:,}" for word, count in own.items()))
        for name, own in logged[-1]["turnover"].items()
    ]
    yield "Ids that have rows", plots.curves(tables, y_label="ids") + _table(rows, numbers=False)


def _usage_sections(steps: Sequence[Mapping[str, Any]]) -> Iterable[tuple[str, str]]:
    """Memory and processor time of the process that logged; logs of older versions have none."""
    fields = {"resident": "resident_bytes", "tables": "table_bytes"}
    columns = {name: _column(steps, field) for name, field in fields.items()}
    used = {name: (at, [size / 1e9 for size in sizes]) for name, (at, sizes) in columns.items() if sizes}
    if used:
        most = ", ".join(f"{name} {max(sizes):.2f} GB" for name, (_, sizes) in used.items())
        yield f"Memory, at most {most}", plots.curves(used, y_label="GB")
    share = _column(steps, "cpu_share")
    if share[1]:
        yield "Share of the cores in use", plots.curves({"cores": share}, y_label="share")


def _diagnostic_sections(folder: Path, device: torch.device) -> Iterable[tuple[str, str]]:
    """Calibration and AUC by group size of the newest checkpoint on the evaluation data."""
    try:
        trained = load_trained(load_config(folder / CONFIG_FILE), folder, device=device)
        path = trained.config.eval_input_path
        found = score_rows(trained, path, device=device, most_rows=MAX_DIAGNOSED_ROWS)
    except (RecgradError, OSError) as error:
        yield "Calibration", f"<p>This cannot be computed now: {html.escape(str(error))}</p>"
        return
    for task, values in found.scores.items():
        title = f"Calibration{task and ' of ' + task}"
        yield title, plots.calibration(calibration_curve(values, found.labels[task]))
        for name, key in found.keys.items():
            sizes = auc_by_group_size(values, found.labels[task], key)
            if sizes.labels:
                title = f"AUC by size of {name} groups{task and ' of ' + task}"
                yield title, plots.group_sizes(sizes)


def _series(events: Sequence[Mapping[str, Any]], field: str) -> dict[str, Any]:
    names = dict.fromkeys(name for event in events for name in event[field])
    if field == "losses" and len(names) == 2:
        names.pop("total")  # one term: its sum is the same line
    return {
        name: (
            [event["step"] for event in events if event[field].get(name) is not None],
            [event[field][name] for event in events if event[field].get(name) is not None],
        )
        for name in names
    }


def _column(events: Sequence[Mapping[str, Any]], field: str) -> tuple[list[int], list[float]]:
    known = [event for event in events if event.get(field) is not None]
    return [event["step"] for event in known], [event[field] for event in known]


def _metrics_table(evaluations: Sequence[Mapping[str, Any]]) -> str:
    found = summary.told(evaluations)
    if found is None:
        return "<p>No evaluation was logged.</p>"
    shown = [("last", found.last)] + ([] if found.best is None else [("best", found.best)])
    head = "".join(f'<th class="number">{word}, step {event["step"]:,}</th>' for word, event in shown)
    rows = "".join(
        f"<tr><th>{html.escape(name)}</th>{''.join(_value(event, name) for _, event in shown)}</tr>"
        for name in sorted(found.last["metrics"])
    )
    by = f'<p class="soft">Best by {html.escape(found.decided_by)}.</p>' if found.best is not None else ""
    return f"<table><tr><th></th>{head}</tr>{rows}</table>{by}"


def _value(event: Mapping[str, Any], name: str) -> str:
    value = event["metrics"].get(name)
    return f'<td class="number">{"undefined" if value is None else format(value, ".6f")}</td>'


def _table(rows: Iterable[tuple[str, str]], *, numbers: bool = True) -> str:
    kind = ' class="number"' if numbers else ""
    cells = "".join(
        f"<tr><th>{html.escape(name)}</th><td{kind}>{html.escape(value)}</td></tr>" for name, value in rows
    )
    return f"<table>{cells}</table>"


def _environment(events: Sequence[Mapping[str, Any]]) -> str:
    """Where the run was made; after a resume it may have gone on elsewhere."""
    starts = [event for event in events if event["kind"] == "start" and "machine" in event]
    if not starts:
        return "<p>The log does not say where the run was made.</p>"
    last = starts[-1]
    others = "other machines, processes or packages made those before"
    several = any(start["machine"] != last["machine"] for start in starts)
    head = f"<p>From step {last['step']:,} on; {others}.</p>" if several else ""
    return head + _table(last["machine"].items())
