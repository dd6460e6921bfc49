"""Is model B better than model A: differences of metrics on the same rows, with intervals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
import torch

from recgrad.errors import RecgradError
from recgrad.limits import Inside, Range, keep_limits
from recgrad.metrics.base import check_numbers
from recgrad.metrics.grouped_auc import Weighting
from recgrad.metrics.keys import Keys, keys_of
from recgrad.metrics.pairs import Floats, Ints, group_starts
from recgrad.report.differences import (
    Bootstrap,
    Difference,
    auc_difference,
    grouped_auc_difference,
    log_loss_difference,
)


@dataclass(frozen=True)
class Comparison:
    """The differences of two models on the same rows.

    Attributes:
        differences: one a metric.
        rows: rows compared.
        groups: groups of rows, or None when rows stand alone.
        positive_rate: mean label.
        confidence: that of the intervals.
        notes: what could not be compared, and why.
        reliability: by model, mean prediction and mean label of rows in ten bins of equal
            size by prediction, [10, 2].
    """

    differences: tuple[Difference, ...]
    rows: int
    groups: int | None
    positive_rate: float
    confidence: float
    notes: tuple[str, ...]
    reliability: dict[str, Floats]

    def __getitem__(self, metric: str) -> Difference:
        for item in self.differences:
            if item.metric == metric:
                return item
        raise KeyError(metric)

    @property
    def verdict(self) -> str:
        """One line: who is better, and in what."""
        won = {name: [d.metric for d in self.differences if d.winner == name] for name in "AB"}
        if not won["A"] and not won["B"]:
            return f"no difference shown at {self.confidence:.0%} confidence"
        parts = [f"{name} is better in {_listed(metrics)}" for name, metrics in won.items() if metrics]
        if won["A"] and won["B"]:
            return "mixed: " + "; ".join(parts)
        open_ = [d.metric for d in self.differences if d.winner is None]
        return parts[0] + (f"; no difference shown in {_listed(open_)}" if open_ else "")

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers and strings, for JSON."""
        differences = [asdict(d) | {"winner": d.winner} for d in self.differences]
        return {
            "rows": self.rows,
            "groups": self.groups,
            "positive_rate": self.positive_rate,
            "confidence": self.confidence,
            "differences": differences,
            "notes": list(self.notes),
            "verdict": self.verdict,
        }

    def __str__(self) -> str:
        groups = "" if self.groups is None else f" in {self.groups:,} groups"
        lines = [f"{self.rows:,} rows{groups}, positive rate {self.positive_rate:.4f}"]
        interval = f"{self.confidence:.0%} interval"
        lines.append(f"{'':<12} {'A':>9} {'B':>9} {'B − A':>10}   {interval:^22} {'p':>7}")
        for d in self.differences:
            span = f"[{d.low:+.6f}, {d.high:+.6f}]"
            lines.append(
                f"{d.metric:<12} {d.a:>9.6f} {d.b:>9.6f} {d.difference:>+10.6f}   {span:^22} "
                f"{d.p_value:>7.2g}"
            )
        by_method: dict[str, list[str]] = {}
        for d in self.differences:
            by_method.setdefault(d.method, []).append(d.metric)
        lines += [f"{', '.join(metrics)}: {method}" for method, metrics in by_method.items()]
        lines += [f"note: {note}" for note in self.notes]
        return "\n".join([*lines, f"verdict: {self.verdict}"])

    def plot(self, path: str | Path) -> None:
        """Write a picture of the intervals and of both models' calibration."""
        from recgrad.report.comparison_plot import write_plot

        write_plot(path, self.differences, self.reliability, verdict=self.verdict, confidence=self.confidence)


@keep_limits
def compare(
    labels: Any,
    scores_a: Any,
    scores_b: Any,
    groups: Keys | None = None,
    *,
    weighting: Weighting = "NONE",
    confidence: Inside = 0.95,
    num_resamples: Annotated[int, Range("[100, ∞)")] = 1000,
    seed: int = 0,
) -> Comparison:
    """Compare two models' probabilities for the same rows.

    AUC by DeLong's variance (DeLong et al., 1988), log loss and grouped AUC by a paired
    bootstrap of percentiles. With groups, such as users, rows of a group are not
    independent: the bootstrap draws whole groups, and DeLong's variance is summed by group
    (Obuchowski, 1997). Takes about 100 bytes a row.

    Args:
        labels: 0 or 1, [rows].
        scores_a: probabilities of model A, [rows].
        scores_b: probabilities of model B, [rows].
        groups: the group of each row, integers or strings; adds grouped AUC.
        weighting: of the groups in grouped AUC: NONE, IMPRESSIONS or POSITIVES.
        confidence: of the intervals.
        num_resamples: draws of the bootstrap.
        seed: of the draws.
    """
    if groups is None and weighting != "NONE":
        raise ValueError(f"weighting is of groups, got {weighting} without groups")
    positive, scores = _checked(labels, scores_a, scores_b)
    order, starts = _groups(groups, len(positive))
    positive, scores = positive[order], scores[:, order]
    draws = Bootstrap(confidence, num_resamples, seed)
    clusters = (
        np.arange(len(positive)) if starts is None else np.repeat(np.arange(len(starts) - 1), np.diff(starts))
    )
    by = "rows" if starts is None else "groups"
    how = "DeLong" if starts is None else "DeLong by group"
    found = [auc_difference(positive, scores, clusters, confidence, how)]
    notes = []
    if starts is not None:
        grouped = grouped_auc_difference(positive, scores, starts, weighting, draws)
        if grouped is None:
            notes.append("no group has rows of both classes, so there is no grouped AUC")
        else:
            found.append(grouped)
    found.append(log_loss_difference(positive, scores, clusters, draws, f"bootstrap of {by}"))
    return Comparison(
        differences=tuple(found),
        rows=len(positive),
        groups=None if starts is None else len(starts) - 1,
        positive_rate=float(positive.mean()),
        confidence=confidence,
        notes=tuple(notes),
        reliability={name: _reliability(scores[i], positive) for i, name in enumerate("AB")},
    )


def _reliability(scores: Floats, positive: npt.NDArray[np.bool_]) -> Floats:
    parts = np.array_split(np.argsort(scores, kind="stable"), min(10, len(scores)))
    return np.array([[scores[part].mean(), positive[part].mean()] for part in parts])


def _groups(groups: Keys | None, rows: int) -> tuple[Ints, Ints | None]:
    if groups is None:
        return np.arange(rows), None
    keys = keys_of(groups, rows, "compare").numpy()
    order = np.argsort(keys, kind="stable")
    return order, group_starts(keys[order])


def _checked(labels: Any, *scores: Any) -> tuple[npt.NDArray[np.bool_], Floats]:
    label = np.asarray(labels).reshape(-1)
    if not np.isin(label, (0, 1)).all():
        raise RecgradError(f"compare: labels must be 0 or 1, got {label[~np.isin(label, (0, 1))][0]}")
    columns = [np.array(column, dtype=np.float64).reshape(-1) for column in scores]
    for name, column in zip("AB", columns):
        if len(column) != len(label):
            raise RecgradError(
                f"compare: there are {len(label)} labels but {len(column)} predictions of {name}"
            )
        check_numbers(torch.from_numpy(column), f"compare: {name}")
        if len(column) and not (column.min() >= 0 and column.max() <= 1):
            raise RecgradError(
                f"compare: predictions of {name} must be probabilities in [0, 1], "
                f"got {column.min():g} … {column.max():g}"
            )
    return label.astype(bool), np.stack(columns)


def _listed(names: Sequence[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
