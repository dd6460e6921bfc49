"""The HTML report of a search: trials, importance of what was changed, and parallel coordinates."""

from __future__ import annotations

import html
import json
import math
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from recgrad.experiments.tune import import_optuna
from recgrad.report.plots import draw

_STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:72rem;margin:2rem auto;padding:0 1rem}"
    "table{border-collapse:collapse;font-size:13px}td,th{padding:.2rem .6rem;text-align:right}"
    "th{border-bottom:1px solid #888}svg{max-width:100%;height:auto}.wide{overflow-x:auto}"
    "@media(prefers-color-scheme:dark){body{background:#16181c;color:#ddd}svg{background:#fff}}"
)


def write_page(study: Any, metric: str, path: Path) -> Path:
    """Write the report of a study."""
    trials = sorted(
        (trial for trial in study.get_trials(deepcopy=False) if trial.params),
        key=lambda trial: (trial.value is None, -(trial.value or 0) * _sign(study)),
    )
    names = list(dict.fromkeys(name for trial in trials for name in trial.params))
    parts = [
        f"<h1>Search for the best {html.escape(metric)}</h1>",
        f"<p>{len(trials)} trials, {sum(trial.value is not None for trial in trials)} of them whole</p>",
        "<h2>Trials</h2><div class=wide>" + _table(trials, names) + "</div>",
    ]
    shares = importance(study)
    if shares:
        parts.append(
            "<h2>What matters</h2>" + draw(lambda axes: _bars(axes, shares), height=0.5 + 0.3 * len(shares))
        )
    whole = [trial for trial in trials if trial.value is not None]
    if len(whole) > 1 and names:
        parts.append(
            "<h2>Parallel coordinates</h2><p>A line for each whole trial, the best ones dark.</p>"
            + draw(lambda axes: _coordinates(axes, whole, names), height=3.6)
        )
    text = "<!doctype html><meta charset=utf-8><meta name=viewport content='width=device-width'>"
    text += "<title>Search</title>"
    path.write_text(f"{text}<style>{_STYLE}</style>{''.join(parts)}\n", encoding="utf-8")
    return path


def importance(study: Any) -> dict[str, float]:
    """How much each parameter explains of what the best trials have in common; {} with few trials.

    Paper: Watanabe et al. 2023 (PED-ANOVA), arXiv:2304.10255
    """
    optuna = import_optuna()
    whole = study.get_trials(deepcopy=False, states=[optuna.trial.TrialState.COMPLETE])
    if len(whole) < 8:
        return {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            evaluator = optuna.importance.PedAnovaImportanceEvaluator()
            found = optuna.importance.get_param_importances(study, evaluator=evaluator)
        except (ValueError, RuntimeError):  # such as trials that are all alike
            return {}
    return {name: float(share) for name, share in found.items() if math.isfinite(share)}


def short(name: str) -> str:
    """The end of a path, enough to know it by."""
    first = name.partition(";")[0].strip()
    return ".".join(first.split(".")[-2:]).removeprefix("feature_configs[embedding_dim>=1].")


def _sign(study: Any) -> int:
    return 1 if study.direction.name == "MAXIMIZE" else -1


def _table(trials: list[Any], names: list[str]) -> str:
    head = "".join(f"<th title='{html.escape(name)}'>{html.escape(short(name))}</th>" for name in names)
    rows = []
    for trial in trials:
        value = f"{trial.value:.6f}" if trial.value is not None else trial.state.name.lower()
        cells = "".join(f"<td>{html.escape(_cell(trial.params.get(name)))}</td>" for name in names)
        rows.append(f"<tr><td>{trial.number}</td><td>{value}</td>{cells}</tr>")
    return f"<table><tr><th>trial</th><th>value</th>{head}</tr>{''.join(rows)}</table>"


def _cell(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _bars(axes: Any, shares: dict[str, float]) -> None:
    names = sorted(shares, key=lambda name: shares[name])
    axes.barh([short(name) for name in names], [shares[name] for name in names])
    axes.set_xlabel("share")


def _coordinates(axes: Any, trials: list[Any], names: list[str]) -> None:
    columns = [_scaled([trial.params.get(name) for trial in trials]) for name in names]
    columns.append(_scaled([trial.value for trial in trials]))
    for rank in reversed(range(len(trials))):
        shade = 0.85 * rank / max(len(trials) - 1, 1)
        axes.plot([column[rank] for column in columns], color=str(shade), linewidth=1)
    axes.set_xticks(
        range(len(columns)), [*(short(name) for name in names), "value"], rotation=30, ha="right", fontsize=6
    )
    axes.set_yticks([0, 1], ["least", "most"])


def _scaled(values: list[Any]) -> list[float]:
    """Values from 0 to 1: numbers by size, or by logarithm where they span decades; others by their order."""
    if all(isinstance(value, (int, float)) for value in values):
        numbers = np.array(values, np.float64)
        if numbers.min() > 0 and numbers.max() > 20 * numbers.min():
            numbers = np.log(numbers)
    else:
        texts = [value if isinstance(value, str) else json.dumps(value) for value in values]
        known = {text: place for place, text in enumerate(sorted(set(texts)))}
        numbers = np.array([known[text] for text in texts], np.float64)
    span = float(np.ptp(numbers)) or 1.0
    return [float(number) for number in (numbers - numbers.min()) / span]
